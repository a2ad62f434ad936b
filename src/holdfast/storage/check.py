"""Verifying a store: every byte of packs and snapshots, and that the catalog agrees with them.

With a catalog, everything it uses must be there and sound; other objects in the store are only
noted. Without one, a catalog is rebuilt from the packs in a temporary directory and verified like
any other, so the findings are what a repair would leave.

Packs are checked one after the other, and snapshots are compared with the store's listing by name,
so memory does not grow with their number.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from heapq import merge
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import CatalogError, ObjectMissingError, PackCorruptError, SettingsError
from holdfast.objects.pack_check import check_pack, fault_of, merge_join
from holdfast.objects.pack_reader import Pack
from holdfast.objects.store import store_owner
from holdfast.storage.catalog import pack_extent
from holdfast.storage.catalog_check import CATALOG, CatalogCheck, DeltaCheck, decoded
from holdfast.storage.catalog_schema import damaged, open_for_reading
from holdfast.storage.copying import verified_body
from holdfast.storage.garbage import PACKS_PREFIX
from holdfast.storage.rebuild import build, resolve, survey
from holdfast.storage.snapshot_store import SNAPSHOTS_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.format.packs import Extent, PackExtent
    from holdfast.format.records import Snapshot
    from holdfast.objects.store import ObjectStore
    from holdfast.storage.catalog_check import Findings, Progress
    from holdfast.storage.catalog_writer import PackRow

PACKS: Final = PACKS_PREFIX.rstrip("/")
SNAPSHOTS: Final = SNAPSHOTS_PREFIX.rstrip("/")


class Published(NamedTuple):
    """A snapshot that a record of the log publishes."""

    position: int
    stream: int
    snapshot: Snapshot


class Verified(NamedTuple):
    """What was checked. `flushed` is the position up to which the log is in packs."""

    flushed: int
    packs: int
    size_bytes: int
    streams: int
    # Packs in use, and those of them that are missing or damaged.
    in_use: frozenset[str]
    spoilt: frozenset[str]
    # The last position in sound packs that the catalog does not know.
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

    `published` are the snapshots in the log.
    """
    try:
        with closing(open_for_reading(path)) as connection:
            return _Verification(store, connection, findings, progress, published).run()
    except (sqlite3.Error, TypeError, ValueError) as error:
        # SQLite keeps any type in any column, so a damaged value may be of the wrong one.
        raise damaged(path, error) from error


