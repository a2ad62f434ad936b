"""The catalog's tables, and how a catalog file is opened.

The catalog is an index over the packs, and everything in it can be rebuilt from them. One process
writes it, in transactions that are durable once they return; any number read it meanwhile.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import CatalogError, HoldfastError, StoreError, UnknownFormatError
from holdfast.format.packs import unknown_times
from holdfast.format.rows import (
    BUCKET_PREFIX,
    BucketRow,
    StreamRow,
    decode_bucket,
    decode_row,
    encode_bucket,
    encode_row,
    inherited_bytes,
    stored_bytes,
    take_producers,
)
from holdfast.protocol.headers import OFFSET_MAX

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.protocol.producer import ProducerState


FORMAT_VERSION: Final = 4
BY_NUMBER: Final = "SELECT row FROM streams WHERE number = ?"
_APPLICATION_ID: Final = 0x48464354
_WRITER_CACHE_KIB: Final = 32 * 1024
_READER_CACHE_KIB: Final = 8 * 1024
_BUSY_TIMEOUT_S: Final = 30.0
# Errors that pass by themselves, or when there is room again.
_PASSING: Final = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
)
# New in format 2: the columns `start` and `snapshot`, and the other tables.
_SECOND: Final = """
CREATE TABLE streams (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    deadline_ms INTEGER,
    start INTEGER NOT NULL,
    snapshot TEXT,
    row BLOB NOT NULL
);
CREATE INDEX streams_due ON streams (deadline_ms, number) WHERE deadline_ms IS NOT NULL;
CREATE INDEX streams_snapshot ON streams (snapshot) WHERE snapshot IS NOT NULL;
CREATE TABLE documents (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE dropped_snapshots (
    name TEXT PRIMARY KEY,
    size_bytes INTEGER NOT NULL,
    dropped_ms INTEGER NOT NULL
) WITHOUT ROWID;
"""
# New in format 3: producers, which were part of the streams' rows, and the columns about them.
_THIRD: Final = (
    "ALTER TABLE streams ADD COLUMN producers INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE streams ADD COLUMN forgotten_ms INTEGER",
    "CREATE INDEX streams_forgotten ON streams (number) WHERE forgotten_ms IS NOT NULL",
    """
    CREATE TABLE producers (
        stream INTEGER NOT NULL,
        id BLOB NOT NULL,
        epoch INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        used_ms INTEGER NOT NULL,
        PRIMARY KEY (stream, id)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX producers_used ON producers (stream, used_ms)",
    """
    CREATE TRIGGER producers_added AFTER INSERT ON producers BEGIN
        UPDATE streams SET producers = producers + 1 WHERE number = NEW.stream;
    END
    """,
    """
    CREATE TRIGGER producers_removed AFTER DELETE ON producers BEGIN
        UPDATE streams SET producers = producers - 1 WHERE number = OLD.stream;
    END
    """,
)
# New in format 4: the digest of a producer's last request, from which offset a stream can be read
# and since when, the times of the log, and forks that inherit something with how many bytes.
_FOURTH: Final = (
    "ALTER TABLE producers ADD COLUMN digest BLOB NOT NULL DEFAULT x''",
    "ALTER TABLE streams ADD COLUMN visible_from INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE streams ADD COLUMN hidden_at INTEGER NOT NULL DEFAULT 0",
    """
    CREATE INDEX streams_hidden ON streams (number, visible_from, hidden_at)
    WHERE visible_from > 0
    """,
    """
    CREATE TABLE times (
        first_position INTEGER PRIMARY KEY,
        last_position INTEGER NOT NULL,
        min_ms INTEGER NOT NULL,
        max_ms INTEGER NOT NULL
    )
    """,
    """
    CREATE TABLE forks (
        number INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        inherited INTEGER NOT NULL
    )
    """,
    """
    CREATE TRIGGER forks_removed AFTER DELETE ON streams BEGIN
        DELETE FROM forks WHERE number = OLD.number;
    END
    """,
)
# Rows that an upgrade holds in memory.
_ROWS_PER_STEP: Final = 1000
_TABLES: Final = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE packs (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    size_bytes INTEGER NOT NULL,
    data_bytes INTEGER NOT NULL,
    dead_bytes INTEGER NOT NULL DEFAULT 0,
    messages INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    has_delta INTEGER NOT NULL,
    after INTEGER NOT NULL,
    through INTEGER NOT NULL,
    salt BLOB NOT NULL,
    created_ms INTEGER NOT NULL,
    retired_ms INTEGER,
    retired_by TEXT
);
CREATE TABLE extents (
    stream INTEGER NOT NULL,
    start INTEGER NOT NULL,
    length INTEGER NOT NULL,
    pack INTEGER NOT NULL,
    data_at INTEGER NOT NULL,
    message_at INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    first_position INTEGER NOT NULL,
    last_position INTEGER NOT NULL,
    sums BLOB NOT NULL,
    PRIMARY KEY (stream, start)
) WITHOUT ROWID;
CREATE INDEX extents_by_pack ON extents (pack);
CREATE TABLE pins (
    name TEXT PRIMARY KEY,
    created_ms INTEGER NOT NULL,
    until_ms INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO facts VALUES
    ('flushed', 0), ('flushed_ms', 0), ('streams', 0), ('stored_bytes', 0), ('store', '');
"""


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the catalog for its one writer, creating or upgrading it if necessary."""
    with suppress(OSError):
        # SQLite gives its other files the mode of this one.
        path.touch(0o600, exist_ok=False)
    with _opened(path, "rwc") as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # These matter on macOS only.
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA checkpoint_fullfsync = ON")
        connection.execute(f"PRAGMA cache_size = -{_WRITER_CACHE_KIB}")
        if _is_new(connection):
            _create(connection)
        elif 0 < _version(connection) < FORMAT_VERSION:
            _upgrade(connection)
        _check(connection, path)
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open an existing catalog for reading, beside its writer."""
    with _opened(path, "rw") as connection:
        connection.execute("PRAGMA query_only = ON")
        connection.execute(f"PRAGMA cache_size = -{_READER_CACHE_KIB}")
        _check(connection, path)
    return connection


def decoded_row(path: Path, encoded: bytes) -> StreamRow:
    try:
        return decode_row(encoded)
    except msgspec.DecodeError as error:
        raise damaged(path, error) from error


class CatalogFile:
    """An open catalog; errors of SQLite become errors of Holdfast."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    def close(self) -> None:
        self._connection.close()

    def read(
        self, statement: str, values: Sequence[object] | Mapping[str, object] = ()
    ) -> list[Any]:
        """The rows of a query."""
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error

    def iterate(self, statement: str, values: Sequence[object] = ()) -> Iterator[Any]:
        """The rows of a query, one at a time."""
        try:
            # Not `yield from`, which would close the cursor, perhaps after the connection.
            for row in self._connection.execute(statement, values):  # noqa: UP028
                yield row
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error

    def fact(self, name: str) -> Any:
        """One of the catalog's own numbers and names."""
        return self.read("SELECT value FROM facts WHERE name = ?", (name,))[0][0]

    @property
    def flushed(self) -> int:
        """The log is in packs up to this position."""
        return int(self.fact("flushed"))

    def find_number(self, number: int) -> StreamRow | None:
        return self._find(BY_NUMBER, number)

    def _find(self, statement: str, value: object) -> StreamRow | None:
        found = self.read(statement, (value,))
        return self.decoded(found[0][0]) if found else None

    def decoded(self, row: bytes) -> StreamRow:
        return decoded_row(self.path, row)


def salt_text(salt: bytes) -> str:
    """A salt from the catalog, where it is little-endian, as it appears in the pack's name."""
    return f"{int.from_bytes(salt, 'little'):016x}"


def damaged(path: Path, error: Exception) -> HoldfastError:
    """The error for a catalog that SQLite cannot use: a StoreError if that may pass."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING:
        return StoreError(f"The catalog {path} cannot be used now: {error}.")
    return CatalogError(
        f"The catalog {path} cannot be used: {error}. If the disk is sound, stop the server and "
        "rebuild the catalog from the packs with 'holdfast check --repair'."
    )


def is_full(error: Exception) -> bool:
    """Whether a commit failed because the disk is full; then no whole transaction was written."""
    return getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL


@contextmanager
def _opened(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    """A connection, closed again if its setup fails."""
    connection = None
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=_BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        yield connection
    except BaseException as error:
        if connection is not None:
            connection.close()
        # A damaged schema may not even be valid text.
        if isinstance(error, sqlite3.Error | UnicodeDecodeError | msgspec.DecodeError):
            raise damaged(path, error) from error
        raise


def _is_new(connection: sqlite3.Connection) -> bool:
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return bool(tables == 0)


def _create(connection: sqlite3.Connection) -> None:
    connection.executescript(
        f"BEGIN IMMEDIATE; {_TABLES} {_SECOND} {';'.join((*_THIRD, *_FOURTH))};"
        f"PRAGMA application_id = {_APPLICATION_ID};"
        f"PRAGMA user_version = {FORMAT_VERSION}; COMMIT;"
    )


def _upgrade(connection: sqlite3.Connection) -> None:
    """Upgrade a catalog of an earlier format, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)
        if version == 1:
            _upgrade_first(connection)
        if version < FORMAT_VERSION:
            for statement in (*(_THIRD if version <= 2 else ()), *_FOURTH):
                connection.execute(statement)
            if version <= 2:
                _upgrade_second(connection)
            _upgrade_third(connection)
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _upgrade_first(connection: sqlite3.Connection) -> None:
    """From format 1 to 2: its rows stay. It has none for buckets, which are counted later."""
    connection.execute("DROP INDEX streams_due")
    connection.execute("ALTER TABLE streams RENAME TO streams_1")
    for statement in filter(str.strip, _SECOND.split(";")):
        connection.execute(statement)
    connection.execute(
        "INSERT INTO streams SELECT number, name, deadline_ms, 0, NULL, row FROM streams_1"
    )
    connection.execute("DROP TABLE streams_1")
    connection.execute("INSERT INTO facts VALUES ('flushed_ms', 0)")


def _upgrade_second(connection: sqlite3.Connection) -> None:
    """From format 2 to 3: producers move from the streams' rows to a table.

    Buckets are counted again, since they count snapshots and deleted streams from now on.
    """
    for row in _rows(connection):
        if row.producers is not None:
            put_producers(connection, row.number, take_producers(row))
            connection.execute(
                "UPDATE streams SET row = ? WHERE number = ?", (encode_row(row), row.number)
            )
    recount(connection)


def _upgrade_third(connection: sqlite3.Connection) -> None:
    """From format 3 to 4; the times of what is flushed already stay unknown."""
    for row in _rows(connection):
        if visible_from(row):
            connection.execute(
                "UPDATE streams SET visible_from = ? WHERE number = ?",
                (visible_from(row), row.number),
            )
        if row.meta.fork is not None:
            put_fork(connection, row.number, row.meta.name, inherited_bytes(row))
    ((flushed,),) = connection.execute("SELECT value FROM facts WHERE name = 'flushed'").fetchall()
    if flushed:
        connection.execute("INSERT INTO times VALUES (?, ?, ?, ?)", unknown_times(0, flushed))


def _rows(connection: sqlite3.Connection) -> Iterator[StreamRow]:
    """All rows by number; they may be changed meanwhile."""
    number, count = -1, _ROWS_PER_STEP
    while count == _ROWS_PER_STEP:
        rows = connection.execute(
            "SELECT number, row FROM streams WHERE number > ? ORDER BY number LIMIT ?",
            (number, _ROWS_PER_STEP),
        ).fetchall()
        count = len(rows)
        for number, encoded in rows:  # noqa: B007 (the next page starts after it)
            yield decode_row(encoded)


def visible_from(row: StreamRow) -> int:
    """The first offset that readers see: none of a deleted stream that is kept for its forks."""
    return OFFSET_MAX if row.deleted else row.earliest


def put_fork(connection: sqlite3.Connection, number: int, name: str, inherited: int) -> None:
    """Note how much a fork inherits, or forget it if that is nothing any more."""
    if inherited:
        connection.execute(
            "INSERT INTO forks VALUES (?, ?, ?) ON CONFLICT (number) DO UPDATE "
            "SET inherited = excluded.inherited",
            (number, name, inherited),
        )
    else:
        connection.execute("DELETE FROM forks WHERE number = ?", (number,))


def put_producers(
    connection: sqlite3.Connection, stream: int, producers: Mapping[bytes, ProducerState]
) -> None:
    """Write producers of a stream that has a row."""
    connection.executemany(
        "INSERT INTO producers VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (stream, id) DO UPDATE "
        "SET epoch = excluded.epoch, seq = excluded.seq, used_ms = excluded.used_ms, "
        "digest = excluded.digest",
        ((stream, producer_id, *state) for producer_id, state in producers.items()),
    )


def _version(connection: sqlite3.Connection) -> int:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version) if application == _APPLICATION_ID else 0


