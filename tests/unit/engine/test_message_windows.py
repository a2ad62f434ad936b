"""The first messages from an offset on and the last ones of a stream, window by window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine import reading
from holdfast.engine.reading import ShardReader
from holdfast.engine.state import State
from holdfast.errors import OffsetGoneError, StoreError, StreamNotFoundError
from holdfast.storage.pending import run
from tests.unit.engine.driver import JSON, NAME, TEXT, Driver
from tests.unit.engine.held_ends import HeldEnds, failing
from tests.unit.engine.test_boundaries import expected, messages, stream_of
from tests.unit.engine.tiered import Tiered


@pytest.fixture(autouse=True, scope="module")
def small_windows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "WINDOW_BYTES", 3)
        yield


def asked(call, *arguments):
    """What is answered at once."""
    answers = []
    run(call(*arguments), answers.append)
    [answer] = answers
    return answer


@given(messages, st.sampled_from([JSON, TEXT]), st.integers(1, 30))
def test_last_messages_in_memory(appends, media, count):
    stream, ends = stream_of(appends, media), expected(appends, media)
    starts = [0, *ends[:-1]] if ends else [0]
    found = asked(ShardReader.last_start, ShardReader(State()), stream, count)
    assert found == starts[max(0, len(starts) - count)]


@given(messages, st.integers(0, 20), st.integers(0, 60), st.integers(1, 6))
def test_first_messages_in_memory(appends, start, length, enough):
    stream = stream_of(appends, TEXT)
    end = min(start + length, stream.tail)
    wanted = [each for each in expected(appends, TEXT) if start < each <= end]
    found = asked(ShardReader.first_ends, ShardReader(State()), stream, start, end, enough)
    assert found == wanted[: len(found)]
    assert len(found) == len(wanted) or len(found) >= enough


@pytest.fixture
def driver(tmp_path):
    """Messages of 1, 5, 2, 9 and 3 bytes, all in packs."""
    driver = Tiered(tmp_path)
    driver.create(NAME, body=b"x")
    for size in (5, 2, 9, 3):
        driver.append(b"y" * size)
    driver.flush()
    assert driver.shard.find(NAME).base == 20
    yield driver
    driver.close()


@pytest.fixture
def ask(driver):
    """Ask for the last messages; the answers, once the clock has run."""

    def ask(count):
        answers = []
        run(driver.shard.reader.last_start(driver.shard.find(NAME), count), answers.append)
        return answers

    return ask


def test_last_messages_in_packs(driver, ask):
    answers = [ask(count) for count in range(1, 8)]
    driver.clock.run()
    assert answers == [[17], [8], [6], [1], [0], [0], [0]]


def test_first_messages_in_packs(driver):
    answers = []
    stream = driver.shard.find(NAME)
    run(driver.shard.reader.first_ends(stream, 0, 20, 100), answers.append)
    run(driver.shard.reader.first_ends(stream, 3, 19, 100), answers.append)
    driver.clock.run()
    assert answers == [[1, 6, 8, 17, 20], [6, 8, 17]]


@pytest.mark.parametrize("count", [1, 3, 100])
def test_stream_that_is_trimmed_meanwhile(driver, ask, count):
    """The packs may be swept by then; the earliest message that is left is the first one."""
    held = HeldEnds(driver)
    answers = ask(count)
    driver.publish(17)
    driver.commit()
    held.release_all(swept=17)
    assert answers == [17]


def test_stream_that_is_deleted_meanwhile(driver, ask):
    held = HeldEnds(driver)
    answers = ask(2)
    driver.delete()
    driver.commit()
    held.release_all()
    [answer] = answers
    assert isinstance(answer, StreamNotFoundError)


def test_store_that_fails(driver, ask, monkeypatch):
    failure = StoreError("no store")
    monkeypatch.setattr(driver.cold, "message_ends", failing(failure))
    assert ask(2) == [failure]
    answers = []
    run(driver.shard.reader.first_ends(driver.shard.find(NAME), 0, 20, 9), answers.append)
    assert answers == [failure]


def test_first_messages_that_are_trimmed_meanwhile(driver):
    """Also where the snapshot is just at the end of what is looked at."""
    held, answers = HeldEnds(driver), []
    run(driver.shard.reader.first_ends(driver.shard.find(NAME), 0, 1, 9), answers.append)
    driver.publish(1)
    driver.commit()
    held.release_all(swept=1)
    [answer] = answers
    assert isinstance(answer, OffsetGoneError)
    assert answer.earliest == 1


def test_fork_counts_into_its_source():
    driver = Driver()
    driver.create("bucket/source", TEXT, body=b"0123456789")
    driver.fork(NAME, "bucket/source", 4, body=b"abc")
    driver.commit()
    stream = driver.shard.find(NAME)
    starts = [
        asked(ShardReader.last_start, driver.shard.reader, stream, count) for count in (1, 2, 3)
    ]
    assert starts == [4, 0, 0]
