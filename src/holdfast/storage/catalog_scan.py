"""Scanning the catalog: where the records of many streams are, between two positions of the log.

There are two ways to the same result. By name: page through all streams of a prefix. By pack: find
the streams that have anything in the packs after a position, and look only at those. The cheaper
one is chosen, so the cost of finding what changed depends on how much changed.

A running query would hide later commits from every other call on its connection, and a slow reader
would keep SQLite's write-ahead log from being truncated. So a scan has its own connection and holds
no transaction between two pages of streams. It runs in a thread, and ends soon after `cancel`.
"""

from __future__ import annotations

from array import array
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.errors import NotFoundError, UnavailableError
from holdfast.format.packs import PackStreams, ScanRange
from holdfast.format.records import INDEX_BITS
from holdfast.protocol.headers import OFFSET_MAX
from holdfast.storage.catalog_schema import CatalogFile, open_for_reading, salt_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.format.rows import StreamRow

# Streams that are read in one step.
_SCAN_STREAMS: Final = 500
# Streams that a scan by pack keeps in memory; if there are more it scans by name.
CANDIDATES_MAX: Final = 50_000
# Streams that are counted to choose a way; and how many extents can be read (measured) in the time
# that it takes to read one stream by name.
_COUNTED_MAX: Final = 250_000
_EXTENTS_PER_STREAM: Final = 4
# Steps of SQLite's machine between two checks whether a query is still needed: some 10 ms.
_STEPS_PER_CHECK: Final = 1_000_000
# One of so many streams is a small part: scanning by pack would read much in vain.
_SHARE: Final = 8
_LAST_CHARACTER: Final = chr(0x10FFFF)
_FIRST_SURROGATE: Final = 0xD800
_AFTER_SURROGATES: Final = 0xE000

