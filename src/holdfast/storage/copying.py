"""Copying objects, packs, snapshots and catalogs between stores, for backups and restores.

Every byte is verified on its way. A pack's checksums are at its end, so the end is read first; then
the pack is read in pieces, and each block is checked before the next piece is requested.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from functools import partial
from struct import iter_unpack
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from xxhash import xxh3_64

from holdfast.errors import CatalogError, HoldfastError, PackCorruptError
from holdfast.format.packs import PackFormatError, checksum, encode_footer
from holdfast.objects.pack_reader import Pack, naming
from holdfast.storage.catalog_schema import damaged, decoded_row, open_for_reading
from holdfast.storage.catalog_writer import CatalogWriter
from holdfast.storage.garbage import PACKS_PREFIX
from holdfast.storage.manifest import CopiedObject, CopiedPack, copied_snapshot
from holdfast.storage.snapshot_store import SNAPSHOTS_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from holdfast.objects.store import ObjectStore
    from holdfast.storage.manifest import CopiedObject, CopiedPack

    Advance = Callable[[int], object]

PIECE_BYTES: Final = 8 * 1024 * 1024
# A distant store has a high latency, not a low throughput.
_AT_ONCE: Final = 4
_PAGES_PER_STEP: Final = 4096


Each = TypeVar("Each", bound=CopiedPack)


class _StoppedError(Exception):
    """Copying another object failed, so this one stops too."""


def missing_objects(target: ObjectStore, prefix: str, objects: Sequence[Each]) -> list[Each]:
    """The objects that the target lacks; names are unique, so name and size identify one."""
    if not objects:
        return []
    there = {info.name: info.size_bytes for info in target.list(prefix)}
    return [each for each in objects if there.get(each.name) != each.size_bytes]


class MissingObjects:
    """The packs and snapshots that a target store lacks, and how to copy them from the source."""

    def __init__(
        self,
        source: ObjectStore,
        target: ObjectStore,
        packs: Sequence[CopiedPack],
        snapshots: Sequence[CopiedObject],
    ) -> None:
        self._source = source
        self._target = target
        self.packs = missing_objects(target, PACKS_PREFIX, packs)
        self.snapshots = missing_objects(target, SNAPSHOTS_PREFIX, snapshots)

    @property
    def size_bytes(self) -> int:
        missing: list[CopiedPack] = [*self.packs, *self.snapshots]
        return sum(each.size_bytes for each in missing)

    def copy_packs(self, copied: Callable[[], object], advance: Advance) -> None:
        pieces = partial(verified_pieces, self._source)
        copy_objects(self._target, self.packs, pieces, copied, advance)

    def copy_snapshots(self, copied: Callable[[], object], advance: Advance) -> None:
        pieces = partial(copied_pieces, self._source)
        copy_objects(self._target, self.snapshots, pieces, copied, advance)


def copy_objects(
    target: ObjectStore,
    objects: Sequence[Each],
    pieces: Callable[[Each], Iterator[bytes]],
    copied: Callable[[], object],
    advance: Advance,
) -> None:
    """Copy several objects at a time.

    `pieces` yields the verified bytes of an object and raises before the last piece if they are
    damaged. `copied` is called for each object in this thread, `advance` in any thread.
    """
    stopping = threading.Event()
    with ThreadPoolExecutor(_AT_ONCE, "object-copy") as pool:
        futures = [pool.submit(_copy, target, each, pieces, stopping, advance) for each in objects]
        try:
            for future in as_completed(futures):
                error = future.exception()
                if error is None:
                    copied()
                elif not isinstance(error, _StoppedError):
                    raise error
        finally:
            stopping.set()


def _copy(
    target: ObjectStore,
    each: Each,
    pieces: Callable[[Each], Iterator[bytes]],
    stopping: threading.Event,
    advance: Advance,
) -> None:
    def watched() -> Iterator[bytes]:
        for piece in pieces(each):
            if stopping.is_set():
                raise _StoppedError
            yield piece
            advance(len(piece))

    if stopping.is_set():
        raise _StoppedError
    try:
        if each.size_bytes <= PIECE_BYTES:
            target.put(each.name, b"".join(watched()))
        else:
            target.put_parts(each.name, watched())
    except BaseException:
        stopping.set()
        raise


class _Region(NamedTuple):
    start: int
    end: int
    sum: int


def verified_pieces(store: ObjectStore, pack: CopiedPack) -> Iterator[bytes]:
    """The bytes of a pack; raises before the last piece if they are damaged."""
    name, size = pack.name, pack.size_bytes
    try:
        check = _Check(Pack(store, name, size))
        for at in range(0, size, PIECE_BYTES):
            piece = store.read(name, at, min(PIECE_BYTES, size - at))
            with naming(name):
                check.update(piece, last=at + PIECE_BYTES >= size)
            yield piece
    except PackCorruptError as error:
        raise PackCorruptError(f"{error.message} It is in {store.url}.") from None


class _Check:
    """Checks a pack's regions while its bytes pass through."""

    def __init__(self, pack: Pack) -> None:
        self._size = pack.footer.size_bytes
        self._salt = pack.footer.salt
        self._regions = _regions(pack)
        self._region = next(self._regions)
        self._at = 0
        self._hash = xxh3_64(seed=self._salt)

    def update(self, piece: bytes, *, last: bool) -> None:
        view = memoryview(piece)
        piece_at, piece_end = self._at, self._at + len(piece)
        while self._at < piece_end:
            start, end, expected = self._region
            # A header or padding may precede a region.
            upto = min(piece_end, start if self._at < start else end)
            if self._at >= start:
                self._hash.update(view[self._at - piece_at : upto - piece_at])
            self._at = upto
            if upto == end:
                if self._hash.intdigest() != expected:
                    raise PackFormatError(f"its bytes {start} to {end} are not those written")
                self._hash.reset()
                self._region = next(self._regions, _Region(self._size, self._size + 1, 0))
        if last and self._at != self._size:
            raise PackFormatError(f"it ends at byte {self._at} of {self._size}")


