"""Reading through: from packs and on from memory gives what memory alone would give."""

import gc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.reading import ShardReader, end_of_read, read
from holdfast.engine.state import State
from holdfast.errors import OffsetGoneError, StoreError, StreamNotFoundError
from holdfast.storage.cold import ColdBytes, ColdReader
from holdfast.storage.pending import run
from tests.memory_directory import memory_directory
from tests.thorough import examples
from tests.unit.engine.tiered import Tiered
from tests.unit.storage.cold_streams import MEDIA, appends, boundaries, flushed, in_memory
from tests.unit.storage.ranges import HeldRanges, make_blocks_small
from tests.unit.storage.rig import TEXT, Rig

BODIES = [b"aaaa", b"bbbb", b"cccc", b"dddd"]


@pytest.fixture(scope="module")
def shared():
    """Small blocks, and one worker for all examples: each has a stream of its own."""
    with memory_directory() as path, pytest.MonkeyPatch.context() as patch:
        make_blocks_small(patch, 8)
        rig = Rig(Path(path))
        yield rig
        rig.close()


def partly_cold(number, media, bodies, count):
    """A stream whose first `count` appends have left memory."""
    stream = in_memory(media, bodies)
    stream.number = number
    stream.forget_before(stream.ends[count - 1])
    return stream


def read_through(cold, stream, start, bytes_max, done):
    reader = ShardReader(State())
    reader.cold = cold
    run(reader.read(stream, start, bytes_max), done)


def answer_of(rig, stream, start, bytes_max):
    answers = []
    read_through(rig.cold, stream, start, bytes_max, answers.append)
    rig.clock.run()
    [answer] = answers
    return answer


class TestAgainstMemory:
    @settings(max_examples=examples(60))
    @given(
        st.sampled_from(MEDIA),
        appends,
        st.integers(0, 9),
        st.lists(st.integers(1, 120), min_size=1, max_size=3),
    )
    def test_any_split_between_packs_and_memory(self, shared, media, script, cold, limits):
        number, whole = flushed(shared, media, script)
        stream = partly_cold(number, media, whole.chunks, 1 + cold % len(whole.chunks))
        for start in boundaries(whole):
            if start >= stream.base:
                break
            for bytes_max in limits:
                end = end_of_read(whole, start, bytes_max)
                expected = ColdBytes(end, read(whole, start, end))
                assert answer_of(shared, stream, start, bytes_max) == expected


class TestMeanwhile:
    @pytest.fixture
    def made(self, shared):
        """A stream of four appends, two of which are cold, and a reader whose answers are held."""
        number, _ = flushed(shared, TEXT, [([body.decode()], True) for body in BODIES])
        shared.stream = partly_cold(number, TEXT, BODIES, 2)
        shared.held = HeldRanges(shared.memory)
        shared.reader = ColdReader(shared.catalog, shared.held, 1 << 20)
        return shared

    def ask(self, made, start=0, bytes_max=1000):
        answers = []
        read_through(made.reader, made.stream, start, bytes_max, answers.append)
        return answers

    def test_memory_goes_on_where_packs_end(self, made):
        answers = self.ask(made)
        made.held.answer_all()
        assert answers == [ColdBytes(16, b"".join(BODIES))]

    @pytest.mark.parametrize("offset", [12, 16])
    def test_more_moved_to_packs(self, made, offset):
        answers = self.ask(made)
        made.held.answer()
        made.stream.forget_before(offset)
        made.held.answer_all()
        assert answers == [ColdBytes(16, b"".join(BODIES))]

    def test_limit_is_kept_over_several_steps(self, made):
        answers = self.ask(made, 0, 14)
        made.held.answer()
        made.stream.forget_before(16)
        made.held.answer_all()
        assert answers == [ColdBytes(12, b"".join(BODIES[:3]))]

    def test_message_that_does_not_fit_is_cut_only_if_it_is_the_first(self, made):
        answers = self.ask(made, 0, 10)
        made.held.answer()
        made.stream.forget_before(16)
        made.held.answer_all()
        assert answers == [ColdBytes(8, b"".join(BODIES[:2]))]

    def test_stream_grew(self, made):
        answers = self.ask(made)
        stream = made.stream
        stream.tail += 4
        stream.chunks.append(b"eeee")
        stream.ends.append(20)
        made.held.answer_all()
        assert answers == [ColdBytes(20, b"".join([*BODIES, b"eeee"]))]

    def test_stream_ended(self, made):
        answers = self.ask(made)
        made.stream.gone = True
        made.held.answer_all()
        [error] = answers
        assert isinstance(error, StreamNotFoundError)

    def test_store_failed(self, made):
        answers = self.ask(made)
        error = StoreError("no")
        made.held.answer(0, error)
        made.held.answer_all()
        assert answers == [error]

    def test_trimmed_and_failed_frees_what_was_read_without_the_collector(self, made):
        gc.collect()
        gc.disable()
        try:
            answers = self.ask(made)
            made.stream.earliest = 4
            made.held.answer(0, StoreError("no"))
            made.held.answer_all()
            assert isinstance(answers.pop(), OffsetGoneError)
            assert gc.collect() == 0
        finally:
            gc.enable()

    def test_store_failed_at_the_second_step(self, made):
        answers = self.ask(made)
        made.held.answer()
        made.stream.forget_before(12)
        made.held.answer()
        error = StoreError("no")
        while made.held.asked:
            made.held.answer(0, error)
        assert answers == [error]

    def test_read_that_ends_in_packs_does_not_look_at_memory(self, made):
        answers = self.ask(made, 0, 6)
        made.stream.chunks.clear()
        made.held.answer_all()
        assert answers == [ColdBytes(4, BODIES[0])]


