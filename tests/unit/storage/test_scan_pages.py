"""Scanning goes page by page: between two of them nothing is held, and much may change."""

import sqlite3

import pytest

from holdfast.storage import catalog_scan
from holdfast.storage.catalog_scan import Scanned
from tests.unit.storage.rig import BINARY, snapshot_of
from tests.unit.storage.test_catalog_scan import model

PAGE = 4


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.setattr(catalog_scan, "_SCAN_STREAMS", PAGE)


def written(rig, count, flushes=1):
    """Streams in the order of their names, each with an extent for every flush."""
    numbers = [rig.log.create(f"b/{at:03d}") for at in range(count)]
    for _ in range(flushes):
        for number in numbers:
            rig.log.append(number, b"x")
        rig.flush()
    return numbers


def ids(ranges):
    return [int(each.stream_id[2:]) for each in ranges]


def checkpoint(rig):
    """Whether SQLite's log could be emptied, as it is now and then."""
    with sqlite3.connect(rig.catalog.path) as connection:
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    connection.close()
    return not busy


@pytest.mark.usefixtures("pages")
class TestPages:
    @pytest.mark.parametrize("count", [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 3 * PAGE + 2])
    @pytest.mark.parametrize("flushes", [1, 3])
    def test_any_number_of_streams(self, rig, count, flushes):
        written(rig, count, flushes)
        assert list(rig.catalog.scan(Scanned("b/", 0, 99))) == model(rig, "b/", 0, 99)
        assert len(ids(rig.catalog.scan(Scanned("", 0, 99)))) == count * flushes

    def test_streams_without_anything_to_give_count_as_well(self, rig):
        """A page may be empty, and is not the last one for that."""
        numbers = written(rig, 5 * PAGE)
        rig.log.append(numbers[-1], b"y")
        rig.flush()
        assert ids(rig.catalog.scan(Scanned("b/", 1, 99))) == [5 * PAGE - 1]
        assert ids(rig.catalog.scan(Scanned("b/", 2, 99))) == []

    @pytest.mark.parametrize(
        ("first", "last"), [("b/005", "b/013"), ("b/005", None), ("", "b/005"), ("b/0051", "b/006")]
    )
    def test_names_from_one_to_another(self, rig, first, last):
        written(rig, 4 * PAGE)
        found = ids(rig.catalog.scan(Scanned("b/", 0, 99, first, last)))
        names = [f"b/{at:03d}" for at in range(4 * PAGE)]
        wanted = [name for name in names if name >= first and (last is None or name <= last)]
        assert found == [int(name[2:]) for name in wanted]

    def test_what_changes_between_two_pages(self, rig):
        numbers = written(rig, 3 * PAGE)
        scan = rig.catalog.scan(Scanned("b/", 0, 99))
        assert ids([next(scan)]) == [0]
        rig.log.delete(numbers[PAGE])
        rig.log.delete(numbers[2 * PAGE])
        rig.log.create("b/0095", b"new")
        rig.flush()
        left = [each.stream_id for each in scan]
        # The first page was there already, and no stream comes twice.
        assert left[: PAGE - 1] == [f"b/{at:03d}" for at in range(1, PAGE)]
        assert left[PAGE - 1 :] == sorted(
            {f"b/{at:03d}" for at in range(PAGE, 3 * PAGE)} - {"b/004", "b/008"} | {"b/0095"}
        )


class TestTransactions:
    @pytest.mark.parametrize("taken", [1, PAGE, PAGE + 1, 2 * PAGE])
    def test_log_of_the_catalog_can_be_emptied_meanwhile(self, rig, pages, taken):
        numbers = written(rig, 3 * PAGE)
        scan = rig.catalog.scan(Scanned("b/", 0, 99))
        for _ in range(taken):
            next(scan)
        rig.log.append(numbers[0], b"y")
        rig.flush()
        assert checkpoint(rig)
        assert len(list(scan)) >= 3 * PAGE - taken
        assert checkpoint(rig)

    def test_with_pages_as_they_are(self, rig):
        written(rig, 600)
        scan = rig.catalog.scan(Scanned("b/", 0, 99))
        next(scan)
        rig.log.create("b/999", b"y")
        rig.flush()
        assert checkpoint(rig)
        assert ids(scan) == [*range(1, 600), 999]


class TestForForksOnly:
    """Bytes that nobody can read but through a fork belong to no scan."""

    def test_deleted_source(self, rig):
        source = rig.log.create("b/source", b"0123456789")
        fork = rig.log.fork("b/fork", source, "b/source", 5, b"ab")
        rig.flush()
        assert [each.stream for each in rig.catalog.scan(Scanned("b/", 0, 99))] == [fork, source]
        rig.log.delete(source)
        rig.flush()
        assert rig.catalog.find_number(source).deleted
        assert [each.stream for each in rig.catalog.scan(Scanned("b/", 0, 99))] == [fork]
        # Its bytes are still in packs.
        assert rig.stored(source) == b"0123456789"

    def test_ranges_before_the_start_of_a_trimmed_source(self, rig):
        source = rig.log.create("b/source", content_type=BINARY)
        for body in (b"01234", b"56789", b"abcde"):
            rig.log.append(source, body)
            rig.flush()
        rig.log.fork("b/fork", source, "b/source", 15)
        rig.log.snapshot(source, snapshot_of("snapshots/1/a", 10))
        rig.flush()
        assert rig.stored(source) == b"0123456789abcde"
        [found] = rig.catalog.scan(Scanned("b/source", 0, 99))
        assert (found.offset, found.length, found.earliest) == (10, 5, 10)

    def test_range_that_is_in_part_before_the_start(self, rig):
        source = rig.log.create("b/source", b"01234")
        rig.log.append(source, b"56789")
        rig.flush()
        rig.log.snapshot(source, snapshot_of("snapshots/1/a", 5))
        rig.flush()
        [found] = rig.catalog.scan(Scanned("b/source", 0, 99))
        assert (found.offset, found.length, found.earliest) == (0, 10, 5)
        assert found.content_type == BINARY
