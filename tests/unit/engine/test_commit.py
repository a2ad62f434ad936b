"""The commit loop's limits: how large a batch gets, how much may be pending, when it is idle."""

import pytest

from holdfast.engine.writes import AppendRequest, Deleted, StreamAppended, StreamCreated
from holdfast.errors import CommitFailedError, CommitUnknownError, OverloadedError, UnavailableError
from holdfast.protocol.producer import ProducerState
from tests.unit.engine.driver import (
    COMMIT_TIMEOUT_S,
    COMMITTED,
    FAILED,
    NAME,
    UNKNOWN,
    Driver,
    appended,
    dump,
)


@pytest.fixture
def driver():
    driver = Driver()
    driver.create(body=b"first")
    driver.commit()
    return driver


class TestLimits:
    def test_batch_closes_at_its_size(self):
        driver = Driver(batch_bytes_max=200)
        driver.create()
        driver.commit()
        asks = [driver.append(b"x" * 60) for _ in range(7)]
        driver.commit()
        assert [ask.outcome.tail for ask in asks] == [60 * n for n in range(1, 8)]
        sizes = [len(batch.body) for batch in driver.log.batches[1:]]
        assert all(size >= 200 for size in sizes[:-1])
        assert all(size < 200 + 60 + 24 for size in sizes)

    def test_append_larger_than_a_batch_is_a_batch(self):
        driver = Driver(batch_bytes_max=100)
        driver.create()
        driver.append(b"x" * 1000)
        driver.append(b"y")
        driver.commit()
        assert driver.read() == b"x" * 1000 + b"y"
        assert driver.restart().read() == driver.read()

    def test_messages_of_one_append_are_in_one_batch(self):
        driver = Driver(batch_bytes_max=100)
        driver.create()
        driver.commit()
        driver.append(b"ab")
        several = driver.produce(0, b"x" * 500, lengths=[100] * 5, close=True)
        driver.commit()
        assert several.outcome == appended(502, True, ProducerState(0, 0))
        assert len(driver.log.batches) == 2
        stream = driver.restart().shard.find(NAME)
        assert (stream.tail, stream.closed) == (502, True)
        assert driver.restart().produce(0, b"x" * 500, lengths=[100] * 5, close=True).outcome == (
            appended(502, True, ProducerState(0, 0), False)
        )

    def test_stream_created_when_a_batch_has_just_closed_gets_the_next_number(self):
        driver = Driver(batch_bytes_max=1)
        for n in range(4):
            driver.create(f"b/{n}")
        driver.commit()
        numbers = [driver.shard.find(f"b/{n}").number for n in range(4)]
        assert numbers == [position << 20 for position in (1, 2, 3, 4)]
        assert dump(driver.restart().shard.state) == dump(driver.shard.state)

    def test_too_many_pending_bytes_are_refused_until_they_are_written(self):
        driver = Driver(pending_bytes_max=300)
        driver.create()
        driver.commit()
        accepted = [driver.append(b"x" * 200), driver.append(b"x" * 200)]
        refused = [driver.append(b"x"), driver.create("b/2"), driver.delete()]
        assert [type(ask.outcome) for ask in refused] == [OverloadedError] * 3
        driver.commit()
        assert [ask.outcome.tail for ask in accepted] == [200, 400]
        assert driver.committed(driver.append(b"x")) == appended(401)

    @pytest.mark.parametrize("outcome", [COMMITTED, FAILED])
    def test_pending_bytes_are_given_back_whatever_the_outcome(self, outcome):
        driver = Driver(pending_bytes_max=300)
        driver.create()
        driver.commit()
        for _ in range(20):
            driver.append(b"x" * 200)
            driver.clock.run()
            driver.append(b"x" * 200)
            driver.answer(outcome)
            driver.commit()
        assert isinstance(driver.committed(driver.append(b"x")), StreamAppended)


class TestIdle:
    def test_call_comes_at_once_when_nothing_is_pending(self, driver):
        calls = []
        driver.shard.commits.when_idle(lambda: calls.append(1))
        assert calls == [1]

    @pytest.mark.parametrize("outcome", [COMMITTED, FAILED])
    def test_call_waits_for_everything_pending(self, driver, outcome):
        calls = []
        driver.append(b"x")
        driver.shard.commits.when_idle(lambda: calls.append(1))
        driver.clock.run()
        if outcome is COMMITTED:
            driver.append(b"y")
            driver.answer(COMMITTED)
        assert calls == []
        driver.answer(outcome)
        assert calls == [1]

    def test_call_waits_for_an_unknown_outcome(self, driver):
        calls = []
        driver.append(b"x")
        driver.shard.commits.when_idle(lambda: calls.append(1))
        driver.answer(UNKNOWN, stored=True)
        driver.clock.advance(2 * COMMIT_TIMEOUT_S)
        assert calls == []
        driver.answer(COMMITTED)
        assert calls == [1]

    def test_call_comes_once(self, driver):
        calls = []
        driver.append(b"x")
        driver.shard.commits.when_idle(lambda: calls.append(1))
        driver.commit()
        driver.committed(driver.append(b"y"))
        assert calls == [1]


