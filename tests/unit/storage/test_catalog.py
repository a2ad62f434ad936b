"""The catalog: what a flush puts in is found, and only a catalog is taken for one."""

import sqlite3
from contextlib import closing
from itertools import pairwise

import msgspec
import pytest

from holdfast.errors import CatalogError, UnknownFormatError
from holdfast.format import pack_builder
from holdfast.format.packs import checksum, unknown_times
from holdfast.format.records import Fork, StreamMeta
from holdfast.format.rows import (
    BUCKET_PREFIX,
    BucketRow,
    StreamRow,
    decode_bucket,
    encode_bucket,
    encode_row,
)
from holdfast.protocol.headers import OFFSET_MAX
from holdfast.protocol.producer import ProducerState
from holdfast.storage import catalog_schema
from holdfast.storage.catalog import Catalog, Due
from holdfast.storage.catalog_schema import FORMAT_VERSION, open_for_writing
from holdfast.storage.catalog_writer import CatalogWriter, row_change
from tests.unit.storage.rig import TEXT, calls, snapshot_of

BEGINNING = Due(-1, 0)
NAMES = [
    "b/s",
    "b/S",
    "b/s ",
    "ünï/cödé",
    "b/\U0010ffff",
    "b/\ud7ff\ue000",
    "b/'; DROP TABLE streams; --",
    "b/%_*?",
    "b/" + "long" * 250,
    "b/e\u0301",
    "b/\u00e9",
]
# As it was; packs and extents are the same.
FIRST = """
DROP TABLE forks;
DROP TABLE times;
DROP TABLE documents;
DROP TABLE dropped_snapshots;
DROP TABLE producers;
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


class TestFind:
    @pytest.mark.parametrize("at", range(len(NAMES)))
    def test_each_name_is_its_own(self, rig, at):
        numbers = [rig.log.create(name, name.encode()) for name in NAMES]
        rig.flush()
        row = rig.catalog.find_name(NAMES[at])
        assert (row.number, row.meta.name) == (numbers[at], NAMES[at])
        assert rig.catalog.find_number(numbers[at]) == row
        assert rig.writer.find_number(numbers[at]) == row
        assert rig.stored(numbers[at]) == NAMES[at].encode()

    def test_what_is_not_there_is_none(self, rig):
        number = rig.log.create("b/s")
        rig.flush()
        for name in ("", "b", "b/", "b/s/", "B/s", "b/s\0"):
            assert rig.catalog.find_name(name) is None
        assert rig.catalog.find_number(number + 1) is None
        assert rig.writer.find_number(number + 1) is None

    def test_reader_sees_what_was_committed_last(self, rig):
        number = rig.log.create("b/s", b"x")
        rig.flush()
        assert rig.catalog.find_name("b/s").tail == 1
        rig.log.append(number, b"yz")
        rig.flush()
        assert rig.catalog.find_name("b/s").tail == 3
        rig.log.delete(number)
        rig.flush()
        assert rig.catalog.find_name("b/s") is None
        assert rig.catalog.flushed == 3


class TestExtents:
    @pytest.fixture
    def written(self, rig, monkeypatch):
        """A stream with neighbours, in extents of at most ten bytes over three packs."""
        monkeypatch.setattr(pack_builder, "EXTENT_BYTES_MAX", 10)
        log = rig.log
        before = log.create("b/before", b"before")
        self.number = log.create("b/s", b"12345")
        behind = log.create("b/behind", b"behind")
        for _ in range(3):
            for number in (before, self.number, behind):
                for size in (4, 11, 1, 9, 3):
                    log.append(number, bytes(range(size)))
            rig.flush()
        return rig

    def test_lookup_at_every_offset(self, written):
        extents = written.extents(self.number)
        assert len(extents) > 8
        assert extents[0].start == 0
        assert extents[-1].end == 5 + 3 * 28
        for one, next_one in pairwise(extents):
            assert one.end == next_one.start
        for offset in range(extents[-1].end):
            place = next(at for at, each in enumerate(extents) if each.start <= offset < each.end)
            for extents_max in (1, 2, 5, 100):
                found = written.catalog.extents(self.number, offset, extents_max)
                assert found == extents[place : place + extents_max]

    def test_everything_in_it_is_what_the_pack_says(self, written):
        for extent in written.extents(self.number):
            data = written.memory.read(extent.pack, extent.data_at, extent.length)
            lengths = written.memory.read(extent.pack, extent.lengths_at, 4 * extent.messages)
            assert checksum(data, extent.salt).to_bytes(8, "little") == extent.sums
            assert checksum(lengths, extent.salt).to_bytes(8, "little") == extent.index_sum

    def test_offset_at_or_behind_the_end_finds_the_last_one(self, written):
        *_, last = written.extents(self.number)
        assert written.catalog.extents(self.number, last.end, 9) == [last]
        assert written.catalog.extents(self.number, last.end + 100, 9) == [last]

    def test_stream_without_bytes_has_none(self, rig):
        number = rig.log.create("b/s")
        rig.flush()
        assert rig.extents(number) == []
        assert rig.extents(number + 1) == []


class TestDue:
    @pytest.fixture
    def due(self, rig):
        """Streams with deadlines, several of which are equal."""
        deadlines = [500, 100, 300, 100, 300, 100, 900, 301]
        numbers = [
            rig.log.create(f"b/{at}", expires_at_ms=deadline_ms)
            for at, deadline_ms in enumerate(deadlines)
        ]
        rig.log.create("b/never")
        rig.flush()
        self.expected = sorted(map(Due, deadlines, numbers))
        return rig

    @pytest.mark.parametrize("limit", [1, 2, 3, 100])
    @pytest.mark.parametrize("now_ms", [0, 99, 100, 300, 301, 10_000])
    def test_paging_meets_each_once_and_in_order(self, due, now_ms, limit):
        found, after = [], BEGINNING
        while page := due.catalog.due(now_ms, after, limit):
            assert len(page) <= limit
            found += page
            after = page[-1]
        assert found == [each for each in self.expected if each.deadline_ms <= now_ms]

    def test_from_between_two(self, due):
        for at, after in enumerate(self.expected):
            assert due.catalog.due(10_000, after, 100) == self.expected[at + 1 :]
            before = Due(after.deadline_ms, after.number - 1)
            assert due.catalog.due(10_000, before, 100) == self.expected[at:]

    def test_renewed_and_removed_streams_move(self, due):
        first, second, third, *rest = self.expected
        due.log.touch(first.number, 10_000)
        due.log.delete(second.number)
        due.flush()
        assert due.catalog.due(20_000, BEGINNING, 100) == [
            third,
            *rest,
            Due(10_000, first.number),
        ]

    def test_index_is_used(self, due):
        plan = due.writer.read(
            "EXPLAIN QUERY PLAN SELECT deadline_ms, number FROM streams WHERE deadline_ms IS NOT "
            "NULL AND deadline_ms <= ? AND (deadline_ms, number) > (?, ?) "
            "ORDER BY deadline_ms, number LIMIT ?",
            (1, 2, 3, 4),
        )
        assert "streams_due" in plan[0][-1]
        assert "TEMP B-TREE" not in str(plan)


class TestTotals:
    def test_empty_catalog(self, rig):
        assert rig.catalog.totals() == (0, 0, 0, 0, 0, 0, 0)

    def test_they_follow_flushes_merges_and_garbage(self, rig):
        numbers = [rig.log.create(f"b/{at}", b"0123456789") for at in range(4)]
        rig.flush_each(*calls(rig.log.append, *((number, b"xyz") for number in numbers)))
        rig.log.delete(numbers[0])
        rig.flush()
        totals = rig.catalog.totals()
        assert (totals.flushed, totals.streams, totals.stored_bytes) == (5, 3, 39)
        assert (totals.packs, totals.dead_bytes, totals.retired_packs) == (5, 13, 0)
        assert totals.pack_bytes == sum(map(len, (each for each, _ in rig.memory.objects.values())))
        assert rig.merge()
        merged = rig.catalog.totals()
        assert (merged.flushed, merged.streams, merged.stored_bytes) == (5, 3, 39)
        assert (merged.packs, merged.dead_bytes, merged.retired_packs) == (2, 0, 4)
        assert merged.pack_bytes == sum(row.size_bytes for row in rig.packs)


class TestFacts:
    def test_they_are_kept(self, rig, tmp_path):
        assert rig.catalog.fact("store") == ""
        rig.writer.set_fact("store", "abc")
        assert rig.catalog.fact("store") == rig.writer.fact("store") == "abc"
        again = Catalog(tmp_path / "catalog.db")
        assert again.fact("store") == "abc"
        again.close()


class TestTransactions:
    def test_failure_inside_changes_nothing(self, rig):
        rig.log.create("b/s", b"x")
        rig.flush()
        before = rig.dump()

        def fail_inside():
            with rig.writer.transaction() as connection:
                connection.execute("DELETE FROM streams")
                connection.execute("DELETE FROM extents")
                raise KeyError

        with pytest.raises(KeyError):
            fail_inside()
        assert rig.dump() == before
        rig.log.create("b/t", b"y")
        rig.flush()
        rig.verify()

    def test_what_sqlite_says_names_the_file_and_the_way_out(self, rig):
        with pytest.raises(CatalogError, match=r"catalog\.db cannot be used: .*--repair"):
            with rig.writer.transaction() as connection:
                connection.execute("INSERT INTO facts VALUES ('flushed', 1)")
        with pytest.raises(CatalogError, match="no such table"):
            rig.writer.read("SELECT * FROM unicorns")

    def test_name_that_is_taken_is_refused_as_a_whole(self, rig):
        rig.log.create("b/s", b"x")
        rig.flush()
        before = rig.dump()
        rig.log.create("b/t", b"y")
        rig.log.create("b/s", b"z")
        with pytest.raises(CatalogError, match="UNIQUE"):
            rig.flush()
        after = rig.dump()
        # The failed commit was settled before its packs were removed.
        after["facts"].remove(("settled", 1))
        assert after == before

    def test_readers_see_all_of_it_or_nothing(self, rig):
        with rig.writer.transaction() as connection:
            connection.execute("UPDATE facts SET value = 7 WHERE name = 'flushed'")
            assert rig.catalog.flushed == 0
        assert rig.catalog.flushed == 7

    def test_readers_cannot_write(self, rig):
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            rig.catalog._connection.execute("DELETE FROM facts")


class TestOpening:
    def test_catalog_is_made_once(self, tmp_path):
        path = tmp_path / "c.db"
        for value in range(3):
            writer = CatalogWriter(path)
            assert writer.fact("flushed") == value
            writer.set_fact("flushed", value + 1)
            writer.close()

    @pytest.mark.parametrize("opener", [Catalog, CatalogWriter])
    def test_unknown_version_is_refused(self, tmp_path, opener):
        path = tmp_path / "c.db"
        CatalogWriter(path).close()
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
        connection.close()
        with pytest.raises(UnknownFormatError, match=rf"c\.db has the format {FORMAT_VERSION + 1}"):
            opener(path)

    @pytest.mark.parametrize("opener", [Catalog, CatalogWriter])
    def test_database_of_something_else_is_refused(self, tmp_path, opener):
        path = tmp_path / "c.db"
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE mine (value)")
        connection.close()
        with pytest.raises(CatalogError, match="is not a catalog of Holdfast"):
            opener(path)
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]
        connection.close()

    @pytest.mark.parametrize("opener", [Catalog, CatalogWriter])
    def test_file_that_is_no_database_is_refused(self, tmp_path, opener):
        path = tmp_path / "c.db"
        path.write_bytes(b"this is no database at all" * 100)
        with pytest.raises(CatalogError, match="not a database"):
            opener(path)

    def test_reading_needs_a_catalog_and_makes_none(self, tmp_path):
        with pytest.raises(CatalogError):
            Catalog(tmp_path / "c.db")
        assert list(tmp_path.iterdir()) == []

    def test_folder_that_is_not_there(self, tmp_path):
        for opener in (Catalog, CatalogWriter):
            with pytest.raises(CatalogError, match="unable to open"):
                opener(tmp_path / "nowhere" / "c.db")

    def test_damaged_row_is_the_catalogs_fault(self, rig):
        number = rig.log.create("b/s")
        rig.flush()
        with rig.writer.transaction() as connection:
            connection.execute("UPDATE streams SET row = x'c1'")
        for find in (rig.catalog.find_number, rig.writer.find_number):
            with pytest.raises(CatalogError):
                find(number)
        with pytest.raises(CatalogError):
            rig.catalog.find_name("b/s")


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
        assert version(path) == FORMAT_VERSION


THIRD = """
DROP TRIGGER forks_removed;
DROP TABLE forks;
DROP TABLE times;
DROP INDEX streams_hidden;
ALTER TABLE streams DROP COLUMN visible_from;
ALTER TABLE streams DROP COLUMN hidden_at;
ALTER TABLE producers DROP COLUMN digest;
PRAGMA user_version = 3;
"""
SECOND = (
    THIRD
    + """