def _check(connection: sqlite3.Connection, path: Path) -> None:
    version = _version(connection)
    if not version:
        raise CatalogError(f"{path} is not a catalog of Holdfast.")
    if version < FORMAT_VERSION:
        raise UnknownFormatError(
            f"The catalog {path} has the format {version}, of an older version of Holdfast. "
            "'holdfast serve' brings it up to date."
        )
    if version > FORMAT_VERSION:
        raise UnknownFormatError(
            f"The catalog {path} has the format {version}, and this version of Holdfast reads "
            f"{FORMAT_VERSION}. Use the version that wrote it, or a newer one."
        )


def count_buckets(rows: Iterable[StreamRow]) -> dict[str, BucketRow]:
    """A row for each bucket with streams, deleted ones that are kept for forks included.

    The times of creation and of the last write are those of its streams.
    """
    buckets: dict[str, BucketRow] = {}
    for row in rows:
        _add(buckets, row)
    return buckets


def _add(buckets: dict[str, BucketRow], row: StreamRow) -> None:
    name = row.meta.name.partition("/")[0]
    bucket = buckets.get(name)
    if bucket is None:
        bucket = buckets[name] = BucketRow(row.created_ms)
    bucket.size_bytes += stored_bytes(row)
    if not row.deleted:
        created_ms = bucket.created_ms if bucket.streams else row.created_ms
        bucket.created_ms = min(created_ms, row.created_ms)
        bucket.streams += 1
        bucket.last_write_ms = max(bucket.last_write_ms or row.last_write_ms, row.last_write_ms)


def recount(connection: sqlite3.Connection) -> None:
    """Make the rows of buckets say what there is: earlier versions counted less, or nothing."""
    streams = connection.execute("SELECT row FROM streams")
    counted = count_buckets(decode_row(row) for (row,) in streams)
    is_bucket = f"substr(key, 1, {len(BUCKET_PREFIX)}) = '{BUCKET_PREFIX}'"
    for key, value in connection.execute(f"SELECT key, value FROM documents WHERE {is_bucket}"):  # noqa: S608 (ours)
        name, bucket = key.removeprefix(BUCKET_PREFIX), decode_bucket(value)
        found = counted.get(name, BucketRow(0))
        bucket.streams, bucket.size_bytes = found.streams, found.size_bytes
        counted[name] = bucket
    connection.execute(f"DELETE FROM documents WHERE {is_bucket}")  # noqa: S608 (ours)
    connection.executemany(
        "INSERT INTO documents VALUES (?, ?)",
        [
            (BUCKET_PREFIX + name, encode_bucket(bucket))
            for name, bucket in counted.items()
            if bucket.is_needed
        ],
    )
