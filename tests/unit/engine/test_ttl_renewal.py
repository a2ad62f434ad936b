"""Renewals by reads: most stay in memory, and become a record after a tenth of the TTL."""

import pytest

from holdfast.format.records import Kind, decode
from tests.unit.engine.driver import (
    COMMIT_TIMEOUT_S,
    COMMITTED,
    FAILED,
    NAME,
    UNKNOWN,
    Driver,
    appended,
)


def records(driver):
    return [record for batch in driver.log.batches for record in decode(batch.body)]


def kinds(driver):
    return [record.kind for record in records(driver)]


def renew_after(driver, seconds):
    driver.clock.advance(seconds)
    driver.shard.lifetimes.renew(driver.shard.find(NAME))
    driver.commit()


@pytest.fixture
def driver():
    """A stream that lives for 100 seconds after its last use."""
    driver = Driver()
    driver.create(body=b"x", ttl_s=100)
    driver.commit()
    return driver


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
