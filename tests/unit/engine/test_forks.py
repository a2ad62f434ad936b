"""Forks: what they take over, when they are refused, and what deletion means to a family."""

import pytest

from holdfast.engine import writes
from holdfast.engine.writes import CreateRequest, Deleted, ForkRequest
from holdfast.errors import (
    CommitFailedError,
    ConflictError,
    ContentTypeMismatchError,
    ForkSourceDeletedError,
    InvalidOffsetError,
    OffsetGoneError,
    StreamDeletedError,
    StreamExistsError,
    StreamNotFoundError,
    UnavailableError,
)
from holdfast.format.records import Kind
from holdfast.protocol.producer import Producer
from tests.unit.engine.driver import (
    COMMITTED,
    FAILED,
    JSON,
    NAME,
    SNAPSHOT_BYTES,
    TEXT,
    Driver,
    created,
    dump,
)
from tests.unit.engine.tiered import Tiered

FORK, OTHER, NESTED = "bucket/fork", "other/fork", "other/nested"


@pytest.fixture
def driver():
    """A stream of ten bytes."""
    return filled()


def filled(**settings):
    driver = Driver(**settings)
    driver.create(body=b"0123456789")
    driver.commit()
    return driver


def done(driver, ask):
    """The answer, which must not come before the commit."""
    driver.clock.run()
    assert not ask.answered
    return driver.committed(ask)


def refusal(driver, ask):
    """The class of the error that a request got."""
    return type(driver.committed(ask))


def is_free(driver, name):
    return driver.committed(driver.create(name)) == created(True, TEXT, 0, closed=False)


class TestContent:
    def test_it_has_what_lies_before_it_and_goes_its_own_way(self, driver):
        assert done(driver, driver.fork(FORK, offset=4)) == created(True, TEXT, 4, closed=False)
        driver.append(b"abc", name=FORK)
        driver.append(b"xyz")
        driver.commit()
        assert driver.content(FORK) == b"0123abc"
        assert driver.content() == b"0123456789xyz"

    def test_without_an_offset_it_starts_at_the_tail(self, driver):
        driver.append(b"pending")
        ask = driver.fork(FORK, body=b"!")
        assert done(driver, ask) == created(True, TEXT, 18, closed=False)
        assert driver.content(FORK) == b"0123456789pending!"

    def test_fork_of_a_fork(self, driver):
        driver.fork(FORK, offset=4, body=b"abcd")
        driver.fork(OTHER, FORK, 2, body=b"X")
        driver.fork(NESTED, FORK, 6)
        driver.commit()
        assert driver.content(OTHER) == b"01X"
        assert driver.content(NESTED) == b"0123ab"

    def test_of_a_stream_that_is_not_durable_yet(self, driver):
        driver.create("bucket/new", body=b"new")
        ask = driver.fork(FORK, "bucket/new")
        assert done(driver, ask) == created(True, TEXT, 3, closed=False)
        assert driver.content(FORK) == b"new"

    def test_content_type_is_the_sources(self, driver):
        driver.create("bucket/json", JSON, body=b"[1,2]")
        ask = driver.fork(FORK, "bucket/json")
        assert done(driver, ask) == created(True, JSON, 4, closed=False)
        ask = driver.fork(OTHER, "bucket/json", content_type="application/json; charset=utf-8")
        assert driver.committed(ask).created

    def test_closed_source_has_open_forks(self, driver):
        driver.append(close=True)
        driver.fork(FORK)
        driver.commit()
        assert not driver.shard.find(FORK).closed
        driver.append(b"more", name=FORK)
        driver.commit()
        assert driver.content(FORK) == b"0123456789more"

    def test_producers_and_sequences_are_not_taken_over(self, driver):
        driver.append(b"x", producer=Producer(b"p", 0, 0), seq=b"5")
        driver.fork(FORK)
        driver.commit()
        fork = driver.shard.find(FORK)
        assert (fork.producers, fork.seq) == (None, None)

    def test_after_a_restart(self, driver):
        driver.fork(FORK, offset=4, body=b"abc")
        driver.fork(OTHER, FORK, 2)
        driver.delete()
        driver.commit()
        again = driver.restart()
        assert dump(again.shard.state) == dump(driver.shard.state)
        assert again.content(FORK) == b"0123abc"


