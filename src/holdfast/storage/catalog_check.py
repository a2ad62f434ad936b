"""What a check finds: damage, which costs data or will, and notes, which do not."""

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
from holdfast.format.rows import BUCKET_PREFIX, BucketRow, StreamRow, decode_bucket, decode_row
from holdfast.storage.catalog_schema import add_up
from holdfast.storage.catalog_writer import ROW_COLUMNS, PackRow, pack_row, row_change

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.format.packs import Delta
    from holdfast.storage.catalog_writer import PackRow


# Bytes looked at, of how many.
Progress = Callable[[int, int], None]
# A catalog that does not fit its packs has as many faults as extents; the first few tell it all.
_FINDINGS_MAX: Final = 10
CATALOG: Final = "catalog.sqlite"
_FAULTS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found: where it is, and what it is."""

    severity: Literal["damage", "note"]
    where: str
    what: str


class Findings:
    """Collects what is found, and of many things in one place only the first ones."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self._counts: Counter[tuple[Literal["damage", "note"], str]] = Counter()

    def damage(self, where: str, what: str) -> None:
        """Something is lost, or wrong in a way that will lose something."""
        self._add(Finding("damage", where, what))

    def note(self, where: str, what: str) -> None:
        """Something worth knowing that does no harm."""
        self._add(Finding("note", where, what))

    @property
    def ok(self) -> bool:
        """Whether there is no damage."""
        return not any(severity == "damage" for severity, _ in self._counts)

    def of(self, severity: Literal["damage", "note"]) -> list[Finding]:
        """Everything found of one severity, in the order it was found."""
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


def fact(connection: sqlite3.Connection, name: str) -> Any:
    """One of the catalog's own numbers and names."""
    found = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    if found is None:
        raise CatalogError(f"The catalog does not say what its {name!r} is.")
    return found[0]


def pack_rows(connection: sqlite3.Connection) -> list[PackRow]:
    """Every pack the catalog knows, in the order of the log."""
    return [
        pack_row(row)
        for row in connection.execute(
            f"SELECT {ROW_COLUMNS} FROM packs ORDER BY after, through, id"  # noqa: S608 (ours)
        )
    ]


def check_file(connection: sqlite3.Connection) -> None:
    """Have SQLite look over its file; raises if nothing in it can be relied on."""
    faults = connection.execute(f"PRAGMA integrity_check({_FAULTS_MAX})").fetchall()
    if faults != [("ok",)]:
        words = "; ".join(" ".join(str(fault).split()) for (fault,) in faults)
        raise CatalogError(f"SQLite finds the file damaged: {words}.")


def check_tiling(in_use: Sequence[PackRow], flushed: int, findings: Findings) -> None:
    """The packs with a delta stand for (0, flushed] without a gap, and none twice."""
    at = 0
    for pack in in_use:
        if not pack.has_delta:
            continue
        if pack.after > at:
            findings.damage(
                CATALOG,
                f"positions {at + 1} to {pack.after} are in no pack: {pack.name} comes next",
            )
        elif pack.after < at:
            findings.damage(
                CATALOG, f"{pack.name} overlaps with the pack before it, which ends at {at}"
            )
        at = max(at, pack.through)
    if at != flushed:
        findings.damage(
            CATALOG, f"it says that packs reach position {flushed}, and they reach {at}"
        )


def check_streams(connection: sqlite3.Connection, findings: Findings) -> None:
    """Every stream's extents lead from its start to its tail, and nothing else is there.

    Both tables are read in the order of stream numbers side by side, a stream at a time.
    """
    flushed = int(fact(connection, "flushed"))
    rows = connection.execute(
        "SELECT number, name, deadline_ms, start, snapshot, row FROM streams ORDER BY number"
    )
    extents = connection.execute("SELECT stream, start, length FROM extents ORDER BY stream, start")
    streams = stored = 0
    groups = groupby(extents, key=lambda extent: extent[0])
    stream, of_stream = next(groups, (None, iter(())))
    for number, *columns, encoded in rows:
        streams += 1
        while stream is not None and stream < number:
            stored += _unknown(stream, of_stream, findings)
            stream, of_stream = next(groups, (None, iter(())))
        row = _checked_row(number, columns, encoded, flushed, findings)
        ours: Iterable[Any] = ()
        if stream == number:
            ours = list(of_stream)
            stream, of_stream = next(groups, (None, iter(())))
        stored += sum(length for _, _, length in ours)
        if row is not None:
            _check_contiguous(row, ours, findings)
    while stream is not None:
        stored += _unknown(stream, of_stream, findings)
        stream, of_stream = next(groups, (None, iter(())))
    for what, counted in (("streams", streams), ("stored_bytes", stored)):
        said = fact(connection, what)
        if said != counted:
            findings.damage(CATALOG, f"its {what!r} is {said}, and counting gives {counted}")


