"""Buckets: created or just used, deleted when empty, counted, and limited."""

import pytest

from holdfast.engine.metadata_writes import StoredSnapshot
from holdfast.engine.writes import BucketCreated, Deleted
from holdfast.errors import (
    BucketExistsError,
    BucketNotEmptyError,
    BucketNotFoundError,
    CommitFailedError,
    OverloadedError,
    QuotaExceededError,
    UnavailableError,
)
from holdfast.format.records import Snapshot
from holdfast.format.rows import BucketRow
from tests.unit.engine.driver import (
    COMMITTED,
    FAILED,
    JSON,
    SNAPSHOT_BYTES,
    TEXT,
    UNKNOWN,
    Driver,
    dump,
)


@pytest.fixture
def driver():
    return Driver()


def done(driver, ask):
    """The answer, which must not come before the commit."""
    driver.clock.run()
    assert not ask.answered
    driver.answer(COMMITTED)
    return ask.outcome


class TestLife:
    def test_created_and_deleted(self, driver):
        assert done(driver, driver.create_bucket("b")) == BucketCreated()
        now_ms = driver.clock.now_ms()
        assert driver.shard.state.buckets == {"b": BucketRow(now_ms, explicit=True)}
        assert driver.shard.has_bucket("b/")
        assert done(driver, driver.delete_bucket("b")) == Deleted()
        assert driver.shard.state.buckets == {}
        assert not driver.shard.has_bucket("b/")

    def test_created_twice(self, driver):
        driver.create_bucket("b")
        assert isinstance(done(driver, driver.create_bucket("b")), BucketExistsError)
        assert isinstance(driver.create_bucket("b").outcome, BucketExistsError)

    def test_one_that_nobody_created_is_there_as_long_as_its_streams(self, driver):
        driver.create("b/one")
        driver.create("b/two")
        driver.commit()
        assert not driver.shard.state.buckets["b"].explicit
        driver.delete("b/one")
        driver.commit()
        assert "b" in driver.shard.state.buckets
        driver.delete("b/two")
        driver.commit()
        assert driver.shard.state.buckets == {}

    def test_one_that_is_used_can_still_be_created(self, driver):
        driver.create("b/one")
        driver.clock.advance(1)
        driver.commit()
        before_ms = driver.shard.state.buckets["b"].created_ms
        assert done(driver, driver.create_bucket("b")) == BucketCreated()
        driver.delete("b/one")
        driver.commit()
        bucket = driver.shard.state.buckets["b"]
        assert (bucket.explicit, bucket.streams, bucket.created_ms) == (True, 0, before_ms)

    def test_unknown_one_is_not_deleted(self, driver):
        assert isinstance(driver.delete_bucket("b").outcome, BucketNotFoundError)

    @pytest.mark.parametrize("is_created", [False, True])
    def test_one_with_streams_is_not_deleted(self, driver, is_created):
        if is_created:
            driver.create_bucket("b")
        driver.create("b/one")
        driver.commit()
        error = driver.delete_bucket("b").outcome
        assert isinstance(error, BucketNotEmptyError)
        assert "holds 1 streams" in error.message
        driver.delete("b/one")
        if is_created:
            assert driver.committed(driver.delete_bucket("b")) == Deleted()
        else:
            assert isinstance(driver.committed(driver.delete_bucket("b")), BucketNotFoundError)

    def test_source_that_is_there_for_its_forks_is_no_stream_of_it(self, driver):
        driver.create_bucket("b")
        driver.create("b/source", body=b"abc")
        driver.fork("other/fork", "b/source")
        driver.delete("b/source")
        assert done(driver, driver.delete_bucket("b")) == Deleted()
        assert driver.content("other/fork") == b"abc"
        driver.delete("other/fork")
        driver.commit()
        assert driver.shard.state.buckets == {}
        assert driver.shard.state.streams == 0

    def test_bytes_last_write_and_restart(self, driver):
        driver.create_bucket("b")
        driver.create("b/one", body=b"12345")
        driver.create("b/two", JSON, body=b"[1, 2]")
        driver.commit()
        driver.clock.advance(5)
        driver.append(b"678", name="b/one")
        driver.commit()
        bucket = driver.shard.state.buckets["b"]
        assert (bucket.streams, bucket.size_bytes) == (2, 12)
        assert bucket.last_write_ms == driver.clock.now_ms()
        driver.publish(5, "b/one")
        driver.delete("b/two")
        driver.commit()
        assert (bucket.streams, bucket.size_bytes) == (1, 3 + SNAPSHOT_BYTES)
        assert dump(driver.restart().shard.state) == dump(driver.shard.state)


