"""The tier's flushes: when the log is cut, what is let go, and what a failure leaves as it was."""

import pytest

from holdfast.engine import tier as tier_module
from holdfast.engine.writes import Deleted
from holdfast.errors import OverloadedError, StoreError
from tests.unit.engine.driver import COMMITTED, FAILED, NAME, UNKNOWN, appended
from tests.unit.engine.tiered import HARD, LARGE, SOFT, Tiered, cost


@pytest.fixture
def driver(tmp_path):
    driver = Tiered(tmp_path)
    yield driver
    driver.close()


@pytest.fixture
def limited(tmp_path):
    """Soon at its limits."""
    driver = Tiered(tmp_path, soft_bytes=SOFT, hard_bytes=HARD)
    yield driver
    driver.close()


class TestCost:
    def test_it_is_what_records_and_streams_take_up_besides_their_bytes(self, driver):
        assert driver.tier.cost_bytes == driver.tier.hot_bytes == 0
        driver.committed(driver.create(body=b"12345"))
        driver.append(b"678")
        driver.committed(driver.append(b"9"))
        assert driver.tier.cost_bytes == cost(3, 1, 9)
        assert driver.tier.hot_bytes == 9

    def test_it_stays_until_the_flush_has_let_go(self, driver):
        driver.committed(driver.create(body=b"12345"))
        driver.begin_flush()
        assert driver.tier.cost_bytes == cost(1, 1, 5)
        driver.committed(driver.append(b"678"))
        assert driver.tier.cost_bytes == cost(2, 2, 8)
        assert driver.tier.hot_bytes == 8
        driver.finish_flush()
        assert driver.tier.cost_bytes == cost(1, 1, 3)
        assert driver.tier.hot_bytes == 3
        driver.flush()
        assert driver.tier.cost_bytes == driver.tier.hot_bytes == 0

    def test_it_is_the_same_after_a_restart(self, driver):
        driver.written("b/old", body=b"123")
        driver.committed(driver.create(body=b"12345"))
        driver.committed(driver.append(b"678", name="b/old"))
        again = driver.restart()
        assert again.tier.cost_bytes == driver.tier.cost_bytes == cost(2, 2, 8)
        again.close()


class TestSoftLimit:
    def test_one_cut_is_made(self, limited):
        limited.committed(limited.create(body=b"x"))
        assert limited.worker.asked == []
        limited.committed(limited.append(LARGE))
        assert len(limited.worker.asked) == 1
        assert limited.tier.flushing
        for _ in range(3):
            limited.committed(limited.append(b"meanwhile"))
        assert len(limited.worker.asked) == 1

    def test_everything_is_let_go_and_the_log_trimmed(self, limited):
        limited.committed(limited.create(body=LARGE))
        assert len(limited.log.batches) == 1
        limited.finish_flush()
        stream = limited.shard.find(NAME)
        assert (stream.base, stream.tail, stream.chunks, stream.ends) == (5000, 5000, [], [])
        assert limited.log.batches == []
        assert limited.tier.flushed == limited.catalog.flushed == 1
        assert limited.tier.cost_bytes == 0
        assert not limited.tier.flushing
        assert limited.data(NAME) == LARGE

    def test_next_flush_follows_if_it_is_needed(self, limited):
        limited.committed(limited.create(body=LARGE))
        limited.committed(limited.append(LARGE))
        limited.finish_flush()
        assert limited.tier.flushing
        assert len(limited.worker.asked) == 1
        limited.finish_flush()
        assert not limited.tier.flushing
        assert limited.data(NAME) == 2 * LARGE

    def test_replayed_log_that_is_too_long_is_flushed_at_once(self, tmp_path):
        driver = Tiered(tmp_path)
        driver.committed(driver.create(body=LARGE))
        again = driver.restart(soft_bytes=SOFT)
        again.clock.run()
        assert len(again.worker.asked) == 1
        again.finish_flush()
        assert again.data(NAME) == LARGE
        again.close()

    def test_unknown_outcome_does_not_get_into_the_cut(self, driver):
        driver.committed(driver.create(body=b"known"))
        driver.append(b" unknown")
        driver.answer(UNKNOWN, stored=True)
        driver.tier.flush(lambda _: None)
        driver.clock.run()
        driver.finish_flush()
        assert driver.tier.flushed == 1
        driver.answer(COMMITTED)
        assert driver.data(NAME) == b"known unknown"
        driver.flush()
        assert driver.data(NAME) == b"known unknown"