# One bound on either side: of two, SQLite would start at one, and look at all up to the other.
NAMES: Final = "streams.name >= :least AND streams.name < :beyond"
IN_RANGE: Final = "extents.last_position > :after AND extents.first_position <= :until"
_PAGE: Final = f"SELECT number, row FROM streams WHERE {NAMES} ORDER BY name LIMIT :limit"  # noqa: S608 (ours)
_RANGES: Final = (
    "SELECT streams.number, packs.name, extents.start, extents.length, extents.first_position, "  # noqa: S608 (ours)
    "extents.last_position, extents.data_at, extents.message_at, extents.messages, extents.sums, "
    "packs.salt, packs.data_bytes, packs.messages "
    "FROM streams JOIN extents ON extents.stream = streams.number "
    f"JOIN packs ON packs.id = extents.pack WHERE {IN_RANGE} AND "
)
_IN_ORDER: Final = " ORDER BY streams.name, extents.start"
# Joined in this order: packs that reach into the range, their extents, the streams.
BY_PACK: Final = (
    "FROM packs CROSS JOIN extents INDEXED BY extents_by_pack ON extents.pack = packs.id "
)
REACHING: Final = "packs.retired_ms IS NULL AND packs.through > :after AND packs.after < :until "
_OF_STREAMS: Final = f"CROSS JOIN streams ON streams.number = extents.stream WHERE {REACHING}"
WITHIN: Final = f"{_OF_STREAMS} AND {IN_RANGE} AND {NAMES}"
_COUNT_EXTENTS: Final = f"SELECT count(*) FROM (SELECT 1 {BY_PACK} WHERE {REACHING} LIMIT :limit)"  # noqa: S608 (ours)
_COUNT_STREAMS: Final = f"SELECT count(*) FROM (SELECT 1 FROM streams WHERE {NAMES} LIMIT :limit)"  # noqa: S608 (ours)
_CANDIDATES: Final = f"SELECT DISTINCT streams.name, streams.number {BY_PACK}{WITHIN} LIMIT :limit"
_AMOUNTS: Final = (
    "SELECT extents.first_position, extents.last_position, sum(length), sum(extents.messages) "
)
_BY_POSITION: Final = " GROUP BY extents.first_position, extents.last_position"
_AMOUNTS_BY_PACK: Final = f"{_AMOUNTS}{BY_PACK}{WITHIN}{_BY_POSITION}"
_AMOUNTS_BY_NAME: Final = (
    f"{_AMOUNTS}FROM streams CROSS JOIN extents ON extents.stream = streams.number WHERE {NAMES} "
    f"AND {IN_RANGE}{_BY_POSITION}"
)
_REACHING_RANGES: Final = (
    f"SELECT after, through FROM packs WHERE {REACHING} AND data_bytes > dead_bytes "  # noqa: S608 (ours)
    "ORDER BY after, through"
)
# Extents with messages that were appended in the range and can no longer be read.
_LOST: Final = (
    "SELECT DISTINCT streams.name FROM streams INDEXED BY streams_hidden CROSS JOIN extents "  # noqa: S608 (ours)
    "ON extents.stream = streams.number WHERE streams.visible_from > 0 "
    f"AND streams.hidden_at > :since AND {NAMES} AND {IN_RANGE} "
    "AND ((extents.first_position > :after AND extents.start < streams.visible_from) OR "
    "(extents.last_position <= :until "
    "AND extents.start + extents.length <= streams.visible_from)) "
    "ORDER BY streams.name LIMIT :limit"
)
_TRIMMED: Final = (
    "SELECT row FROM streams INDEXED BY streams_hidden WHERE number >= :number "  # noqa: S608 (ours)
    f"AND visible_from > 0 AND hidden_at > :since AND {NAMES}"
)
_PACK: Final = (
    "SELECT id, has_delta, dead_bytes, messages FROM packs WHERE name = ? AND retired_ms IS NULL"
)
_COUNT_HIDDEN: Final = (
    "SELECT count(*) FROM (SELECT 1 FROM streams INDEXED BY streams_hidden "
    "WHERE visible_from > 0 AND number BETWEEN :first AND :last LIMIT :limit)"
)
_HIDDEN_OF_PACK: Final = (
    "SELECT number, visible_from, hidden_at FROM streams INDEXED BY streams_hidden "
    "WHERE visible_from > 0 AND number BETWEEN :first AND :last AND EXISTS "
    "(SELECT 1 FROM extents INDEXED BY extents_by_pack WHERE pack = :pack AND stream = number)"
)
_OF_PACK: Final = (
    "SELECT DISTINCT extents.stream FROM extents INDEXED BY extents_by_pack "
    "WHERE pack = :pack AND extents.stream BETWEEN :first AND :last ORDER BY extents.stream"
)
_PACK_HIDDEN: Final = (
    f"SELECT number, visible_from, hidden_at FROM ({_OF_PACK}) AS held CROSS JOIN streams "  # noqa: S608 (ours)
    "INDEXED BY streams_hidden ON number = held.stream WHERE visible_from > 0"
)
# What a fork inherits is appended to it at the position of its creation, which its number holds.
_AMOUNTS_OF_FORKS: Final = (
    f"SELECT number >> {INDEX_BITS}, number >> {INDEX_BITS}, inherited, 1 FROM forks "  # noqa: S608 (ours)
    f"WHERE number >= (:after + 1) << {INDEX_BITS} AND number < (:until + 1) << {INDEX_BITS} "
    "AND name >= :least AND name < :beyond"
)
# By number for what is new, else by name.
_FORKS: Final = (
    "SELECT name, number, inherited FROM forks {by} WHERE number >= :from AND number < :to "
    "AND name >= :least AND name < :beyond ORDER BY name"
)
_FORKS_BY_NUMBER: Final = _FORKS.format(by="NOT INDEXED")
_FORKS_BY_NAME: Final = _FORKS.format(by="INDEXED BY sqlite_autoindex_forks_1")


class ForkEntry(NamedTuple):
    """A fork, and how many bytes of its sources can be read from it."""

    name: str
    number: int
    inherited: int


class Amount(NamedTuple):
    """How much an extent holds, and the positions between which it was appended."""

    first_position: int
    last_position: int
    size_bytes: int
    messages: int