class TestLifetimes:
    @pytest.mark.parametrize(
        ("source", "asked", "expected"),
        [
            ({"ttl_s": 60}, {}, (60, None)),
            ({"expires_at_ms": 9_000_000_000_000}, {}, (None, 9_000_000_000_000)),
            ({"ttl_s": 60}, {"ttl_s": 5}, (5, None)),
            ({"ttl_s": 60}, {"expires_at_ms": 9_000_000_000_000}, (None, 9_000_000_000_000)),
            ({}, {"ttl_s": 5}, (5, None)),
        ],
    )
    def test_own_ones_or_the_sources(self, driver, source, asked, expected):
        driver.create("bucket/source", **source)
        driver.fork(FORK, "bucket/source", **asked)
        driver.commit()
        meta = driver.shard.find(FORK).meta
        assert (meta.ttl_s, meta.expires_at_ms) == expected

    def test_fixed_ttl_counts_from_the_fork(self):
        driver = filled(ttl_is_fixed=True)
        driver.create("bucket/source", ttl_s=60)
        driver.commit()
        driver.clock.advance(30)
        driver.fork(FORK, "bucket/source")
        driver.commit()
        assert driver.shard.find(FORK).deadline_ms == driver.clock.now_ms() + 60_000

    def test_source_that_expires_stays_for_its_forks(self, driver):
        driver.create("bucket/source", body=b"abc", ttl_s=60)
        driver.fork(FORK, "bucket/source", ttl_s=1000)
        driver.commit()
        driver.clock.advance(61)
        driver.commit()
        with pytest.raises(StreamDeletedError):
            driver.shard.find("bucket/source")
        assert driver.content(FORK) == b"abc"
        driver.clock.advance(1000)
        driver.commit()
        assert is_free(driver, "bucket/source")
        assert is_free(driver, FORK)

    def test_source_past_its_deadline_is_not_forked(self, driver):
        driver.create("bucket/source", ttl_s=60)
        driver.commit()
        driver.clock.advance(60.5)
        assert refusal(driver, driver.fork(FORK, "bucket/source")) is StreamNotFoundError


class TestRefusals:
    def test_source_that_does_not_exist(self, driver):
        assert refusal(driver, driver.fork(FORK, "bucket/nothing")) is StreamNotFoundError

    def test_offset_past_the_tail(self, driver):
        assert refusal(driver, driver.fork(FORK, offset=11)) is InvalidOffsetError
        driver.append(b"!")
        assert driver.committed(driver.fork(FORK, offset=11)).tail == 11

    def test_offset_before_a_snapshot(self, driver):
        driver.publish(4)
        ask = driver.fork(FORK, offset=3)
        error = done(driver, ask)
        assert (type(error), error.earliest) == (OffsetGoneError, 4)
        assert driver.committed(driver.fork(FORK, offset=4)).tail == 4
        assert driver.content(FORK) == b""

    def test_another_content_type(self, driver):
        ask = driver.fork(FORK, content_type=JSON)
        assert refusal(driver, ask) is ContentTypeMismatchError

    def test_nothing_comes_of_a_refused_one(self, driver):
        driver.fork(FORK, offset=11)
        driver.fork(FORK, content_type=JSON)
        driver.commit()
        assert not driver.exists(FORK)
        assert driver.shard.find(NAME).forks == 0
        assert driver.committed(driver.delete()) == Deleted()
        assert is_free(driver, NAME)


