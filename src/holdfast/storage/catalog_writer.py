"""Writing the catalog: flushes, swaps, garbage and pins, each in one transaction.

Rules:

- `flushed` only moves to the end of a flush that started where the last one ended.
- Extents of a stream are contiguous from its `start`, or from somewhat before it since extents are
  dropped whole, to the end of what is flushed.
- A swap retires packs and puts others into use; it happens only if all that go are still in use
  (compare-and-set), and if every live byte of them is in those that come.
- A retired pack keeps its row until its object is removed, so nothing is removed before the catalog
  has durably given it up. The same holds for a snapshot that no stream has any more.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from holdfast.errors import CatalogError
from holdfast.format.packs import PackInfo
from holdfast.format.rows import StreamRow, encode_row, inherited_bytes, take_producers
from holdfast.protocol.headers import OFFSET_MAX
from holdfast.storage.catalog_schema import (
    CatalogFile,
    damaged,
    open_for_writing,
    put_fork,
    put_producers,
    salt_text,
    visible_from,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.format.packs import Extent, NewPack, TimeSpan
    from holdfast.protocol.producer import ProducerState

_log = logging.getLogger(__name__)
_ROWS_PER_STEP: Final = 1000


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
        # Anything else is damage, which must not pass for a delta.
        has_delta == 1,
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


def pack_rows(catalog: CatalogFile, where: str, values: Sequence[object] = ()) -> list[PackRow]:
    """The packs that match a condition, in the order of the log."""
    rows = catalog.read(
        f"SELECT {ROW_COLUMNS} FROM packs WHERE {where} ORDER BY after, through, id",  # noqa: S608 (conditions are ours)
        values,
    )
    return [pack_row(row) for row in rows]


class RowChange(NamedTuple):
    """A stream's row at the end of a flush, in the columns of the catalog, and its producers."""

    number: int
    name: str
    deadline_ms: int | None
    start: int
    snapshot: str | None
    encoded: bytes
    visible_from: int
    hidden_at: int
    # Those that changed.
    producers: Mapping[bytes, ProducerState]
    # Of forks only.
    inherited: int | None


def row_change(row: StreamRow, encoded: bytes | None = None) -> RowChange:
    """The change from a row and its encoding, if that is known; takes the producers out of it."""
    snapshot = None if row.snapshot is None else row.snapshot.object
    producers = {} if row.producers is None else take_producers(row)
    return RowChange(
        row.number,
        row.meta.name,
        row.deadline_ms,
        row.start,
        snapshot,
        encode_row(row) if producers or encoded is None else encoded,
        visible_from(row),
        row.hidden_at,
        producers,
        None if row.meta.fork is None else inherited_bytes(row),
    )


class CatalogWriter(CatalogFile):
    """The catalog's one writer."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, open_for_writing(path))

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing; durable once it ends."""
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

    def set_fact(self, name: str, value: object) -> None:
        with self.transaction() as connection:
            _set_fact(connection, name, value)

    def settle(self) -> None:
        """Make sure that an invisible transaction stays invisible.

        A writer that is killed during a commit, or cannot sync it, can leave a whole transaction in
        SQLite's log that is missing from the index over it. Nobody sees it; but once every process
        has closed the file, recovery would find it, unless something was written in its place.
        """
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO facts VALUES ('settled', 1) "
                "ON CONFLICT (name) DO UPDATE SET value = value + 1"
            )

    def find_document(self, key: str) -> bytes | None:
        found = self.read("SELECT value FROM documents WHERE key = ?", (key,))
        return found[0][0] if found else None

    def packs(
        self, where: str = "retired_ms IS NULL", values: Sequence[object] = ()
    ) -> list[PackRow]:
        """Packs in use, or those that match a condition, in the order of the log."""
        return pack_rows(self, where, values)

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
        times: Sequence[TimeSpan] = (),
        producers_kept: int = 0,
        idle_before_ms: int = 0,
    ) -> None:
        """Put a flush's packs into use, and update the streams' rows.

        `dropped` are snapshots that streams no longer have, with their sizes; `last_ms` is the time
        of the last record, and `times` are those of the messages. A stream with new writes and more
        than `producers_kept` producers forgets those that wrote last before `idle_before_ms`.
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
            if idle_before_ms > 0:
                for row in changed:
                    if row.producers:
                        _forget_idle(connection, row.number, producers_kept, idle_before_ms)
            gone_bytes += sum(
                _drop_before(connection, row.number, row.start) for row in changed if row.start
            )
            put_documents(connection, documents)
            put_times(connection, times)
            _put_dropped(connection, dropped, now_ms)
            _set_fact(connection, "flushed", through)
            _set_fact(connection, "flushed_ms", max(last_ms, self.fact("flushed_ms")))
            add_to_fact(connection, "streams", created - len(removed))
            add_to_fact(connection, "stored_bytes", added_bytes - gone_bytes)
        self.checkpoint()

    def checkpoint(self) -> None:
        """Move commits from SQLite's write-ahead log into its file, as far as readers allow.

        A failure is harmless: the next checkpoint does it.
        """
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            _log.warning("%s could not be checkpointed: %s", self.path, error)


def _set_fact(connection: sqlite3.Connection, name: str, value: object) -> None:
    connection.execute("UPDATE facts SET value = ? WHERE name = ?", (value, name))


def add_to_fact(connection: sqlite3.Connection, name: str, amount: int) -> None:
    connection.execute("UPDATE facts SET value = value + ? WHERE name = ?", (amount, name))


def put_rows(connection: sqlite3.Connection, rows: Iterable[RowChange]) -> None:
    """Write streams' rows and those of their producers that changed."""
    rows = iter(rows)
    while some := list(islice(rows, _ROWS_PER_STEP)):
        connection.executemany(
            "INSERT INTO streams (number, name, deadline_ms, start, snapshot, row, visible_from, "
            "hidden_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (number) DO UPDATE "
            "SET deadline_ms = excluded.deadline_ms, start = excluded.start, "
            "snapshot = excluded.snapshot, row = excluded.row, "
            "visible_from = excluded.visible_from, hidden_at = excluded.hidden_at",
            (change[:-2] for change in some),
        )
        for change in some:
            if change.producers:
                put_producers(connection, change.number, change.producers)
            if change.inherited is not None:
                put_fork(connection, change.number, change.name, change.inherited)