DROP TRIGGER producers_added;
DROP TRIGGER producers_removed;
DROP TABLE producers;
DROP INDEX streams_forgotten;
ALTER TABLE streams DROP COLUMN producers;
ALTER TABLE streams DROP COLUMN forgotten_ms;
PRAGMA user_version = 2;
"""
)


def second_row(number, name, written_ms, producers):
    """A row of format 2: its producers are part of it, without times."""
    meta = {"name": name, "content_type": "text/plain"}
    fields = [number, meta, 100, written_ms, 0, False, None, None, producers, None]
    return number, name, None, 0, None, msgspec.msgpack.encode([*fields, 0, 0, None, 0, False])


def test_producers_move_out_of_the_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog_schema, "_ROWS_PER_STEP", 2)
    path = tmp_path / "c.db"
    open_for_writing(path).close()
    rows = [second_row(number, f"a/{number}", 500, None) for number in range(10, 15)]
    rows.append(second_row(15, "a/15", 700, {b"p": (3, 7), b"q": (0, 0)}))
    rows.append(second_row(16, "a/16", 800, {b"p": (1, 0)}))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SECOND)
        connection.executemany("INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?)", rows)
        connection.commit()
    with pytest.raises(UnknownFormatError, match="brings it up to date"):
        Catalog(path)
    CatalogWriter(path).close()
    assert version(path) == FORMAT_VERSION
    with closing(Catalog(path)) as catalog:
        assert catalog.find_number(15).producers is None
        # Nobody knows when they wrote: not after the stream's last write.
        assert catalog.find_producer(15, b"p") == (2, ProducerState(3, 7, 700))
        assert catalog.find_producer(15, b"q") == (2, ProducerState(0, 0, 700))
        assert catalog.find_producer(16, b"q") == (1, None)
        assert catalog.find_producer(16, b"p") == (1, ProducerState(1, 0, 800))
        assert catalog.find_producer(10, b"p") == (0, None)
        kept = catalog.read("SELECT number, row FROM streams WHERE number < 15")
        assert kept == [(row[0], row[-1]) for row in rows[:5]]


def test_producers_and_forks_of_format_3(tmp_path):
    path = tmp_path / "c.db"
    open_for_writing(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(THIRD)
        rows = [second_row(15, "a/15", 700, None), second_row(16, "a/16", 700, None)]
        meta = StreamMeta("a/fork", "text/plain", fork=Fork(15, "a/15", 7))
        fork = StreamRow(17, meta, 800, 800, tail=9, start=7, earliest=3)
        rows.append((17, "a/fork", None, 7, None, encode_row(fork)))
        for row in rows:
            connection.execute("INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?, 0, NULL)", row)
        connection.execute("INSERT INTO producers VALUES (15, ?, 3, 7, 700)", (b"p",))
        connection.commit()
    CatalogWriter(path).close()
    assert version(path) == FORMAT_VERSION
    with closing(Catalog(path)) as catalog:
        assert catalog.find_producer(15, b"p") == (1, ProducerState(3, 7, 700))
        assert catalog.read("SELECT * FROM forks") == [(17, "a/fork", 4)]


def test_buckets_of_format_2_are_counted_again(tmp_path):
    """They did not count snapshots, nor deleted streams that are kept for their forks."""
    path = tmp_path / "c.db"
    open_for_writing(path).close()
    kept = StreamRow(1, StreamMeta("gone/source", TEXT), 100, 100, tail=7, forks=1, deleted=True)
    fork = StreamMeta("a/fork", TEXT, fork=Fork(1, "gone/source", 7))
    forked = StreamRow(2, fork, 200, 200, tail=9, start=7)
    snapshot = snapshot_of("snapshots/1", 4, b"12345")
    plain = StreamMeta("a/plain", TEXT)
    covered = StreamRow(3, plain, 300, 300, tail=6, start=4, earliest=4, snapshot=snapshot)
    buckets = {"a": BucketRow(50, False, 2, 4, 300), "empty": BucketRow(60, True)}
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SECOND)
        connection.executemany(
            "INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?)",
            [row_change(row, encode_row(row))[:6] for row in (kept, forked, covered)],
        )
        connection.executemany(
            "INSERT INTO documents VALUES (?, ?)",
            [(f"bucket/{name}", encode_bucket(row)) for name, row in buckets.items()],
        )
        connection.commit()
    with closing(CatalogWriter(path)) as writer:
        found = writer.read("SELECT key, value FROM documents ORDER BY key")
    assert {key: decode_bucket(value) for key, value in found} == {
        "bucket/a": BucketRow(50, False, 2, 4 + 5, 300),
        "bucket/empty": BucketRow(60, True),
        "bucket/gone": BucketRow(100, False, 0, 7),
    }


def test_what_readers_see_and_times_are_new_in_format_4(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog_schema, "_ROWS_PER_STEP", 2)
    path = tmp_path / "c.db"
    with closing(open_for_writing(path)) as connection:
        connection.execute("UPDATE facts SET value = 7 WHERE name = 'flushed'")
    snapshot = snapshot_of("snapshots/1", 4, b"12345")
    rows = [
        StreamRow(1, StreamMeta("a/kept", TEXT), 100, 100, tail=7, forks=1, deleted=True),
        StreamRow(2, StreamMeta("a/plain", TEXT), 200, 200, tail=9),
        StreamRow(
            3, StreamMeta("a/cut", TEXT), 300, 300, 6, start=4, earliest=4, snapshot=snapshot
        ),
    ]
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(THIRD)
        connection.executemany(
            "INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?, 0, NULL)",
            [row_change(row, encode_row(row))[:6] for row in rows],
        )
        connection.commit()
    with closing(CatalogWriter(path)) as writer:
        found = writer.read("SELECT number, visible_from FROM streams ORDER BY number")
        assert found == [(1, OFFSET_MAX), (2, 0), (3, 4)]
        assert writer.read("SELECT * FROM times") == [unknown_times(0, 7)]
    assert version(path) == FORMAT_VERSION


def test_damaged_row_leaves_it_as_it_was(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE streams SET row = x'00' WHERE number = 2")
        connection.commit()
    with pytest.raises(CatalogError, match="check --repair"):
        CatalogWriter(path)
    assert version(path) == 1
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM streams").fetchone() == (3,)
