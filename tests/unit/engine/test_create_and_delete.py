"""Creating, confirming, deleting and creating again; positions and stream numbers."""

import pytest

from holdfast.engine.writes import Deleted
from holdfast.errors import (
    InvalidJsonError,
    ProducerGapError,
    StreamExistsError,
    StreamNotFoundError,
    StreamSeqError,
)
from holdfast.format.records import stream_number
from holdfast.protocol.producer import Producer, ProducerState
from tests.unit.engine.driver import JSON, NAME, TEXT, Driver, appended, created


@pytest.fixture
def driver():
    return Driver()


def test_create_then_confirm(driver):
    assert driver.committed(driver.create()) == created(True, TEXT, 0, closed=False)
    assert driver.create().outcome == created(False, TEXT, 0, closed=False)


def test_create_with_content_and_close(driver):
    answer = driver.committed(driver.create(body=b"all of it", close=True))
    assert answer == created(True, TEXT, 9, closed=True)
    assert driver.read() == b"all of it"


@pytest.mark.spec("base 7.1-9")
def test_create_with_json_content_flattens_it(driver):
    driver.committed(driver.create(content_type=JSON, body=b"[1,2]"))
    assert driver.read() == b"1\x1e2\x1e"
    assert driver.committed(driver.create("b/empty", JSON, body=b"[]")).tail == 0


def test_create_with_bad_json_creates_nothing(driver):
    assert isinstance(driver.create(content_type=JSON, body=b"{").outcome, InvalidJsonError)
    assert not driver.exists()
    assert driver.shard.commits.last_position == 0


def test_create_takes_producer_and_stream_seq(driver):
    producer = Producer(b"p", 0, 0)
    driver.committed(driver.create(body=b"x", producer=producer, seq=b"5"))
    assert driver.append(b"x", producer=producer).outcome.added is False
    assert isinstance(driver.append(b"x", seq=b"5").outcome, StreamSeqError)


def test_create_with_a_producer_gap_creates_nothing(driver):
    ask = driver.create(body=b"x", producer=Producer(b"p", 0, 3))
    assert isinstance(ask.outcome, ProducerGapError)
    assert not driver.exists()


@pytest.mark.spec("base 5.1-1")
@pytest.mark.parametrize("content_type", ["text/plain", "Text/Plain", "text/plain; charset=utf-8"])
def test_content_type_is_compared_without_case_and_parameters(driver, content_type):
    driver.committed(driver.create(content_type="text/plain;a=b"))
    confirmed = driver.create(content_type=content_type).outcome
    assert confirmed == created(False, "text/plain;a=b", 0, closed=False)


@pytest.mark.spec("base 5.1-1", "base 5.1-2")
@pytest.mark.parametrize(
    "other",
    [
        {"content_type": JSON},
        {"ttl_s": 11},
        {"ttl_s": None},
        {"ttl_s": None, "expires_at_ms": 1_900_000_000_000},
        {"close": True},
    ],
    ids=["content type", "ttl", "no ttl", "expiry", "closed"],
)
def test_create_with_another_configuration_is_refused(driver, other):
    driver.committed(driver.create(ttl_s=10))
    assert isinstance(driver.create(**{"ttl_s": 10, **other}).outcome, StreamExistsError)


@pytest.mark.spec("base 5.1-2")
def test_confirming_compares_with_closure_now(driver):
    driver.committed(driver.create())
    driver.committed(driver.append(b"x", close=True))
    assert isinstance(driver.create().outcome, StreamExistsError)
    assert driver.create(close=True).outcome == created(False, TEXT, 1, closed=True)


def test_confirming_compares_expiry_times(driver):
    at_ms = driver.clock.now_ms() + 60_000
    driver.committed(driver.create(expires_at_ms=at_ms))
    assert driver.create(expires_at_ms=at_ms).outcome.created is False
    assert isinstance(driver.create(expires_at_ms=at_ms + 1).outcome, StreamExistsError)
    assert isinstance(driver.create().outcome, StreamExistsError)