def verify_store(
    store: ObjectStore,
    findings: Findings,
    progress: Progress,
    published: Sequence[Published] = (),
) -> Verified:
    """Verify every object, and that the live packs make up a whole catalog."""
    live = resolve(survey(store))
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
        self.store = store
        self.findings = findings
        self.catalog = CatalogCheck(connection, findings)
        self._progress = progress
        self._published = published
        self._deltas = DeltaCheck(self.catalog, findings)
        self._sizes: dict[str, int] = {}
        self._spoilt: set[str] = set()
        self._done = 0
        self._total = 0
        self._unused_through = 0

    def run(self) -> Verified:
        catalog = self.catalog
        catalog.check_file()
        self._check_identity()
        self._sizes = {info.name: info.size_bytes for info in self.store.list(PACKS_PREFIX)}
        snapshots = [info.size_bytes for info in self.store.list(SNAPSHOTS_PREFIX)]
        self._total = sum(self._sizes.values()) + sum(snapshots)
        packs = catalog.packs()
        in_use = [row for row in packs if row.retired_ms is None]
        flushed = int(catalog.fact("flushed"))
        catalog.check_tiling(in_use, flushed)
        catalog.check_owners()
        for row in in_use:
            with self._accounted(row.name):
                self._check_used(row)
        names = frozenset(row.name for row in in_use)
        self._check_unused(names, {row.name for row in packs if row.retired_ms is not None})
        _SnapshotCheck(self, [each for each in self._published if each.position > flushed]).run()
        self._done = self._total
        self._progress(self._done, self._total)
        catalog.check_streams()
        catalog.check_producers()
        catalog.check_lineage()
        self._deltas.finish(flushed)
        (streams,) = catalog.query("SELECT count(*) FROM streams").fetchone()
        return Verified(
            flushed,
            len(self._sizes),
            self._total,
            streams,
            names,
            frozenset(self._spoilt),
            self._unused_through,
            len(snapshots),
        )

    def advance(self, size_bytes: int) -> None:
        self._done += size_bytes
        self._progress(self._done, self._total)

    def spoil(self, pack: str, what: str) -> None:
        self.findings.damage(pack, what)
        self._spoilt.add(pack)

    def _check_identity(self) -> None:
        known, found = str(self.catalog.fact("store")), store_owner(self.store)
        if known and found and known != found:
            raise SettingsError(
                f"The object store {self.store.url} belongs to another data directory. "
                "Set 'store' to the one that this data was flushed to."
            )

    @contextmanager
    def _accounted(self, name: str) -> Iterator[None]:
        """Count all bytes of a pack as done, however many of them could be read."""
        done = self._done + self._sizes.get(name, 0)
        try:
            yield
        finally:
            self._done = done
            self._progress(self._done, self._total)

    def _check_used(self, row: PackRow) -> None:
        try:
            pack = Pack(self.store, row.name, self._sizes.get(row.name))
            self._deltas.take(row, pack.delta())
            found = _UsedPackFindings(self, row.name)
            for extent in check_pack(pack, row, self._extents(row), found):
                self.advance(extent.length)
        except ObjectMissingError:
            self.spoil(row.name, f"it is in use, and {self.store.url} does not have it")
        except PackCorruptError as error:
            self.spoil(row.name, fault_of(error))
        else:
            if row.dead_bytes != found.unused_bytes:
                self.catalog.damage(
                    f"it says that {row.dead_bytes} bytes of {row.name} are dead, "
                    f"and {found.unused_bytes} are"
                )

    def _extents(self, row: PackRow) -> Iterator[PackExtent]:
        known = self.catalog.query(
            "SELECT stream, extents.start, length, data_at, message_at, messages, first_position, "
            "last_position, sums, row FROM extents LEFT JOIN streams ON number = stream "
            "WHERE pack = ? ORDER BY stream, extents.start",
            (row.id,),
        )
        for *columns, encoded in known:
            yield pack_extent(columns, decoded(encoded))

    def _check_unused(self, in_use: frozenset[str], retired: set[str]) -> None:
        waiting: list[int] = []
        for name, size in self._sizes.items():
            if name in in_use:
                continue
            with self._accounted(name):
                fault = self._unused_fault(name, size)
            if name in retired and not fault:
                waiting.append(size)
                continue
            what = "out of use" if name in retired else "an orphan, which nothing refers to"
            rest = f", and unfinished: {fault}" if fault else ""
            self.findings.note(name, f"{what}{rest}; {size} bytes")
        if waiting:
            self.findings.note(
                PACKS,
                f"{len(waiting)} packs are out of use and wait to be removed; {sum(waiting)} bytes",
            )

    def _unused_fault(self, name: str, size: int) -> str:
        """What is wrong with a pack that is not in use; empty if it is sound."""
        try:
            pack = Pack(self.store, name, size)
            for read in pack.verify():
                self.advance(read)
        except (ObjectMissingError, PackCorruptError) as error:
            return fault_of(error)
        if pack.delta().meta.has_delta:
            self._unused_through = max(self._unused_through, pack.footer.through)
        return ""


