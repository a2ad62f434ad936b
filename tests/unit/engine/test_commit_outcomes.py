"""What becomes of answers and state when the log commits, refuses, does not know, or hangs."""

import pytest

from holdfast.engine.requests import Appended, AppendRequest, Created, Deleted
from holdfast.errors import CommitFailedError, CommitUnknownError, UnavailableError
from tests.unit.engine.driver import (
    COMMIT_TIMEOUT_S,
    COMMITTED,
    FAILED,
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
            Appended,
            Appended,
            Created,
            Appended,
            Deleted,
        ]
        assert all(ask.outcome.added for ask in asks if isinstance(ask.outcome, Appended))
        assert driver.read() == b"firstabd"

    def test_position_of_a_failed_batch_is_used_again(self, driver):
        driver.append(b"x")
        driver.clock.run()
        driver.append(b"y")
        driver.answer(FAILED)
        assert driver.shard.position == 1
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
        assert driver.shard.stalled
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
        assert not driver.shard.stalled
        assert driver.restart().read() == b"firstxy"

    def test_settled_as_failed(self, driver):
        ask = driver.append(b"x")
        driver.clock.run()
        later = driver.append(b"y")
        driver.answer(UNKNOWN, stored=False)
        driver.answer(FAILED)
        assert isinstance(ask.outcome, CommitFailedError)
        assert isinstance(later.outcome, CommitFailedError)
        assert not driver.shard.stalled
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
        assert driver.shard.stalled
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
        assert driver.committed(driver.produce(1, b"z")) == appended(8, producer=(0, 1))

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
        assert driver.shard.stalled
        driver.answer(COMMITTED)
        assert not driver.shard.stalled
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
        assert not driver.shard.stalled