class TestFailures:
    def test_flush_is_asked_for_again_later_and_later(self, limited):
        limited.committed(limited.create(body=LARGE))
        delays_s = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
        for count, delay_s in enumerate(delays_s, 1):
            limited.worker.fail(StoreError(f"no store {count}"))
            assert limited.tier.trouble == f"no store {count}"
            assert limited.tier.retries == count
            limited.clock.advance(delay_s - 0.01)
            assert limited.worker.asked == []
            limited.clock.advance(0.02)
            assert len(limited.worker.asked) == 1
        limited.finish_flush()
        assert limited.tier.trouble == ""
        assert limited.data(NAME) == LARGE
        limited.committed(limited.append(LARGE))
        limited.worker.fail()
        limited.clock.advance(0.2)
        assert len(limited.worker.asked) == 1

    def test_nothing_is_let_go_until_it_succeeds(self, limited):
        limited.committed(limited.create(body=LARGE))
        for _ in range(5):
            limited.worker.fail()
            limited.clock.advance(10)
        stream = limited.shard.find(NAME)
        assert (stream.base, b"".join(stream.chunks)) == (0, LARGE)
        assert len(limited.log.batches) == 1
        assert limited.tier.cost_bytes == cost(1, 1, 5000)
        assert limited.tier.flushed == 0
        assert len(limited.state.clean) == 0

    def test_flush_that_was_done_though_it_said_otherwise(self, limited):
        limited.committed(limited.create(body=LARGE))
        limited.worker.fail(after_effect=True)
        assert limited.catalog.flushed == 1
        assert limited.shard.find(NAME).base == 0
        limited.clock.advance(1)
        limited.finish_flush()
        assert limited.data(NAME) == LARGE
        assert limited.state.stored_bytes == 5000

    def test_crash_after_the_catalog_was_written_and_before_the_log_was_trimmed(self, limited):
        limited.committed(limited.create(body=LARGE))
        limited.worker.fail(after_effect=True)
        limited.committed(limited.append(b"more"))
        again = limited.restart()
        assert again.recovered == 1
        assert again.data(NAME) == LARGE + b"more"
        assert (again.state.streams, again.state.stored_bytes) == (1, 5004)
        again.close()


class TestHardLimit:
    @pytest.fixture
    def full(self, limited):
        limited.committed(limited.create(body=LARGE))
        for _ in range(2):
            limited.append(LARGE)
            limited.commit()
            # It may have to wait.
            limited.clock.advance(1)
            limited.commit()
        assert limited.tier.cost_bytes > HARD
        return limited

    def test_writes_are_refused_with_a_reason(self, full):
        for ask in (full.append(b"x"), full.create("b/other"), full.append(name="b/none")):
            assert isinstance(ask.outcome, OverloadedError)
            assert "faster than they can be flushed" in ask.outcome.message
        assert full.shard.commits.refusals == 3
        assert full.exists()

    def test_deleting_is_allowed(self, full):
        assert full.committed(full.delete()) == Deleted()

    def test_writes_are_taken_again_once_there_is_room(self, full):
        full.finish_flush()
        assert full.shard.commits.full == ""
        assert full.committed(full.append(b"x")) == appended(15_001)

    def test_they_are_not_while_flushes_fail_and_the_reason_says_so(self, full):
        full.worker.fail(StoreError("the bucket is gone"))
        ask = full.append(b"x")
        assert "packs cannot be written: the bucket is gone" in ask.outcome.message
        full.clock.advance(1)
        full.finish_flush()
        assert full.committed(full.append(b"x")) == appended(15_001)

    def test_restart_with_too_much_refuses_until_it_is_flushed(self, full):
        again = full.restart()
        assert isinstance(again.append(b"x").outcome, OverloadedError)
        again.clock.run()
        again.finish_flush()
        assert again.committed(again.append(b"x")) == appended(15_001)
        again.close()


