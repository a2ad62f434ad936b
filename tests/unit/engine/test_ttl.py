"""Time to live: when a stream goes, who renews it, and what the log is told."""

import pytest

from holdfast.errors import InvalidRequestError, StreamNotFoundError
from holdfast.format.records import Kind, decode
from holdfast.protocol.headers import parse_expires_at_ms
from holdfast.testing import FakeClock
from tests.unit.engine.driver import (
    COMMIT_TIMEOUT_S,
    COMMITTED,
    FAILED,
    JSON,
    NAME,
    UNKNOWN,
    Driver,
    appended,
    dump,
)


def records(driver):
    return [record for batch in driver.log.batches for record in decode(batch.body)]


def kinds(driver):
    return [record.kind for record in records(driver)]


def make(**fields):
    driver = Driver()
    driver.create(body=b"x", **fields)
    driver.commit()
    return driver


@pytest.fixture
def driver():
    """A stream that lives for 100 seconds after its last use."""
    return make(ttl_s=100)


class TestSlidingWindow:
    @pytest.mark.spec("base 4-6")
    def test_stream_is_gone_at_its_deadline(self, driver):
        driver.clock.advance(99.999)
        assert driver.exists()
        driver.clock.advance(0.001)
        assert not driver.exists()

    def test_writes_renew_it(self, driver):
        driver.clock.advance(60)
        driver.committed(driver.append(b"y"))
        driver.clock.advance(60)
        assert driver.read() == b"xy"
        driver.clock.advance(40)
        assert not driver.exists()

    def test_reads_renew_it(self, driver):
        for _ in range(5):
            driver.clock.advance(60)
            driver.shard.lifetimes.renew(driver.shard.find(NAME))
            driver.commit()
        assert driver.exists()
        driver.clock.advance(100)
        assert not driver.exists()

    def test_looking_alone_does_not_renew_it(self, driver):
        for _ in range(5):
            driver.clock.advance(19)
            assert driver.exists()
        driver.clock.advance(19)
        assert not driver.exists()

    def test_write_that_is_refused_does_not_renew_it(self, driver):
        driver.clock.advance(60)
        driver.append(b"y", media=JSON)
        driver.clock.advance(40)
        assert not driver.exists()

    def test_ttl_of_zero_is_over_at_once(self):
        driver = make(ttl_s=0)
        assert not driver.exists()


class TestOtherDeadlines:
    def test_fixed_ttl_counts_from_creation(self):
        driver = Driver(ttl_is_fixed=True)
        driver.committed(driver.create(ttl_s=100))
        driver.clock.advance(60)
        driver.committed(driver.append(b"y"))
        driver.shard.lifetimes.renew(driver.shard.find(NAME))
        driver.clock.advance(39.999)
        assert driver.exists()
        driver.clock.advance(0.001)
        assert not driver.exists()

    def test_fixed_ttl_is_confirmed_by_the_same_ttl(self):
        driver = Driver(ttl_is_fixed=True)
        driver.committed(driver.create(ttl_s=100))
        driver.clock.advance(1)
        assert driver.create(ttl_s=100).outcome.created is False

    def test_expiry_time_is_not_moved_by_use(self):
        clock = FakeClock()
        driver = Driver(clock=clock)
        driver.committed(driver.create(expires_at_ms=clock.now_ms() + 100_000))
        clock.advance(60)
        driver.committed(driver.append(b"y"))
        driver.shard.lifetimes.renew(driver.shard.find(NAME))
        clock.advance(40)
        assert not driver.exists()
        assert Kind.TOUCH not in kinds(driver)

    def test_expiry_time_in_the_past_is_over_at_once(self):
        driver = make(expires_at_ms=1)
        assert not driver.exists()
        driver.commit()
        assert driver.shard.state.by_name == {}

    def test_expiry_time_before_1970_is_refused_or_over_at_once(self):
        try:
            expires_at_ms = parse_expires_at_ms(b"1969-12-31T23:59:59Z")
        except InvalidRequestError:
            return
        driver = make(expires_at_ms=expires_at_ms)
        assert not driver.exists()
        driver.clock.advance(2)
        driver.commit()
        assert driver.shard.state.by_name == {}

    def test_stream_without_deadline_stays(self):
        driver = make()
        driver.clock.advance(10_000)
        driver.shard.lifetimes.renew(driver.shard.find(NAME))
        assert driver.exists()
        assert kinds(driver) == [Kind.CREATE]


