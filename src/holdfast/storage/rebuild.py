"""Rebuilding the catalog from the packs, into a new file that takes the place of the old one.

Steps, each of which can be the last:

1. Apply the deltas of the live packs in the order of the log to a new catalog beside the old one.
   Extents of streams that do not exist in the end are dead.
2. See that every stream is whole; otherwise nothing is replaced.
3. Move the old catalog aside with SQLite's log of it, then give the new one its name. Never is
   there a catalog with the log of another, which SQLite would mix into it. Between the two there
   is none at all, and the rebuild has to be run again.
"""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING, Final

from holdfast.errors import CatalogError
from holdfast.failpoints import failpoint
from holdfast.format.rows import decode_row
from holdfast.objects.pack_reader import Pack
from holdfast.objects.store import store_owner
from holdfast.storage.bucket_sums import complete
from holdfast.storage.catalog_check import check_streams
from holdfast.storage.catalog_schema import open_for_reading
from holdfast.storage.catalog_writer import (
    CatalogWriter,
    RowChange,
    insert_pack,
    put_documents,
    put_rows,
    row_change,
)
from holdfast.storage.findings import Findings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.format.packs import Delta
    from holdfast.objects.store import ObjectStore
    from holdfast.storage.live_packs import LivePacks, SoundPack

# What SQLite keeps beside a catalog.
_WAL: Final = "-wal"
_SHARED: Final = "-shm"


def rebuild(store: ObjectStore, live: LivePacks, path: Path, now_ms: int) -> Path | None:
    """Put a catalog of the live packs in place; where the old one is now, if there was one.

    Raises a CatalogError, with everything left as it was, if the packs do not have it all.
    """
    if live.missing is not None:
        raise CatalogError(
            f"Positions {live.missing[0]} to {live.missing[1]} of the log are in no sound pack. "
            "Restore the packs that hold them from a backup; the catalog was not replaced."
        )
    new = _beside(path, ".new")
    try:
        _remove(new)
        build(store, live, new, now_ms)
        _refuse_holes(new)
        assert not _beside(new, _WAL).exists(), "a closed catalog is one file"
        _sync(new)
        failpoint("repair.rebuilt")
        return _put_in_place(new, path)
    except OSError as error:
        raise CatalogError(f"The catalog {path} cannot be rebuilt: {error}.") from error
    finally:
        _remove(new)


def build(store: ObjectStore, live: LivePacks, path: Path, now_ms: int) -> None:
    """Write a new catalog of the live packs."""
    catalog = CatalogWriter(path)
    try:
        for companion in live.companions:
            _insert(catalog, Pack(store, companion.name, companion.size_bytes), None)
        for main in live.mains:
            pack = Pack(store, main.name, main.size_bytes)
            _insert(catalog, pack, pack.delta())
            catalog.checkpoint()
        for superseded, by in live.superseded:
            _insert_retired(catalog, store, superseded, by, now_ms)
        _settle(catalog)
        catalog.set_fact("flushed", live.through)
        catalog.set_fact("store", store_owner(store))
        catalog.checkpoint()
    finally:
        catalog.close()


def _insert(catalog: CatalogWriter, pack: Pack, delta: Delta | None) -> None:
    """Put a pack into use with all of its extents, and apply its delta."""
    new = pack.describe()
    with catalog.transaction() as connection:
        try:
            insert_pack(connection, new.info, new.extents)
            if delta is not None:
                connection.executemany(
                    "DELETE FROM streams WHERE number = ?",
                    ((number,) for number in delta.meta.removed),
                )
                put_rows(connection, _changes(delta))
                put_documents(connection, delta.meta.documents)
                _move_flushed_ms(connection, delta.meta.last_ms)
        except sqlite3.IntegrityError as error:
            raise CatalogError(
                f"The packs contradict each other: what {pack.name} holds is in another as well "
                f"({error}). The catalog was not replaced."
            ) from error


def _move_flushed_ms(connection: sqlite3.Connection, last_ms: int) -> None:
    connection.execute(
        "UPDATE facts SET value = max(value, ?) WHERE name = 'flushed_ms'", (last_ms,)
    )


def _changes(delta: Delta) -> Iterator[RowChange]:
    for encoded in dict(delta.items()).values():
        row = decode_row(encoded)
        yield row_change(row, encoded)


def _insert_retired(
    catalog: CatalogWriter, store: ObjectStore, pack: SoundPack, by: str, now_ms: int
) -> None:
    """Enter a superseded pack as out of use since now, for garbage collection to find."""
    new = Pack(store, pack.name, pack.size_bytes).describe()
    with catalog.transaction() as connection:
        number = insert_pack(connection, new.info, ())
        connection.execute(
            "UPDATE packs SET retired_ms = ?, retired_by = ? WHERE id = ?", (now_ms, by, number)
        )


def _settle(catalog: CatalogWriter) -> None:
    """Let go of extents whose streams are gone, and count what is left."""
    with catalog.transaction() as connection:
        # Packs of older versions do not tell of buckets.
        complete(connection)
        connection.execute(
            "DELETE FROM extents WHERE NOT EXISTS (SELECT 1 FROM streams WHERE "
            "streams.number = extents.stream AND extents.start + extents.length > streams.start)"
        )
        connection.execute(
            "UPDATE packs SET dead_bytes = data_bytes - "
            "(SELECT coalesce(sum(length), 0) FROM extents WHERE extents.pack = packs.id) "
            "WHERE retired_ms IS NULL"
        )
        connection.execute(
            "UPDATE facts SET value = (SELECT count(*) FROM streams) WHERE name = 'streams'"
        )
        connection.execute(
            "UPDATE facts SET value = (SELECT coalesce(sum(length), 0) FROM extents) "
            "WHERE name = 'stored_bytes'"
        )


def _refuse_holes(path: Path) -> None:
    findings = Findings()
    connection = open_for_reading(path)
    try:
        check_streams(connection, findings)
    finally:
        connection.close()
    if not findings.ok:
        words = "; ".join(found.what for found in findings.of("damage"))
        raise CatalogError(
            f"The packs do not have all bytes: {words}. Restore the missing packs from a backup; "
            "the catalog was not replaced."
        )


def _put_in_place(new: Path, path: Path) -> Path | None:
    aside = _beside(path, ".damaged")
    existed = path.exists()
    if existed:
        _remove(aside)
        path.rename(aside)
        if _beside(path, _WAL).exists():
            _beside(path, _WAL).rename(_beside(aside, _WAL))
    _remove(path)
    _sync(path.parent)
    new.rename(path)
    _sync(path.parent)
    return aside if existed else None


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _remove(path: Path) -> None:
    """Remove a catalog with what SQLite keeps beside it, as far as it is there."""
    for each in (path, _beside(path, _WAL), _beside(path, _SHARED)):
        each.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
