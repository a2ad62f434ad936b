"""Reading the catalog: which streams there are, and in which packs their bytes lie."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from sys import intern
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.format.packs import HEADER_BYTES, padded
from holdfast.format.rows import StreamRow
from holdfast.storage.catalog_schema import damaged, decoded_row, open_for_reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_EXTENTS: Final = (
    "SELECT packs.name, packs.salt, packs.data_bytes, extents.start, extents.length, "
    "extents.data_at, extents.message_at, extents.messages, extents.sums "
    "FROM extents JOIN packs ON packs.id = extents.pack "
)
_SCANNED: Final = (
    "SELECT name, row FROM streams "
    "WHERE name >= ?1 AND name > ?2 AND name < ?3 AND name <= ?4 ORDER BY name LIMIT ?5"
)
_SCAN: Final = (
    "SELECT streams.number, streams.name, packs.name, extents.start, extents.length, "
    "extents.first_position, extents.last_position FROM streams "
    "JOIN extents ON extents.stream = streams.number "
    "JOIN packs ON packs.id = extents.pack "
    "WHERE streams.name >= ? AND streams.name <= ? "
    "AND extents.last_position > ? AND extents.first_position <= ? "
    "ORDER BY streams.name, extents.start"
)
# Streams that a scan looks at in one step.
_SCAN_STREAMS: Final = 500
_LAST_CHARACTER: Final = chr(0x10FFFF)
_FIRST_SURROGATE: Final = 0xD800
_BEHIND_SURROGATES: Final = 0xE000


class Located(NamedTuple):
    """An extent, and all it takes to read and verify it."""

    pack: str
    salt: int
    start: int
    length: int
    data_at: int
    lengths_at: int
    messages: int
    index_sum: bytes
    sums: bytes

    @property
    def end(self) -> int:
        """The offset behind its last byte."""
        return self.start + self.length


class Totals(NamedTuple):
    """What the catalog adds up to."""

    flushed: int
    streams: int
    stored_bytes: int
    packs: int
    pack_bytes: int
    dead_bytes: int
    retired_packs: int


class Due(NamedTuple):
    """A stream whose recorded deadline has passed."""

    deadline_ms: int
    number: int


class ScanRange(NamedTuple):
    """Records of one stream in one pack: what a scan plan is made of."""

    stream: int
    name: str
    pack: str
    start: int
    length: int
    first_position: int
    last_position: int
    # Bytes before this are not the stream's any more.
    earliest: int = 0
    content_type: str = ""


class Catalog:
    """A catalog open for reading; every call sees what was committed last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = open_for_reading(path)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def fact(self, name: str) -> Any:
        """One of the catalog's own numbers and names."""
        return self._one("SELECT value FROM facts WHERE name = ?", (name,))[0]

    @property
    def flushed(self) -> int:
        """The position in the log up to which everything is in packs."""
        return int(self.fact("flushed"))

    def find_name(self, name: str) -> StreamRow | None:
        """The stream of this name."""
        found = self._one("SELECT row FROM streams WHERE name = ?", (name,))
        return None if found is None else decoded_row(self.path, found[0])

    def find_number(self, number: int) -> StreamRow | None:
        """The stream with this number."""
        found = self._one("SELECT row FROM streams WHERE number = ?", (number,))
        return None if found is None else decoded_row(self.path, found[0])

    def name_of(self, number: int) -> str | None:
        """The name of the stream with this number."""
        found = self._one("SELECT name FROM streams WHERE number = ?", (number,))
        return None if found is None else str(found[0])

    def documents(self) -> Iterator[tuple[str, bytes]]:
        """Every document by key."""
        yield from self._all("SELECT key, value FROM documents")

    def page(self, prefix: str, after: str, limit: int) -> list[StreamRow]:
        """Streams whose names start so, behind `after`, in the order of their names."""
        rows = self._all(
            "SELECT row FROM streams WHERE name >= ? AND name > ? AND name < ? "
            "ORDER BY name LIMIT ?",
            (prefix, after, _after_prefix(prefix), limit),
        )
        return [decoded_row(self.path, row) for (row,) in rows]

    def extents(self, stream: int, offset: int, extents_max: int) -> list[Located]:
        """The extent that holds `offset` and those that follow it, in order."""
        rows = self._all(
            _EXTENTS + "WHERE extents.stream = ?1 AND extents.start >= coalesce((SELECT max(start) "
            "FROM extents WHERE stream = ?1 AND start <= ?2), ?2) ORDER BY extents.start LIMIT ?3",
            (stream, offset, extents_max),
        )
        return [_located(row) for row in rows]

    def due(self, now_ms: int, after: Due, limit: int) -> list[Due]:
        """Streams whose recorded deadline has passed, soonest first, behind `after`."""
        rows = self._all(
            "SELECT deadline_ms, number FROM streams WHERE deadline_ms IS NOT NULL "
            "AND deadline_ms <= ? AND (deadline_ms, number) > (?, ?) "
            "ORDER BY deadline_ms, number LIMIT ?",
            (now_ms, *after, limit),
        )
        return [Due(*row) for row in rows]

    def totals(self) -> Totals:
        """Streams, bytes and packs; costs a look at every pack's row."""
        packs = self._one(
            "SELECT count(*) FILTER (WHERE retired_ms IS NULL), "
            "coalesce(sum(size_bytes) FILTER (WHERE retired_ms IS NULL), 0), "
            "coalesce(sum(dead_bytes) FILTER (WHERE retired_ms IS NULL), 0), "
            "count(retired_ms) FROM packs"
        )
        return Totals(self.flushed, self.fact("streams"), self.fact("stored_bytes"), *packs)

    def scan(
        self, prefix: str, after: int, until: int, first: str = "", last: str | None = None
    ) -> Iterator[ScanRange]:
        """Where the records of streams with this prefix lie whose positions are in (after, until].

        With `first` and `last` only streams from one name to the other, both included.

        Packs outside the range are never looked at, and streams come by name. A range may hold
        records outside (after, until] as well: the pack's message index has every position. What
        is kept for forks only is left out.
        """
        after_name = ""
        # Any blob sorts behind all text.
        bounds = max(prefix, first), _after_prefix(prefix), b"" if last is None else last
        # A query that is under way would hold back what every other call on this connection sees,
        # and a reader that takes long would keep SQLite's log from ever being shortened.
        with closing(open_for_reading(self.path)) as connection:
            while True:
                rows, ranges = self._scanned(connection, bounds, after_name, after, until)
                for found in ranges:
                    row = rows.get(found[0])
                    # Some of it may be there for forks only.
                    if row is not None and not row.deleted and found[3] + found[4] > row.earliest:
                        yield ScanRange(*found)._replace(
                            earliest=row.earliest, content_type=row.meta.content_type
                        )
                if len(rows) < _SCAN_STREAMS:
                    return
                after_name = next(reversed(rows.values())).meta.name

    def _scanned(
        self,
        connection: sqlite3.Connection,
        bounds: tuple[str, str | bytes, str | bytes],
        after_name: str,
        after: int,
        until: int,
    ) -> tuple[dict[int, StreamRow], list[Any]]:
        """Some streams in the order of their names, and all their ranges as of one moment."""
        least, beyond, last = bounds
        try:
            values = (least, after_name, beyond, last, _SCAN_STREAMS)
            found = [
                decoded_row(self.path, row)
                for _, row in connection.execute(_SCANNED, values).fetchall()
            ]
            if not found:
                return {}, []
            names = found[0].meta.name, found[-1].meta.name
            ranges = connection.execute(_SCAN, (*names, after, until)).fetchall()
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error
        return {row.number: row for row in found}, ranges

    def _one(self, statement: str, values: Sequence[object] = ()) -> Any:
        try:
            return self._connection.execute(statement, values).fetchone()
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error

    def _all(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error


def _after_prefix(prefix: str) -> str | bytes:
    """The first value that sorts behind everything with this prefix.

    Text sorts by code point, which is the order of its UTF-8 too, and any blob behind all text.
    """
    shorter = prefix.rstrip(_LAST_CHARACTER)
    if not shorter:
        return b""
    code = ord(shorter[-1]) + 1
    return shorter[:-1] + chr(_BEHIND_SURROGATES if code == _FIRST_SURROGATE else code)


def _located(row: tuple[Any, ...]) -> Located:
    pack, salt, data_bytes, start, length, data_at, message_at, messages, sums = row
    lengths_at = padded(HEADER_BYTES + data_bytes) + 4 * message_at
    return Located(
        intern(pack),
        int.from_bytes(salt, "little"),
        start,
        length,
        data_at,
        lengths_at,
        messages,
        sums[:8],
        sums[8:],
    )
