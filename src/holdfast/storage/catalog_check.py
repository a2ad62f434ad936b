"""Checking a catalog by itself and against the deltas of its packs; and what checks report.

Nothing here keeps the whole catalog in memory: tables are read side by side in the order of stream
numbers, and of the packs' rows only those are remembered that differ from the catalog's.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from holdfast.errors import CatalogError
from holdfast.format.records import INDEX_BITS
from holdfast.format.rows import (
    BUCKET_PREFIX,
    BucketRow,
    StreamRow,
    decode_bucket,
    decode_row,
    inherited_bytes,
    take_producers,
)
from holdfast.objects.pack_check import merge_join
from holdfast.protocol.producer import ProducerState
from holdfast.storage.catalog_scan import after_prefix
from holdfast.storage.catalog_schema import count_buckets
from holdfast.storage.catalog_writer import ROW_COLUMNS, PackRow, pack_row, row_change

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.format.packs import Delta

# Called with the bytes checked so far, and their total.
Progress = Callable[[int, int], None]
Severity = Literal["damage", "note"]
CATALOG: Final = "catalog.sqlite"
# A catalog that does not match its packs has as many faults as extents; the first few suffice.
_FINDINGS_MAX: Final = 10
_SQLITE_FAULTS_MAX: Final = 5
_INHERITED: Final = "SELECT inherited FROM forks WHERE number = ? AND name = ?"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found: damage costs data, now or later; a note does not."""

    severity: Severity
    where: str
    what: str


