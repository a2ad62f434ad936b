"""Publishing snapshots: where they may be, what waits for what, and what they free."""

import pytest

from holdfast.engine.writes import SnapshotPublished
from holdfast.errors import (
    CommitFailedError,
    OffsetGoneError,
    OverloadedError,
    SnapshotConflictError,
    StreamDeletedError,
    StreamNotFoundError,
    UnavailableError,
)
from tests.unit.engine.driver import (
    COMMITTED,
    FAILED,
    NAME,
    SNAPSHOT_BYTES,
    TEXT,
    UNKNOWN,
    Driver,
    dump,
)


@pytest.fixture
def driver():
    """A stream of three appends."""
    driver = Driver()
    driver.create(body=b"0123")
    driver.append(b"456")
    driver.append(b"789")
    driver.commit()
    return driver


def done(driver, ask):
    """The answer, which must not come before the commit."""
    driver.clock.run()
    assert not ask.answered
    driver.answer(COMMITTED)
    return ask.outcome


class TestPublishing:
    def test_stream_starts_there(self, driver):
        assert done(driver, driver.publish(7)) == SnapshotPublished(7, 10)
        stream = driver.shard.find(NAME)
        assert (stream.start, stream.earliest, stream.snapshot.offset) == (7, 7, 7)
        assert (stream.base, stream.chunks) == (7, [b"789"])
        assert driver.content() == b"789"
        with pytest.raises(OffsetGoneError) as caught:
            driver.content(start=4)
        assert caught.value.earliest == 7

    def test_readers_see_the_old_start_until_it_is_durable(self, driver):
        driver.publish(7)
        driver.clock.run()
        assert driver.content() == b"0123456789"
        driver.answer(COMMITTED)
        assert driver.content() == b"789"

    def test_at_the_tail_all_of_it_goes(self, driver):
        done(driver, driver.publish(10))
        stream = driver.shard.find(NAME)
        assert (stream.base, stream.chunks) == (10, [])
        assert stream.bucket.size_bytes == SNAPSHOT_BYTES
        assert driver.committed(driver.append(b"more")).tail == 14
        assert driver.content() == b"more"

    def test_at_the_start_nothing_does(self, driver):
        assert done(driver, driver.publish(0)) == SnapshotPublished(0, 10)
        assert driver.content() == b"0123456789"
        assert driver.shard.find(NAME).snapshot.offset == 0

    def test_another_one_at_the_same_place_or_later(self, driver):
        done(driver, driver.publish(4))
        first = driver.shard.find(NAME).snapshot
        assert done(driver, driver.publish(4)) == SnapshotPublished(4, 10)
        assert driver.shard.find(NAME).snapshot == first
        assert done(driver, driver.publish(7)) == SnapshotPublished(7, 10)

    def test_of_a_closed_stream(self, driver):
        driver.append(close=True)
        assert done(driver, driver.publish(10)) == SnapshotPublished(10, 10)
        assert driver.shard.find(NAME).closed

    def test_it_is_no_write_to_the_stream(self, driver):
        before_ms = driver.shard.find(NAME).last_write_ms
        driver.clock.advance(5)
        done(driver, driver.publish(4))
        stream = driver.shard.find(NAME)
        assert stream.last_write_ms == stream.bucket.last_write_ms == before_ms

    def test_bytes_of_state_and_bucket(self, driver):
        done(driver, driver.publish(4))
        assert driver.shard.state.stored_bytes == 6 + SNAPSHOT_BYTES
        assert driver.shard.state.buckets["bucket"].size_bytes == 6 + SNAPSHOT_BYTES
        driver.delete()
        driver.commit()
        assert driver.shard.state.stored_bytes == 0

    def test_after_a_restart(self, driver):
        driver.publish(4)
        driver.append(b"abc")
        driver.publish(7)
        driver.commit()
        again = driver.restart()
        assert dump(again.shard.state) == dump(driver.shard.state)
        assert again.content() == b"789abc"

    def test_counted(self, driver):
        done(driver, driver.publish(4))
        assert driver.shard.counters.snapshots == 1


class TestForks:
    def test_source_keeps_its_bytes_for_them(self, driver):
        driver.fork("bucket/fork", offset=4)
        done(driver, driver.publish(7))
        stream = driver.shard.find(NAME)
        assert (stream.start, stream.earliest, stream.chunks[0]) == (0, 7, b"0123")
        assert driver.content() == b"789"
        assert driver.content("bucket/fork") == b"0123"

    def test_fork_takes_over_the_snapshot(self, driver):
        done(driver, driver.publish(4))
        driver.fork("bucket/fork", offset=7)
        done(driver, driver.publish(10))
        fork = driver.shard.find("bucket/fork")
        assert (fork.earliest, fork.snapshot.offset) == (4, 4)
        assert driver.content("bucket/fork") == b"456"

    def test_fork_of_a_pending_snapshot(self, driver):
        driver.publish(4)
        driver.fork("bucket/fork")
        driver.commit()
        assert driver.shard.find("bucket/fork").earliest == 4

    def test_own_snapshot_of_a_fork(self, driver):
        driver.fork("bucket/fork", offset=4, body=b"abc")
        driver.commit()
        done(driver, driver.publish(7, "bucket/fork"))
        assert driver.content("bucket/fork") == b""
        assert driver.content() == b"0123456789"


