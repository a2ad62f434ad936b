"""Reads that outlive what they read: the stream is deleted or trimmed while they are under way."""

import pytest

from holdfast.engine.reading import ShardReader
from holdfast.errors import ObjectMissingError, OffsetGoneError, StoreError, StreamNotFoundError
from holdfast.storage.cold import ColdReader
from holdfast.storage.pending import run
from tests.unit.engine.tiered import MIB, Tiered
from tests.unit.storage.ranges import HeldRanges

SOURCE, FORK = "b/source", "b/fork"


@pytest.fixture
def driver(tmp_path):
    """Two streams may stay in memory; what is read from packs comes when the test wants it."""
    driver = Tiered(tmp_path, streams_cached_max=2)
    driver.held = HeldRanges(driver.store)
    driver.shard.reader.cold = ColdReader(driver.catalog, driver.held, 10 * MIB)
    yield driver
    driver.close()


def asked(driver, call, stream, *arguments):
    answers = []
    run(call(driver.shard.reader, stream, *arguments), answers.append)
    return answers


def read(driver, stream, at=0, bytes_max=100):
    answers = []
    run(driver.shard.reader.read(stream, at, bytes_max), answers.append)
    return answers


class TestForkThatLeftMemory:
    @pytest.fixture
    def fork(self, driver):
        """A fork as a request has found it; deleted since, and so is its source."""
        driver.create(SOURCE, body=b"0123456789")
        driver.fork(FORK, SOURCE, 5, body=b"ab")
        driver.flush()
        found = driver.shard.find(FORK)
        driver.written("b/1", "b/2", "b/3")
        assert FORK not in driver.names
        driver.delete(FORK)
        driver.delete(SOURCE)
        driver.flush()
        # Whoever deleted it had another object in hand.
        assert not found.gone
        return found

    def test_read(self, driver, fork):
        [answer] = read(driver, fork)
        assert isinstance(answer, StreamNotFoundError)
        assert FORK in answer.message

    def test_boundaries(self, driver, fork):
        [answer] = asked(driver, ShardReader.message_ends, fork, 0, 7)
        assert isinstance(answer, StreamNotFoundError)
        [answer] = asked(driver, ShardReader.is_boundary, fork, 3)
        assert isinstance(answer, StreamNotFoundError)


class TestTrimmed:
    """A snapshot is published, and the packs before it are removed, while they are asked for."""

    @pytest.fixture
    def stream(self, driver):
        driver.create(SOURCE, body=b"01234")
        for body in (b"56789", b"abcde"):
            driver.append(body, name=SOURCE)
        driver.flush()
        return driver.shard.find(SOURCE)

    def trim(self, driver, offset):
        driver.committed(driver.publish(offset, SOURCE))

    def answer_all(self, driver, error):
        while driver.held.asked:
            driver.held.answer(outcome=error)

    @pytest.mark.parametrize("error", [ObjectMissingError, StoreError])
    def test_boundary_before_the_new_start(self, driver, stream, error):
        answers = asked(driver, ShardReader.is_boundary, stream, 5)
        self.trim(driver, 10)
        self.answer_all(driver, error("no store"))
        [answer] = answers
        assert isinstance(answer, OffsetGoneError)
        assert answer.earliest == 10

    def test_boundary_behind_it(self, driver, stream):
        answers = asked(driver, ShardReader.is_boundary, stream, 10)
        self.trim(driver, 5)
        error = StoreError("no store")
        self.answer_all(driver, error)
        assert answers == [error]

    def test_boundary_that_is_found_all_the_same(self, driver, stream):
        answers = asked(driver, ShardReader.is_boundary, stream, 5)
        self.trim(driver, 10)
        driver.held.answer_all()
        assert answers == [True]
