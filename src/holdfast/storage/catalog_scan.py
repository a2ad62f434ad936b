"""Scanning the catalog: where the records of many streams are, between two positions of the log.

There are two ways to the same result. By name: page through all streams of a prefix. By pack: find
the streams that have anything in the packs after a position, and look only at those. The cheaper
one is chosen, so the cost of finding what changed depends on how much changed.

A running query would hide later commits from every other call on its connection, and a slow reader
would keep SQLite's write-ahead log from being truncated. So a scan has its own connection and holds
no transaction between two pages of streams.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.format.packs import ScanRange
from holdfast.storage.catalog_schema import CatalogFile, open_for_reading, salt_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from holdfast.format.rows import StreamRow

    FoundRange = tuple[ScanRange, bool]

# Streams that are read in one step.
_SCAN_STREAMS: Final = 500
# Streams that a scan by pack keeps in memory; if there are more it scans by name.
_CANDIDATES_MAX: Final = 50_000
# Streams that are counted to choose a way; and how many extents can be read (measured) in the time
# that it takes to read one stream by name.
_COUNTED_MAX: Final = 250_000
_EXTENTS_PER_STREAM: Final = 4
_LAST_CHARACTER: Final = chr(0x10FFFF)
_FIRST_SURROGATE: Final = 0xD800
_AFTER_SURROGATES: Final = 0xE000

_NAMES: Final = "streams.name >= :least AND streams.name < :beyond AND streams.name <= :last"
_PAGE: Final = (
    f"SELECT number, row FROM streams WHERE {_NAMES} AND name > :behind "  # noqa: S608 (ours)
    "ORDER BY name LIMIT :limit"
)
_RANGES: Final = (
    "SELECT streams.number, packs.name, extents.start, extents.length, extents.first_position, "
    "extents.last_position, extents.data_at, extents.message_at, extents.messages, extents.sums, "
    "packs.salt, packs.data_bytes, packs.messages "
    "FROM streams JOIN extents ON extents.stream = streams.number "
    "JOIN packs ON packs.id = extents.pack "
    "WHERE extents.last_position > :after AND extents.first_position <= :until AND "
)
_IN_ORDER: Final = " ORDER BY streams.name, extents.start"
# Joined in this order: packs that reach into the range, their extents, the streams.
_BY_PACK: Final = (
    "FROM packs CROSS JOIN extents INDEXED BY extents_by_pack ON extents.pack = packs.id "
)
_REACHING: Final = (
    "WHERE packs.retired_ms IS NULL AND packs.through > :after AND packs.after < :until "
)
_WITHIN: Final = (
    "CROSS JOIN streams ON streams.number = extents.stream "
    + _REACHING
    + f"AND extents.last_position > :after AND extents.first_position <= :until AND {_NAMES}"
)
_COUNT_EXTENTS: Final = f"SELECT count(*) FROM (SELECT 1 {_BY_PACK}{_REACHING}LIMIT :limit)"  # noqa: S608 (ours)
_COUNT_STREAMS: Final = f"SELECT count(*) FROM (SELECT 1 FROM streams WHERE {_NAMES} LIMIT :limit)"  # noqa: S608 (ours)
_CANDIDATES: Final = (
    f"SELECT DISTINCT streams.name, streams.number {_BY_PACK}{_WITHIN} LIMIT :limit"
)
_AMOUNTS: Final = "SELECT extents.first_position, extents.last_position, length, extents.messages "
_AMOUNTS_BY_PACK: Final = f"{_AMOUNTS}{_BY_PACK}{_WITHIN}"
_AMOUNTS_BY_NAME: Final = (
    f"{_AMOUNTS}FROM streams CROSS JOIN extents ON extents.stream = streams.number WHERE {_NAMES} "
    "AND extents.last_position > :after AND extents.first_position <= :until"
)
_TRIMMED: Final = (
    f"SELECT row FROM streams WHERE number >= :number AND snapshot IS NOT NULL AND {_NAMES}"  # noqa: S608 (ours)
)


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
        return {
            "least": max(self.prefix, self.first),
            "beyond": after_prefix(self.prefix),
            # Any blob sorts after all text.
            "last": b"" if self.last is None else self.last,
            "after": self.after,
            "until": self.until,
        }


class CatalogScan:
    """One scan of a catalog, with its own connection."""

    def __init__(self, path: Path, scanned: Scanned) -> None:
        self._path = path
        self._scanned = scanned
        self._values = scanned.values

    def _opened(self) -> closing[CatalogFile]:
        self._file = CatalogFile(self._path, open_for_reading(self._path))
        return closing(self._file)

    def ranges(self) -> Iterator[FoundRange]:
        """Where the records are, sorted by name and offset, each with whether it is gone.

        Extents that readers can no longer see are gone: they are kept for forks only.
        """
        with self._opened():
            candidates = self._candidates()
            if candidates is None:
                yield from self._ranges_by_name()
            else:
                yield from self._ranges_by_pack(candidates)

    def amounts(self) -> list[Amount]:
        """How much was appended between which positions, unsorted."""
        with self._opened():
            by_pack = self._is_less_by_pack(1)
            # Left as tuples: there may be very many.
            return self._all(_AMOUNTS_BY_PACK if by_pack else _AMOUNTS_BY_NAME)

    def flushed(self) -> int:
        with self._opened():
            return self._file.flushed

    def trimmed_since(self, number: int) -> Iterator[StreamRow]:
        with self._opened():
            for (row,) in self._all(_TRIMMED, number=number):
                yield self._file.decoded(row)

    def trimmed_of(self, numbers: Sequence[int]) -> Iterator[StreamRow]:
        with self._opened():
            for at in range(0, len(numbers), _SCAN_STREAMS):
                some = _listed(numbers[at : at + _SCAN_STREAMS])
                statement = f"SELECT row FROM streams WHERE number IN {some} AND {_NAMES} "  # noqa: S608 (only numbers)
                for (row,) in self._all(statement + "AND snapshot IS NOT NULL"):
                    yield self._file.decoded(row)

    def _is_less_by_pack(self, extents_per_stream: int) -> bool:
        """Whether scanning by pack reads fewer rows than scanning by name."""
        ((streams,),) = self._all(_COUNT_STREAMS, limit=_COUNTED_MAX)
        ((extents,),) = self._all(_COUNT_EXTENTS, limit=streams * extents_per_stream)
        return bool(extents < streams * extents_per_stream)

    def _candidates(self) -> list[tuple[str, int]] | None:
        """Names and numbers of the streams with anything in the range; None if too many."""
        if not self._scanned.after or not self._is_less_by_pack(_EXTENTS_PER_STREAM):
            return None
        found = self._all(_CANDIDATES, limit=_CANDIDATES_MAX + 1)
        return sorted(found) if len(found) <= _CANDIDATES_MAX else None

    def _ranges_by_pack(self, candidates: list[tuple[str, int]]) -> Iterator[FoundRange]:
        for at in range(0, len(candidates), _SCAN_STREAMS):
            some = _listed([number for _, number in candidates[at : at + _SCAN_STREAMS]])
            rows = self._all(f"SELECT number, row FROM streams WHERE number IN {some}")  # noqa: S608 (only numbers)
            found = self._all(f"{_RANGES}streams.number IN {some}{_IN_ORDER}")
            yield from self._completed(dict(rows), found)

    def _ranges_by_name(self) -> Iterator[FoundRange]:
        behind = ""
        while True:
            rows = dict(self._all(_PAGE, behind=behind, limit=_SCAN_STREAMS))
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
            behind = last

    def _completed(self, rows: dict[int, bytes], found: list[Any]) -> Iterator[FoundRange]:
        """The ranges with the fields from their streams; most rows are never decoded."""
        number, row = 0, None
        for each in found:
            if each[0] != number:
                number, encoded = each[0], rows.get(each[0])
                row = None if encoded is None else self._file.decoded(encoded)
            if row is not None:
                # Extents may be kept for forks only.
                stream, pack, start, length, *places, sums, salt, data_bytes, messages = each
                gone = row.deleted or start + length <= row.earliest
                values = [
                    row.meta.name[self._scanned.skip :],
                    stream,
                    pack,
                    start,
                    length,
                    row.earliest,
                    row.meta.content_type,
                    *places,
                    sums[:8].hex(),
                    sums[8:].hex(),
                    salt_text(salt),
                    data_bytes,
                    messages,
                ]
                yield ScanRange(*values), gone

    def _all(self, statement: str, **more: object) -> list[Any]:
        return self._file.read(statement, self._values | more)


def _listed(numbers: Sequence[int]) -> str:
    return f"({','.join(map(str, numbers))})"


def after_prefix(prefix: str) -> str | bytes:
    """The first value that sorts after everything with this prefix.

    SQLite sorts text by code point, which is also the order of UTF-8, and blobs after all text.
    """
    shorter = prefix.rstrip(_LAST_CHARACTER)
    if not shorter:
        return b""
    code = ord(shorter[-1]) + 1
    return shorter[:-1] + chr(_AFTER_SURROGATES if code == _FIRST_SURROGATE else code)
