"""Scanning: the streams of a prefix between two positions, against a model that looks at all."""

import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import UnavailableError
from holdfast.format.packs import ScanRange
from holdfast.format.rows import decode_row
from holdfast.storage import catalog_plan, catalog_scan, catalog_schema
from holdfast.storage.catalog_plan import ScanPlanner
from holdfast.storage.catalog_scan import CatalogScan, Scanned, after_prefix
from tests.memory_directory import memory_directory
from tests.thorough import examples
from tests.unit.storage.histories import History, steps
from tests.unit.storage.rig import BINARY, Rig, snapshot_of

# Neighbours in code points, in UTF-8 and in UTF-16 are not the same everywhere.
CHARACTERS = [
    "\x01",
    "/",
    "0",
    "a",
    "b",
    "\x7f",
    "\x80",
    "\u07ff",
    "\u0800",
    "\ud7fe",
    "\ud7ff",
    "\ue000",
    "\uffff",
    "\U00010000",
    "\U0010fffe",
    "\U0010ffff",
]
texts = st.text(st.sampled_from(CHARACTERS), max_size=4)
PAGE = 4


def model(rig, prefix, after, until):
    """Every extent in use, looked at one by one, but for what is there for forks only."""
    rows = rig.writer.read(
        "SELECT extents.stream, packs.name, packs.salt, packs.data_bytes, packs.messages, "
        "extents.start, length, data_at, message_at, extents.messages, first_position, "
        "last_position, sums, row "
        "FROM extents JOIN streams ON number = stream JOIN packs ON id = pack"
    )
    found = [scan_range(*each, decode_row(row)) for *each, row in rows]
    return sorted(
        (
            each
            for each, end, stream in found
            if is_readable(stream, end)
            and each.stream_id.startswith(prefix)
            and each.last_position > after
            and each.first_position <= until
        ),
        key=lambda each: (each.stream_id, each.offset),
    )


def scan_range(
    number,
    pack,
    salt,
    data_bytes,
    pack_messages,
    start,
    length,
    data_at,
    message_at,
    messages,
    first_position,
    last_position,
    sums,
    stream,
):
    """The range, where it ends, and its stream."""
    found = ScanRange(
        stream_id=stream.meta.name,
        stream=number,
        pack=pack,
        offset=start,
        length=length,
        earliest=stream.earliest,
        content_type=stream.meta.content_type,
        first_position=first_position,
        last_position=last_position,
        data_at=data_at,
        message_at=message_at,
        messages=messages,
        index_sum=sums[:8].hex(),
        sums=sums[8:].hex(),
        salt=salt[::-1].hex(),
        pack_data_bytes=data_bytes,
        pack_messages=pack_messages,
        hidden_at=stream.hidden_at,
    )
    return found, start + length, stream


def is_readable(stream, end):
    return not stream.deleted and end > stream.earliest


class TestPrefixes:
    @pytest.fixture(scope="class")
    @classmethod
    def named(cls):
        """A stream for every name of up to two characters, and some longer ones."""
        with memory_directory() as path:
            rig = Rig(Path(path))
            names = {one + two for one in CHARACTERS for two in ["", *CHARACTERS]}
            names |= {3 * each for each in CHARACTERS}
            for name in sorted(names):
                rig.log.create(name, b"x")
            rig.flush()
            yield rig
            rig.close()

    @given(texts)
    def test_exactly_the_names_that_start_with_it(self, named, prefix):
        assert list(named.catalog.scan(Scanned(prefix, 0, 99))) == model(named, prefix, 0, 99)

    @pytest.mark.parametrize("prefix", ["", *CHARACTERS])
    def test_every_character(self, named, prefix):
        found = list(named.catalog.scan(Scanned(prefix, 0, 99)))
        assert found == model(named, prefix, 0, 99)
        assert len(found) >= len(CHARACTERS) + 2

    def test_names_come_in_order(self, named):
        names = [each.stream_id for each in named.catalog.scan(Scanned("", 0, 99))]
        assert names == sorted(names)

    @given(texts, texts)
    def test_bound_is_behind_all_with_the_prefix_and_before_all_others(self, prefix, name):
        bound = after_prefix(prefix)
        if isinstance(bound, bytes):
            assert not prefix.strip("\U0010ffff")
        else:
            bound.encode()
            assert (prefix <= name < bound) == name.startswith(prefix)


# How many extents are worth a stream: none, so that all goes by name, or so many that it goes by
# pack wherever that is possible.
BY_NAME, BY_PACK = 0, 1000


@pytest.fixture(params=[BY_NAME, BY_PACK], ids=["by name", "by pack"], scope="class")
def way(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog_scan, "_EXTENTS_PER_STREAM", request.param)
        yield request.param