def _regions(pack: Pack) -> Iterator[_Region]:
    """All parts of a pack that have a checksum, in order."""
    footer = pack.footer
    for extent in pack.directory():
        start, extent_end = extent.data_at, extent.data_at + extent.length
        for (expected,) in iter_unpack("<Q", extent.sums):
            end = min(start + footer.block_bytes, extent_end)
            yield _Region(start, end, expected)
            start = end
    yield _Region(footer.lengths_at, footer.directory_at, footer.index_sum)
    yield _Region(footer.directory_at, footer.delta_at, footer.directory_sum)
    yield _Region(footer.delta_at, footer.footer_at, footer.delta_sum)
    # The footer that was read first has passed its own checksum.
    whole = checksum(encode_footer(footer), footer.salt)
    yield _Region(footer.footer_at, footer.size_bytes, whole)


class CopiedCatalog(NamedTuple):
    """What the manifest needs to know about a copied catalog."""

    flushed: int
    streams: int
    stored_bytes: int
    store: str
    packs: list[CopiedPack]
    snapshots: list[CopiedObject]


def copy_catalog(path: Path, copy: Path) -> CopiedCatalog:
    """Copy the catalog at one moment, while its writer continues.

    Retired packs, dropped snapshots and pins are left out: they mean nothing elsewhere.
    """
    try:
        with closing(open_for_reading(path)) as source, closing(sqlite3.connect(copy)) as target:
            # One transaction around all steps: otherwise every commit would restart the copy.
            source.execute("BEGIN")
            source.execute("SELECT value FROM facts").fetchall()
            # With a progress callback, Ctrl-C is noticed between the steps.
            source.backup(target, pages=_PAGES_PER_STEP, progress=lambda *_: None)
            # Without a write-ahead log the copy is one file.
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
    """Every stream's snapshot, once: a fork may share that of its source."""
    rows = catalog.execute(
        "SELECT row FROM streams WHERE snapshot IS NOT NULL GROUP BY snapshot ORDER BY snapshot"
    )
    for (encoded,) in rows:
        snapshot = decoded_row(path, encoded).snapshot
        if snapshot is None:
            raise damaged(path, ValueError("a row has no snapshot, and its column has"))
        yield copied_snapshot(snapshot)


def adopt_catalog(path: Path, store: str) -> None:
    """Make a copied catalog belong to the object store with this identity."""
    catalog = CatalogWriter(path)
    try:
        catalog.set_fact("store", store)
    finally:
        catalog.close()


def upload(store: ObjectStore, name: str, path: Path, advance: Advance) -> CopiedObject:
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


def download(store: ObjectStore, copied: CopiedObject, path: Path, advance: Advance) -> None:
    """Write an object to a file; raises if it does not match its checksum."""
    digest = xxh3_64()
    path.touch(0o600)
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


def verified_body(store: ObjectStore, name: str, size_bytes: int, checksum: int) -> Iterator[bytes]:
    """A snapshot in pieces; raises before the last piece if it is damaged."""
    found = store.size(name)
    if found != size_bytes:
        raise _damaged(store, name, f"it has {found} bytes instead of {size_bytes}")
    digest = xxh3_64()
    for at in range(0, size_bytes, PIECE_BYTES):
        piece = store.read(name, at, PIECE_BYTES)
        digest.update(piece)
        if at + PIECE_BYTES < size_bytes:
            yield piece
    if digest.intdigest() != checksum:
        raise _damaged(store, name, "it does not match its checksum")
    if size_bytes:
        yield piece


def copied_pieces(store: ObjectStore, copied: CopiedObject) -> Iterator[bytes]:
    return verified_body(store, copied.name, copied.size_bytes, int(copied.xxh3, 16))


def _damaged(store: ObjectStore, name: str, what: str) -> PackCorruptError:
    return PackCorruptError(f"The snapshot {name} is damaged: {what}. It is in {store.url}.")
