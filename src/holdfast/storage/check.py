"""Verifying a store: every byte of packs and snapshots, and that the catalog says what they say.

With a catalog, what it uses must be there and sound, and whatever else is in the store is only
noted. Without one, a catalog is rebuilt from the packs in a temporary place and verified like any
other, so what is found is what a repair would leave.

A pack is looked at whole and then let go of, so memory does not grow with the catalog.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.errors import CatalogError, ObjectMissingError, PackCorruptError, SettingsError
from holdfast.format.rows import decode_row
from holdfast.objects.pack_check import check_pack, fault_of
from holdfast.objects.pack_reader import Pack
from holdfast.objects.store import store_owner
from holdfast.storage.catalog import pack_extent
from holdfast.storage.catalog_check import (
    CATALOG,
    DeltaCheck,
    LineageCheck,
    check_file,
    check_streams,
    check_tiling,
    fact,
    pack_rows,
)
from holdfast.storage.catalog_schema import damaged, open_for_reading
from holdfast.storage.copying import verified_body
from holdfast.storage.garbage import PACKS_PREFIX
from holdfast.storage.rebuild import build, resolve, survey
from holdfast.storage.snapshot_store import SNAPSHOTS_PREFIX

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.format.packs import Extent, PackExtent
    from holdfast.format.records import Snapshot
    from holdfast.format.rows import StreamRow
    from holdfast.objects.store import ObjectInfo, ObjectStore
    from holdfast.storage.catalog_check import Findings, Progress
    from holdfast.storage.catalog_writer import PackRow


PACKS: Final = "packs"
SNAPSHOTS: Final = SNAPSHOTS_PREFIX.rstrip("/")


class Verified(NamedTuple):
    """What was looked at. `flushed` is the position up to which packs have the log."""

    flushed: int
    packs: int
    size_bytes: int
    streams: int
    # Packs in use, and those of them that are missing or damaged.
    in_use: frozenset[str]
    spoilt: frozenset[str]
    # How far sound packs go that the catalog does not know.
    unused_through: int = 0
    snapshots: int = 0


def verify_catalog(
    store: ObjectStore,
    path: Path,
    findings: Findings,
    progress: Progress,
    published: Sequence[Published] = (),
) -> Verified:
    """Verify a catalog and every object; raises a CatalogError if the catalog cannot be read.

    `published` are the snapshots that the log tells of.
    """
    try:
        with closing(open_for_reading(path)) as connection:
            return _Verification(store, connection, findings, progress, published).run()
    except (sqlite3.Error, TypeError, ValueError) as error:
        # SQLite keeps any type in any column, so a damaged value may be one that makes no sense.
        raise damaged(path, error) from error


def verify_store(
    store: ObjectStore,
    findings: Findings,
    progress: Progress,
    published: Sequence[Published] = (),
) -> Verified:
    """Verify every object, and that the packs which are live make up a whole catalog."""
    live = resolve(survey(store).sound)
    if live.missing is not None:
        findings.damage(
            PACKS,
            f"positions {live.missing[0]} to {live.missing[1]} of the log are in no sound pack, "
            "although later ones are: what follows them cannot be used",
        )
    with TemporaryDirectory(prefix="holdfast-check-") as directory:
        path = Path(directory) / CATALOG
        try:
            build(store, live, path, now_ms=0)
        except CatalogError as error:
            findings.damage(PACKS, error.message)
            return Verified(live.through, 0, 0, 0, frozenset(live.names), frozenset())
        return verify_catalog(store, path, findings, progress, published)


class _Verification:
    """One run over a catalog and its store."""

    def __init__(
        self,
        store: ObjectStore,
        connection: sqlite3.Connection,
        findings: Findings,
        progress: Progress,
        published: Sequence[Published],
    ) -> None:
        self._store = store
        self._connection = connection
        self._findings = findings
        self._progress = progress
        self._published = published
        self._used = UsedPackCheck(store, connection, findings, self._advance)
        self._sizes: dict[str, int] = {}
        self._done = 0
        self._total = 0
        self._unused_through = 0

    def run(self) -> Verified:
        """Look at everything."""
        connection, findings = self._connection, self._findings
        check_file(connection)
        self._check_identity()
        self._sizes = {info.name: info.size_bytes for info in self._store.list(PACKS_PREFIX)}
        snapshots = SnapshotCheck(self._store, connection, findings, self._published)
        self._total = sum(self._sizes.values()) + snapshots.size_bytes
        packs = pack_rows(connection)
        in_use = [row for row in packs if row.retired_ms is None]
        flushed = int(fact(connection, "flushed"))
        check_tiling(in_use, flushed, findings)
        self._check_owners()
        for row in in_use:
            with self._looking_at(row.name):
                self._used.check(row, self._sizes.get(row.name))
        names = frozenset(row.name for row in in_use)
        self._check_unused(names, {row.name for row in packs if row.retired_ms is not None})
        snapshots.run(self._advance)
        self._done = self._total
        self._progress(self._done, self._total)
        check_streams(connection, findings)
        LineageCheck(connection, findings).run()
        self._used.deltas.finish(flushed)
        (streams,) = connection.execute("SELECT count(*) FROM streams").fetchone()
        return Verified(
            flushed,
            len(self._sizes),
            self._total,
            streams,
            names,
            frozenset(self._used.spoilt),
            self._unused_through,
            snapshots.count,
        )

    def _check_identity(self) -> None:
        known, found = str(fact(self._connection, "store")), store_owner(self._store)
        if known and found and known != found:
            raise SettingsError(
                f"The object store {self._store.url} belongs to another data directory. "
                "Set 'store' to the one that this data was flushed to."
            )

    def _check_owners(self) -> None:
        """Every extent lies in a pack that is in use."""
        (stray,) = self._connection.execute(
            "SELECT count(*) FROM extents WHERE pack NOT IN "
            "(SELECT id FROM packs WHERE retired_ms IS NULL)"
        ).fetchone()
        if stray:
            self._findings.damage(CATALOG, f"{stray} extents are in packs that are not in use")

    @contextmanager
    def _looking_at(self, name: str) -> Iterator[None]:
        """Account for a pack's bytes, however much of them could be read."""
        done = self._done + self._sizes.get(name, 0)
        try:
            yield
        finally:
            self._done = done
            self._progress(self._done, self._total)

    def _advance(self, size_bytes: int) -> None:
        self._done += size_bytes
        self._progress(self._done, self._total)

    def _check_unused(self, in_use: frozenset[str], retired: set[str]) -> None:
        waiting: list[int] = []
        for name, size in self._sizes.items():
            if name in in_use:
                continue
            with self._looking_at(name):
                fault = self._fault(name, size)
            if name in retired and not fault:
                waiting.append(size)
                continue
            what = "out of use" if name in retired else "an orphan, which nothing refers to"
            rest = f", and unfinished: {fault}" if fault else ""
            self._findings.note(name, f"{what}{rest}; {size} bytes")
        if waiting:
            self._findings.note(
                PACKS,
                f"{len(waiting)} packs are out of use and wait to be removed; {sum(waiting)} bytes",
            )

    def _fault(self, name: str, size: int) -> str:
        """What is wrong with a pack that is not in use."""
        try:
            pack = Pack(self._store, name, size)
            for read in pack.verify():
                self._advance(read)
        except (ObjectMissingError, PackCorruptError) as error:
            return fault_of(error)
        if pack.delta().meta.has_delta:
            self._unused_through = max(self._unused_through, pack.footer.through)
        return ""