class TestExpiryRecord:
    @pytest.mark.parametrize("late_s", [0, 0.5, 1000])
    def test_it_carries_the_deadline_not_the_time_it_was_written(self, late_s):
        driver = Driver()
        driver.clock.advance(0.3)
        driver.committed(driver.create(ttl_s=100))
        deadline_ms = driver.shard.find(NAME).deadline_ms
        driver.clock.advance(100 + late_s)
        assert not driver.exists()
        driver.commit()
        assert kinds(driver) == [Kind.CREATE, Kind.EXPIRE]
        assert records(driver)[-1].at_ms == deadline_ms

    def test_sweep_issues_it_without_anybody_asking(self, driver):
        driver.clock.advance(102)
        driver.commit()
        assert driver.shard.state.by_name == {}
        assert driver.shard.counters.expirations == 1

    def test_it_is_issued_once_however_many_ask(self, driver):
        driver.clock.advance(100)
        for _ in range(5):
            assert not driver.exists()
            assert not driver.append(b"y").answered
            assert not driver.delete().answered
        driver.commit()
        assert kinds(driver) == [Kind.CREATE, Kind.EXPIRE]

    def test_it_is_issued_again_if_it_could_not_be_written(self, driver):
        driver.clock.advance(100)
        driver.exists()
        driver.answer(FAILED)
        assert not driver.exists()
        driver.clock.advance(2)
        driver.commit()
        assert driver.shard.state.by_name == {}

    def test_it_waits_while_the_log_is_stalled(self, driver):
        driver.create("b/other")
        driver.answer(UNKNOWN, stored=True)
        driver.clock.advance(200)
        assert not driver.exists()
        driver.commit()
        driver.clock.advance(2)
        driver.commit()
        assert NAME not in driver.shard.state.by_name
        assert driver.exists("b/other")

    def test_append_after_the_deadline_is_not_found_once_the_expiry_is_durable(self, driver):
        driver.clock.advance(100)
        ask = driver.append(b"y")
        driver.clock.run()
        assert not ask.answered
        driver.commit()
        assert isinstance(ask.outcome, StreamNotFoundError)

    def test_create_after_the_deadline_makes_another_stream(self, driver):
        before = driver.shard.find(NAME)
        driver.clock.advance(100)
        ask = driver.create(content_type=JSON)
        append = driver.append(b"1", media=JSON)
        assert driver.committed(ask).created
        assert append.outcome == appended(2)
        assert before.gone
        assert kinds(driver) == [Kind.CREATE, Kind.EXPIRE, Kind.CREATE, Kind.APPEND]

    def test_append_staged_before_the_deadline_keeps_the_stream(self, driver):
        driver.clock.advance(99)
        ask = driver.append(b"y")
        driver.clock.advance(2)
        assert driver.committed(ask) == appended(2)
        assert driver.read() == b"xy"
        assert Kind.EXPIRE not in kinds(driver)

    def test_append_sees_a_renewal_by_reads(self, driver):
        driver.clock.advance(95)
        driver.shard.lifetimes.renew(driver.shard.find(NAME))
        driver.commit()
        driver.clock.advance(90)
        assert driver.committed(driver.append(b"y")) == appended(2)