class TestConfirmations:
    @pytest.fixture
    def driver(self, driver):
        driver.fork(FORK, offset=4, ttl_s=60)
        driver.commit()
        return driver

    @pytest.mark.parametrize(("offset", "more"), [(4, {"ttl_s": 60}), (None, {}), (4, {})])
    def test_the_same_fork(self, driver, offset, more):
        ask = driver.fork(FORK, offset=offset, **more)
        assert driver.committed(ask) == created(False, TEXT, 4, closed=False)
        assert driver.shard.find(NAME).forks == 1

    def test_whatever_has_become_of_the_source(self, driver):
        driver.publish(8)
        driver.delete()
        assert not driver.committed(driver.fork(FORK, offset=4)).created

    @pytest.mark.parametrize("offset", [3, 5])
    def test_another_place(self, driver, offset):
        assert refusal(driver, driver.fork(FORK, offset=offset)) is StreamExistsError

    def test_another_source_ttl_or_none(self, driver):
        driver.create("bucket/second", body=b"0123456789")
        assert refusal(driver, driver.fork(FORK, "bucket/second", 4)) is StreamExistsError
        assert refusal(driver, driver.fork(FORK, offset=4, ttl_s=61)) is StreamExistsError
        assert refusal(driver, driver.create(FORK, ttl_s=60)) is StreamExistsError

    def test_stream_that_is_no_fork(self, driver):
        driver.create("bucket/plain")
        assert refusal(driver, driver.fork("bucket/plain")) is StreamExistsError


class TestDeletion:
    @pytest.fixture
    def family(self, driver):
        """The source is deleted, its two forks are not."""
        driver.fork(FORK, offset=4, body=b"abc")
        driver.fork(OTHER, offset=8)
        driver.delete()
        driver.commit()
        return driver

    def test_forks_live_on(self, family):
        assert family.content(FORK) == b"0123abc"
        assert family.content(OTHER) == b"01234567"

    def test_source_is_gone_for_everybody_else(self, family):
        with pytest.raises(StreamDeletedError):
            family.shard.find(NAME)
        assert refusal(family, family.append(b"x")) is StreamDeletedError
        assert refusal(family, family.delete()) is StreamDeletedError
        assert refusal(family, family.fork("bucket/late")) is ForkSourceDeletedError
        assert refusal(family, family.create()) is StreamExistsError

    def test_its_bytes_count_while_they_are_kept(self, family):
        buckets = family.shard.state.buckets
        assert (buckets["bucket"].streams, buckets["bucket"].size_bytes) == (1, 10 + 3)
        assert (buckets["other"].streams, buckets["other"].size_bytes) == (1, 0)

    def test_name_is_free_with_the_last_fork(self, family):
        family.delete(FORK)
        family.commit()
        assert refusal(family, family.create()) is StreamExistsError
        family.delete(OTHER)
        assert is_free(family, NAME)
        assert family.content() == b""

    def test_all_in_one_batch(self, driver):
        driver.fork(FORK)
        driver.fork(NESTED, FORK)
        driver.delete()
        driver.delete(FORK)
        driver.delete(NESTED)
        assert is_free(driver, NAME)
        assert is_free(driver, FORK)
        assert is_free(driver, NESTED)
        assert driver.shard.state.streams == 3

    def test_fork_frees_what_its_source_kept_for_it(self, driver):
        driver.fork(FORK)
        driver.publish(8)
        driver.commit()
        source = driver.shard.find(NAME)
        assert (source.start, source.bucket.size_bytes) == (0, 10 + SNAPSHOT_BYTES)
        driver.delete(FORK)
        driver.commit()
        assert (source.start, source.bucket.size_bytes) == (8, 2 + SNAPSHOT_BYTES)
        assert driver.content() == b"89"


