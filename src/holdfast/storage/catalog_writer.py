"""Writing the catalog: flushes, swaps, garbage and pins, each in one transaction.

Rules:

- `flushed` only ever moves to the end of a flush that started where the last one ended.
- Extents of a stream are contiguous from its `start`, or from somewhat before it since extents go
  as a whole, to the end of what is flushed.
- A swap takes packs out of use and puts others in; it happens only if all that go are still in use
  (compare-and-set), and if every live byte of them is in those that come.
- A pack out of use keeps its row until its object is removed, so that nothing is ever removed
  that the catalog has not given up durably before. A snapshot that no stream has any more gets one.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from holdfast.errors import CatalogError
from holdfast.format.packs import PackInfo
from holdfast.format.rows import StreamRow
from holdfast.protocol.headers import OFFSET_MAX
from holdfast.storage.catalog_schema import damaged, decoded_row, open_for_writing, salt_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.format.packs import Extent, NewPack

_log = logging.getLogger(__name__)


PACK_COLUMNS: Final = (
    "name, size_bytes, data_bytes, dead_bytes, messages, rows, has_delta, after, through, salt, "
    "created_ms"
)
ROW_COLUMNS: Final = f"{PACK_COLUMNS}, id, retired_ms, retired_by"


class PackRow(PackInfo, frozen=True):
    """A pack with what only the catalog needs to know about it."""

    id: int
    # None while the pack is in use.
    retired_ms: int | None
    retired_by: str | None


def pack_info(columns: Sequence[Any], superseded: Sequence[str] = ()) -> PackInfo:
    """A pack from its `PACK_COLUMNS`."""
    *sizes, has_delta, after, through, salt, created_ms = columns
    values = [
        *sizes,
        bool(has_delta),
        after,
        through,
        salt_text(salt),
        created_ms,
        list(superseded),
    ]
    return PackInfo(*values)


def pack_row(columns: Sequence[Any]) -> PackRow:
    """A pack from its `ROW_COLUMNS`."""
    info = msgspec.structs.astuple(pack_info(columns[:-3]))
    return PackRow(*info, *columns[-3:])


class RowChange(NamedTuple):
    """A stream's row as of a flush's end, encoded for packs and catalog alike."""

    number: int
    name: str
    deadline_ms: int | None
    start: int
    snapshot: str | None
    encoded: bytes


def row_change(row: StreamRow, encoded: bytes) -> RowChange:
    """A row with what the catalog looks for by itself."""
    snapshot = None if row.snapshot is None else row.snapshot.object
    return RowChange(row.number, row.meta.name, row.deadline_ms, row.start, snapshot, encoded)


class CatalogWriter:
    """The catalog's one writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = open_for_writing(path)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing, durable once it ends."""
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # SQLite may have rolled back by itself, for example on a full disk.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error

    def read(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        """The rows of a query."""
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error

    def fact(self, name: str) -> Any:
        """One of the catalog's own numbers and names."""
        return self.read("SELECT value FROM facts WHERE name = ?", (name,))[0][0]

    def set_fact(self, name: str, value: object) -> None:
        """Change one of the catalog's own numbers and names."""
        with self.transaction() as connection:
            _set_fact(connection, name, value)

    def settle(self) -> None:
        """Make sure that what cannot be seen now never will be.

        A writer that is killed while it commits can leave the transaction whole in SQLite's log and
        missing in the index over it. Nobody sees it then; but once all have closed the file, or
        were killed, recovery finds it there, unless something was written in its place.
        """
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO facts VALUES ('settled', 1) "
                "ON CONFLICT (name) DO UPDATE SET value = value + 1"
            )

    def find_number(self, number: int) -> StreamRow | None:
        """The stream with this number."""
        found = self.read("SELECT row FROM streams WHERE number = ?", (number,))
        return decoded_row(self.path, found[0][0]) if found else None

    def find_document(self, key: str) -> bytes | None:
        """The document with this key."""
        found = self.read("SELECT value FROM documents WHERE key = ?", (key,))
        return found[0][0] if found else None

    def packs(
        self, where: str = "retired_ms IS NULL", values: Sequence[object] = ()
    ) -> list[PackRow]:
        """Packs in use in the order of the log, or those that fit a condition."""
        rows = self.read(
            f"SELECT {ROW_COLUMNS} FROM packs WHERE {where} ORDER BY after, through, id",  # noqa: S608 (conditions are ours)
            values,
        )
        return [pack_row(row) for row in rows]

    def commit_flush(
        self,
        after: int,
        through: int,
        packs: Sequence[NewPack],
        rows: Iterable[RowChange],
        removed: Sequence[int],
        documents: Mapping[str, bytes | None],
        *,
        created: int,
        added_bytes: int,
        dropped: Mapping[str, int],
        last_ms: int,
        now_ms: int,
    ) -> None:
        """Put a flush's packs into use, and bring the streams' rows up to its end.

        `dropped` are snapshots that a stream had and has no more, with their sizes; `last_ms` is
        the time of the range's last record.
        """
        with self.transaction() as connection:
            if self.fact("flushed") != after:
                raise CatalogError(
                    f"A flush from position {after} does not continue at {self.fact('flushed')}."
                )
            for pack in packs:
                insert_pack(connection, pack.info, pack.extents)
            changed = list(rows)
            gone_bytes = sum(_remove_stream(connection, number) for number in removed)
            put_rows(connection, changed)
            gone_bytes += sum(
                _drop_before(connection, row.number, row.start) for row in changed if row.start
            )
            put_documents(connection, documents)
            _put_dropped(connection, dropped, now_ms)
            _set_fact(connection, "flushed", through)
            _set_fact(connection, "flushed_ms", max(last_ms, self.fact("flushed_ms")))
            add_to_fact(connection, "streams", created - len(removed))
            add_to_fact(connection, "stored_bytes", added_bytes - gone_bytes)
        self.checkpoint()

    def checkpoint(self) -> None:
        """Move what was committed from SQLite's log into its file, as far as readers allow.

        What was committed stays so if this fails, and the next one does it.
        """
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            _log.warning("%s could not be checkpointed: %s", self.path, error)


