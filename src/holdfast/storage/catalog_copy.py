"""Copying a catalog: as of one moment out of a live one, and to and from an object store."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from xxhash import xxh3_64

from holdfast.errors import CatalogError, HoldfastError
from holdfast.storage.catalog_schema import damaged, decoded_row, open_for_reading
from holdfast.storage.catalog_writer import CatalogWriter
from holdfast.storage.manifest import CopiedObject, CopiedPack, copied_snapshot
from holdfast.storage.object_copy import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.objects.store import ObjectStore
    from holdfast.storage.manifest import CopiedSegment

    Advance = Callable[[int], object]

_PAGES_PER_STEP: Final = 4096


class CopiedCatalog(NamedTuple):
    """What a copied catalog says."""

    flushed: int
    streams: int
    stored_bytes: int
    store: str
    packs: list[CopiedPack]
    snapshots: list[CopiedObject]


def copy_catalog(path: Path, copy: Path) -> CopiedCatalog:
    """Copy the catalog as of one moment, while its writer goes on.

    Packs and snapshots that are out of use stay behind, and pins: they mean nothing elsewhere.
    """
    try:
        with closing(open_for_reading(path)) as source, closing(sqlite3.connect(copy)) as target:
            # One transaction around all steps, or every commit of the writer would start it over.
            source.execute("BEGIN")
            source.execute("SELECT value FROM facts").fetchall()
            # With something to call between the steps Ctrl-C is noticed there.
            source.backup(target, pages=_PAGES_PER_STEP, progress=lambda *_: None)
            # The whole copy is one file.
            target.execute("PRAGMA journal_mode = DELETE")
            target.execute("DELETE FROM pins")
            target.execute("DELETE FROM packs WHERE retired_ms IS NOT NULL")
            target.execute("DELETE FROM dropped_snapshots")
            target.commit()
            (verdict,) = target.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise damaged(path, verdict)
            return _facts(path, target)
    except sqlite3.Error as error:
        raise CatalogError(
            f"The catalog {path} cannot be copied to {copy.parent}: {error}. Where there is no "
            "room, TMPDIR names another directory for the copy."
        ) from error


def _facts(path: Path, catalog: sqlite3.Connection) -> CopiedCatalog:
    facts = dict(catalog.execute("SELECT name, value FROM facts"))
    packs = catalog.execute("SELECT name, size_bytes FROM packs ORDER BY name")
    return CopiedCatalog(
        facts["flushed"],
        facts["streams"],
        facts["stored_bytes"],
        facts["store"],
        [CopiedPack(*row) for row in packs],
        list(_snapshots(path, catalog)),
    )


def _snapshots(path: Path, catalog: sqlite3.Connection) -> Iterator[CopiedObject]:
    """Every body that a stream has, once; a fork may have that of its source."""
    rows = catalog.execute(
        "SELECT row FROM streams WHERE snapshot IS NOT NULL GROUP BY snapshot ORDER BY snapshot"
    )
    for (encoded,) in rows:
        snapshot = decoded_row(path, encoded).snapshot
        if snapshot is None:
            raise damaged(path, ValueError("a row has no snapshot, and its column has"))
        yield copied_snapshot(snapshot)


def adopt_catalog(path: Path, store: str) -> None:
    """Have a copied catalog belong to the object store with this mark."""
    catalog = CatalogWriter(path)
    try:
        catalog.set_fact("store", store)
    finally:
        catalog.close()


def upload(store: ObjectStore, name: str, path: Path, advance: Advance) -> CopiedObject:
    """Put a file into a store, piece by piece."""
    digest = xxh3_64()
    size = 0

    def pieces() -> Iterator[bytes]:
        nonlocal size
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
                size += len(piece)
                yield piece
                advance(len(piece))

    store.put_parts(name, pieces())
    return CopiedObject(name, size, digest.hexdigest())


def download(
    store: ObjectStore, copied: CopiedObject | CopiedSegment, path: Path, advance: Advance
) -> None:
    """Write an object to a file, piece by piece; raises if it is not what was put there."""
    digest = xxh3_64()
    path.touch(0o640)
    with path.open("wb") as file:
        for at in range(0, copied.size_bytes, PIECE_BYTES):
            piece = store.read(copied.name, at, PIECE_BYTES)
            digest.update(piece)
            file.write(piece)
            advance(len(piece))
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    if size != copied.size_bytes or digest.hexdigest() != copied.xxh3:
        raise HoldfastError(
            f"{copied.name} in {store.url} is damaged: it does not match its checksum."
        )
