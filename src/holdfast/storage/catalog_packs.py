"""The packs in use and what is in them, as the catalog has it, for jobs that rewrite packs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.storage.catalog_schema import damaged, decoded_row, open_for_reading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Extents that are looked at in one step.
_EXTENTS_MAX: Final = 1000
_PACKS: Final = (
    "SELECT name, size_bytes, data_bytes, dead_bytes, messages, rows, has_delta, after, through, "
    "salt, created_ms FROM packs WHERE retired_ms IS NULL ORDER BY after, through, id"
)
_SUPERSEDED: Final = "SELECT retired_by, name FROM packs WHERE retired_ms IS NOT NULL ORDER BY id"
_EXTENTS: Final = (
    "SELECT extents.stream, extents.start, length, data_at, message_at, extents.messages, "
    "first_position, last_position, sums, streams.start, streams.name, row "
    "FROM packs CROSS JOIN extents INDEXED BY extents_by_pack ON extents.pack = packs.id "
    "CROSS JOIN streams ON streams.number = extents.stream "
    "WHERE packs.name = ? AND packs.retired_ms IS NULL "
    "AND (extents.stream, extents.start) > (?, ?) "
    "ORDER BY extents.stream, extents.start LIMIT ?"
)


class UsedPack(NamedTuple):
    """A pack in use, and the retired ones that it has taken the place of."""

    name: str
    size_bytes: int
    data_bytes: int
    dead_bytes: int
    messages: int
    rows: int
    # 0 or 1, as it is kept.
    has_delta: int
    after: int
    through: int
    # Little-endian, as it is kept.
    salt: bytes
    created_ms: int
    superseded: list[str]


class UsedExtent(NamedTuple):
    """An extent in use, and what there is to know of its stream."""

    stream: int
    start: int
    length: int
    data_at: int
    message_at: int
    messages: int
    first_position: int
    last_position: int
    # The checksum of the message index, then one for each block; eight bytes each.
    sums: bytes
    # Bytes before this offset are dead.
    needed_from: int
    name: str
    content_type: str
    tail: int


def used_packs(path: Path) -> list[UsedPack]:
    """The packs in use in the order of the log."""
    with closing(open_for_reading(path)) as connection:
        try:
            # One view of both: a swap may come between.
            connection.execute("BEGIN")
            packs = connection.execute(_PACKS).fetchall()
            retired = connection.execute(_SUPERSEDED).fetchall()
        except sqlite3.Error as error:
            raise damaged(path, error) from error
    superseded: dict[str, list[str]] = {}
    for successor, name in retired:
        superseded.setdefault(successor, []).append(name)
    return [UsedPack._make((*pack, superseded.get(pack[0], []))) for pack in packs]


def used_extents(path: Path, pack: str) -> Iterator[UsedExtent]:
    """The extents in use of a pack, by stream and offset; nothing is held between two steps."""
    stream, start = 0, -1
    with closing(open_for_reading(path)) as connection:
        while True:
            rows = _some(path, connection, (pack, stream, start, _EXTENTS_MAX))
            for *facts, row in rows:
                decoded = decoded_row(path, row)
                yield UsedExtent._make((*facts, decoded.meta.content_type, decoded.tail))
            if len(rows) < _EXTENTS_MAX:
                return
            stream, start = rows[-1][:2]


def _some(path: Path, connection: sqlite3.Connection, values: tuple[object, ...]) -> list[Any]:
    try:
        return connection.execute(_EXTENTS, values).fetchall()
    except sqlite3.Error as error:
        raise damaged(path, error) from error