def _forget_idle(connection: sqlite3.Connection, stream: int, kept: int, before_ms: int) -> None:
    """Delete the producers of a stream that wrote last before this time, if it has many."""
    forgotten = connection.execute(
        "DELETE FROM producers WHERE stream = ?1 AND used_ms < ?2 "
        "AND (SELECT producers FROM streams WHERE number = ?1) > ?3",
        (stream, before_ms, kept),
    ).rowcount
    if forgotten:
        connection.execute(
            "UPDATE streams SET forgotten_ms = max(coalesce(forgotten_ms, 0), ?) WHERE number = ?",
            (before_ms, stream),
        )
        _log.info("stream %x has forgotten %d idle producers", stream, forgotten)


def put_documents(connection: sqlite3.Connection, documents: Mapping[str, bytes | None]) -> None:
    """Write documents, and delete those whose value is None."""
    connection.executemany(
        "INSERT INTO documents VALUES (?, ?) ON CONFLICT (key) DO UPDATE "
        "SET value = excluded.value",
        ((key, value) for key, value in documents.items() if value is not None),
    )
    connection.executemany(
        "DELETE FROM documents WHERE key = ?",
        ((key,) for key, value in documents.items() if value is None),
    )


def put_times(connection: sqlite3.Connection, times: Iterable[TimeSpan]) -> None:
    """Write between which times the messages of parts of the log were appended."""
    connection.executemany("INSERT INTO times VALUES (?, ?, ?, ?)", times)


def _put_dropped(connection: sqlite3.Connection, dropped: Mapping[str, int], now_ms: int) -> None:
    """Record objects of snapshots as garbage, unless another stream still has one of them."""
    connection.executemany(
        "INSERT OR IGNORE INTO dropped_snapshots SELECT ?1, ?2, ?3 "
        "WHERE NOT EXISTS (SELECT 1 FROM streams WHERE snapshot = ?1)",
        ((name, size_bytes, now_ms) for name, size_bytes in dropped.items()),
    )


def insert_pack(
    connection: sqlite3.Connection, pack: PackInfo, extents: Iterable[Extent], dead_bytes: int = 0
) -> int:
    """Insert a pack and those of its extents that are in use; returns its id."""
    salt = int(pack.salt, 16).to_bytes(8, "little")
    cursor = connection.execute(
        f"INSERT INTO packs ({PACK_COLUMNS}) VALUES (:{PACK_COLUMNS.replace(', ', ', :')})",  # noqa: S608 (ours)
        msgspec.structs.asdict(pack) | {"dead_bytes": dead_bytes, "salt": salt},
    )
    number = cursor.lastrowid
    assert number is not None, "an inserted row has an id"
    connection.executemany(
        "INSERT INTO extents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", extent_values(number, extents)
    )
    return number


def extent_values(pack: int, extents: Iterable[Extent]) -> Iterator[tuple[object, ...]]:
    """The columns of a pack's extents."""
    for extent in extents:
        sums = extent.index_sum.to_bytes(8, "little") + extent.sums
        yield *extent[:3], pack, *extent[3:-2], sums


def _remove_stream(connection: sqlite3.Connection, number: int) -> int:
    """Delete a stream; returns how many bytes of it are dead now."""
    total = _drop_before(connection, number, OFFSET_MAX)
    delete_stream(connection, number)
    return total


def delete_stream(connection: sqlite3.Connection, number: int) -> None:
    """Delete a stream's row and producers."""
    connection.execute("DELETE FROM streams WHERE number = ?", (number,))
    connection.execute("DELETE FROM producers WHERE stream = ?", (number,))


def _drop_before(connection: sqlite3.Connection, number: int, start: int) -> int:
    """Delete the extents of a stream that end at or before `start`; returns their size."""
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
