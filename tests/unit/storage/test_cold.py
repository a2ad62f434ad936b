"""Cold reads: cut where a read from memory is cut, whatever happens to packs meanwhile."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.reading import end_of_read, read
from holdfast.errors import (
    CatalogError,
    InvalidOffsetError,
    ObjectMissingError,
    PackCorruptError,
    StoreError,
)
from holdfast.format import pack_builder
from holdfast.storage import cold
from holdfast.storage.cold import ColdBytes, ColdReader, ColdRequest
from holdfast.storage.pending import run
from tests.memory_directory import memory_directory
from tests.thorough import examples
from tests.unit.storage.cold_streams import MEDIA, appends, boundaries, flushed, in_memory
from tests.unit.storage.ranges import HeldRanges, make_blocks_small
from tests.unit.storage.rig import BINARY, JSON, Rig, calls


@pytest.fixture(scope="module")
def shared():
    """Small blocks, and one worker for all examples: each has a stream of its own."""
    with memory_directory() as path, pytest.MonkeyPatch.context() as patch:
        make_blocks_small(patch, 8)
        rig = Rig(Path(path))
        yield rig
        rig.close()


class TestAgainstMemory:
    @settings(max_examples=examples(60))
    @given(
        st.sampled_from(MEDIA),
        appends,
        st.integers(1, 60),
        st.lists(st.integers(1, 80), min_size=1, max_size=3),
        st.booleans(),
    )
    def test_cut_in_the_same_places(
        self, shared, media, script, extent_bytes, limits, at_least_one
    ):
        rig = shared
        number, stream = flushed(rig, media, script, extent_bytes)
        for start in boundaries(stream):
            for bytes_max in limits:
                end = end_of_read(stream, start, bytes_max, at_least_one=at_least_one)
                expected = ColdBytes(end, read(stream, start, end))
                request = ColdRequest(
                    number, stream.media, start, stream.tail, bytes_max, at_least_one
                )
                assert rig.read_cold(request) == expected

    @settings(max_examples=examples(40))
    @given(st.sampled_from(MEDIA), appends, st.integers(1, 30))
    def test_reading_on_gives_everything_once(self, shared, media, script, bytes_max):
        rig = shared
        number, stream = flushed(rig, media, script)
        at, data = 0, b""
        while at < stream.tail:
            request = ColdRequest(number, stream.media, at, stream.tail, bytes_max)
            result = rig.read_cold(request)
            assert result.end == at + len(result.data) > at
            data += result.data
            at = result.end
            if media != BINARY:
                result.data.decode()
        assert data == b"".join(stream.chunks)

    @given(appends, st.integers(1, 60))
    @settings(max_examples=examples(30))
    def test_offsets_inside_json_messages_are_refused(self, shared, script, bytes_max):
        rig = shared
        number, stream = flushed(rig, JSON, script)
        sound = set(boundaries(stream))
        for start in range(stream.tail):
            request = ColdRequest(number, JSON, start, stream.tail, bytes_max)
            result = rig.read_cold(request)
            assert isinstance(result, InvalidOffsetError) == (start not in sound)

    @given(st.sampled_from(MEDIA), appends, st.integers(1, 200))
    @settings(max_examples=examples(30))
    def test_limit_is_never_passed(self, shared, media, script, bytes_max):
        rig = shared
        number, stream = flushed(rig, media, script)
        for limit in stream.ends:
            shorter = in_memory(media, stream.chunks)
            while shorter.ends[-1] > limit:
                shorter.tail -= len(shorter.chunks.pop())
                shorter.ends.pop()
            end = end_of_read(shorter, 0, bytes_max)
            request = ColdRequest(number, stream.media, 0, limit, bytes_max)
            assert rig.read_cold(request) == ColdBytes(end, read(shorter, 0, end))


@pytest.fixture
def written(rig, monkeypatch):
    """Four packs with 20 bytes of a stream in each, and a reader whose answers are held."""
    make_blocks_small(monkeypatch, 8)
    rig.number = rig.log.create("b/s")
    bodies = [bytes([65 + at]) * 20 for at in range(4)]
    rig.flush_each(*calls(rig.log.append, *((rig.number, body) for body in bodies)))
    rig.data = b"".join(bodies)
    rig.held = HeldRanges(rig.memory)
    rig.reader = ColdReader(rig.catalog, rig.held, 1 << 20)
    return rig


def ask(rig, start=0, bytes_max=1000, limit=80, **more):
    answers = []
    request = ColdRequest(rig.number, BINARY, start, limit, bytes_max, **more)
    run(rig.reader.read(request), answers.append)
    return answers


def missing(name="gone"):
    return ObjectMissingError(f"there is no {name}")


class TestFetches:
    def test_one_for_each_extent(self, written):
        answers = ask(written)
        assert len(written.held.asked) == 4
        written.held.answer_all()
        assert answers == [ColdBytes(80, written.data)]

    def test_answers_may_come_in_any_order(self, written):
        answers = ask(written, 3, 70)
        for _ in range(3):
            written.held.answer(-1)
        assert answers == []
        # The extent that holds the end is looked at first.
        written.held.answer_all()
        assert answers == [ColdBytes(60, written.data[3:60])]

    def test_what_is_in_the_cache_is_answered_before_the_call_returns(self, written):
        ask(written)
        written.held.answer_all()
        assert ask(written) == [ColdBytes(80, written.data)]
        assert written.held.asked == []

    def test_index_is_fetched_only_where_the_limit_falls_into_an_extent(self, written):
        for bytes_max in (20, 40, 60, 80, 1000):
            written.reader = ColdReader(written.catalog, written.held, 0)
            answers = ask(written, 0, bytes_max)
            data_end = {row.name: written.open_pack(row).footer.data_end for row in written.packs}
            assert all(at < data_end[name] for name, at, _ in written.held.requests)
            written.held.answer_all()
            assert answers[0].end == min(bytes_max, 80)

    def test_indexes_are_fetched_with_the_bytes_if_they_will_be_needed(self, written):
        answers, found = ask(written, with_ends=True), []
        assert len(written.held.asked) == 8
        written.held.answer_all()
        assert answers == [ColdBytes(80, written.data)]
        run(written.reader.message_ends(written.number, 0, 80), found.append)
        assert found == [[20, 40, 60, 80]]

    def test_what_comes_next_is_fetched_meanwhile(self, written):
        answers = ask(written, 0, 20)
        written.held.answer()
        assert answers == [ColdBytes(20, written.data[:20])]
        assert written.held.requests
        written.held.answer_all()
        again = ask(written, 20, 20)
        assert again == [ColdBytes(40, written.data[20:40])]

    def test_readers_of_the_same_share_fetches(self, written):
        several = [ask(written) for _ in range(10)]
        assert len(written.held.asked) == 4
        written.held.answer_all()
        assert several == [[ColdBytes(80, written.data)]] * 10

    def test_counters(self, written):
        ask(written)
        written.held.answer_all()
        counters = written.reader.blocks.counters
        assert (counters.reads, counters.read_bytes, counters.fetched_bytes) == (1, 80, 80)

    def test_extents_are_looked_up_once_for_reads_that_follow_each_other(
        self, written, monkeypatch
    ):
        looked_up = []
        extents = written.catalog.extents
        monkeypatch.setattr(
            written.catalog, "extents", lambda *args: looked_up.append(args) or extents(*args)
        )
        for at in range(0, 60, 10):
            ask(written, at, 10)
            written.held.answer_all()
        assert len(looked_up) == 1


class TestManyExtents:
    def test_one_read_looks_at_so_many_and_the_next_goes_on(self, rig, monkeypatch):
        monkeypatch.setattr(pack_builder, "EXTENT_MESSAGES_MAX", 1)
        number = rig.log.create("b/s")
        for at in range(3 * cold.EXTENTS_MAX):
            rig.log.append(number, b"%03d" % at)
        rig.flush()
        tail = 9 * cold.EXTENTS_MAX
        at, data, reads = 0, b"", 0
        while at < tail:
            result = rig.read_cold(ColdRequest(number, BINARY, at, tail, 1 << 20))
            data += result.data
            at, reads = result.end, reads + 1
        assert data == b"".join(b"%03d" % at for at in range(3 * cold.EXTENTS_MAX))
        assert reads == 3


class TestErrors:
    @pytest.mark.parametrize("at", range(4))
    def test_failed_fetch_is_answered_once(self, written, at):
        answers = ask(written)
        error = StoreError("no")
        written.held.answer(at, error)
        written.held.answer_all()
        assert answers == [error]
        written.held.answer_all()
        again = ask(written)
        written.held.answer_all()
        assert again == [ColdBytes(80, written.data)]

    def test_failed_fetch_of_the_index(self, written):
        answers = ask(written, 0, 30)
        error = StoreError("no")
        written.held.answer(0, error)
        assert answers == [error]

    def test_damaged_block_names_its_pack(self, written):
        name = written.extents(written.number)[1].pack
        damaged = bytearray(written.memory.objects[name][0])
        damaged[16] ^= 1
        written.memory.put(name, damaged)
        answers = ask(written)
        written.held.answer_all()
        [error] = answers
        assert isinstance(error, PackCorruptError)
        assert name in error.message
        before = ask(written, 0, 20)
        assert before == [ColdBytes(20, written.data[:20])]


class TestReplan:
    """Packs that were merged and removed while a read was under way."""

    def merge(self, rig):
        old = [row.name for row in rig.packs]
        assert rig.merge()
        for name in old:
            rig.memory.remove(name)

    def test_one_pack_is_gone(self, written):
        answers = ask(written, 0, 20)
        self.merge(written)
        written.held.answer(0, missing())
        assert answers == []
        written.held.answer_all()
        assert answers == [ColdBytes(20, written.data[:20])]

    def test_all_packs_are_gone(self, written):
        answers = ask(written)
        self.merge(written)
        for _ in range(4):
            written.held.answer(0, missing())
        written.held.answer_all()
        assert answers == [ColdBytes(80, written.data)]

    @pytest.mark.parametrize("order", [(0, 0, 0, 0), (3, 2, 1, 0), (1, 2, 0, 0)])
    def test_old_answers_that_come_late_are_no_answers(self, written, order):
        answers = ask(written)
        old = {
            (name, at, size): written.memory.read(name, at, size)
            for name, at, size in written.held.requests
        }
        first, *rest = order
        self.merge(written)
        written.held.answer(first, missing())
        new = written.held.asked[3:]
        assert new
        for at in rest:
            name, start, size, _ = written.held.asked[at]
            written.held.answer(at, old[name, start, size])
        assert answers == []
        written.held.answer_all()
        assert answers == [ColdBytes(80, written.data)]

    def test_index_of_a_pack_that_is_gone(self, written):
        answers = ask(written, 0, 30)
        self.merge(written)
        written.held.answer(0, missing())
        written.held.answer_all()
        assert answers == [ColdBytes(20, written.data[:20])]

    def test_extents_that_were_looked_up_before_the_merge(self, written):
        ask(written, 0, 20)
        written.held.answer_all()
        written.reader.blocks.cache = type(written.reader.blocks.cache)(0)
        self.merge(written)
        answers = ask(written, 5, 20)
        while written.held.asked:
            name, *_ = written.held.asked[0]
            gone = name not in written.memory.objects
            written.held.answer(0, missing(name) if gone else None)
        assert answers == [ColdBytes(20, written.data[5:20])]

    def test_pack_that_is_really_lost_is_an_error(self, written):
        answers = ask(written)
        for row in written.packs:
            written.memory.remove(row.name)
        while written.held.asked:
            written.held.answer(0, missing())
        [error] = answers
        assert isinstance(error, ObjectMissingError)

    def test_other_errors_are_not_tried_again(self, written):
        answers = ask(written, 0, 20)
        self.merge(written)
        written.held.answer(0, StoreError("no"))
        assert len(answers) == 1
        assert written.held.asked == []


class TestGaps:
    @pytest.mark.parametrize("lost", [0, 1, 2, 3])
    @pytest.mark.parametrize("start", [0, 20, 25, 40, 60, 65])
    def test_extent_that_the_catalog_has_lost(self, written, start, lost):
        with written.writer.transaction() as connection:
            connection.execute("DELETE FROM extents WHERE start = ?", (20 * lost,))
        at, data = start, b""
        while at < 80:
            answers = ask(written, at)
            written.held.answer_all()
            [answer] = answers
            if isinstance(answer, CatalogError):
                break
            assert answer.end > at, "a read that ends where it starts would go on for ever"
            data += answer.data
            at = answer.end
        assert data == written.data[start:at]
        assert (at == 80) == (start >= 20 * (lost + 1))

    def test_stream_that_the_catalog_does_not_know(self, written):
        written.number += 1
        [error] = ask(written)
        assert isinstance(error, CatalogError)
        assert f"stream {written.number:x}" in error.message