class TestReplay:
    def test_it_does_not_depend_on_the_clock(self, driver):
        driver.clock.advance(50)
        driver.shard.lifetimes.renew(driver.shard.find(NAME))
        driver.create("b/lasting", body=b"y", ttl_s=10**6)
        driver.commit()
        driver.clock.advance(101)
        driver.exists()
        driver.commit()
        expected = dump(driver.shard.state)
        for start_ms in (0, 1_800_000_000_000, 9_000_000_000_000):
            again = driver.restart(clock=FakeClock(start_ms=start_ms))
            assert dump(again.shard.state) == expected

    def test_stream_that_expired_while_the_server_was_down_is_gone_after_the_start(self, driver):
        again = driver.restart()
        again.clock.advance(1000)
        assert not again.exists()
        again.commit()
        assert kinds(again) == [Kind.CREATE, Kind.EXPIRE]
        assert again.shard.state.by_name == {}


def renew_after(driver, seconds):
    driver.clock.advance(seconds)
    driver.shard.lifetimes.renew(driver.shard.find(NAME))
    driver.commit()


def test_there_is_none_up_to_a_tenth_of_the_ttl(driver):
    renew_after(driver, 5)
    renew_after(driver, 5)
    assert kinds(driver) == [Kind.CREATE]


def test_there_is_one_beyond_a_tenth(driver):
    renew_after(driver, 10.001)
    assert kinds(driver) == [Kind.CREATE, Kind.TOUCH]
    assert records(driver)[-1].at_ms == driver.clock.now_ms() + 100_000


def test_the_next_tenth_counts_from_the_last_record(driver):
    renew_after(driver, 11)
    for _ in range(9):
        renew_after(driver, 1)
    assert kinds(driver).count(Kind.TOUCH) == 1
    renew_after(driver, 2)
    assert kinds(driver).count(Kind.TOUCH) == 2


def test_an_append_counts_as_a_record(driver):
    driver.clock.advance(9)
    driver.committed(driver.append(b"y"))
    renew_after(driver, 9)
    assert Kind.TOUCH not in kinds(driver)


def test_restart_knows_the_deadline_to_a_tenth(driver):
    renew_after(driver, 50)
    renew_after(driver, 9)
    again = driver.restart()
    again.clock.advance(90)
    assert again.exists()
    again.clock.advance(2)
    assert not again.exists()


def test_there_is_none_for_a_stream_whose_deletion_is_staged(driver):
    driver.clock.advance(50)
    stream = driver.shard.find(NAME)
    driver.delete()
    driver.shard.lifetimes.renew(stream)
    driver.commit()
    driver.shard.lifetimes.renew(stream)
    driver.commit()
    assert kinds(driver) == [Kind.CREATE, Kind.DELETE]
    assert driver.restart().shard.state.by_name == {}


def test_there_is_none_for_a_stream_that_is_being_replaced(driver):
    driver.clock.advance(50)
    stream = driver.shard.find(NAME)
    driver.delete()
    driver.create(ttl_s=100)
    driver.shard.lifetimes.renew(stream)
    driver.commit()
    assert Kind.TOUCH not in kinds(driver)


def test_renewal_that_could_not_be_written_is_written_by_the_next_read(driver):
    driver.clock.advance(50)
    driver.shard.lifetimes.renew(driver.shard.find(NAME))
    driver.answer(FAILED)
    assert driver.shard.find(NAME).recorded_deadline_ms < driver.clock.now_ms() + 100_000
    renew_after(driver, 1)
    assert kinds(driver) == [Kind.CREATE, Kind.TOUCH]


def test_renewal_while_the_log_is_stalled_is_written_by_the_next_read(driver):
    driver.create("b/other")
    driver.answer(UNKNOWN, stored=True)
    driver.clock.advance(COMMIT_TIMEOUT_S + 50)
    driver.shard.lifetimes.renew(driver.shard.find(NAME))
    driver.commit()
    renew_after(driver, 1)
    assert Kind.TOUCH in kinds(driver)


def test_renewal_counts_while_an_append_to_a_new_stream_is_pending():
    driver = Driver()
    driver.create(body=b"x", ttl_s=3)
    driver.clock.run()
    driver.append(b"y")
    driver.answer(COMMITTED)
    driver.clock.advance(2)
    driver.shard.lifetimes.renew(driver.shard.find(NAME))
    driver.clock.advance(2)
    assert driver.exists()
    assert driver.committed(driver.append(b"z")) == appended(3)
