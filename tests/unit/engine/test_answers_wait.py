"""Every answer that rests on staged state waits for the batch it rests on."""

import pytest

from holdfast.engine.writes import AppendRequest, Deleted, StreamCreated
from holdfast.errors import (
    CommitFailedError,
    ContentTypeMismatchError,
    ProducerFencedError,
    ProducerGapError,
    StreamClosedError,
    StreamExistsError,
    StreamNotFoundError,
    StreamSeqError,
)
from holdfast.protocol.producer import ProducerState
from tests.unit.engine.driver import COMMITTED, FAILED, JSON, TEXT, Driver, appended, created


@pytest.fixture
def driver():
    driver = Driver()
    driver.create()
    driver.commit()
    return driver


def after_commit(driver, ask):
    """The answer, which must not come before the commit."""
    driver.clock.run()
    assert not ask.answered
    driver.answer(COMMITTED)
    assert ask.answered
    return ask.outcome


def test_append_waits(driver):
    assert after_commit(driver, driver.append(b"x")) == appended(1)


def test_create_waits():
    driver = Driver()
    assert after_commit(driver, driver.create()) == created(True, TEXT, 0, closed=False)


def test_delete_waits(driver):
    assert after_commit(driver, driver.delete()) == Deleted()


def test_readers_see_nothing_before_the_commit(driver):
    driver.append(b"x", close=True)
    driver.create("b/other")
    driver.clock.run()
    assert driver.read() == b""
    assert not driver.shard.find("bucket/stream").closed
    assert not driver.exists("b/other")
    driver.answer(COMMITTED)
    assert driver.read() == b"x"
    assert driver.shard.find("bucket/stream").closed
    assert driver.exists("b/other")


def test_deleted_stream_is_readable_until_the_commit(driver):
    driver.committed(driver.append(b"x"))
    driver.delete()
    driver.clock.run()
    assert driver.read() == b"x"
    driver.answer(COMMITTED)
    assert not driver.exists()


def test_duplicate_of_a_staged_append_waits_for_it(driver):
    driver.produce(0)
    outcome = after_commit(driver, driver.produce(0))
    assert outcome == appended(1, producer=ProducerState(0, 0), added=False)


def test_duplicate_of_a_failed_append_fails_with_it(driver):
    first, retry = driver.produce(0), driver.produce(0)
    driver.answer(FAILED)
    assert isinstance(first.outcome, CommitFailedError)
    assert isinstance(retry.outcome, CommitFailedError)
    assert driver.committed(driver.produce(0)) == appended(1, producer=ProducerState(0, 0))


def test_duplicate_of_a_durable_append_on_a_quiet_stream_does_not_wait(driver):
    driver.committed(driver.produce(0))
    driver.create("b/other")
    assert driver.produce(0).outcome.added is False


@pytest.mark.parametrize(
    ("stage", "ask", "error"),
    [
        (Driver.delete, lambda d: d.append(b"x"), StreamNotFoundError),
        (Driver.delete, Driver.delete, StreamNotFoundError),
        (lambda d: d.append(close=True), lambda d: d.append(b"x"), StreamClosedError),
        (lambda d: d.append(close=True), Driver.create, StreamExistsError),
        (lambda d: d.append(b"x"), lambda d: d.create(content_type=JSON), StreamExistsError),
        (
            lambda d: d.append(b"x"),
            lambda d: d.append(b"x", media=JSON),
            ContentTypeMismatchError,
        ),
        (lambda d: d.produce(0), lambda d: d.produce(2), ProducerGapError),
        (lambda d: d.produce(0, epoch=2), lambda d: d.produce(1, epoch=1), ProducerFencedError),
        (lambda d: d.append(b"x", seq=b"5"), lambda d: d.append(b"x", seq=b"5"), StreamSeqError),
    ],
    ids=[
        "append after delete",
        "delete after delete",
        "append after close",
        "create after close",
        "other create after append",
        "content type after append",
        "gap after append",
        "fenced after append",
        "stream seq after append",
    ],
)
class TestRefusals:
    def test_refusal_waits_for_what_it_rests_on(self, driver, stage, ask, error):
        stage(driver)
        assert isinstance(after_commit(driver, ask(driver)), error)

    def test_refusal_becomes_a_failure_if_what_it_rests_on_fails(self, driver, stage, ask, error):
        stage(driver)
        refused = ask(driver)
        driver.answer(FAILED)
        assert isinstance(refused.outcome, CommitFailedError)

    def test_refusal_waits_while_the_batch_is_under_way(self, driver, stage, ask, error):
        stage(driver)
        driver.clock.run()
        refused = ask(driver)
        assert not refused.answered
        driver.answer(COMMITTED)
        assert isinstance(refused.outcome, error)
        assert driver.log.under_way is None, "a refusal needs no batch of its own"