class _UsedPackFindings:
    """Takes the findings about one pack in use."""

    def __init__(self, run: _Verification, pack: str) -> None:
        self._run = run
        self._pack = pack
        self.unused_bytes = 0

    def pack_damaged(self, what: str) -> None:
        self._run.spoil(self._pack, what)

    def catalog_wrong(self, what: str) -> None:
        self._run.catalog.damage(what)

    def unused(self, extent: Extent, fault: str) -> None:
        """An extent that the catalog does not list is harmless unless its stream still needs it."""
        self.unused_bytes += extent.length
        row = self._run.catalog.row(extent.stream)
        if row is not None and row.start < extent.end:
            self.catalog_wrong(
                f"bytes {extent.start} to {extent.end} of stream {extent.stream:x} are in "
                f"{self._pack}, and it does not list them there"
            )
        elif fault:
            self._run.findings.note(self._pack, f"{fault}; the stream is gone")


class _NeededSnapshot(NamedTuple):
    snapshot: Snapshot
    # The stream that needs it, for messages.
    stream: str

    @property
    def name(self) -> str:
        return self.snapshot.object


class _SnapshotCheck:
    """Checks that every snapshot of a stream or of the log is in the store and undamaged."""

    def __init__(self, run: _Verification, in_log: Sequence[Published]) -> None:
        self._run = run
        self._store = run.store
        self._findings = run.findings
        self._in_log = in_log

    def run(self) -> None:
        waiting: list[int] = []
        needed = groupby(
            merge(self._needed_by_log(), self._needed_by_rows(), key=lambda each: each.name),
            key=lambda each: each.name,
        )
        listed = self._store.list(SNAPSHOTS_PREFIX)
        for info, group in merge_join(
            listed, needed, lambda info: info.name, lambda group: group[0]
        ):
            if group is None:
                assert info is not None, "one of the two is there"
                self._run.advance(info.size_bytes)
                if self._is_dropped(info.name):
                    waiting.append(info.size_bytes)
                else:
                    self._findings.note(
                        SNAPSHOTS,
                        f"{info.name} is an orphan, which nothing refers to; "
                        f"{info.size_bytes} bytes",
                    )
            elif info is None:
                first = next(group[1])
                self._findings.damage(
                    first.name,
                    f"it is the snapshot of {first.stream}, and {self._store.url} does not have it",
                )
            else:
                self._check_body(list(group[1]), self._run.advance)
        if waiting:
            self._findings.note(
                SNAPSHOTS,
                f"{len(waiting)} snapshots are out of use and wait to be removed; "
                f"{sum(waiting)} bytes",
            )

    def _needed_by_log(self) -> list[_NeededSnapshot]:
        needed = [
            _NeededSnapshot(
                each.snapshot, f"stream {each.stream:x} at position {each.position} of the log"
            )
            for each in self._in_log
        ]
        return sorted(needed, key=lambda each: each.name)

    def _needed_by_rows(self) -> Iterator[_NeededSnapshot]:
        for name, encoded in self._run.catalog.query(
            "SELECT snapshot, row FROM streams WHERE snapshot IS NOT NULL ORDER BY snapshot, number"
        ):
            # Rows that cannot be decoded or differ from their columns are reported elsewhere.
            row = decoded(encoded)
            if row is not None and row.snapshot is not None and row.snapshot.object == name:
                yield _NeededSnapshot(row.snapshot, f"stream {row.number:x} ({row.meta.name})")

    def _check_body(self, needed: list[_NeededSnapshot], advance: Callable[[int], None]) -> None:
        snapshot, stream = needed[0]
        name = snapshot.object
        for other in needed:
            if other.snapshot.start + other.snapshot.size_bytes > snapshot.whole[0]:
                self._findings.damage(CATALOG, f"{other.stream} has a snapshot outside {name}")
        for other in needed[1:]:
            if other.snapshot.whole != snapshot.whole:
                self._findings.damage(CATALOG, f"{stream} and {other.stream} disagree about {name}")
        try:
            for piece in verified_body(self._store, name, *snapshot.whole):
                advance(len(piece))
        except (ObjectMissingError, PackCorruptError) as error:
            self._findings.damage(name, f"the snapshot of {stream}: {fault_of(error)}")

    def _is_dropped(self, name: str) -> bool:
        found = self._run.catalog.query("SELECT 1 FROM dropped_snapshots WHERE name = ?", (name,))
        return found.fetchone() is not None