class UsedPackCheck:
    """Checks one pack after the other; `spoilt` are those that are missing or damaged."""

    def __init__(
        self,
        store: ObjectStore,
        connection: sqlite3.Connection,
        findings: Findings,
        advance: Callable[[int], None],
    ) -> None:
        self._store = store
        self._connection = connection
        self.findings = findings
        self._advance = advance
        self.deltas = DeltaCheck(connection, findings)
        self.spoilt: set[str] = set()

    def check(self, row: PackRow, size_bytes: int | None) -> None:
        """Look at one pack, which has this size if it is there; in the order of the log."""
        try:
            pack = Pack(self._store, row.name, size_bytes)
            self.deltas.take(row, pack.delta())
            self._check_contents(row, pack)
        except ObjectMissingError:
            self.spoil(row.name, f"it is in use, and {self._store.url} does not have it")
        except PackCorruptError as error:
            self.spoil(row.name, fault_of(error))

    def spoil(self, name: str, what: str) -> None:
        self.findings.damage(name, what)
        self.spoilt.add(name)

    def _check_contents(self, row: PackRow, pack: Pack) -> None:
        of_pack = _OfPack(self, row.name)
        for extent in check_pack(pack, row, self._extents(row), of_pack):
            self._advance(extent.length)
        dead_bytes = of_pack.unused_bytes
        if row.dead_bytes != dead_bytes:
            self.findings.damage(
                CATALOG,
                f"it says that {row.dead_bytes} bytes of {row.name} are dead, and {dead_bytes} are",
            )

    def find_row(self, number: int) -> StreamRow | None:
        found = self._connection.execute("SELECT row FROM streams WHERE number = ?", (number,))
        return next((_decoded(row) for (row,) in found), None)

    def _extents(self, row: PackRow) -> Iterator[PackExtent]:
        known = self._connection.execute(
            "SELECT stream, extents.start, length, data_at, message_at, messages, first_position, "
            "last_position, sums, row FROM extents LEFT JOIN streams ON number = stream "
            "WHERE pack = ? ORDER BY stream, extents.start",
            (row.id,),
        )
        for *columns, encoded in known:
            yield pack_extent(columns, _decoded(encoded))