def test_confirming_ignores_the_body(driver):
    driver.committed(driver.create(body=b"first"))
    assert driver.create(body=b"second").outcome == created(False, TEXT, 5, closed=False)
    assert driver.read() == b"first"


def test_delete_removes_name_and_bytes(driver):
    driver.committed(driver.create(body=b"bytes"))
    stream = driver.shard.find(NAME)
    assert driver.committed(driver.delete()) == Deleted()
    assert stream.gone
    assert not driver.exists()
    assert driver.shard.state.stored_bytes == 0
    assert driver.shard.state.by_number == {}


def test_delete_of_nothing_is_not_found(driver):
    assert isinstance(driver.delete().outcome, StreamNotFoundError)
    driver.committed(driver.create())
    driver.committed(driver.delete())
    assert isinstance(driver.delete().outcome, StreamNotFoundError)
    assert isinstance(driver.append(b"x").outcome, StreamNotFoundError)


def test_created_again_it_is_another_stream(driver):
    driver.committed(driver.create(body=b"old", producer=Producer(b"p", 3, 0), seq=b"9"))
    first = driver.shard.find(NAME)
    driver.committed(driver.delete())
    driver.committed(driver.create(content_type=JSON))
    second = driver.shard.find(NAME)
    assert second.number > first.number
    assert (second.tail, second.producers, second.seq) == (0, None, None)
    ask = driver.append(b"1", media=JSON, producer=Producer(b"p", 0, 0), seq=b"1")
    assert driver.committed(ask) == appended(2, producer=ProducerState(0, 0))


class TestPositionsAndNumbers:
    def test_number_is_position_and_index_of_the_creating_record(self, driver):
        driver.create("b/1")
        driver.append(b"x", name="b/1")
        driver.create("b/2")
        driver.commit()
        driver.committed(driver.create("b/3"))
        numbers = [driver.shard.find(f"b/{n}").number for n in (1, 2, 3)]
        assert numbers == [stream_number(1, 0), stream_number(1, 2), stream_number(2, 0)]

    def test_positions_have_no_gaps(self, driver):
        for n in range(5):
            driver.committed(driver.create(f"b/{n}"))
        assert [batch.position for batch in driver.log.batches] == [1, 2, 3, 4, 5]
        assert driver.shard.commits.last_position == 5

    def test_requests_that_arrive_together_share_a_batch(self, driver):
        for n in range(5):
            driver.create(f"b/{n}")
        driver.commit()
        assert len(driver.log.batches) == 1

    def test_requests_that_arrive_during_a_commit_share_the_next_batch(self, driver):
        driver.create()
        driver.clock.run()
        for _ in range(5):
            driver.append(b"x")
        driver.commit()
        assert [batch.position for batch in driver.log.batches] == [1, 2]

    def test_refusals_take_no_position(self, driver):
        driver.committed(driver.create())
        driver.create(content_type=JSON)
        driver.append(b"x", media=JSON)
        driver.delete("b/none")
        driver.commit()
        assert driver.shard.commits.last_position == 1

    def test_positions_go_on_after_a_restart(self, driver):
        driver.committed(driver.create())
        again = driver.restart()
        again.committed(again.append(b"x"))
        assert [batch.position for batch in again.log.batches] == [1, 2]
        again.committed(again.create("b/2"))
        assert again.shard.find("b/2").number == stream_number(3, 0)


def test_without_storage_nothing_is_kept_of_a_deleted_stream():
    driver = Driver()
    for at in range(5):
        driver.committed(driver.create(f"b/{at}", body=b"x"))
        driver.committed(driver.publish(1, f"b/{at}"))
        driver.committed(driver.delete(f"b/{at}"))
    state = driver.shard.state
    assert state.generation.streams == []
    assert state.generation.snapshots == set()
    assert (state.removed, state.removed_numbers) == ({}, set())