class TestRefusals:
    def test_past_the_tail(self, driver):
        assert isinstance(driver.publish(11).outcome, SnapshotConflictError)
        driver.append(b"!")
        assert done(driver, driver.publish(11)) == SnapshotPublished(11, 11)

    def test_before_the_one_that_is_there(self, driver):
        done(driver, driver.publish(7))
        error = driver.publish(4).outcome
        assert (type(error), error.earliest) == (OffsetGoneError, 7)

    def test_unknown_stream(self, driver):
        error = driver.publish(0, "bucket/other", number=5).outcome
        assert isinstance(error, StreamNotFoundError)

    def test_deleted_stream(self, driver):
        number = driver.shard.find(NAME).number
        driver.delete()
        driver.commit()
        assert isinstance(driver.publish(4, number=number).outcome, StreamNotFoundError)

    def test_deleted_stream_with_forks(self, driver):
        number = driver.shard.find(NAME).number
        driver.fork("bucket/fork")
        driver.delete()
        driver.commit()
        assert isinstance(driver.publish(4, number=number).outcome, StreamDeletedError)

    def test_stream_that_was_made_again_meanwhile(self, driver):
        number = driver.shard.find(NAME).number
        driver.delete()
        driver.create(body=b"another")
        driver.commit()
        assert isinstance(driver.publish(4, number=number).outcome, SnapshotConflictError)
        assert driver.content() == b"another"

    def test_expired_stream(self, driver):
        driver.create("bucket/short", ttl_s=5)
        driver.commit()
        number = driver.shard.find("bucket/short").number
        driver.clock.advance(5.5)
        ask = driver.publish(0, "bucket/short", number=number)
        assert isinstance(driver.committed(ask), StreamNotFoundError)

    def test_where_memory_is_full_it_is_taken(self, driver):
        driver.shard.commits.full = "there is no room"
        assert isinstance(driver.append(b"x").outcome, OverloadedError)
        assert done(driver, driver.publish(4)) == SnapshotPublished(4, 10)

    def test_while_an_outcome_is_unknown_it_is_not(self, driver):
        driver.append(b"x")
        driver.answer(UNKNOWN)
        assert isinstance(driver.publish(4).outcome, UnavailableError)


class TestWaiting:
    def test_refusal_that_rests_on_a_pending_one(self, driver):
        driver.publish(7)
        driver.clock.run()
        late = driver.publish(4)
        driver.clock.run()
        assert not late.answered
        driver.answer(COMMITTED)
        assert isinstance(late.outcome, OffsetGoneError)

    def test_one_that_rests_on_a_pending_append(self, driver):
        driver.append(b"more")
        driver.clock.run()
        ask = driver.publish(14)
        driver.clock.run()
        driver.log.answer(FAILED)
        driver.clock.run()
        assert isinstance(ask.outcome, CommitFailedError)
        assert driver.content() == b"0123456789"

    def test_failed_one_leaves_the_start_where_it_was(self, driver):
        ask = driver.publish(7)
        driver.answer(FAILED)
        assert isinstance(ask.outcome, CommitFailedError)
        assert driver.content() == b"0123456789"
        assert done(driver, driver.publish(4)) == SnapshotPublished(4, 10)
        assert driver.committed(driver.fork("bucket/fork", offset=4)).tail == 4

    def test_appends_go_on_around_it(self, driver):
        driver.append(b"a")
        driver.publish(10)
        driver.append(b"b")
        driver.publish(11)
        ask = driver.append(b"c")
        assert driver.committed(ask).tail == 13
        assert driver.content() == b"bc"

    def test_entries_go_once_they_are_settled(self, driver):
        driver.publish(4)
        driver.commit()
        assert driver.shard._staging.overlay == {}


def test_of_text_in_its_own_bucket_only(driver):
    driver.create("other/stream", TEXT, body=b"abc")
    driver.commit()
    done(driver, driver.publish(3, "other/stream"))
    sizes = {name: row.size_bytes for name, row in driver.shard.state.buckets.items()}
    assert sizes == {"bucket": 10, "other": SNAPSHOT_BYTES}