class TestWaiting:
    def test_answers_rest_on_what_is_pending(self, driver):
        driver.create_bucket("b")
        driver.clock.run()
        exists, needs = driver.create_bucket("b"), driver.create("b/one", needs_bucket=True)
        not_empty = driver.delete_bucket("b")
        driver.clock.run()
        assert not any(ask.answered for ask in (exists, needs, not_empty))
        driver.answer(COMMITTED)
        assert isinstance(exists.outcome, BucketExistsError)
        driver.commit()
        assert needs.outcome.created
        assert isinstance(not_empty.outcome, BucketNotEmptyError)

    def test_creation_of_a_stream_is_refused_once_the_deletion_is_durable(self, driver):
        driver.create_bucket("b")
        driver.commit()
        driver.delete_bucket("b")
        ask = driver.create("b/one", needs_bucket=True)
        driver.clock.run()
        assert not ask.answered
        driver.answer(COMMITTED)
        assert isinstance(ask.outcome, BucketNotFoundError)

    def test_failed_creation_leaves_nothing(self, driver):
        ask = driver.create_bucket("b")
        later = driver.create("b/one", needs_bucket=True)
        driver.answer(FAILED)
        assert isinstance(ask.outcome, CommitFailedError)
        assert isinstance(later.outcome, CommitFailedError)
        error = driver.create("b/one", needs_bucket=True).outcome
        assert isinstance(error, BucketNotFoundError)
        assert not driver.shard.has_bucket("b/")

    def test_failed_deletion_leaves_it(self, driver):
        driver.create_bucket("b")
        driver.commit()
        driver.delete_bucket("b")
        driver.answer(FAILED)
        assert isinstance(driver.create_bucket("b").outcome, BucketExistsError)

    def test_failed_streams_are_not_counted(self, driver):
        driver.create_bucket("b")
        driver.commit()
        driver.create("b/one")
        driver.answer(FAILED)
        assert driver.committed(driver.delete_bucket("b")) == Deleted()

    def test_failed_deletion_of_a_stream_is_not_counted_either(self, driver):
        driver.create("b/one")
        driver.commit()
        driver.delete("b/one")
        driver.answer(FAILED)
        assert isinstance(driver.delete_bucket("b").outcome, BucketNotEmptyError)

    def test_readers_see_published_ones(self, driver):
        driver.create_bucket("b")
        driver.clock.run()
        assert driver.shard.state.buckets == {}
        assert driver.shard.has_bucket("b/"), "or about to be"

    def test_entries_go_once_they_are_settled(self, driver):
        for _ in range(3):
            driver.create_bucket("b")
            driver.create("b/one")
            driver.clock.run()
            driver.delete("b/one")
            driver.delete_bucket("b")
            driver.commit()
        assert driver.shard._staging.buckets.overlay == {}
        assert driver.shard._staging.overlay == {}


class TestNeeded:
    def test_stream_in_a_bucket_that_is_not_there(self, driver):
        error = driver.create("b/one", needs_bucket=True).outcome
        assert isinstance(error, BucketNotFoundError)
        assert driver.committed(driver.create("b/one")).created
        assert driver.committed(driver.create("b/two", needs_bucket=True)).created

    def test_existing_stream_is_confirmed_all_the_same(self, driver):
        driver.create("b/one")
        driver.commit()
        assert not driver.create("b/one", needs_bucket=True).outcome.created