class Scanned(NamedTuple):
    """What to scan: streams by prefix, from one name to another, and positions (after, until].

    `skip` is how many characters of a stream's name are not part of its id.
    """

    prefix: str
    after: int
    until: int
    first: str = ""
    last: str | None = None
    skip: int = 0

    @property
    def values(self) -> dict[str, object]:
        """The parameters of the statements."""
        beyond = after_prefix(self.prefix)
        if self.last is not None:
            # Any blob sorts after all text.
            after_last = after_name(self.last)
            beyond = min(after_last, beyond) if isinstance(beyond, str) else after_last
        return {
            "least": max(self.prefix, self.first),
            "beyond": beyond,
            "after": self.after,
            "until": self.until,
        }


class CatalogScan:
    """One scan of a catalog, with its own connection.

    `hidden` says from which offsets streams can be read, where the catalog may not know it yet.
    """

    def __init__(
        self, path: Path, scanned: Scanned, hidden: Mapping[int, int] | None = None
    ) -> None:
        self._path = path
        self._scanned = scanned
        self._values = scanned.values
        self._hidden = hidden or {}
        self._is_cancelled = False

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Connect to the catalog for some queries."""
        self.check_cancelled()
        connection = open_for_reading(self._path)
        connection.set_progress_handler(lambda: self._is_cancelled, _STEPS_PER_CHECK)
        self._file = CatalogFile(self._path, connection)
        with closing(self._file):
            yield

    def cancel(self) -> None:
        """End the scan, from another thread: its result is not needed any more."""
        self._is_cancelled = True

    def check_cancelled(self) -> None:
        if self._is_cancelled:
            raise UnavailableError("The scan was cancelled.")

    def ranges(self) -> Iterator[ScanRange]:
        """Where the records are that readers can see, sorted by name and offset.

        A range may also hold records outside the positions, or that are gone: the pack's message
        index has every position, and `earliest` is the first offset that can be read.
        """
        with self.opened():
            candidates = self._candidates()
            if candidates is None:
                yield from self._ranges_by_name()
            else:
                yield from self._ranges_by_pack(candidates)

    def amounts(self) -> Iterator[tuple[int, int, list[Amount]]]:
        """How much was appended between which positions, part by part in the order of the log.

        Each part comes with its own positions, (after, through].
        """
        with self.opened():
            if self.is_minor():
                found = self._all(_AMOUNTS_BY_NAME) + self._all(_AMOUNTS_OF_FORKS)
                yield self._scanned.after, self._scanned.until, found
                return
            for begin, end in _joined(self._all(_REACHING_RANGES)):
                after, through = max(begin, self._scanned.after), min(end, self._scanned.until)
                # Left as tuples: there may be very many.
                found = self._all(_AMOUNTS_BY_PACK, after=after, until=through)
                found += self._all(_AMOUNTS_OF_FORKS, after=after, until=through)
                yield after, through, found

    def forks(self) -> list[ForkEntry]:
        """The forks that inherit something and were created in the range, by name."""
        after, until = self._scanned.after, self._scanned.until
        numbers = {
            "from": (after + 1) << INDEX_BITS if after else 0,
            "to": (until + 1) << INDEX_BITS,
        }
        with self.opened():
            found = self._all(_FORKS_BY_NUMBER if after else _FORKS_BY_NAME, **numbers)
        return [ForkEntry(*each) for each in found]

    def flushed(self) -> int:
        with self.opened():
            return self._file.flushed

    def due(self, now_ms: int) -> list[int]:
        """Streams whose recorded deadline has passed."""
        with self.opened():
            found = self._file.read(
                "SELECT number FROM streams WHERE deadline_ms IS NOT NULL AND deadline_ms <= ?",
                (now_ms,),
            )
        return [number for (number,) in found]

    def lost(self, since: int, limit: int) -> list[str]:
        """The first names of streams with extents in the range that lost some after `since`."""
        with self.opened():
            return [name for (name,) in self._all(_LOST, since=since, limit=limit)]

    def has_extents(self, numbers: Sequence[int]) -> set[int]:
        """Those of the streams that gained something in the range that the catalog still has."""
        found: set[int] = set()
        statement = (
            "SELECT DISTINCT extents.stream FROM extents WHERE extents.stream IN {} "  # noqa: S608 (only numbers)
            f"AND {IN_RANGE} AND (first_position > :after OR last_position <= :until)"
        )
        with self.opened():
            for some in _listed(numbers):
                found.update(number for (number,) in self._all(statement.format(some)))
        return found

    def trimmed_since(self, number: int, since: int) -> Iterator[StreamRow]:
        """Streams created with this number or later and trimmed after `since`."""
        with self.opened():
            for (row,) in self._all(_TRIMMED, number=number, since=since):
                yield self._file.decoded(row)

    def visible_from(self, numbers: Sequence[int], since: int) -> Iterator[tuple[int, int, str]]:
        """Streams trimmed after `since`: number, first readable offset, name."""
        statement = (
            "SELECT number, visible_from, name FROM streams INDEXED BY streams_hidden "  # noqa: S608 (only numbers)
            f"WHERE number IN {{}} AND visible_from > 0 AND hidden_at > :since AND {NAMES}"
        )
        with self.opened():
            for some in _listed(numbers):
                yield from self._all(statement.format(some), since=since)

    def is_less_by_pack(self) -> bool:
        """Whether scanning by pack reads fewer rows than scanning by name."""
        if not self._scanned.after:
            return False
        limit = self._count(_COUNT_STREAMS, _COUNTED_MAX) * _EXTENTS_PER_STREAM
        return self._count(_COUNT_EXTENTS, limit) < limit

    def is_minor(self) -> bool:
        """Whether only a small part of all streams is scanned."""
        share = int(self._file.fact("streams")) // _SHARE
        return self._count(_COUNT_STREAMS, share + 1) <= share

    def _count(self, statement: str, limit: int) -> int:
        ((count,),) = self._all(statement, limit=limit)
        return int(count)

    def _candidates(self) -> list[tuple[str, int]] | None:
        """Names and numbers of the streams with anything in the range; None if too many."""
        if not self.is_less_by_pack():
            return None
        found = self._all(_CANDIDATES, limit=CANDIDATES_MAX + 1)
        return sorted(found) if len(found) <= CANDIDATES_MAX else None

    def _ranges_by_pack(self, candidates: list[tuple[str, int]]) -> Iterator[ScanRange]:
        for some in _listed([number for _, number in candidates]):
            rows = self._all(f"SELECT number, row FROM streams WHERE number IN {some}")  # noqa: S608 (only numbers)
            found = self._all(f"{_RANGES}streams.number IN {some}{_IN_ORDER}")
            yield from self._completed(dict(rows), found)

    def _ranges_by_name(self) -> Iterator[ScanRange]:
        least = self._values["least"]
        while True:
            rows = dict(self._all(_PAGE, least=least, limit=_SCAN_STREAMS))
            if not rows:
                return
            numbers = list(rows)
            first, last = (
                self._file.decoded(rows[at]).meta.name for at in (numbers[0], numbers[-1])
            )
            names = "streams.name >= :from AND streams.name <= :to"
            found = self._all(f"{_RANGES}{names}{_IN_ORDER}", **{"from": first, "to": last})
            yield from self._completed(rows, found)
            if len(rows) < _SCAN_STREAMS:
                return
            least = after_name(last)

    def _completed(self, rows: dict[int, bytes], found: list[Any]) -> Iterator[ScanRange]:
        """The ranges with the fields from their streams; most rows are never decoded."""
        number, row, visible_from = 0, None, 0
        for each in found:
            if each[0] != number:
                number, encoded = each[0], rows.get(each[0])
                row = None if encoded is None else self._file.decoded(encoded)
                if row is not None:
                    known = OFFSET_MAX if row.deleted else row.earliest
                    visible_from = max(known, self._hidden.get(number, 0))
            if row is not None and each[2] + each[3] > visible_from:
                stream, pack, start, length, *places, sums, salt, data_bytes, messages = each
                values = [
                    row.meta.name[self._scanned.skip :],
                    stream,
                    pack,
                    start,
                    length,
                    visible_from,
                    row.meta.content_type,
                    *places,
                    sums[:8].hex(),
                    sums[8:].hex(),
                    salt_text(salt),
                    data_bytes,
                    messages,
                    row.hidden_at,
                ]
                yield ScanRange(*values)

    def pack_streams(
        self, pack: str, first: int, last: int, numbers: Sequence[int], now: int
    ) -> PackStreams:
        """What the server knows of the streams in a pack with numbers from `first` to `last`.

        Names are those of `numbers`, or all if the pack has none itself. What the catalog does not
        know yet went at the position `now`.
        """
        with self.opened():
            self._file.read("BEGIN")
            found = self._file.read(_PACK, (pack,))
            if not found:
                raise NotFoundError(f"The pack {pack!r} is not in use.")
            ((number, has_delta, dead_bytes, messages),) = found
            values = {"pack": number, "first": first, "last": last}
            live = None
            if dead_bytes:
                live = array("Q", (each for (each,) in self._all(_OF_PACK, **values)))
            hidden = self._hidden_in(values, messages, now)
            if not has_delta:
                numbers = [each for (each,) in self._all(_OF_PACK, **values)]
            gone, visible_from, hidden_at = (array("q", each).tobytes() for each in hidden)
            return PackStreams(
                pack,
                None if live is None else live.tobytes(),
                gone,
                visible_from,
                hidden_at,
                self._names(numbers),
            )

    def _hidden_in(
        self, values: Mapping[str, int], messages: int, now: int
    ) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Streams of a pack that cannot be read from their start: from where, and since when."""
        ((count,),) = self._all(_COUNT_HIDDEN, limit=messages, **values)
        statement = _HIDDEN_OF_PACK if count < messages else _PACK_HIDDEN
        found = {each[0]: each for each in self._all(statement, **values)}
        for number, visible_from in self._hidden.items():
            if values["first"] <= number <= values["last"]:
                known = found.get(number)
                if known is None or known[1] < visible_from:
                    found[number] = number, visible_from, now
        columns = list(zip(*sorted(found.values()), strict=True))
        return (columns[0], columns[1], columns[2]) if columns else ((), (), ())

    def _names(self, numbers: Sequence[int]) -> dict[int, tuple[str, str]]:
        names = {}
        statement = f"SELECT row FROM streams WHERE number IN {{}} AND {NAMES}"  # noqa: S608 (only numbers)
        for some in _listed(numbers):
            for (encoded,) in self._all(statement.format(some)):
                row = self._file.decoded(encoded)
                stream_id = row.meta.name[self._scanned.skip :]
                names[row.number] = stream_id, row.meta.content_type
        return names

    def _all(self, statement: str, **more: object) -> list[Any]:
        self.check_cancelled()
        return self._file.read(statement, self._values | more)


def _listed(numbers: Sequence[int]) -> Iterator[str]:
    """Numbers as lists in SQL, of as many as are read in one step."""
    for at in range(0, len(numbers), _SCAN_STREAMS):
        yield f"({','.join(map(str, numbers[at : at + _SCAN_STREAMS]))})"


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges of positions, with those that overlap as one; they are sorted."""
    begin = end = -1
    for after, through in ranges:
        if after < end:
            end = max(end, through)
            continue
        if end >= 0:
            yield begin, end
        begin, end = after, through
    if end >= 0:
        yield begin, end


def after_name(name: str) -> str:
    """The first name that sorts after this one."""
    return name + "\0"


def after_prefix(prefix: str) -> str | bytes:
    """The first value that sorts after everything with this prefix.

    SQLite sorts text by code point, which is also the order of UTF-8, and blobs after all text.
    """
    shorter = prefix.rstrip(_LAST_CHARACTER)
    if not shorter:
        return b""
    code = ord(shorter[-1]) + 1
    return shorter[:-1] + chr(_AFTER_SURROGATES if code == _FIRST_SURROGATE else code)
