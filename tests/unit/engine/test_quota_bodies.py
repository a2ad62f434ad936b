"""A bucket's quota of bytes covers what streams are created with, too."""

import pytest

from holdfast.errors import QuotaExceededError
from tests.unit.engine.driver import JSON, Driver


@pytest.fixture
def driver():
    """A bucket with room for ten bytes, of which six are taken."""
    driver = Driver(bucket_bytes_max=10)
    driver.committed(driver.create("b/one", body=b"123456"))
    return driver


def is_refused(driver, ask):
    outcome = driver.committed(ask)
    return isinstance(outcome, QuotaExceededError)


def test_body_that_fits_and_one_that_does_not(driver):
    assert is_refused(driver, driver.create("b/two", body=b"12345"))
    assert not driver.exists("b/two")
    assert not is_refused(driver, driver.create("b/two", body=b"1234"))
    assert driver.shard.state.buckets["b"].size_bytes == 10


def test_json_counts_as_it_is_stored(driver):
    """With what separates messages, and without the array around them."""
    assert is_refused(driver, driver.create("b/two", JSON, body=b"[1, 22]"))
    assert not is_refused(driver, driver.create("b/two", JSON, body=b"[1, 2]"))


def test_fork_brings_only_what_is_its_own(driver):
    assert is_refused(driver, driver.fork("b/fork", "b/one", 6, body=b"12345"))
    assert not is_refused(driver, driver.fork("b/fork", "b/one", 6, body=b"1234"))
    assert not is_refused(driver, driver.fork("b/other", "b/one", 6))


def test_stream_that_is_there_is_confirmed_however_full_the_bucket_is(driver):
    driver.committed(driver.create("b/two", body=b"1234"))
    assert driver.committed(driver.create("b/two", body=b"1234")).created is False


def test_no_quota():
    driver = Driver()
    assert driver.committed(driver.create("b/one", body=bytes(100_000))).created
