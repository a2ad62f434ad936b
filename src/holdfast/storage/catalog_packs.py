"""The packs in use and what is in them, as the catalog has it, for jobs that rewrite packs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from holdfast.format.packs import PackExtent, PackInfo
from holdfast.protocol.content import JSON, media_type
from holdfast.storage.catalog_schema import damaged, decoded_row, open_for_reading
from holdfast.storage.catalog_writer import PACK_COLUMNS, pack_info

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from holdfast.format.rows import StreamRow

# Extents that are looked at in one step.
_EXTENTS_MAX: Final = 1000
_PACKS: Final = (
    f"SELECT {PACK_COLUMNS} FROM packs WHERE retired_ms IS NULL ORDER BY after, through, id"  # noqa: S608 (ours)
)
_SUPERSEDED: Final = "SELECT retired_by, name FROM packs WHERE retired_ms IS NOT NULL ORDER BY id"
_EXTENTS: Final = (
    "SELECT extents.stream, extents.start, length, data_at, message_at, extents.messages, "
    "first_position, last_position, sums, row "
    "FROM packs CROSS JOIN extents INDEXED BY extents_by_pack ON extents.pack = packs.id "
    "CROSS JOIN streams ON streams.number = extents.stream "
    "WHERE packs.name = ? AND packs.retired_ms IS NULL "
    "AND (extents.stream, extents.start) > (?, ?) "
    "ORDER BY extents.stream, extents.start LIMIT ?"
)


def used_packs(path: Path) -> list[PackInfo]:
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
    return [pack_info(pack, superseded.get(pack[0], ())) for pack in packs]


def used_extents(path: Path, pack: str) -> Iterator[PackExtent]:
    """The extents in use of a pack, by stream and offset; nothing is held between two steps."""
    stream, start = 0, -1
    with closing(open_for_reading(path)) as connection:
        while True:
            rows = _some(path, connection, (pack, stream, start, _EXTENTS_MAX))
            for *columns, row in rows:
                yield pack_extent(columns, decoded_row(path, row))
            if len(rows) < _EXTENTS_MAX:
                return
            stream, start = rows[-1][:2]


def pack_extent(columns: Sequence[Any], row: StreamRow | None) -> PackExtent:
    """An extent from its columns, of which `sums` comes last, and the row of its stream."""
    *places, sums = columns
    sums = bytes(sums)
    values = [*places, sums[:8].hex(), sums[8:].hex()]
    if row is None:
        values += [0, "", False, 0]
    else:
        values += [row.start, row.meta.name, media_type(row.meta.content_type) == JSON, row.tail]
    return PackExtent(*values)


def _some(path: Path, connection: sqlite3.Connection, values: tuple[object, ...]) -> list[Any]:
    try:
        return connection.execute(_EXTENTS, values).fetchall()
    except sqlite3.Error as error:
        raise damaged(path, error) from error