class TestQuotas:
    def test_streams_pending_ones_included(self):
        driver = Driver(bucket_streams_max=2)
        driver.create("b/one")
        driver.create("b/two")
        full = driver.create("b/three")
        driver.clock.run()
        assert not full.answered
        assert isinstance(driver.committed(full), QuotaExceededError)
        assert driver.committed(driver.create("c/one")).created
        assert not driver.committed(driver.create("b/one")).created
        driver.delete("b/one")
        assert driver.committed(driver.create("b/three")).created

    def test_forks_count(self):
        driver = Driver(bucket_streams_max=1)
        driver.create("b/one", body=b"abc")
        driver.commit()
        assert isinstance(driver.fork("b/fork", "b/one").outcome, QuotaExceededError)
        assert driver.committed(driver.fork("c/fork", "b/one")).created

    def test_failed_creations_do_not(self):
        driver = Driver(bucket_streams_max=1)
        driver.create("b/one")
        driver.answer(FAILED)
        assert driver.committed(driver.create("b/two")).created

    def test_bytes(self):
        driver = Driver(bucket_bytes_max=10)
        driver.create("b/one", body=b"12345")
        driver.commit()
        assert isinstance(driver.append(b"678901", name="b/one").outcome, QuotaExceededError)
        assert driver.committed(driver.append(b"67890", name="b/one")).tail == 10
        assert isinstance(driver.append(b"x", name="b/one").outcome, QuotaExceededError)
        assert driver.committed(driver.append(name="b/one", close=True)).closed
        assert driver.committed(driver.create("b/empty")).created
        assert isinstance(driver.create("b/two", body=b"x").outcome, QuotaExceededError)
        assert driver.committed(driver.create("c/one", body=b"x")).created

    def test_bytes_of_the_first_stream_of_a_bucket(self):
        driver = Driver(bucket_bytes_max=10)
        assert isinstance(driver.create("b/one", body=bytes(11)).outcome, QuotaExceededError)
        assert driver.committed(driver.create("b/one", body=bytes(10))).created

    def test_snapshots_and_deletions_make_room(self):
        driver = Driver(bucket_bytes_max=10 + SNAPSHOT_BYTES)
        driver.create("b/one", body=b"12345")
        driver.create("b/two", body=b"12345")
        driver.commit()
        driver.publish(5, "b/one")
        driver.commit()
        assert driver.committed(driver.append(b"12345", name="b/two")).tail == 10
        driver.delete("b/two")
        driver.commit()
        assert driver.committed(driver.append(b"1234567890", name="b/one")).tail == 15

    def test_snapshot_counts_in_place_of_what_it_replaces(self):
        driver = Driver(bucket_bytes_max=5)
        driver.create("b/one", body=b"1234")
        driver.commit()
        # One byte of messages less, and one of a snapshot more.
        driver.publish(1, "b/one")
        assert driver.committed(driver.append(b"5", name="b/one")).tail == 5
        for at in (1, 2):
            assert driver.committed(driver.publish(at, "b/one")).offset == at
        driver.commit()
        stream = driver.shard.find("b/one")
        for size_bytes, refused in ((3, True), (2, False)):
            snapshot = Snapshot(2, "snapshots/large", TEXT, size_bytes, 1)
            ask = driver.publish_stored(StoredSnapshot("b/one", stream.number, snapshot))
            outcome = driver.committed(ask)
            assert isinstance(outcome, QuotaExceededError) == refused
        assert driver.shard.state.buckets["b"].size_bytes == 5

    def test_snapshot_that_takes_less_is_accepted_though_the_bucket_is_too_full(self):
        driver = Driver()
        driver.create("b/one", body=b"1234")
        driver.commit()
        driver.shard.snapshots._bucket_bytes_max = 2
        assert driver.committed(driver.publish(1, "b/one")).offset == 1

    def test_fork_counts_the_snapshot_that_it_starts_with(self):
        driver = Driver(bucket_bytes_max=1)
        driver.create("b/one", body=b"1")
        driver.commit()
        driver.publish(1, "b/one")
        driver.commit()
        assert isinstance(driver.fork("b/fork", "b/one").outcome, QuotaExceededError)
        assert driver.committed(driver.fork("c/fork", "b/one")).created
        assert driver.shard.state.buckets["c"].size_bytes == SNAPSHOT_BYTES

    def test_deleted_source_counts_while_forks_need_it(self):
        driver = Driver(bucket_bytes_max=10)
        driver.create("b/one", body=b"12345678")
        driver.commit()
        driver.fork("c/fork", "b/one")
        driver.commit()
        driver.delete("b/one")
        driver.commit()
        state = driver.shard.state
        assert "b" not in state.buckets
        assert state.stored_bytes == 8
        assert isinstance(driver.create("b/two", body=b"123").outcome, QuotaExceededError)
        assert driver.committed(driver.create("b/two", body=b"12")).created
        assert (state.buckets["b"].streams, state.buckets["b"].size_bytes) == (1, 10)
        assert dump(driver.restart().shard.state) == dump(state)
        driver.delete("c/fork")
        driver.commit()
        assert state.buckets["b"].size_bytes == state.stored_bytes == 2
        driver.delete("b/two")
        driver.commit()
        assert (state.buckets, state._former, state.stored_bytes) == ({}, {}, 0)

    def test_duplicates_and_refusals_come_first(self):
        driver = Driver(bucket_bytes_max=5)
        driver.create("b/one")
        driver.produce(0, b"12345", name="b/one")
        driver.commit()
        duplicate = driver.produce(0, b"12345", name="b/one").outcome
        assert not duplicate.added
        assert isinstance(driver.produce(1, b"6", name="b/one").outcome, QuotaExceededError)


class TestRefusals:
    def test_where_memory_is_full_only_deletions_are_taken(self, driver):
        driver.create_bucket("b")
        driver.commit()
        driver.shard.commits.full = "there is no room"
        assert isinstance(driver.create_bucket("c").outcome, OverloadedError)
        assert driver.committed(driver.delete_bucket("b")) == Deleted()

    def test_while_an_outcome_is_unknown_nothing_is(self, driver):
        driver.create_bucket("b")
        driver.answer(UNKNOWN)
        assert isinstance(driver.create_bucket("c").outcome, UnavailableError)
        assert isinstance(driver.delete_bucket("b").outcome, UnavailableError)