def _unknown(stream: int, extents: Iterator[Any], findings: Findings) -> int:
    size_bytes = sum(int(length) for _, _, length in extents)
    findings.damage(
        CATALOG, f"{size_bytes} bytes belong to stream {stream:x}, which does not exist"
    )
    return size_bytes


def _checked_row(
    number: int, columns: Sequence[Any], encoded: bytes, flushed: int, findings: Findings
) -> StreamRow | None:
    """The decoded row, if it is one."""
    name = columns[0]
    try:
        row = decode_row(encoded)
    except msgspec.DecodeError as error:
        findings.damage(CATALOG, f"the row of stream {number:x} cannot be decoded: {error}")
        return None
    if row_change(row, b"")[:-1] != (number, *columns):
        findings.damage(CATALOG, f"the row of stream {number:x} ({name}) is not the one it is for")
    if number >> INDEX_BITS > flushed:
        findings.damage(CATALOG, f"stream {number:x} ({name}) was created after {flushed}")
    return row


def _check_contiguous(row: StreamRow, extents: Iterable[Any], findings: Findings) -> None:
    at = row.start
    who = f"stream {row.number:x} ({row.meta.name})"
    for number, (_, start, length) in enumerate(extents):
        # Extents go as a whole: the first may start before what is needed.
        if start != at and (number or not start <= at < start + length):
            fault = f"misses bytes {at} to {start}" if start > at else f"has byte {start} twice"
            findings.damage(CATALOG, f"{who} {fault}")
        at = max(at, start + length)
    if at < row.tail:
        findings.damage(CATALOG, f"{who} misses bytes {at} to {row.tail}, its end")
    elif at > row.tail:
        findings.damage(CATALOG, f"{who} ends at {row.tail}, and has bytes up to {at}")


class LineageCheck:
    """One look at all rows, and one at those that other rows refer to."""

    def __init__(self, connection: sqlite3.Connection, findings: Findings) -> None:
        self._connection = connection
        self._findings = findings
        # By number: how many forks a stream says it has, and how many there are.
        self._said: dict[int, int] = {}
        self._found: Counter[int] = Counter()

    def run(self) -> None:
        """Say what does not fit."""
        sums = add_up(self._checked_rows())
        for number in sorted(self._said.keys() | self._found.keys()):
            said, found = self._said.get(number, 0), self._found[number]
            if said != found:
                self._damage(
                    f"stream {number:x} says that it has {said} forks, and {found} name it"
                )
        self._check_buckets(sums)

    def _damage(self, what: str) -> None:
        self._findings.damage(CATALOG, what)

    def _checked_rows(self) -> Iterator[StreamRow]:
        rows = self._connection.execute("SELECT row FROM streams ORDER BY number")
        for (encoded,) in rows:
            try:
                row = decode_row(encoded)
            except msgspec.DecodeError:
                # That is said where the rows are held against their columns.
                continue
            self._check_row(row)
            yield row

    def _check_row(self, row: StreamRow) -> None:
        who = f"stream {row.number:x} ({row.meta.name})"
        if row.forks:
            self._said[row.number] = row.forks
        elif row.deleted:
            self._damage(f"{who} is deleted and has no forks that it could be there for")
        at = 0 if row.snapshot is None else row.snapshot.offset
        if row.earliest != at:
            self._damage(f"{who} can be read from {row.earliest} on, and its snapshot is at {at}")
        if row.meta.fork is not None:
            self._found[row.meta.fork.source] += 1
            fault = self._what_is_missing(row)
            if fault:
                self._damage(f"{who} is a fork, and {fault}")

    def _what_is_missing(self, fork: StreamRow) -> str:
        """Follow a fork to where its bytes are; what is wrong there, if anything is."""
        end = fork.tail
        row = fork
        while row.meta.fork is not None and (row is fork or fork.earliest < end):
            number, end = row.meta.fork.source, min(end, row.meta.fork.offset)
            source = self._find(number)
            if source is None:
                return f"its source {number:x} is missing"
            if end > source.tail:
                return f"its source {number:x} ends at {source.tail}, before {end}"
            own = max(fork.earliest, source.meta.fork.offset if source.meta.fork else 0)
            if own < end and source.start > own:
                return f"its source {number:x} starts at {source.start}, behind {own}"
            row = source
        return ""

    def _find(self, number: int) -> StreamRow | None:
        found = self._connection.execute("SELECT row FROM streams WHERE number = ?", (number,))
        try:
            return next((decode_row(row) for (row,) in found), None)
        except msgspec.DecodeError:
            return None

    def _check_buckets(self, sums: dict[str, BucketRow]) -> None:
        for key, value in self._connection.execute(
            "SELECT key, value FROM documents WHERE key >= ? AND key < ? ORDER BY key",
            (BUCKET_PREFIX, BUCKET_PREFIX[:-1] + chr(ord(BUCKET_PREFIX[-1]) + 1)),
        ):
            name = key.removeprefix(BUCKET_PREFIX)
            try:
                bucket = decode_bucket(value)
            except msgspec.DecodeError as error:
                self._damage(f"the row of the bucket {name!r} cannot be decoded: {error}")
                sums.pop(name, None)
                continue
            self._check_bucket(name, bucket, sums.pop(name, BucketRow(bucket.created_ms)))
        for name, counted in sums.items():
            self._damage(f"there is no bucket {name!r}, and {counted.streams} streams are in it")

    def _check_bucket(self, name: str, bucket: BucketRow, counted: BucketRow) -> None:
        said = bucket.streams, bucket.size_bytes
        found = counted.streams, counted.size_bytes
        if said != found:
            self._damage(
                f"the bucket {name!r} says that it holds {said[0]} streams with {said[1]} bytes, "
                f"and it holds {found[0]} with {found[1]}"
            )
        elif not bucket.explicit and not bucket.streams:
            self._damage(f"the bucket {name!r} is there though nobody created or uses it")