def test_close_of_a_stream_whose_close_is_staged_waits(driver):
    driver.append(b"x", close=True)
    outcome = after_commit(driver, driver.append(close=True))
    assert outcome == appended(1, closed=True, added=False)


def test_repeated_close_of_a_producer_whose_close_is_staged_waits(driver):
    driver.produce(0, b"x", close=True)
    outcome = after_commit(driver, driver.produce(0, b"x", close=True))
    assert outcome == appended(1, closed=True, producer=ProducerState(0, 0), added=False)


def test_confirmation_of_a_staged_create_waits():
    driver = Driver()
    driver.create()
    assert after_commit(driver, driver.create()) == created(False, TEXT, 0, closed=False)


def test_append_to_a_staged_create_waits_and_lands():
    driver = Driver()
    driver.create(body=b"a")
    assert after_commit(driver, driver.append(b"b")) == appended(2)
    assert driver.read() == b"ab"


def test_create_again_after_a_staged_delete(driver):
    driver.committed(driver.append(b"old"))
    before = driver.shard.find("bucket/stream")
    driver.delete()
    again = driver.create(content_type=JSON)
    append = driver.append(b"1", media=JSON)
    assert after_commit(driver, again) == created(True, JSON, 0, closed=False)
    assert append.outcome == appended(2)
    assert before.gone
    assert driver.read() == b"1\x1e"


def test_create_again_in_a_later_batch_than_the_delete(driver):
    deleted = driver.delete()
    driver.clock.run()
    again = driver.create(content_type=JSON)
    driver.answer(COMMITTED)
    assert deleted.outcome == Deleted()
    assert not again.answered
    assert not driver.exists()
    driver.answer(COMMITTED)
    assert again.outcome.created
    assert driver.shard.find("bucket/stream").media == JSON


def test_stream_whose_creation_is_pending_outlives_the_commit_of_the_deletion(driver):
    driver.delete()
    driver.clock.run()
    driver.create(content_type=JSON)
    driver.answer(COMMITTED)
    append, again = driver.append(b"1", media=JSON), driver.create(content_type=JSON)
    assert not append.answered
    assert driver.committed(append) == appended(2)
    assert again.outcome == created(False, JSON, 2, closed=False)


def test_delete_and_create_again_and_again_in_one_batch(driver):
    asks = []
    for _ in range(3):
        asks += [driver.delete(), driver.create()]
    driver.commit()
    assert [type(ask.outcome) for ask in asks] == [Deleted, StreamCreated] * 3
    assert len(driver.shard.state.by_number) == 1
    assert driver.restart().exists()


def test_answer_waits_for_the_last_batch_that_touched_the_stream(driver):
    first = driver.produce(0)
    driver.clock.run()
    second = driver.produce(1)
    retry = driver.produce(0)
    driver.answer(COMMITTED)
    assert first.answered
    assert not second.answered
    assert not retry.answered
    driver.answer(COMMITTED)
    assert second.answered
    assert retry.outcome.added is False


def test_answers_of_a_batch_come_in_the_order_of_the_requests(driver):
    order = []

    def note(number, outcome):
        order.append(number)

    for number in range(10):
        driver.shard.append("bucket/stream", AppendRequest(b"x", TEXT), note, number)
    driver.commit()
    assert order == list(range(10))


def test_request_made_from_within_an_answer_goes_into_the_next_batch(driver):
    asks = []

    def go_on(count, outcome):
        if count:
            asks.append(outcome)
            request = AppendRequest(b"x", TEXT)
            driver.shard.append("bucket/stream", request, go_on, count - 1)

    go_on(4, None)
    driver.commit()
    assert driver.read() == b"xxxx"
    assert [batch.position for batch in driver.log.batches] == [1, 2, 3, 4, 5]
