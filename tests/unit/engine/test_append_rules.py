"""What an append is answered, and in which order the rules apply."""

import pytest

from holdfast.engine.writes import StreamAppended
from holdfast.errors import (
    ContentTypeMismatchError,
    InvalidJsonError,
    InvalidRequestError,
    ProducerFencedError,
    ProducerGapError,
    StreamClosedError,
    StreamNotFoundError,
    StreamSeqError,
)
from holdfast.protocol.producer import Producer, ProducerState
from tests.unit.engine.driver import JSON, Driver, appended


@pytest.fixture
def driver():
    driver = Driver()
    driver.create()
    driver.commit()
    return driver


@pytest.fixture
def json_driver():
    driver = Driver()
    driver.create(content_type=JSON)
    driver.commit()
    return driver


def test_append_moves_the_tail_by_its_bytes(driver):
    assert driver.committed(driver.append(b"hello")) == appended(5)
    assert driver.committed(driver.append(b", world")) == appended(12)
    assert driver.read() == b"hello, world"


def test_append_to_nothing_is_not_found_at_once(driver):
    assert isinstance(driver.append(b"x", name="b/none").outcome, StreamNotFoundError)


def test_append_and_close_is_one_step(driver):
    assert driver.committed(driver.append(b"end", close=True)) == appended(3, closed=True)
    assert driver.shard.find("bucket/stream").closed


def test_close_alone_keeps_the_tail(driver):
    driver.committed(driver.append(b"all"))
    assert driver.committed(driver.append(close=True)) == appended(3, closed=True, added=False)


def test_close_again_succeeds_and_stores_nothing(driver):
    driver.committed(driver.append(close=True))
    position = driver.shard.commits.last_position
    assert driver.append(close=True).outcome == appended(0, closed=True, added=False)
    assert driver.shard.commits.last_position == position


@pytest.mark.parametrize("close", [True, False])
def test_append_to_a_closed_stream_is_refused_with_its_tail(driver, close):
    driver.committed(driver.append(b"all", close=True))
    error = driver.append(b"more", close=close).outcome
    assert isinstance(error, StreamClosedError)
    assert error.tail == 3


def test_closing_producer_may_repeat_itself_exactly(driver):
    driver.committed(driver.produce(0, b"end", close=True))
    repeated = driver.produce(0, b"end", close=True).outcome
    assert repeated == appended(3, closed=True, producer=ProducerState(0, 0), added=False)


@pytest.mark.parametrize(
    ("producer_id", "epoch", "seq"),
    [(b"p", 0, 2), (b"p", 1, 0), (b"p", 0, 0), (b"q", 0, 1), (b"q", 0, 0)],
    ids=["next", "new epoch", "earlier", "other producer", "other producer's first"],
)
def test_any_other_producer_request_to_a_closed_stream_is_refused(driver, producer_id, epoch, seq):
    driver.committed(driver.produce(0, b"a"))
    driver.committed(driver.produce(1, b"b", close=True))
    ask = driver.produce(seq, b"c", epoch, producer_id, close=True)
    assert isinstance(ask.outcome, StreamClosedError)


@pytest.mark.parametrize("media", ["text/html", JSON, None])
def test_content_type_must_be_the_streams(driver, media):
    ask = driver.append(b"x", media=media)
    assert isinstance(ask.outcome, ContentTypeMismatchError)


def test_content_type_does_not_matter_without_a_body(driver):
    assert driver.committed(driver.append(close=True, media=JSON)) == appended(
        0, closed=True, added=False
    )


def test_producer_is_told_what_was_accepted(driver):
    assert driver.committed(driver.produce(0)) == appended(1, producer=ProducerState(0, 0))
    assert driver.committed(driver.produce(1)) == appended(2, producer=ProducerState(0, 1))


def test_duplicate_is_told_the_highest_accepted_sequence(driver):
    for seq in range(3):
        driver.produce(seq)
    driver.commit()
    assert driver.produce(0).outcome == appended(3, producer=ProducerState(0, 2), added=False)
    assert driver.read() == b"xxx"


def test_gap_is_refused_with_what_was_expected(driver):
    driver.committed(driver.produce(0))
    error = driver.produce(2).outcome
    assert isinstance(error, ProducerGapError)
    assert (error.expected, error.received) == (1, 2)


def test_stale_epoch_is_fenced(driver):
    driver.committed(driver.produce(0, epoch=4))
    error = driver.produce(1, epoch=3).outcome
    assert isinstance(error, ProducerFencedError)
    assert error.epoch == 4