class Findings:
    """Collects findings; where there are many about one object it keeps the first ones."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self._counts: Counter[tuple[Severity, str]] = Counter()

    def damage(self, where: str, what: str) -> None:
        self._add(Finding("damage", where, what))

    def note(self, where: str, what: str) -> None:
        self._add(Finding("note", where, what))

    @property
    def ok(self) -> bool:
        """Whether there is no damage."""
        return not any(severity == "damage" for severity, _ in self._counts)

    def of(self, severity: Severity) -> list[Finding]:
        """All findings of one severity, in the order they were found."""
        found = [each for each in self._found if each.severity == severity]
        for (kind, where), count in self._counts.items():
            if kind == severity and count > _FINDINGS_MAX:
                found.append(Finding(kind, where, f"and {count - _FINDINGS_MAX:,} more like these"))
        return found

    def _add(self, finding: Finding) -> None:
        key = finding.severity, finding.where
        self._counts[key] += 1
        if self._counts[key] <= _FINDINGS_MAX:
            self._found.append(finding)


class CatalogCheck:
    """Checks whether a catalog's streams, extents, packs and buckets fit together."""

    def __init__(self, connection: sqlite3.Connection, findings: Findings) -> None:
        self.query = connection.execute
        self._findings = findings
        # By stream number: how many forks its row says it has, and how many rows name it.
        self._forks_said: dict[int, int] = {}
        self._forks_found: Counter[int] = Counter()

    def damage(self, what: str) -> None:
        self._findings.damage(CATALOG, what)

    def fact(self, name: str) -> Any:
        """One of the catalog's own numbers and names."""
        found = self.query("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        if found is None:
            raise CatalogError(f"The catalog has no fact {name!r}.")
        return found[0]

    def packs(self) -> list[PackRow]:
        """All packs, also retired ones, in the order of the log."""
        rows = self.query(f"SELECT {ROW_COLUMNS} FROM packs ORDER BY after, through, id")  # noqa: S608 (ours)
        return [pack_row(row) for row in rows]

    def encoded_row(self, number: int) -> bytes | None:
        found = self.query("SELECT row FROM streams WHERE number = ?", (number,))
        return next((row for (row,) in found), None)

    def row(self, number: int) -> StreamRow | None:
        """The stream's row; None also if it cannot be decoded, which `check_streams` reports."""
        return decoded(self.encoded_row(number))

    def check_file(self) -> None:
        """Have SQLite check its file; raises if nothing in it can be relied on."""
        faults = self.query(f"PRAGMA integrity_check({_SQLITE_FAULTS_MAX})").fetchall()
        if faults != [("ok",)]:
            words = "; ".join(" ".join(str(fault).split()) for (fault,) in faults)
            raise CatalogError(f"SQLite finds the file damaged: {words}.")

    def check_tiling(self, in_use: Iterable[PackRow], flushed: int) -> None:
        """The packs with a delta cover (0, flushed] without gaps or overlaps."""
        at = 0
        for pack in in_use:
            if not pack.has_delta:
                continue
            if pack.after > at:
                self.damage(
                    f"positions {at + 1} to {pack.after} are in no pack: {pack.name} comes next"
                )
            elif pack.after < at:
                self.damage(f"{pack.name} overlaps with the pack before it, which ends at {at}")
            at = max(at, pack.through)
        if at != flushed:
            self.damage(f"it says that packs reach position {flushed}, and they reach {at}")
        self._check_times(flushed)

    def _check_times(self, flushed: int) -> None:
        at = 0
        for first, last in self.query("SELECT first_position, last_position FROM times"):
            if first != at + 1 or last < first:
                self.damage(f"it has times for positions {first} to {last} after those up to {at}")
            at = max(at, last)
        if at != flushed:
            self.damage(f"it has times up to position {at}, and is flushed up to {flushed}")

    def check_owners(self) -> None:
        """Every extent is in a pack that is in use."""
        (stray,) = self.query(
            "SELECT count(*) FROM extents WHERE pack NOT IN "
            "(SELECT id FROM packs WHERE retired_ms IS NULL)"
        ).fetchone()
        if stray:
            self.damage(f"{stray} extents are in packs that are not in use")

    def check_streams(self) -> None:
        """Every stream's extents lead from its start to its tail, and there are no others."""
        flushed = int(self.fact("flushed"))
        rows = self.query(
            "SELECT number, name, deadline_ms, start, snapshot, visible_from, hidden_at, row "
            "FROM streams ORDER BY number"
        )
        extents = self.query("SELECT stream, start, length FROM extents ORDER BY stream, start")
        groups = groupby(extents, key=lambda extent: extent[0])
        streams = stored = 0
        for row, group in merge_join(rows, groups, lambda row: row[0], lambda group: group[0]):
            ours = [] if group is None else list(group[1])
            size_bytes = sum(int(length) for _, _, length in ours)
            stored += size_bytes
            if row is None:
                self.damage(
                    f"{size_bytes} bytes belong to stream {ours[0][0]:x}, which does not exist"
                )
                continue
            streams += 1
            self._check_stream(row, ours, flushed)
        for what, counted in (("streams", streams), ("stored_bytes", stored)):
            said = self.fact(what)
            if said != counted:
                self.damage(f"its {what!r} is {said}, and counting gives {counted}")

    def _check_stream(self, columns: Sequence[Any], extents: Sequence[Any], flushed: int) -> None:
        number, name, *_, encoded = columns
        try:
            row = decode_row(encoded)
        except msgspec.DecodeError as error:
            self.damage(f"the row of stream {number:x} cannot be decoded: {error}")
            return
        if row.producers is not None:
            self.damage(f"the row of stream {number:x} ({name}) has producers in it")
        change = row_change(row, b"")
        if (*change[:5], change.visible_from, change.hidden_at) != tuple(columns[:-1]):
            self.damage(f"the row of stream {number:x} ({name}) is not the one it is for")
        if number >> INDEX_BITS > flushed:
            self.damage(f"stream {number:x} ({name}) was created after {flushed}")
        self._check_contiguous(row, extents)

    def _check_contiguous(self, row: StreamRow, extents: Iterable[Any]) -> None:
        at, stream = row.start, _stream(row)
        for index, (_, start, length) in enumerate(extents):
            # Extents are dropped whole, so the first may start before the bytes that are needed.
            if start != at and (index or not start <= at < start + length):
                fault = f"misses bytes {at} to {start}" if start > at else f"has byte {start} twice"
                self.damage(f"{stream} {fault}")
            at = max(at, start + length)
        if at < row.tail:
            self.damage(f"{stream} misses bytes {at} to {row.tail}, its end")
        elif at > row.tail:
            self.damage(f"{stream} ends at {row.tail}, and has bytes up to {at}")

    def check_producers(self) -> None:
        """Every producer belongs to a stream, which has counted it."""
        for number, counted, said in self.query(
            "SELECT stream, count(*), "
            "(SELECT producers FROM streams WHERE number = stream) AS said FROM producers "
            "GROUP BY stream HAVING said IS NOT count(*) UNION ALL "
            "SELECT number, 0, producers FROM streams WHERE producers AND NOT EXISTS "
            "(SELECT 1 FROM producers WHERE stream = number)"
        ):
            if said is None:
                self.damage(f"{counted} producers wrote to stream {number:x}, which does not exist")
            else:
                self.damage(f"stream {number:x} says it has {said} producers, and has {counted}")

    def forgotten_ms(self, number: int) -> int:
        """The catalog may have forgotten the stream's producers that wrote last before this."""
        found = self.query("SELECT forgotten_ms FROM streams WHERE number = ?", (number,))
        return next((int(at_ms or 0) for (at_ms,) in found), 0)

    def producer(self, number: int, producer_id: bytes) -> ProducerState | None:
        found = self.query(
            "SELECT epoch, seq, used_ms, digest FROM producers WHERE stream = ? AND id = ?",
            (number, producer_id),
        )
        return next((ProducerState(*state) for state in found), None)

    def check_lineage(self) -> None:
        """Forks and their sources agree, and so do buckets and their streams."""
        counted = count_buckets(self._checked_rows())
        said, found = self._forks_said, self._forks_found
        for number in sorted(said.keys() | found.keys()):
            if said.get(number, 0) != found[number]:
                self.damage(
                    f"stream {number:x} says that it has {said.get(number, 0)} forks, and "
                    f"{found[number]} name it"
                )
        self._check_buckets(counted)

    def _checked_rows(self) -> Iterator[StreamRow]:
        for (encoded,) in self.query("SELECT row FROM streams ORDER BY number"):
            row = decoded(encoded)
            if row is not None:
                self._check_row(row)
                yield row

    def _check_row(self, row: StreamRow) -> None:
        if row.forks:
            self._forks_said[row.number] = row.forks
        elif row.deleted:
            self.damage(f"{_stream(row)} is deleted and has no forks that would need it")
        at = 0 if row.snapshot is None else row.snapshot.offset
        if row.earliest != at:
            self.damage(
                f"{_stream(row)} can be read from {row.earliest} on, and its snapshot is at {at}"
            )
        if row.meta.fork is not None:
            self._forks_found[row.meta.fork.source] += 1
            fault = self._fork_fault(row)
            if fault:
                self.damage(f"{_stream(row)} is a fork, and {fault}")
            listed = dict(
                self.query("SELECT number, inherited FROM forks WHERE name = ?", (row.meta.name,))
            )
            if listed.get(row.number, 0) != inherited_bytes(row):
                self.damage(
                    f"{_stream(row)} inherits {inherited_bytes(row)} bytes, and is listed with "
                    f"{listed.get(row.number, 0)}"
                )

    def _fork_fault(self, fork: StreamRow) -> str:
        """Follow a fork to the streams that hold its bytes; what is wrong there, or nothing."""
        end = fork.tail
        row = fork
        while row.meta.fork is not None and (row is fork or fork.earliest < end):
            number, end = row.meta.fork.source, min(end, row.meta.fork.offset)
            source = self.row(number)
            if source is None:
                return f"its source {number:x} is missing"
            if end > source.tail:
                return f"its source {number:x} ends at {source.tail}, before {end}"
            own = max(fork.earliest, source.meta.fork.offset if source.meta.fork else 0)
            if own < end and source.start > own:
                return f"its source {number:x} starts at {source.start}, behind {own}"
            row = source
        return ""

    def _check_buckets(self, counted: dict[str, BucketRow]) -> None:
        for key, value in self.query(
            "SELECT key, value FROM documents WHERE key >= ? AND key < ? ORDER BY key",
            (BUCKET_PREFIX, after_prefix(BUCKET_PREFIX)),
        ):
            name = key.removeprefix(BUCKET_PREFIX)
            found = counted.pop(name, BucketRow(0))
            try:
                bucket = decode_bucket(value)
            except msgspec.DecodeError as error:
                self.damage(f"the row of the bucket {name!r} cannot be decoded: {error}")
                continue
            if (bucket.streams, bucket.size_bytes) != (found.streams, found.size_bytes):
                self.damage(
                    f"the bucket {name!r} says that it holds {bucket.streams} streams with "
                    f"{bucket.size_bytes} bytes, and it holds {found.streams} with "
                    f"{found.size_bytes}"
                )
            elif not bucket.is_needed:
                self.damage(f"the bucket {name!r} is empty, and nobody created it")
        for name, found in counted.items():
            if found.is_needed:
                self.damage(f"there is no bucket {name!r}, and {found.streams} streams are in it")


class DeltaCheck:
    """Compares the deltas of the packs in use, taken in the order of the log, with the catalog.

    A stream's row in the catalog must be the one of the last delta that has it, and so must the
    state of a producer, unless it was idle for so long that the catalog has forgotten it.
    """

    def __init__(self, catalog: CatalogCheck, findings: Findings) -> None:
        self._catalog = catalog
        self._findings = findings
        # Streams whose row in the last delta that has one differs from the catalog's, and those
        # with such producers.
        self._stale: set[int] = set()
        self._stale_producers: dict[int, set[bytes]] = {}
        self._alive = 0
        self._at = 0
        self._named: set[str] = set()
        # Packs in use that have no delta, and what each supersedes.
        self._companions: dict[str, set[str]] = {}
        # By key: whether the catalog has what the last delta says about the document.
        self._documents: dict[str, bool] = {}
        self._last_ms = 0

    def take(self, pack: PackRow, delta: Delta) -> None:
        meta, catalog = delta.meta, self._catalog
        if not meta.has_delta:
            self._companions[pack.name] = set(meta.supersedes)
            return
        self._named.update(meta.companions)
        if pack.after == self._at:
            self._at = pack.through
        for number, row in delta.items():
            self._alive += number >> INDEX_BITS > pack.after
            if self._is_stored(number, row):
                self._stale.discard(number)
            else:
                self._stale.add(number)
        self._last_ms = max(self._last_ms, meta.last_ms)
        for key, value in meta.documents.items():
            self._documents[key] = _are_same(key, self._document(key), value)
        self._alive -= len(meta.removed)
        for number in meta.removed:
            self._stale.discard(number)
            self._stale_producers.pop(number, None)
            if catalog.encoded_row(number) is not None:
                catalog.damage(f"it has stream {number:x}, which {pack.name} ended")

    def _is_stored(self, number: int, encoded: bytes) -> bool:
        """Whether the catalog has this row; its producers are compared one by one."""
        stored = self._catalog.encoded_row(number)
        if stored == encoded:
            return True
        row = decoded(encoded)
        if row is None or row.producers is None:
            return False
        stale = self._stale_producers.pop(number, set())
        forgotten_ms = self._catalog.forgotten_ms(number)
        for producer_id, state in take_producers(row).items():
            found = self._catalog.producer(number, producer_id)
            is_forgotten = found is None and state.used_ms < forgotten_ms
            if is_forgotten or found == state:
                stale.discard(producer_id)
            else:
                stale.add(producer_id)
        if stale:
            self._stale_producers[number] = stale
        return decoded(stored) == row

    def finish(self, flushed: int) -> None:
        """Report the differences, once all deltas are taken."""
        catalog = self._catalog
        for name, supersedes in sorted(self._companions.items()):
            if name not in self._named and not supersedes & self._named:
                self._findings.damage(
                    name, "it is in use, and no other pack names it: a rebuild would not find it"
                )
        if self._at != flushed:
            # A delta is missing, which was reported: there is nothing to compare with.
            return
        for number in sorted(self._stale):
            catalog.damage(f"the row of stream {number:x} is not the packs'")
        for number, stale in sorted(self._stale_producers.items()):
            if number not in self._stale:
                catalog.damage(f"{len(stale)} producers of stream {number:x} are not the packs'")
        (streams,) = catalog.query("SELECT count(*) FROM streams").fetchone()
        if streams != self._alive and not self._stale:
            catalog.damage(f"it has {streams} streams, and the packs have {self._alive}")
        flushed_ms = catalog.fact("flushed_ms")
        if flushed_ms != self._last_ms:
            catalog.damage(f"its 'flushed_ms' is {flushed_ms}, and the packs have {self._last_ms}")
        for key in sorted(key for key, is_same in self._documents.items() if not is_same):
            catalog.damage(f"the document {key!r} is not the packs'")
        for key, value in catalog.query("SELECT key, value FROM documents ORDER BY key"):
            if key not in self._documents and not _may_be_counted(key, value):
                catalog.damage(f"it has a document {key!r}, which no pack has")

    def _document(self, key: str) -> bytes | None:
        found = self._catalog.query("SELECT value FROM documents WHERE key = ?", (key,))
        return next((value for (value,) in found), None)


def decoded(row: bytes | None) -> StreamRow | None:
    """The row, unless there is none or it cannot be decoded."""
    try:
        return None if row is None else decode_row(row)
    except msgspec.DecodeError:
        return None


def _stream(row: StreamRow) -> str:
    return f"stream {row.number:x} ({row.meta.name})"


def _are_same(key: str, ours: bytes | None, theirs: bytes | None) -> bool:
    """Whether a document of the catalog is that of a pack, except for what buckets count.

    That follows from the streams, and older versions counted it otherwise.
    """
    if ours == theirs or not key.startswith(BUCKET_PREFIX):
        return ours == theirs
    try:
        rows = [None if each is None else decode_bucket(each) for each in (ours, theirs)]
    except msgspec.DecodeError:
        return False
    one, other = (
        (row.created_ms, row.explicit, row.last_write_ms) if row and row.exists else None
        for row in rows
    )
    return one == other


def _may_be_counted(key: str, value: bytes) -> bool:
    """Whether it is the row of an implicit bucket, which packs of older versions do not have."""
    try:
        return key.startswith(BUCKET_PREFIX) and not decode_bucket(value).explicit
    except msgspec.DecodeError:
        return False