class TestAsking:
    def ask(self, driver):
        answers = []
        driver.tier.flush(answers.append)
        driver.clock.run()
        return answers

    def test_nothing_to_flush(self, driver):
        assert self.ask(driver) == [None]
        driver.written(NAME)
        assert self.ask(driver) == [None]
        assert driver.worker.asked == []

    def test_answer_comes_once_everything_is_in_packs(self, driver):
        driver.committed(driver.create(body=b"x"))
        answers = self.ask(driver)
        assert answers == []
        driver.finish_flush()
        assert answers == [None]
        assert driver.catalog.find_name(NAME).tail == 1

    def test_who_comes_during_a_flush_waits_for_the_next(self, driver):
        driver.committed(driver.create(body=b"x"))
        first = self.ask(driver)
        driver.committed(driver.append(b"y"))
        second, third = self.ask(driver), self.ask(driver)
        driver.finish_flush()
        assert (first, second, third) == ([None], [], [])
        assert len(driver.worker.asked) == 1
        driver.finish_flush()
        assert (second, third) == ([None], [None])
        assert driver.catalog.find_name(NAME).tail == 2

    def test_who_comes_during_a_flush_without_having_written_waits_no_longer(self, driver):
        driver.committed(driver.create(body=b"x"))
        first, second = self.ask(driver), self.ask(driver)
        driver.finish_flush()
        assert (first, second) == ([None], [None])
        assert driver.worker.asked == []

    def test_failure_is_told_and_the_flush_goes_on(self, driver):
        driver.committed(driver.create(body=b"x"))
        first, second = self.ask(driver), self.ask(driver)
        error = StoreError("no")
        driver.worker.fail(error)
        assert (first, second) == ([error], [error])
        driver.clock.advance(1)
        driver.finish_flush()
        assert (first, second) == ([error], [error])
        assert driver.tier.flushed == 1

    def test_who_comes_while_flushes_fail_is_told_the_next_time(self, driver):
        driver.committed(driver.create(body=b"x"))
        driver.begin_flush()
        driver.worker.fail()
        answers = self.ask(driver)
        assert answers == []
        driver.clock.advance(1)
        error = StoreError("still not")
        driver.worker.fail(error)
        assert answers == [error]

    def test_asking_again_from_the_answer(self, driver):
        driver.committed(driver.create(body=b"x"))
        again = []
        driver.tier.flush(lambda _: driver.tier.flush(again.append))
        driver.clock.run()
        driver.committed(driver.append(b"y"))
        driver.finish_flush()
        assert again == []
        driver.finish_flush()
        assert again == [None]
        assert driver.catalog.find_name(NAME).tail == 2

    def test_what_is_not_durable_does_not_count(self, driver):
        driver.committed(driver.create(body=b"x"))
        driver.append(b"y")
        driver.clock.run()
        answers = self.ask(driver)
        driver.finish_flush()
        assert answers == [None]
        assert driver.catalog.find_name(NAME).tail == 1
        driver.commit()
        assert driver.data(NAME) == b"xy"