@pytest.mark.usefixtures("way")
class TestPositions:
    @settings(max_examples=examples(30))
    @given(steps)
    def test_every_range_of_positions(self, script):
        history = History(script)
        with memory_directory() as path:
            rig = Rig(Path(path))
            rig.log = history.log
            rig.start()
            for count in range(1, len(history.cuts) + 1):
                rig.worker._flush.run(history.log.segments[:count])
            last = history.log.position
            for prefix in ("", "b/", "b/t", "c/ü", "d"):
                for after in range(0, last, 3):
                    for until in range(after, last + 1, 2):
                        found = list(rig.catalog.scan(Scanned(prefix, after, until)))
                        assert found == model(rig, prefix, after, until)
            rig.close()

    def test_ranges_miss_no_record(self, rig):
        number = rig.log.create("b/s")
        for at in range(9):
            rig.log.append(number, b"%d" % at)
            rig.log.commit()
            if at % 3 == 2:
                rig.flush()
        messages = rig.messages(number)
        for after in range(10):
            for until in range(after, 10):
                covered = [
                    (each.first_position, each.last_position)
                    for each in rig.catalog.scan(Scanned("b/", after, until))
                ]
                for _, _, position in messages:
                    if after < position <= until:
                        assert any(first <= position <= last for first, last in covered)


class TestPlans:
    """However a scan is divided, each message is in one part."""

    @settings(max_examples=examples(30))
    @given(steps, st.integers(1, 400), st.integers(0, 20), st.integers(0, 20))
    def test_every_message_is_in_one_part(self, script, size, after, until):
        history = History(script)
        with memory_directory() as path:
            rig = Rig(Path(path))
            rig.log = history.log
            rig.start()
            for count in range(1, len(history.cuts) + 1):
                rig.worker._flush.run(history.log.segments[:count])
            planner = ScanPlanner(rig.catalog.path, Scanned("b/", after, max(after, until)))
            wanted = model(rig, "b/", after, max(after, until))
            packs, parts = planner.by_packs(size, 1)
            names = planner.by_names(size, 1)
            rig.close()
        for each in wanted:
            for position in range(max(each.first_position, after + 1), each.last_position + 1):
                for at in (each.offset, each.offset + each.length - 1):
                    [part] = [
                        part
                        for part in parts
                        if part.after < min(position, until) <= part.until
                        and part.covers(each.stream, at)
                    ]
                    assert each.pack in {packs[index].name for index in part.packs}
            assert sum(found.first <= each.stream_id <= found.last for found in names) == 1

    def test_a_large_pack_is_cut_by_streams_and_a_large_stream_by_offsets(self, rig, monkeypatch):
        for at in range(200):
            rig.log.create(f"b/{at:03d}", bytes(1000))
        large = rig.log.create("b/large")
        for _ in range(4):
            rig.log.append(large, bytes(6_000_000))
        rig.flush()
        planner = ScanPlanner(rig.catalog.path, Scanned("b/", 0, 99))
        packs, parts = planner.by_packs(8_000_000, 1)
        assert [pack.has_delta for pack in packs] == [False, True]
        # The small streams go with the first piece of the large one.
        assert [part.packs for part in parts] == [[0, 1], [0], [0], [0]]
        assert [part.first[0] == large for part in parts] == [False, True, True, True]
        few = planner.by_packs(50_000, 1).parts
        assert sum(part.first[0] < large for part in few) >= 4
        assert max(part.bytes for part in few if part.first[0] < large) <= 100_000
        # Of a huge bucket, parts are larger instead of more, unless more are asked for.
        monkeypatch.setattr(catalog_plan, "_PARTS_MAX", 2)
        assert len(planner.by_packs(50_000, 1).parts) <= 3 < len(planner.by_packs(50_000, 9).parts)
        names = planner.by_names(50_000, 1)
        assert ("b/large", "b/large", 24_000_000, 4) in names
        assert len(names) >= 5
        assert max(each.size_bytes for each in names if each.first != "b/large") <= 60_000
        assert len(planner.by_names(8_000_000, 3)) >= 2

    def test_more_parts_than_there_are_messages(self, rig, monkeypatch):
        """Look-ups are no more than messages, and end with the client."""
        rig.log.create("b/large", bytes(100_000))
        for at in range(30):
            rig.log.create(f"b/{at:02d}", bytes(10))
        rig.flush()
        planner = ScanPlanner(rig.catalog.path, Scanned("b/", 0, 99))
        places = []
        place = ScanPlanner._place

        def counted(self, *given):
            places.append(given)
            return place(self, *given)

        monkeypatch.setattr(ScanPlanner, "_place", counted)
        assert len(planner.by_packs(1, 100_000).parts) > 1
        assert len(places) <= 31
        monkeypatch.setattr(ScanPlanner, "_place", lambda self, *_: self.cancel() or (0, 0, 0, 0))
        with pytest.raises(UnavailableError, match="cancelled"):
            planner.by_packs(1, 100_000)

    def test_times_narrow_the_positions(self, rig):
        number = rig.log.create("b/s", b"x")
        for at in range(5):
            rig.log.now_ms = 100_000 * (at + 1)
            rig.log.append(number, b"y")
            rig.log.commit()
            rig.flush()
        narrowed = [
            ScanPlanner(rig.catalog.path, Scanned("b/", 0, 5)).narrow(*times)
            for times in [
                (None, None),
                (150_000, None),
                (200_000, 200_000),
                (None, 50_000),
                (600_000, None),
                (210_000, 290_000),
            ]
        ]
        assert narrowed == [(0, 5), (1, 5), (1, 2), (0, 1), (5, 5), (2, 2)]