class DeltaCheck:
    """Takes the delta of each pack in use, in order; `finish` comes last."""

    def __init__(self, connection: sqlite3.Connection, findings: Findings) -> None:
        self._connection = connection
        self._findings = findings
        # Streams whose row, as of the last delta that has one, is not the catalog's.
        self._stale: set[int] = set()
        self._alive = 0
        self._at = 0
        self._named: set[str] = set()
        # Packs in use that have no delta, and what each supersedes.
        self._companions: dict[str, set[str]] = {}
        # Whether the catalog has of a document what the last delta has that tells of it.
        self._documents: dict[str, bool] = {}
        self._last_ms = 0

    def take(self, pack: PackRow, delta: Delta) -> None:
        """Take the next pack's delta."""
        meta = delta.meta
        if not meta.has_delta:
            self._companions[pack.name] = set(meta.supersedes)
            return
        self._named.update(meta.companions)
        if pack.after == self._at:
            self._at = pack.through
        for number, row in delta.items():
            if number >> INDEX_BITS > pack.after:
                self._alive += 1
            if self._known(number) == row:
                self._stale.discard(number)
            else:
                self._stale.add(number)
        self._last_ms = max(self._last_ms, meta.last_ms)
        for key, value in meta.documents.items():
            self._documents[key] = self._document(key) == value
        self._alive -= len(meta.removed)
        for number in meta.removed:
            self._stale.discard(number)
            if self._known(number) is not None:
                self._findings.damage(CATALOG, f"it has stream {number:x}, which {pack.name} ended")

    def finish(self, flushed: int) -> None:
        """Say what does not fit, once all deltas are taken."""
        for name, supersedes in sorted(self._companions.items()):
            if name not in self._named and not supersedes & self._named:
                self._findings.damage(
                    name, "it is in use, and no other pack names it: a rebuild would not find it"
                )
        if self._at != flushed:
            # A delta is missing, which was said already: there is nothing to compare with.
            return
        for number in sorted(self._stale):
            self._findings.damage(CATALOG, f"the row of stream {number:x} is not the packs'")
        (streams,) = self._connection.execute("SELECT count(*) FROM streams").fetchone()
        if streams != self._alive and not self._stale:
            self._findings.damage(
                CATALOG, f"it has {streams} streams, and the packs have {self._alive}"
            )
        if fact(self._connection, "flushed_ms") != self._last_ms:
            self._findings.damage(
                CATALOG,
                f"its 'flushed_ms' is {fact(self._connection, 'flushed_ms')}, "
                f"and the packs have {self._last_ms}",
            )
        self._check_documents()

    def _check_documents(self) -> None:
        for key in sorted(key for key, is_same in self._documents.items() if not is_same):
            self._findings.damage(CATALOG, f"the document {key!r} is not the packs'")
        for key, value in self._connection.execute("SELECT key, value FROM documents ORDER BY key"):
            if key not in self._documents and not _may_be_counted(key, value):
                self._findings.damage(CATALOG, f"it has a document {key!r}, which no pack has")

    def _document(self, key: str) -> bytes | None:
        found = self._connection.execute("SELECT value FROM documents WHERE key = ?", (key,))
        return next((value for (value,) in found), None)

    def _known(self, number: int) -> bytes | None:
        found = self._connection.execute("SELECT row FROM streams WHERE number = ?", (number,))
        return next((row for (row,) in found), None)


def _may_be_counted(key: str, value: bytes) -> bool:
    """Whether it is the row of a bucket that packs of an older version do not tell of."""
    try:
        return key.startswith(BUCKET_PREFIX) and not decode_bucket(value).explicit
    except msgspec.DecodeError:
        return False
