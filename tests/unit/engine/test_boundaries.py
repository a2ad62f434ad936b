"""Where messages end, in memory and in packs; histories with forks are in `test_reads_through`."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.reading import ShardReader, ends_in_memory
from holdfast.engine.stream import Stream
from holdfast.errors import StoreError
from holdfast.format.records import StreamMeta
from holdfast.format.rows import BucketRow
from holdfast.storage.pending import run
from tests.thorough import for_each
from tests.unit.engine.driver import JSON, NAME, TEXT, Driver
from tests.unit.engine.held_ends import failing
from tests.unit.engine.tiered import Tiered

messages = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), max_size=8)


def stream_of(appends, media, base=0):
    """A stream in memory with messages of these lengths, some to each append."""
    stream = Stream(1, StreamMeta(NAME, media), 0, BucketRow(0))
    stream.base = stream.tail = base
    for lengths in appends:
        chunk = b"".join(b"x" * (each - 1) + b"\x1e" for each in lengths)
        stream.tail += len(chunk)
        stream.chunks.append(chunk)
        stream.ends.append(stream.tail)
    return stream


def expected(appends, media, base=0):
    """Where they end: each element of JSON, or each append."""
    sizes = [each for lengths in appends for each in lengths]
    if media != JSON:
        sizes = [sum(lengths) for lengths in appends]
    return [base + each for each in accumulate(sizes)]


@given(messages, st.sampled_from([JSON, TEXT]), st.integers(0, 9))
def test_in_memory_between_any_two_offsets(appends, media, base):
    stream, ends = stream_of(appends, media, base), expected(appends, media, base)
    for start in range(base, stream.tail + 1):
        for end in range(start, stream.tail + 1):
            found = ends_in_memory(stream, start, end)
            assert found == [each for each in ends if start < each <= end]


def ask(driver, call, *arguments):
    answers = []
    run(call(driver.shard.reader, driver.shard.find(NAME), *arguments), answers.append)
    driver.clock.run()
    [answer] = answers
    return answer


@pytest.fixture(params=["hot", "cold", "both"])
def driver(request, tmp_path):
    """Four messages of JSON in two appends: 2, 3, 4 and 2 bytes."""
    driver = Tiered(tmp_path)
    driver.create(NAME, JSON, body=b"[1,22]")
    if request.param == "both":
        driver.flush()
    driver.append(b"[333,4]", media=JSON)
    driver.commit()
    if request.param == "cold":
        driver.flush()
    yield driver
    driver.close()


def test_ends(driver):
    assert ask(driver, ShardReader.message_ends, 0, 11) == [2, 5, 9, 11]
    assert ask(driver, ShardReader.message_ends, 2, 9) == [5, 9]
    assert ask(driver, ShardReader.message_ends, 3, 8) == [5]
    assert ask(driver, ShardReader.message_ends, 4, 4) == []


@for_each("offset", range(12))
def test_boundaries(driver, offset):
    assert ask(driver, ShardReader.is_boundary, offset) == (offset in {0, 2, 5, 9, 11})


def test_start_of_a_trimmed_stream(driver):
    driver.publish(5)
    driver.commit()
    assert ask(driver, ShardReader.is_boundary, 5) is True
    assert ask(driver, ShardReader.is_boundary, 7) is False
    assert ask(driver, ShardReader.message_ends, 5, 11) == [9, 11]


def test_fork_that_starts_inside_a_message_ends_it():
    driver = Driver()
    driver.create("bucket/source", TEXT, body=b"0123456789")
    driver.fork(NAME, "bucket/source", 4, body=b"abc")
    driver.commit()
    assert ask(driver, ShardReader.message_ends, 0, 7) == [4, 7]
    assert ask(driver, ShardReader.is_boundary, 4) is True
    assert ask(driver, ShardReader.is_boundary, 3) is False


def test_fork_that_starts_where_a_message_ends():
    driver = Driver()
    driver.create("bucket/source", TEXT, body=b"0123")
    driver.append(b"4567", name="bucket/source")
    driver.fork(NAME, "bucket/source", 4)
    driver.commit()
    assert ask(driver, ShardReader.message_ends, 0, 4) == [4]


def test_store_that_fails(tmp_path, monkeypatch):
    driver = Tiered(tmp_path)
    driver.written(NAME, body=b"0123")
    failure = StoreError("no store")
    monkeypatch.setattr(driver.cold, "message_ends", failing(failure))
    assert ask(driver, ShardReader.message_ends, 0, 4) is failure
    assert ask(driver, ShardReader.is_boundary, 2) is failure
    assert ask(driver, ShardReader.is_boundary, 4) is True
    driver.close()