class TestStopping:
    def test_nobody_waits_for_a_flush_that_does_not_come(self, driver):
        driver.committed(driver.create(body=b"x"))
        driver.shard.stop()
        answers = []
        driver.tier.flush(answers.append)
        driver.clock.run()
        assert len(answers) == 1
        assert answers[0] is not None

    def test_nor_who_came_while_the_last_one_was_under_way(self, driver):
        driver.committed(driver.create(body=b"x"))
        driver.begin_flush()
        driver.committed(driver.append(b"y"))
        answers = []
        driver.tier.flush(answers.append)
        driver.shard.stop()
        driver.finish_flush()
        assert len(answers) == 1
        assert answers[0] is not None

    def test_no_flush_by_age_or_by_size(self, tmp_path):
        driver = Tiered(tmp_path, soft_bytes=SOFT, flush_age_s=5.0)
        driver.shard.stop()
        driver.committed(driver.create(body=LARGE))
        driver.clock.advance(100)
        assert driver.worker.asked == []
        driver.close()


class TestAge:
    @pytest.fixture
    def aging(self, tmp_path):
        driver = Tiered(tmp_path, flush_age_s=100.0)
        yield driver
        driver.close()

    def test_what_is_old_enough_is_flushed(self, aging):
        aging.committed(aging.create(body=b"x"))
        aging.clock.advance(99)
        assert aging.worker.asked == []
        aging.clock.advance(3)
        assert len(aging.worker.asked) == 1

    def test_quiet_server_flushes_nothing(self, aging):
        aging.clock.advance(1000)
        aging.written(NAME)
        aging.clock.advance(1000)
        assert aging.worker.asked == []

    def test_age_counts_from_the_first_change_after_a_flush(self, aging):
        aging.committed(aging.create(body=b"x"))
        aging.clock.advance(60)
        aging.flush()
        aging.committed(aging.append(b"y"))
        aging.clock.advance(98)
        assert aging.worker.asked == []
        aging.clock.advance(4)
        assert len(aging.worker.asked) == 1

    def test_steady_trickle_is_flushed_once_in_that_time(self, aging):
        aging.create()
        flushes = 0
        for _ in range(1000):
            aging.append(b"x")
            aging.commit()
            aging.clock.advance(0.5)
            if aging.worker.asked:
                aging.finish_flush()
                flushes += 1
            aging.append(b"y")
            aging.commit()
            aging.clock.advance(0.5)
        assert 8 <= flushes <= 10

    def test_flush_that_takes_longer_than_the_age(self, aging):
        aging.committed(aging.create(body=b"x"))
        aging.clock.advance(102)
        aging.committed(aging.append(b"y"))
        aging.clock.advance(500)
        assert len(aging.worker.asked) == 1
        aging.finish_flush()
        assert not aging.tier.flushing
        aging.clock.advance(102)
        assert len(aging.worker.asked) == 1


class TestMeanwhile:
    def test_bytes_written_during_a_flush_stay(self, driver):
        driver.committed(driver.create(body=b"before"))
        driver.committed(driver.append(b" cut"))
        driver.begin_flush()
        driver.committed(driver.append(b" after"))
        driver.committed(driver.append(b" wards"))
        driver.finish_flush()
        stream = driver.shard.find(NAME)
        assert (stream.base, stream.tail) == (10, 22)
        assert (stream.chunks, stream.ends) == ([b" after", b" wards"], [16, 22])
        assert driver.data(NAME) == b"before cut after wards"
        assert driver.state.clean == {}
        driver.flush()
        assert stream.base == 22
        assert driver.data(NAME) == b"before cut after wards"

    def test_change_without_bytes_during_a_flush(self, driver):
        driver.committed(driver.create(body=b"before"))
        driver.begin_flush()
        driver.committed(driver.append(close=True))
        driver.finish_flush()
        stream = driver.shard.find(NAME)
        assert (stream.base, stream.chunks) == (6, [])
        assert not driver.catalog.find_name(NAME).closed
        driver.flush()
        assert driver.catalog.find_name(NAME).closed

    def test_batch_under_way_when_the_log_is_cut(self, driver):
        driver.committed(driver.create(body=b"before"))
        driver.append(b" after")
        driver.clock.run()
        driver.tier.flush(lambda _: None)
        driver.clock.run()
        driver.commit()
        driver.finish_flush()
        stream = driver.shard.find(NAME)
        assert (stream.base, stream.chunks) == (6, [b" after"])
        assert driver.data(NAME) == b"before after"

    def test_stream_created_during_a_flush(self, driver):
        driver.committed(driver.create(body=b"x"))
        driver.begin_flush()
        driver.committed(driver.create("b/new", body=b"y"))
        driver.finish_flush()
        assert driver.shard.find("b/new").base == 0
        assert driver.catalog.find_name("b/new") is None
        driver.flush()
        assert driver.catalog.find_name("b/new") is not None

    def test_several_generations_of_the_same_stream(self, driver):
        driver.create()
        expected = b""
        for at in range(10):
            body = b"%d" % at * (at + 1)
            driver.append(body)
            driver.begin_flush()
            driver.committed(driver.append(b"|"))
            driver.finish_flush()
            expected += body + b"|"
            assert driver.data(NAME) == expected
        again = driver.restart()
        assert again.data(NAME) == expected
        again.close()


