"""A catalog of format 1 is brought up to date when its writer opens it."""

import sqlite3
from contextlib import closing

import msgspec
import pytest

from holdfast.errors import CatalogError, UnknownFormatError
from holdfast.format.rows import BUCKET_PREFIX, BucketRow, decode_bucket
from holdfast.storage.catalog import Catalog, Due
from holdfast.storage.catalog_schema import open_for_writing
from holdfast.storage.catalog_writer import CatalogWriter

# As it was; packs and extents are the same.
FIRST = """
DROP TABLE documents;
DROP TABLE dropped_snapshots;
DROP TABLE streams;
CREATE TABLE streams (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    deadline_ms INTEGER,
    row BLOB NOT NULL
);
CREATE INDEX streams_due ON streams (deadline_ms, number) WHERE deadline_ms IS NOT NULL;
DELETE FROM facts WHERE name = 'flushed_ms';
UPDATE facts SET value = 5 WHERE name = 'flushed';
PRAGMA user_version = 1;
"""


def old_row(number, name, tail, created_ms, written_ms, deadline_ms=None):
    """A row as it was then, when its fields ended with the deadline."""
    meta = {"name": name, "content_type": "text/plain"}
    fields = [number, meta, created_ms, written_ms, tail, False, None, None, None, deadline_ms]
    return number, name, deadline_ms, msgspec.msgpack.encode(fields)


@pytest.fixture
def path(tmp_path):
    """A catalog as the version before this one left it."""
    path = tmp_path / "c.db"
    open_for_writing(path).close()
    rows = [
        old_row(1, "a/one", 10, 100, 500),
        old_row(2, "a/two", 5, 50, 300, 9000),
        old_row(3, "b/three", 0, 200, 200),
    ]
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(FIRST)
        connection.executemany("INSERT INTO streams VALUES (?, ?, ?, ?)", rows)
        connection.commit()
    return path


def version(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def test_writer_brings_it_up_to_date(path):
    CatalogWriter(path).close()
    with closing(Catalog(path)) as catalog:
        assert catalog.flushed == 5
        assert catalog.fact("flushed_ms") == 0
        row = catalog.find_name("a/two")
        assert (row.number, row.tail, row.deadline_ms) == (2, 5, 9000)
        assert (row.start, row.earliest, row.snapshot, row.forks) == (0, 0, None, 0)
        assert [due.number for due in catalog.due(10_000, Due(-1, 0), 5)] == [2]


def test_buckets_are_counted(path):
    CatalogWriter(path).close()
    with closing(Catalog(path)) as catalog:
        documents = dict(catalog.documents())
    assert {key: decode_bucket(value) for key, value in documents.items()} == {
        f"{BUCKET_PREFIX}a": BucketRow(50, False, 2, 15, 500),
        f"{BUCKET_PREFIX}b": BucketRow(200, False, 1, 0, 200),
    }


def test_rows_stay_byte_for_byte(path):
    with closing(sqlite3.connect(path)) as connection:
        before = connection.execute("SELECT number, row FROM streams").fetchall()
    CatalogWriter(path).close()
    with closing(CatalogWriter(path)) as catalog:
        assert catalog.read("SELECT number, row FROM streams") == before
        assert catalog.read("SELECT name FROM sqlite_master WHERE name = 'streams_1'") == []


def test_reader_says_who_can(path):
    with pytest.raises(UnknownFormatError, match="'holdfast serve' brings it up to date"):
        Catalog(path)
    assert version(path) == 1


def test_two_writers_at_once(path):
    with closing(CatalogWriter(path)), closing(CatalogWriter(path)):
        assert version(path) == 2


def test_damaged_row_leaves_it_as_it_was(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE streams SET row = x'00' WHERE number = 2")
        connection.commit()
    with pytest.raises(CatalogError, match="check --repair"):
        CatalogWriter(path)
    assert version(path) == 1
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM streams").fetchone() == (3,)
