"""What the engine counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.counters import BUCKETS, Histogram
from tests.unit.engine.driver import FAILED, JSON, Driver


@given(st.lists(st.integers(0, 2**40)))
def test_histogram_counts_every_value_once(values):
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    assert sum(histogram.counts) == len(values)
    assert histogram.total == sum(values)


@given(st.integers(0, 2**40))
def test_value_is_in_the_first_bucket_that_it_fits(value):
    histogram = Histogram()
    histogram.observe(value)
    bucket = histogram.counts.index(1)
    assert value <= 2**bucket or bucket == BUCKETS
    assert bucket == 0 or value > 2 ** (bucket - 1)


@pytest.mark.parametrize(
    ("value", "bucket"),
    [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (2**BUCKETS, BUCKETS), (2**60, BUCKETS)],
)
def test_bounds_of_the_buckets(value, bucket):
    histogram = Histogram()
    histogram.observe(value)
    assert histogram.counts[bucket] == 1
    assert len(histogram.counts) == BUCKETS + 1


@given(st.floats(0, 500))
def test_duration_is_in_a_bucket_that_holds_it(seconds):
    histogram = Histogram()
    histogram.observe_s(seconds)
    bucket = histogram.counts.index(1)
    assert seconds * 1e6 <= 2**bucket or bucket == BUCKETS
    assert bucket == 0 or seconds * 1e6 >= 2 ** (bucket - 1)


def test_shard_counts_what_became_durable():
    driver = Driver()
    driver.create(body=b"abc")
    driver.create("b/json", JSON)
    driver.create("b/short", ttl_s=1)
    driver.commit()
    driver.append(b"defg")
    driver.append(b"[1,2]", name="b/json", media=JSON)
    driver.produce(0, b"x")
    driver.produce(0, b"x")
    driver.append(b"refused", media=JSON)
    driver.commit()
    driver.delete("b/json")
    driver.commit()
    driver.clock.advance(2)
    driver.commit()
    counters = driver.shard.counters
    assert counters.creates == 3
    assert counters.appends == 3
    assert counters.append_bytes == 3 + 4 + 4 + 1
    assert counters.duplicates == 1
    assert counters.deletes == 1
    assert counters.expirations == 1
    assert counters.commit_failures == 0


def test_nothing_that_failed_is_counted():
    driver = Driver()
    driver.create(body=b"abc")
    driver.append(b"x")
    driver.answer(FAILED)
    counters = driver.shard.counters
    assert (counters.creates, counters.appends, counters.append_bytes) == (0, 0, 0)
    assert (counters.batches, counters.commit_failures) == (0, 1)


def test_batches_are_counted_with_records_bytes_and_time():
    driver = Driver()
    driver.create()
    driver.clock.run()
    driver.append(b"x" * 100)
    driver.append(b"x" * 100)
    driver.clock.advance(0.25)
    driver.commit()
    counters = driver.shard.counters
    assert counters.batches == 2
    assert counters.batch_records.total == 3
    assert counters.batch_bytes.total == sum(len(batch.body) for batch in driver.log.batches)
    assert counters.commit_us.total == 250_000


def test_read_renewals_are_no_appends():
    driver = Driver()
    driver.create(ttl_s=10)
    driver.commit()
    driver.clock.advance(5)
    driver.shard.lifetimes.renew(driver.shard.find("bucket/stream"))
    driver.commit()
    assert driver.shard.counters.batches == 2
    assert driver.shard.counters.appends == 0