TEXTS = ("abcdefghij", "añ€😀ö€ß", "€€€€")


@pytest.fixture(params=["hot", "cold", "source cold", "fork cold"])
def make(request, tmp_path):
    """A source, and a fork that starts somewhere in its only message and has bytes of its own."""
    drivers = []

    def made(source, at, own):
        driver = Tiered(tmp_path)
        drivers.append(driver)
        driver.create("b/source", body=source)
        if request.param in {"cold", "source cold"}:
            driver.flush()
        driver.fork("b/fork", "b/source", at, body=own)
        driver.commit()
        if request.param in {"cold", "fork cold"}:
            driver.flush()
        return driver

    yield made
    for driver in drivers:
        driver.close()


def read_fork(driver, at, bytes_max):
    answers = []
    run(driver.shard.reader.read(driver.shard.find("b/fork"), at, bytes_max), answers.append)
    driver.clock.run()
    [answer] = answers
    return answer


def test_limit_that_is_smaller_than_a_character_may_be(make):
    """Text gives room for any one character, but not for what the source has behind the place."""
    driver = make(b"abcdefghij", 5, b"XYZ")
    assert read_fork(driver, 0, 1) == ColdBytes(4, b"abcd")
    assert read_fork(driver, 3, 1) == ColdBytes(5, b"de")
    assert read_fork(driver, 4, 1) == ColdBytes(5, b"e")
    assert read_fork(driver, 5, 1) == ColdBytes(8, b"XYZ")


@pytest.mark.parametrize("source", TEXTS)
def test_every_place_offset_and_limit(make, source):
    """Also where a character has to be looked at as a whole."""
    whole = source.encode()
    places = [len(source[:count].encode()) for count in range(len(source) + 1)]
    place = places[len(places) // 2]
    driver, expected = make(whole, place, b"XYZ"), whole[:place] + b"XYZ"
    for at in [each for each in places if each <= place] + [place + 1, place + 2]:
        for bytes_max in range(1, 9):
            end, data = read_fork(driver, at, bytes_max)
            assert data
            assert data == expected[at:end]


@pytest.mark.parametrize("place", [0, 2, 5, 7, 10])
def test_whole_of_it_in_small_reads(make, place):
    driver = make(b"abcdefghij", place, b"XYZ")
    for bytes_max in range(1, 6):
        found = driver.content("b/fork", bytes_max=bytes_max)
        assert found == b"abcdefghij"[:place] + b"XYZ"