class TestRounds:
    @pytest.fixture
    def many(self, driver):
        for at in range(1200):
            driver.create(f"b/{at}", body=b"x")
        driver.begin_flush()
        return driver

    def let_go(self, driver):
        return sum(stream.base > 0 for stream in driver.state.by_number.values())

    def test_some_streams_are_let_go_in_each_round(self, many):
        many.worker.work()
        assert self.let_go(many) == tier_module._STREAMS_PER_ROUND == 500
        assert many.tier.flushing
        assert many.tier.cost_bytes == cost(1200, 1200, 1200)
        many.clock.run()
        assert self.let_go(many) == 1200
        assert not many.tier.flushing
        assert many.tier.cost_bytes == 0

    def test_streams_written_between_two_rounds_keep_what_is_new(self, many):
        many.append(b"early", name="b/3")
        many.commit()
        many.append(b"late", name="b/1100")
        many.clock.run()
        many.worker.work()
        # The first round is over; this is published before the last one.
        many.log.answer(COMMITTED)
        many.clock.run()
        for name, new in (("b/3", b"early"), ("b/1100", b"late")):
            stream = many.shard.find(name)
            assert (stream.base, stream.chunks) == (1, [new])
            assert many.data(name) == b"x" + new
        assert set(many.state.clean.values()) == {
            stream for name, stream in many.state.by_name.items() if name not in {"b/3", "b/1100"}
        }

    def test_stream_removed_between_two_rounds(self, many):
        many.delete("b/1100")
        many.clock.run()
        many.worker.work()
        many.log.answer(COMMITTED)
        many.clock.run()
        assert not many.exists("b/1100")
        assert many.catalog.find_name("b/1100") is not None
        many.flush()
        assert not many.exists("b/1100")
        assert many.catalog.find_name("b/1100") is None
        assert many.state.removed == {}
        assert many.state.removed_numbers == set()


class TestUnflushedSnapshots:
    """Garbage collection must not take what the catalog does not know yet."""

    def test_from_the_record_until_the_flush_is_done(self, driver):
        driver.written(NAME, body=b"12345")
        driver.publish(0)
        assert driver.tier.unflushed_snapshots == set()
        driver.commit()
        [name] = driver.tier.unflushed_snapshots
        driver.begin_flush()
        driver.committed(driver.publish(5))
        first, second = sorted(driver.tier.unflushed_snapshots)
        assert first == name
        driver.finish_flush()
        assert driver.tier.unflushed_snapshots == {second}
        driver.flush()
        assert driver.tier.unflushed_snapshots == set()

    def test_log_that_is_replayed(self, driver):
        driver.written(NAME, body=b"12345")
        driver.committed(driver.publish(5))
        again = driver.restart()
        assert again.tier.unflushed_snapshots == driver.tier.unflushed_snapshots != set()
        again.close()

    def test_failed_batch_publishes_nothing(self, driver):
        driver.written(NAME, body=b"12345")
        driver.publish(5)
        driver.answer(FAILED)
        assert driver.tier.unflushed_snapshots == set()