class TestFailure:
    def test_everything_in_the_batch_fails_and_nothing_of_it_is_visible(self, driver):
        before = dump(driver.shard.state)
        asks = [driver.append(b"x"), driver.produce(0), driver.create("b/2"), driver.delete()]
        driver.answer(FAILED)
        assert [type(ask.outcome) for ask in asks] == [CommitFailedError] * 4
        assert dump(driver.shard.state) == before
        assert driver.read() == b"first"

    def test_later_batches_fail_with_it_before_they_are_tried(self, driver):
        under_way = driver.append(b"x")
        driver.clock.run()
        later = [driver.append(b"y"), driver.create("b/2"), driver.append(b"z", name="b/2")]
        driver.answer(FAILED)
        assert isinstance(under_way.outcome, CommitFailedError)
        assert [type(ask.outcome) for ask in later] == [CommitFailedError] * 3
        assert driver.log.under_way is None
        assert driver.read() == b"first"

    def test_everything_can_be_retried(self, driver):
        def ask_all():
            return [
                driver.produce(0, b"a"),
                driver.append(b"b", seq=b"1"),
                driver.create("b/2", body=b"c"),
                driver.append(b"d", close=True),
                driver.delete("b/2"),
            ]

        ask_all()
        driver.answer(FAILED)
        asks = ask_all()
        driver.commit()
        assert [type(ask.outcome) for ask in asks] == [
            StreamAppended,
            StreamAppended,
            StreamCreated,
            StreamAppended,
            Deleted,
        ]
        assert all(ask.outcome.added for ask in asks if isinstance(ask.outcome, StreamAppended))
        assert driver.read() == b"firstabd"

    def test_position_of_a_failed_batch_is_used_again(self, driver):
        driver.append(b"x")
        driver.clock.run()
        driver.append(b"y")
        driver.answer(FAILED)
        assert driver.shard.commits.last_position == 1
        driver.committed(driver.create("b/2"))
        assert [batch.position for batch in driver.log.batches] == [1, 2]
        assert driver.shard.find("b/2").number == 2 << 20

    def test_failures_in_a_row(self, driver):
        for _ in range(3):
            ask = driver.produce(0)
            driver.answer(FAILED)
            assert isinstance(ask.outcome, CommitFailedError)
        assert driver.committed(driver.produce(0)).added
        assert driver.shard.counters.commit_failures == 3

    def test_failure_of_a_second_batch_keeps_the_first(self, driver):
        first = driver.append(b"x")
        driver.clock.run()
        second = driver.append(b"y")
        driver.answer(COMMITTED)
        driver.answer(FAILED)
        assert first.outcome == appended(6)
        assert isinstance(second.outcome, CommitFailedError)
        assert driver.restart().read() == driver.read() == b"firstx"

    def test_retry_from_within_the_failure_is_staged_anew(self, driver):
        retried = []

        def retry(count, outcome):
            if isinstance(outcome, CommitFailedError):
                retried.append(driver.produce(0, b"again"))

        driver.shard.append("bucket/stream", AppendRequest(b"x", "text/plain"), retry, 0)
        driver.answer(FAILED)
        assert driver.committed(retried[0]).added
        assert driver.read() == b"firstagain"


