"""The expiry queue: nothing is missed, nothing comes early, renewals cost nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.lifetimes import ExpiryQueue
from holdfast.engine.state import State
from holdfast.format.records import Kind, Record, StreamMeta, decode, encode, stream_number
from holdfast.testing import FakeClock
from tests.unit.engine.driver import FAILED, NAME, Driver, appended


class Streams:
    def __init__(self):
        self.state = State()
        self.queue = ExpiryQueue(self.state)

    def add(self, deadline_ms):
        number = stream_number(1, len(self.state.by_number))
        meta = StreamMeta(f"b/{number}", "text/plain", expires_at_ms=deadline_ms)
        index = number - stream_number(1, 0)
        stream = self.state.apply(Record(Kind.CREATE, number, 0, meta=meta), 1, index)
        self.queue.add(stream)
        return stream

    def remove(self, stream):
        self.state.apply(Record(Kind.EXPIRE, stream.number, 0), 2, 0)

    def due(self, now_ms):
        return self.queue.take_due(now_ms, 1000)


@pytest.fixture
def streams():
    return Streams()


def test_stream_comes_at_its_deadline_and_not_before(streams):
    stream = streams.add(100)
    assert streams.due(99) == []
    assert streams.due(100) == [stream]


def test_stream_without_deadline_never_comes(streams):
    streams.add(None)
    assert streams.due(2**62) == []


def test_stream_comes_once_for_each_time_it_was_added(streams):
    stream = streams.add(100)
    assert streams.due(100) == [stream]
    assert streams.due(101) == []
    streams.queue.add(stream)
    assert streams.due(102) == [stream]


def test_stream_that_is_gone_does_not_come(streams):
    streams.remove(streams.add(100))
    assert streams.due(102) == []


def test_no_more_come_than_are_asked_for(streams):
    expected = [streams.add(deadline_ms) for deadline_ms in range(5)]
    assert streams.queue.take_due(10, 3) == expected[:3]
    assert streams.queue.take_due(10, 3) == expected[3:]


def test_renewed_stream_comes_at_its_new_deadline(streams):
    stream = streams.add(100)
    stream.deadline_ms = 300
    assert streams.due(200) == []
    assert streams.due(299) == []
    assert streams.due(300) == [stream]


def test_soonest_comes_first(streams):
    late, soon, middle = streams.add(300), streams.add(100), streams.add(200)
    assert streams.due(1000) == [soon, middle, late]


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)))),
        max_size=8,
    )
)
def test_every_stream_comes_exactly_when_its_last_deadline_has_passed(plans):
    streams = Streams()
    renewals = []
    for deadline_ms, moves in plans:
        stream = streams.add(deadline_ms)
        renewals += [(at_ms, stream, by_ms) for at_ms, by_ms in moves]
    for now_ms in range(200):
        for at_ms, stream, by_ms in renewals:
            if at_ms == now_ms and not stream.gone:
                stream.deadline_ms += by_ms
        for stream in streams.due(now_ms):
            streams.remove(stream)
            assert stream.deadline_ms <= now_ms
        left = streams.state.by_number.values()
        assert all(stream.deadline_ms > now_ms for stream in left)


EXPIRE_BYTES = len(encode(Record(Kind.EXPIRE, 1, 1)))
ROUND_STREAMS_MAX = 500
MONTH_S = 30 * 24 * 3600


def kinds(driver):
    return [record.kind for batch in driver.log.batches for record in decode(batch.body)]


@pytest.fixture
def driver():
    """A stream that lives for 100 seconds after its last use, and expires between two sweeps."""
    driver = Driver()
    driver.clock.advance(0.5)
    driver.committed(driver.create(body=b"x", ttl_s=100))
    return driver


def published(driver):
    return driver.shard.state.by_name


class TestLateRenewal:
    @pytest.mark.parametrize("late_s", [0, 0.25])
    def test_it_does_not_bring_a_stream_back(self, driver, late_s):
        stream = driver.shard.find(NAME)
        driver.clock.advance(100 + late_s)
        driver.shard.lifetimes.renew(stream)
        assert not driver.exists()
        driver.clock.advance(1)
        driver.commit()
        assert published(driver) == {}
        assert kinds(driver) == [Kind.CREATE, Kind.EXPIRE]

    def test_it_does_not_while_the_removal_is_staged(self, driver):
        stream = driver.shard.find(NAME)
        driver.clock.advance(101)
        driver.shard.lifetimes.renew(stream)
        assert not driver.exists()
        driver.commit()
        assert published(driver) == {}
        assert kinds(driver) == [Kind.CREATE, Kind.EXPIRE]

    def test_it_does_not_after_the_removal_failed(self, driver):
        stream = driver.shard.find(NAME)
        driver.clock.advance(101)
        driver.shard.lifetimes.renew(stream)
        driver.answer(FAILED)
        driver.shard.lifetimes.renew(stream)
        driver.clock.advance(1)
        driver.commit()
        assert published(driver) == {}
        assert kinds(driver) == [Kind.CREATE, Kind.EXPIRE]


class TestFailedRemoval:
    def test_it_is_tried_again_though_nobody_asks(self, driver):
        driver.clock.advance(101)
        for _ in range(3):
            driver.answer(FAILED)
            assert NAME in published(driver)
            driver.clock.advance(1)
        driver.commit()
        assert published(driver) == {}
        assert kinds(driver) == [Kind.CREATE, Kind.EXPIRE]

    def test_failed_deletion_leaves_the_expiry_to_come(self, driver):
        driver.delete()
        driver.answer(FAILED)
        driver.clock.advance(101)
        driver.commit()
        assert published(driver) == {}
        assert kinds(driver) == [Kind.CREATE, Kind.EXPIRE]

    def test_it_is_tried_again_if_a_successor_failed_with_it(self, driver):
        driver.clock.advance(101)
        driver.create(body=b"successor")
        driver.answer(FAILED)
        driver.clock.advance(1)
        driver.commit()
        assert published(driver) == {}
        assert kinds(driver) == [Kind.CREATE, Kind.EXPIRE]

    def test_append_in_time_keeps_the_stream_until_it_fails(self, driver):
        driver.clock.advance(99)
        driver.append(b"y")
        driver.clock.advance(3)
        driver.answer(FAILED)
        driver.clock.advance(1)
        driver.commit()
        assert published(driver) == {}
        assert kinds(driver) == [Kind.CREATE, Kind.EXPIRE]

    def test_append_in_time_is_followed_by_another_expiry(self, driver):
        driver.clock.advance(99)
        ask = driver.append(b"y")
        driver.clock.advance(3)
        assert driver.committed(ask) == appended(2)
        driver.clock.advance(95)
        assert driver.exists()
        driver.clock.advance(3)
        driver.commit()
        assert published(driver) == {}


class CountingClock(FakeClock):
    """Knows how many bytes one call of the loop put into the open batches at most."""

    def __init__(self):
        super().__init__()
        self.pending_bytes = lambda: 0
        self.staged_bytes_max = 0

    def call_later(self, delay_s, call, *args):
        return super().call_later(delay_s, self._count, call, args)

    def _count(self, call, args):
        before = self.pending_bytes()
        call(*args)
        self.staged_bytes_max = max(self.staged_bytes_max, self.pending_bytes() - before)


class TestManyAtOnce:
    def make(self, count, **limits):
        clock = CountingClock()
        driver = Driver(clock=clock, **limits)
        for number in range(count):
            driver.create(f"b/{number}", ttl_s=100)
        driver.commit()
        clock.pending_bytes = lambda: driver.shard.commits.pending_bytes
        clock.staged_bytes_max = 0
        return driver

    @pytest.mark.parametrize("count", [499, 500, 501, 3000])
    def test_all_go_in_rounds(self, count):
        driver = self.make(count)
        driver.clock.advance(101)
        driver.commit()
        assert published(driver) == {}
        assert kinds(driver).count(Kind.EXPIRE) == count
        assert driver.shard.counters.expirations == count
        rounds_of = driver.clock.staged_bytes_max // EXPIRE_BYTES
        assert rounds_of == min(count, ROUND_STREAMS_MAX)

    def test_all_go_once_however_often_batches_fail(self):
        driver = self.make(1200, batch_bytes_max=300 * EXPIRE_BYTES)
        driver.clock.advance(101)
        for _ in range(3):
            driver.answer(FAILED)
            driver.clock.advance(1)
        driver.commit()
        driver.clock.advance(2)
        driver.commit()
        assert published(driver) == {}
        assert kinds(driver).count(Kind.EXPIRE) == 1200

    def test_rounds_stop_while_too_much_is_pending(self):
        driver = self.make(3000)
        most_bytes = driver.shard.commits.pending_bytes_max = 600 * EXPIRE_BYTES
        driver.clock.advance(101)
        pending_bytes = driver.shard.commits.pending_bytes
        assert most_bytes < pending_bytes <= most_bytes + ROUND_STREAMS_MAX * EXPIRE_BYTES
        for _ in range(10):
            driver.commit()
            driver.clock.advance(1)
        assert published(driver) == {}
        assert kinds(driver).count(Kind.EXPIRE) == 3000


def test_deleted_streams_do_not_pile_up_until_their_deadline():
    driver = Driver()
    for number in range(5000):
        driver.create(f"b/{number}", ttl_s=MONTH_S)
        driver.delete(f"b/{number}")
        driver.commit()
    assert published(driver) == {}
    assert len(driver.shard.lifetimes._queue) < 1100
    driver.create(ttl_s=100)
    driver.commit()
    driver.clock.advance(101)
    driver.commit()
    assert published(driver) == {}