class _OfPack:
    """Takes what the check of one pack finds."""

    def __init__(self, check: UsedPackCheck, pack: str) -> None:
        self._check = check
        self._pack = pack
        self.unused_bytes = 0

    def pack_damaged(self, what: str) -> None:
        self._check.spoil(self._pack, what)

    def catalog_wrong(self, what: str) -> None:
        self._check.findings.damage(CATALOG, what)

    def unused(self, extent: Extent, fault: str) -> None:
        """Nobody reads what the catalog does not list, unless its stream still needs it."""
        self.unused_bytes += extent.length
        row = self._check.find_row(extent.stream)
        if row is not None and row.start < extent.end:
            self.catalog_wrong(
                f"bytes {extent.start} to {extent.end} of stream {extent.stream:x} are in "
                f"{self._pack}, and it does not list them there"
            )
        elif fault:
            self._check.findings.note(self._pack, f"{fault}; the stream is gone")


def _decoded(row: bytes | None) -> StreamRow | None:
    try:
        return None if row is None else decode_row(row)
    except msgspec.DecodeError:
        # Reported by the check of all rows.
        return None


class Published(NamedTuple):
    """A snapshot that a record of the log publishes."""

    position: int
    stream: int
    snapshot: Snapshot


class _Named(NamedTuple):
    """A body that is needed, and by whom."""

    snapshot: Snapshot
    who: str


class SnapshotCheck:
    """Checks the snapshots of a catalog, and of the log behind it."""

    def __init__(
        self,
        store: ObjectStore,
        connection: sqlite3.Connection,
        findings: Findings,
        published: Sequence[Published],
    ) -> None:
        self._store = store
        self._connection = connection
        self._findings = findings
        (flushed,) = connection.execute("SELECT value FROM facts WHERE name = 'flushed'").fetchone()
        self._in_log = sorted(
            (each for each in published if each.position > flushed),
            key=lambda each: each.snapshot.object,
        )
        # Bytes of bodies that no stream has any more.
        self._waiting: list[int] = []
        self.count = self.size_bytes = 0
        for info in store.list(SNAPSHOTS_PREFIX):
            self.count += 1
            self.size_bytes += info.size_bytes

    def run(self, advance: Callable[[int], None]) -> None:
        """Look at every body; `advance` is told of the bytes, of those not needed as well."""
        listed = self._store.list(SNAPSHOTS_PREFIX)
        info = next(listed, None)
        for name, needed in groupby(self._named(), key=lambda each: each.snapshot.object):
            while info is not None and info.name < name:
                self._not_needed(info, advance)
                info = next(listed, None)
            if info is not None and info.name == name:
                self._check(list(needed), advance)
                info = next(listed, None)
            else:
                self._missing(next(needed))
        while info is not None:
            self._not_needed(info, advance)
            info = next(listed, None)
        if self._waiting:
            self._findings.note(
                SNAPSHOTS,
                f"{len(self._waiting)} snapshots are out of use and wait to be removed; "
                f"{sum(self._waiting)} bytes",
            )

    def _named(self) -> Iterator[_Named]:
        """What streams have and what the log publishes, by the name of the body."""
        in_log = iter(self._in_log)
        waiting = next(in_log, None)
        for each in self._in_rows():
            while waiting is not None and waiting.snapshot.object <= each.snapshot.object:
                yield _of_record(waiting)
                waiting = next(in_log, None)
            yield each
        while waiting is not None:
            yield _of_record(waiting)
            waiting = next(in_log, None)

    def _in_rows(self) -> Iterator[_Named]:
        for name, encoded in self._connection.execute(
            "SELECT snapshot, row FROM streams WHERE snapshot IS NOT NULL ORDER BY snapshot, number"
        ):
            try:
                row = decode_row(encoded)
            except msgspec.DecodeError:
                # That is said where all rows are looked at, as is a column that says otherwise.
                continue
            if row.snapshot is not None and row.snapshot.object == name:
                yield _Named(row.snapshot, f"stream {row.number:x} ({row.meta.name})")

    def _check(self, needed: list[_Named], advance: Callable[[int], None]) -> None:
        """Read a body that is there."""
        snapshot, who = needed[0]
        name = snapshot.object
        for other in needed[1:]:
            if other.snapshot != snapshot:
                self._findings.damage(
                    CATALOG, f"{who} and {other.who} do not say the same of {name}"
                )
        try:
            for piece in verified_body(self._store, name, snapshot.size_bytes, snapshot.checksum):
                advance(len(piece))
        except (ObjectMissingError, PackCorruptError) as error:
            self._findings.damage(name, f"the snapshot of {who}: {fault_of(error)}")

    def _missing(self, named: _Named) -> None:
        self._findings.damage(
            named.snapshot.object,
            f"it is the snapshot of {named.who}, and {self._store.url} does not have it",
        )

    def _not_needed(self, info: ObjectInfo, advance: Callable[[int], None]) -> None:
        advance(info.size_bytes)
        found = self._connection.execute(
            "SELECT 1 FROM dropped_snapshots WHERE name = ?", (info.name,)
        ).fetchone()
        if found:
            self._waiting.append(info.size_bytes)
        else:
            self._findings.note(
                SNAPSHOTS,
                f"{info.name} is an orphan, which nothing refers to; {info.size_bytes} bytes",
            )


def _of_record(published: Published) -> _Named:
    who = f"stream {published.stream:x} at position {published.position} of the log"
    return _Named(published.snapshot, who)