class TestWaiting:
    """Answers wait for the batch that they rest on."""

    def test_refusal_that_rests_on_a_pending_deletion(self, driver):
        driver.fork(FORK)
        driver.commit()
        driver.delete()
        driver.clock.run()
        late = driver.fork(OTHER)
        taken = driver.create()
        gone = driver.append(b"x")
        driver.clock.run()
        assert not any(ask.answered for ask in (late, taken, gone))
        driver.answer(COMMITTED)
        assert isinstance(late.outcome, ForkSourceDeletedError)
        assert isinstance(taken.outcome, StreamExistsError)
        assert isinstance(gone.outcome, StreamDeletedError)

    def test_refusal_that_rests_on_a_pending_snapshot(self, driver):
        driver.publish(8)
        late = driver.fork(FORK, offset=4)
        driver.clock.run()
        assert not late.answered
        driver.answer(FAILED)
        assert isinstance(late.outcome, CommitFailedError)
        assert driver.committed(driver.fork(FORK, offset=4)).tail == 4

    def test_failed_fork_counts_for_nothing(self, driver):
        ask = driver.fork(FORK)
        driver.answer(FAILED)
        assert isinstance(ask.outcome, CommitFailedError)
        driver.delete()
        assert is_free(driver, NAME)

    def test_failed_deletion_of_a_fork_leaves_the_count(self, driver):
        driver.fork(FORK)
        driver.commit()
        driver.delete(FORK)
        driver.delete()
        driver.answer(FAILED)
        assert driver.content(FORK) == driver.content() == b"0123456789"
        driver.delete()
        driver.commit()
        assert refusal(driver, driver.create()) is StreamExistsError
        driver.delete(FORK)
        assert is_free(driver, NAME)

    def test_failed_deletion_of_a_source(self, driver):
        driver.fork(FORK)
        driver.commit()
        driver.delete()
        driver.answer(FAILED)
        assert driver.committed(driver.append(b"!")).tail == 11
        assert driver.committed(driver.fork(OTHER)).tail == 11

    def test_fork_in_a_later_batch_fails_with_its_source(self, driver):
        driver.create("bucket/new", body=b"new")
        driver.clock.run()
        ask = driver.fork(FORK, "bucket/new")
        driver.clock.run()
        driver.log.answer(FAILED)
        driver.clock.run()
        assert isinstance(ask.outcome, CommitFailedError)
        assert not driver.exists(FORK)

    def test_published_count_is_what_later_batches_build_on(self, driver):
        """The first batch is published while the entry lives on for the second."""
        driver.fork(FORK)
        driver.clock.run()
        driver.fork(OTHER)
        driver.clock.run()
        driver.log.answer(COMMITTED)
        driver.clock.run()
        assert driver.shard.find(NAME).forks == 1
        driver.delete(FORK)
        driver.delete(OTHER)
        driver.commit()
        assert driver.shard.find(NAME).forks == 0
        driver.delete()
        assert is_free(driver, NAME)

    @pytest.mark.parametrize("batch_bytes_max", [1, 60])
    def test_batches_of_one_record(self, batch_bytes_max):
        driver = filled(batch_bytes_max=batch_bytes_max)
        driver.fork(FORK)
        driver.fork(OTHER, FORK)
        driver.delete()
        driver.delete(FORK)
        driver.delete(OTHER)
        driver.commit()
        assert [len(batch.body) for batch in driver.log.batches if not batch.body] == []
        assert driver.shard.state.by_name == {}
        assert driver.shard.state.buckets == {}
        assert is_free(driver, NAME)


def test_renewal_that_is_recorded_while_the_source_is_looked_up(tmp_path):
    """Looking up the streams that a fork comes from pushes one out, whose renewal is a record.

    That record must not come between the number of the fork and its own record.
    """
    driver = Tiered(tmp_path, streams_cached_max=2)
    driver.create("b/source", body=b"0123")
    driver.fork("b/fork", "b/source")
    driver.create("b/short", ttl_s=100)
    driver.flush()
    driver.shard.find("b/fork")
    short = driver.shard.find("b/short")
    assert list(driver.state.clean) == [driver.shard.find("b/fork").number, short.number]
    driver.clock.advance(1)
    driver.lifetimes.renew(short)
    driver.state.clean.move_to_end(short.number)
    assert driver.committed(driver.fork("b/nested", "b/fork", body=b"!")).tail == 5
    assert driver.kinds()[-2:] == [Kind.TOUCH, Kind.CREATE]
    again = driver.restart()
    assert again.content("b/nested") == b"0123!"
    again.close()