def test_new_epoch_must_start_at_zero(driver):
    driver.committed(driver.produce(0))
    assert type(driver.produce(1, epoch=1).outcome) is InvalidRequestError
    assert driver.committed(driver.produce(0, epoch=1)).producer == ProducerState(1, 0)


def test_producers_are_independent(driver):
    driver.committed(driver.produce(0, producer_id=b"p"))
    assert driver.committed(driver.produce(0, producer_id=b"q")).added
    assert driver.committed(driver.produce(1, producer_id=b"p")).added


@pytest.mark.spec("base 5.2-6", "base 5.2-8", "base 5.2-9")
def test_stream_seq_increases_byte_by_byte(driver):
    for seq in (b"10", b"2", b"20", b"a", b"b\x00"):
        assert isinstance(driver.committed(driver.append(b"x", seq=seq)), StreamAppended)
    for seq in (b"b\x00", b"b", b"a", b"10", b"999"):
        assert isinstance(driver.append(b"x", seq=seq).outcome, StreamSeqError)


def test_append_without_stream_seq_leaves_it_as_it_was(driver):
    driver.committed(driver.append(b"x", seq=b"5"))
    driver.committed(driver.append(b"x"))
    assert isinstance(driver.append(b"x", seq=b"5").outcome, StreamSeqError)


@pytest.mark.parametrize("body", [b"{", b"", b"\xff", b"[" * 100_000])
def test_body_of_a_json_stream_is_json(json_driver, body):
    if body:
        assert isinstance(json_driver.append(body, media=JSON).outcome, InvalidJsonError)


@pytest.mark.spec("base 7.1-4")
def test_empty_array_is_refused(json_driver):
    assert isinstance(json_driver.append(b" [] ", media=JSON).outcome, InvalidJsonError)


def test_json_tail_counts_stored_bytes(json_driver):
    assert json_driver.committed(json_driver.append(b"[1, 22]", media=JSON)) == appended(5)
    assert json_driver.read() == b"1\x1e22\x1e"


def test_refused_append_changes_nothing(json_driver):
    producer = Producer(b"p", 0, 0)
    json_driver.append(b"{", media=JSON, producer=producer, seq=b"9", close=True)
    json_driver.commit()
    stream = json_driver.shard.find("bucket/stream")
    assert (stream.tail, stream.producers, stream.seq, stream.closed) == (0, None, None, False)
    ask = json_driver.append(b"1", media=JSON, producer=producer, seq=b"1")
    assert json_driver.committed(ask).added


class TestOrderOfTheRules:
    """Each request breaks a rule and every later one; the error is the first rule's."""

    @pytest.mark.spec("base 5.2-16")
    def test_closed_comes_before_everything(self, json_driver):
        json_driver.committed(json_driver.append(b"1", media=JSON, seq=b"5", close=True))
        ask = json_driver.append(b"{", media="text/plain", producer=Producer(b"p", 0, 9), seq=b"1")
        assert isinstance(ask.outcome, StreamClosedError)

    @pytest.mark.spec("base 5.2-16")
    def test_content_type_comes_before_producer(self, json_driver):
        json_driver.committed(json_driver.append(b"1", media=JSON, seq=b"5"))
        ask = json_driver.append(b"{", media="text/plain", producer=Producer(b"p", 0, 9), seq=b"1")
        assert isinstance(ask.outcome, ContentTypeMismatchError)

    def test_producer_comes_before_stream_seq(self, json_driver):
        json_driver.committed(json_driver.append(b"1", media=JSON, seq=b"5"))
        ask = json_driver.append(b"{", media=JSON, producer=Producer(b"p", 0, 9), seq=b"1")
        assert isinstance(ask.outcome, ProducerGapError)

    def test_duplicate_is_one_even_if_its_stream_seq_no_longer_increases(self, driver):
        producer = Producer(b"p", 0, 0)
        driver.committed(driver.append(b"x", producer=producer, seq=b"5"))
        assert driver.append(b"x", producer=producer, seq=b"5").outcome.added is False

    def test_stream_seq_comes_before_the_body(self, json_driver):
        json_driver.committed(json_driver.append(b"1", media=JSON, seq=b"5"))
        ask = json_driver.append(b"{", media=JSON, producer=Producer(b"p", 0, 0), seq=b"1")
        assert isinstance(ask.outcome, StreamSeqError)

    def test_the_body_comes_last(self, json_driver):
        ask = json_driver.append(b"{", media=JSON, producer=Producer(b"p", 0, 0), seq=b"1")
        assert isinstance(ask.outcome, InvalidJsonError)