class TestUnknown:
    @pytest.mark.parametrize("stored", [True, False])
    def test_nothing_is_answered_or_undone_until_it_settles(self, driver, stored):
        ask = driver.append(b"x")
        driver.answer(UNKNOWN, stored=stored)
        assert driver.log.settling
        assert driver.shard.commits.stalled
        assert not ask.answered
        assert driver.read() == b"first"

    def test_settled_as_committed(self, driver):
        ask = driver.append(b"x")
        driver.clock.run()
        later = driver.append(b"y")
        driver.answer(UNKNOWN, stored=True)
        driver.commit()
        assert ask.outcome == appended(6)
        assert later.outcome == appended(7)
        assert not driver.shard.commits.stalled
        assert driver.restart().read() == b"firstxy"

    def test_settled_as_failed(self, driver):
        ask = driver.append(b"x")
        driver.clock.run()
        later = driver.append(b"y")
        driver.answer(UNKNOWN, stored=False)
        driver.answer(FAILED)
        assert isinstance(ask.outcome, CommitFailedError)
        assert isinstance(later.outcome, CommitFailedError)
        assert not driver.shard.commits.stalled
        assert driver.committed(driver.append(b"z")) == appended(6)
        assert driver.restart().read() == b"firstz"

    def test_still_unknown_asks_again(self, driver):
        ask = driver.append(b"x")
        for _ in range(3):
            driver.answer(UNKNOWN, stored=True)
            assert driver.log.settling
        driver.answer(COMMITTED)
        assert ask.outcome == appended(6)

    def test_no_write_is_taken_meanwhile_but_reads_are(self, driver):
        driver.append(b"x")
        driver.answer(UNKNOWN, stored=True)
        for ask in (driver.append(b"y"), driver.create("b/2"), driver.delete()):
            assert type(ask.outcome) is UnavailableError
        assert driver.read() == b"first"
        driver.answer(COMMITTED)
        assert driver.read() == b"firstx"
        assert driver.log.under_way is None

    def test_crash_before_it_settles_leaves_what_the_log_has(self, driver):
        driver.produce(0, b"x")
        driver.answer(UNKNOWN, stored=True)
        again = driver.restart()
        assert again.read() == b"firstx"
        assert again.produce(0, b"x").outcome.added is False


class TestHang:
    def hang(self, driver):
        driver.clock.run()
        driver.clock.advance(COMMIT_TIMEOUT_S)

    def test_requests_wait_no_longer_than_the_timeout(self, driver):
        ask = driver.append(b"x")
        driver.clock.run()
        later = driver.append(b"y")
        driver.clock.advance(COMMIT_TIMEOUT_S - 0.1)
        assert not ask.answered
        driver.clock.advance(0.1)
        assert isinstance(ask.outcome, CommitUnknownError)
        assert isinstance(later.outcome, CommitUnknownError)
        assert driver.shard.commits.stalled
        assert driver.read() == b"first"

    def test_no_write_is_taken_while_it_hangs(self, driver):
        driver.append(b"x")
        self.hang(driver)
        assert type(driver.append(b"y").outcome) is UnavailableError
        assert type(driver.produce(0).outcome) is UnavailableError

    def test_settles_as_committed_later(self, driver):
        ask = driver.produce(0, b"x")
        driver.clock.run()
        driver.append(b"y")
        self.hang(driver)
        driver.clock.advance(3600)
        driver.commit()
        assert isinstance(ask.outcome, CommitUnknownError)
        assert driver.read() == b"firstxy"
        assert driver.produce(0, b"x").outcome.added is False
        assert driver.committed(driver.produce(1, b"z")) == appended(
            8, producer=ProducerState(0, 1)
        )

    def test_settles_as_failed_later(self, driver):
        driver.produce(0, b"x")
        driver.clock.run()
        driver.append(b"y")
        self.hang(driver)
        driver.answer(FAILED)
        assert driver.read() == b"first"
        assert driver.committed(driver.produce(0, b"x")).added
        assert driver.restart().read() == b"firstx"

    def test_hangs_and_then_does_not_know(self, driver):
        driver.produce(0, b"x")
        self.hang(driver)
        driver.answer(UNKNOWN, stored=True)
        assert driver.shard.commits.stalled
        driver.answer(COMMITTED)
        assert not driver.shard.commits.stalled
        assert driver.produce(0, b"x").outcome.added is False

    def test_does_not_know_and_then_hangs(self, driver):
        ask = driver.append(b"x")
        driver.answer(UNKNOWN, stored=False)
        self.hang(driver)
        assert isinstance(ask.outcome, CommitUnknownError)
        driver.answer(FAILED)
        assert driver.committed(driver.append(b"y")) == appended(6)

    def test_each_batch_has_the_whole_timeout(self, driver):
        driver.append(b"x")
        driver.clock.run()
        second = driver.append(b"y")
        driver.clock.advance(COMMIT_TIMEOUT_S - 0.1)
        driver.answer(COMMITTED)
        driver.clock.advance(COMMIT_TIMEOUT_S - 0.1)
        assert not second.answered
        driver.answer(COMMITTED)
        assert second.outcome == appended(7)

    def test_timer_of_a_finished_batch_does_nothing(self, driver):
        driver.committed(driver.append(b"x"))
        driver.clock.advance(10 * COMMIT_TIMEOUT_S)
        assert not driver.shard.commits.stalled