class TestByPack:
    """What changed since a position is found through the packs, if that is less work."""

    @pytest.fixture
    def many(self, rig):
        numbers = [rig.log.create(f"b/{at:03d}", b"x") for at in range(60)]
        rig.flush()
        for number in reversed(numbers[::10]):
            rig.log.append(number, b"y")
        rig.flush()
        return numbers

    @pytest.fixture
    def looked_at(self, monkeypatch):
        """The rows that were decoded."""
        rows = []

        decoded_row = catalog_schema.decoded_row

        def decoded(path, row):
            rows.append(row)
            return decoded_row(path, row)

        monkeypatch.setattr(catalog_schema, "decoded_row", decoded)
        return rows

    def test_only_streams_with_something_are_looked_at(self, rig, many, looked_at):
        found = list(rig.catalog.scan(Scanned("b/", 1, 2)))
        assert found == model(rig, "b/", 1, 2)
        assert [each.stream_id for each in found] == [f"b/{at:03d}" for at in range(0, 60, 10)]
        assert len(looked_at) == 6

    def test_names_from_one_to_another(self, rig, many, looked_at):
        found = list(rig.catalog.scan(Scanned("b/", 1, 2, "b/010", "b/030")))
        assert [each.stream_id for each in found] == ["b/010", "b/020", "b/030"]
        assert len(looked_at) == 3

    def test_too_many_candidates_are_found_by_name(self, rig, many, monkeypatch):
        monkeypatch.setattr(catalog_scan, "CANDIDATES_MAX", 5)
        assert list(rig.catalog.scan(Scanned("b/", 1, 2))) == model(rig, "b/", 1, 2)

    def test_what_is_kept_for_forks_is_not_given(self, rig):
        source = rig.log.create("b/source", b"0123")
        rig.log.fork("b/fork", source, "b/source", 2, b"ab")
        rig.flush()
        rig.log.delete(source)
        rig.flush()
        assert [each.stream_id for each in rig.catalog.scan(Scanned("b/", 0, 9))] == ["b/fork"]

    @pytest.mark.parametrize(("after", "until"), [(0, 1), (0, 2), (1, 2), (2, 2)])
    def test_amounts(self, rig, many, after, until):
        scan = CatalogScan(rig.catalog.path, Scanned("b/", after, until))
        expected = Counter()
        for each in model(rig, "b/", after, until):
            amounts = {"bytes": each.length, "messages": each.messages}
            for what, amount in amounts.items():
                expected[each.first_position, each.last_position, what] += amount
        found = Counter()
        at = after
        for begin, through, amounts in scan.amounts():
            assert at <= begin < through <= until
            at = through
            for first, last, size_bytes, messages in amounts:
                assert begin < first <= last <= through
                found[first, last, "bytes"] += size_bytes
                found[first, last, "messages"] += messages
        assert found == expected


class TestUnderWay:
    def test_it_does_not_hold_back_what_other_calls_see(self, rig):
        for at in range(300):
            rig.log.create(f"b/{at}", b"x")
        rig.flush()
        scan = rig.catalog.scan(Scanned("b/", 0, 99))
        next(scan)
        rig.log.create("b/new", b"y")
        rig.flush()
        assert rig.catalog.flushed == 2
        assert rig.catalog.find_name("b/new") is not None
        assert len(list(scan)) == 299

    def test_it_can_be_given_up(self, rig):
        rig.log.create("b/s", b"x")
        rig.flush()
        scan = rig.catalog.scan(Scanned("", 0, 99))
        next(scan)
        scan.close()
        assert [each.stream_id for each in rig.catalog.scan(Scanned("", 0, 99))] == ["b/s"]


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
