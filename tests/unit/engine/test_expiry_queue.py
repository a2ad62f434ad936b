"""The expiry queue: nothing is missed, nothing comes early, renewals cost nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.expiry import ExpiryQueue
from holdfast.engine.state import State
from holdfast.format.records import Kind, Record, StreamMeta, stream_number


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
