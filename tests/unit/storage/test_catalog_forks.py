"""Forks in the catalog: those that inherit something, by names and positions."""

from contextlib import closing

import pytest

from holdfast.format.records import Fork, StreamMeta, stream_number
from holdfast.format.rows import StreamRow
from holdfast.storage import catalog_scan
from holdfast.storage.catalog_scan import CatalogScan, Scanned
from holdfast.storage.catalog_writer import CatalogWriter, put_rows, row_change


def row(position: int, name: str, at: int | None = None, **fields: object) -> StreamRow:
    fork = None if at is None else Fork(1, "b/source", at)
    meta = StreamMeta(name, "text/plain", fork=fork)
    return StreamRow(stream_number(position, 0), meta, 5, 5, **fields)


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "c.db"
    rows = [
        row(3, "b/plain"),
        row(4, "b/fork", 10),
        row(5, "b/empty", 0),
        row(6, "b/trimmed", 10, earliest=4),
        row(7, "b/gone", 10, earliest=10),
        row(8, "b/kept", 10, deleted=True),
        row(9, "c/fork", 10),
    ]
    with closing(CatalogWriter(found)) as writer, writer.transaction() as connection:
        put_rows(connection, map(row_change, rows))
    return found


def names(path, after=0, until=100, prefix="b/", **bounds):
    return [
        (each.name, each.inherited)
        for each in CatalogScan(path, Scanned(prefix, after, until, **bounds)).forks()
    ]


def test_what_is_found(path):
    assert names(path) == [("b/fork", 10), ("b/trimmed", 6)]
    assert names(path, after=4) == names(path, first="b/g") == [("b/trimmed", 6)]
    assert names(path, until=5) == names(path, last="b/fork") == [("b/fork", 10)]
    assert names(path, prefix="") == [*names(path), ("c/fork", 10)]


def test_it_follows_the_streams(path):
    with closing(CatalogWriter(path)) as writer, writer.transaction() as connection:
        put_rows(connection, [row_change(row(6, "b/trimmed", 10, earliest=10))])
        connection.execute("DELETE FROM streams WHERE name = 'b/fork'")
    assert names(path) == []


@pytest.mark.parametrize("statement", ["_FORKS_BY_NAME", "_FORKS_BY_NUMBER"])
def test_other_streams_are_not_looked_at(path, statement):
    with closing(CatalogWriter(path)) as writer:
        values = Scanned("b/", 1, 2).values | {"from": 1, "to": 2}
        query = f"EXPLAIN QUERY PLAN {getattr(catalog_scan, statement)}"
        plan = [step[-1] for step in writer.read(query, values)]
    assert plan[0].startswith("SEARCH forks USING ")