def _set_fact(connection: sqlite3.Connection, name: str, value: object) -> None:
    connection.execute("UPDATE facts SET value = ? WHERE name = ?", (value, name))


def add_to_fact(connection: sqlite3.Connection, name: str, amount: int) -> None:
    """Add to one of the catalog's own numbers."""
    connection.execute("UPDATE facts SET value = value + ? WHERE name = ?", (amount, name))


def put_rows(connection: sqlite3.Connection, rows: Iterable[RowChange]) -> None:
    """Bring streams' rows up to date, and add those of new streams."""
    connection.executemany(
        "INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (number) DO UPDATE "
        "SET deadline_ms = excluded.deadline_ms, start = excluded.start, "
        "snapshot = excluded.snapshot, row = excluded.row",
        rows,
    )


def put_documents(connection: sqlite3.Connection, documents: Mapping[str, bytes | None]) -> None:
    """Bring documents up to date, and let go of those that are gone."""
    connection.executemany(
        "INSERT INTO documents VALUES (?, ?) ON CONFLICT (key) DO UPDATE "
        "SET value = excluded.value",
        ((key, value) for key, value in documents.items() if value is not None),
    )
    connection.executemany(
        "DELETE FROM documents WHERE key = ?",
        ((key,) for key, value in documents.items() if value is None),
    )


def _put_dropped(connection: sqlite3.Connection, dropped: Mapping[str, int], now_ms: int) -> None:
    """Enter snapshots that are garbage from now on, unless a fork has them still."""
    connection.executemany(
        "INSERT OR IGNORE INTO dropped_snapshots SELECT ?1, ?2, ?3 "
        "WHERE NOT EXISTS (SELECT 1 FROM streams WHERE snapshot = ?1)",
        ((name, size_bytes, now_ms) for name, size_bytes in dropped.items()),
    )


def insert_pack(
    connection: sqlite3.Connection, pack: PackInfo, extents: Iterable[Extent], dead_bytes: int = 0
) -> int:
    """Insert a pack and those of its extents that are in use; its id."""
    cursor = connection.execute(
        "INSERT INTO packs (name, size_bytes, data_bytes, dead_bytes, messages, rows, has_delta, "
        "after, through, salt, created_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            pack.name,
            pack.size_bytes,
            pack.data_bytes,
            dead_bytes,
            pack.messages,
            pack.rows,
            pack.has_delta,
            pack.after,
            pack.through,
            int(pack.salt, 16).to_bytes(8, "little"),
            pack.created_ms,
        ),
    )
    number = cursor.lastrowid
    assert number is not None, "an inserted row has an id"
    connection.executemany(
        "INSERT INTO extents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (
                extent.stream,
                extent.start,
                extent.length,
                number,
                extent.data_at,
                extent.message_at,
                extent.messages,
                extent.first_position,
                extent.last_position,
                extent.index_sum.to_bytes(8, "little") + extent.sums,
            )
            for extent in extents
        ),
    )
    return number


def _remove_stream(connection: sqlite3.Connection, number: int) -> int:
    """Forget a stream; its bytes in packs are dead from now on, and returned."""
    total = _drop_before(connection, number, OFFSET_MAX)
    connection.execute("DELETE FROM streams WHERE number = ?", (number,))
    return total


def _drop_before(connection: sqlite3.Connection, number: int, start: int) -> int:
    """Forget the extents of a stream that end at `start` or before; their bytes."""
    total = 0
    for pack, size in connection.execute(
        "SELECT pack, sum(length) FROM extents WHERE stream = ? AND start + length <= ? "
        "GROUP BY pack",
        (number, start),
    ).fetchall():
        connection.execute(
            "UPDATE packs SET dead_bytes = dead_bytes + ? WHERE id = ?", (size, pack)
        )
        total += size
    if total:
        connection.execute(
            "DELETE FROM extents WHERE stream = ? AND start + length <= ?", (number, start)
        )
    return total