FORK = "bucket/fork"


def fork(driver, offset, source, name=FORK):
    request = CreateRequest(None, fork=ForkRequest(NAME, offset, offset, source=source))
    return driver._ask(driver.shard.create, name, request)


class TestSource:
    """An offset was resolved for one stream, and holds for no other of the same name."""

    def test_the_one_that_the_offset_was_resolved_for(self, driver):
        number = driver.shard.find(NAME).number
        asked = fork(driver, 5, number)
        assert driver.committed(asked) == created(True, TEXT, 5, closed=False)

    @pytest.mark.parametrize("body", [b"0123456789", b"short"])
    def test_another_one(self, driver, body):
        number = driver.shard.find(NAME).number
        driver.delete()
        driver.create(body=body)
        pending = fork(driver, 5, number)
        driver.clock.run()
        # It rests on a deletion and a creation that are not durable yet.
        assert not pending.answered
        assert isinstance(driver.committed(pending), UnavailableError)
        assert isinstance(fork(driver, 5, number).outcome, UnavailableError)
        assert not driver.exists(FORK)

    def test_one_that_is_gone(self, driver):
        number = driver.shard.find(NAME).number
        driver.committed(driver.delete())
        assert isinstance(fork(driver, 5, number).outcome, StreamNotFoundError)

    def test_offset_that_was_not_resolved(self, driver):
        """The name was taken when the request came, and is free by now."""
        refused = fork(driver, 5, 0).outcome
        assert isinstance(refused, UnavailableError)
        assert refused.retryable
        assert not driver.exists(FORK)

    def test_without_an_offset_there_is_nothing_to_resolve(self, driver):
        asked = fork(driver, None, 0)
        assert driver.committed(asked) == created(True, TEXT, 10, closed=False)

    def test_fork_that_is_there_is_confirmed(self, driver):
        driver.committed(driver.fork(FORK, offset=5))
        assert fork(driver, 5, 0).outcome == created(False, TEXT, 5, closed=False)


class TestDepth:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch):
        monkeypatch.setattr(writes, "FORK_DEPTH_MAX", 3)

    def chain(self, driver, length, commits):
        """Forks of forks, and what the last of them was answered."""
        source, ask = NAME, None
        for number in range(1, length + 1):
            ask = driver.fork(f"b/{number}", source)
            if commits:
                driver.commit()
            source = f"b/{number}"
        return driver.committed(ask)

    @pytest.mark.parametrize("commits", [True, False], ids=["durable", "pending"])
    def test_beyond_the_limit_is_a_conflict(self, driver, commits):
        assert self.chain(driver, 3, commits).created
        refused = driver.committed(driver.fork("b/4", "b/3"))
        assert (type(refused), refused.code, refused.status) == (ConflictError, "conflict", 409)
        assert not driver.exists("b/4")

    def test_any_number_of_forks_of_one_stream(self, driver):
        for number in range(10):
            assert driver.committed(driver.fork(f"b/{number}")).created

    def test_sources_that_are_deleted_count(self, driver):
        self.chain(driver, 3, commits=True)
        for name in (NAME, "b/1", "b/2"):
            driver.committed(driver.delete(name))
        assert isinstance(driver.committed(driver.fork("b/4", "b/3")), ConflictError)
        assert driver.content("b/3") == b"0123456789"

    def test_refusal_holds_nothing(self, driver):
        self.chain(driver, 3, commits=True)
        driver.committed(driver.fork("b/4", "b/3"))
        for name in ("b/3", "b/2", "b/1", NAME):
            driver.committed(driver.delete(name))
        assert not driver.shard.state.by_name
