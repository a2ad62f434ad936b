"""Lists of message lengths, and reads whose stream changes while boundaries are looked up."""

import json
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.http.read import list_lengths
from holdfast.protocol.headers import LENGTHS_BYTES_MAX
from tests.unit.engine.held_ends import HeldEnds
from tests.unit.engine.tiered import Tiered
from tests.unit.http.apps import Served

NAME = "demo/s"
STREAM = f"/v1/stream/{NAME}"


@given(
    st.integers(0, 10**12),
    st.lists(st.integers(1, 12) | st.integers(1, 10**9), max_size=1100),
)
def test_as_many_lengths_as_fit(start, lengths):
    ends = list(accumulate(lengths, initial=start))[1:]
    listed = list_lengths(start, ends)
    value = listed.value.decode()
    found = [] if value == "none" else [int(each) for each in value.split(",")]
    assert found == lengths[: len(found)]
    assert listed.end == start + sum(found)
    assert listed.is_cut == (len(found) < len(lengths))
    assert len(value) <= LENGTHS_BYTES_MAX
    if listed.is_cut:
        assert len(f"{value},{lengths[len(found)]}") > LENGTHS_BYTES_MAX


def test_a_list_can_be_just_as_long_as_it_may():
    ends = range(1, 1001)
    assert len(list_lengths(0, ends).value) == LENGTHS_BYTES_MAX - 1
    assert list_lengths(0, [*ends, 1011]).is_cut
    assert not list_lengths(0, ends).is_cut


@pytest.fixture
def served(tmp_path):
    """A text stream of three messages, all in packs."""
    engine = Tiered(tmp_path, streams_cached_max=1)
    engine.create(NAME, body=b"one")
    engine.append(b"three", NAME)
    engine.append(b"x", NAME)
    engine.flush()
    yield Served(engine)
    engine.close()


@pytest.mark.parametrize("query", ["lengths=true", "last=2", "last=2&lengths=true"])
def test_cold_read(served, query):
    slot = served.ask("GET", f"{STREAM}?{query}")
    served.engine.clock.run()
    assert slot.status == 200
    assert slot.body == (b"threex" if "last" in query else b"onethreex")


@pytest.fixture
def held(served):
    return HeldEnds(served.engine)


@pytest.mark.parametrize("query", ["lengths=true", "last=2", "last=2&live=sse"])
def test_stream_that_is_deleted_while_boundaries_are_looked_up(served, held, query):
    slot = served.ask("GET", f"{STREAM}?{query}")
    served.engine.delete(NAME)
    served.engine.commit()
    assert not slot.done
    held.release_all()
    assert (slot.status, slot.code) == (404, "stream_not_found")


def test_stream_that_is_deleted_and_stays_for_its_forks(served, held):
    served.engine.fork("demo/fork", NAME)
    served.engine.commit()
    slot = served.ask("GET", f"{STREAM}?last=1")
    served.engine.delete(NAME)
    served.engine.commit()
    held.release_all()
    assert (slot.status, slot.code) == (410, "stream_deleted")


def test_stream_that_is_another_one_by_then(served, held):
    slot = served.ask("GET", f"{STREAM}?last=1")
    served.engine.delete(NAME)
    served.engine.create(NAME, body=b"other")
    served.engine.commit()
    held.release_all()
    assert slot.status == 404


@pytest.mark.parametrize("swept", [0, 8])
def test_stream_that_is_trimmed_while_boundaries_are_looked_up(served, held, swept):
    counted = served.ask("GET", f"{STREAM}?lengths=true")
    last = served.ask("GET", f"{STREAM}?last=3&lengths=true")
    served.engine.publish(8, NAME)
    served.engine.commit()
    held.release_all(swept)
    assert counted.code == "offset_gone"
    assert last.body == b"x"
    assert last.fields["stream-start-offset"] == f"{8:020d}"
    assert last.fields["stream-message-lengths"] == "1"


def test_what_is_appended_meanwhile_is_for_the_next_read(served, held):
    slot = served.ask("GET", f"{STREAM}?lengths=true")
    served.engine.append(b"late", NAME)
    served.engine.commit()
    held.release_all()
    assert slot.body == b"onethreex"
    assert slot.fields["stream-message-lengths"] == "3,5,1"
    assert "stream-up-to-date" not in slot.fields


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_stream_that_leaves_memory_while_boundaries_are_looked_up(served, held, live):
    """Its reader follows the one that came back, or it would never be woken."""
    engine = served.engine
    first = engine.shard.find(NAME)
    slot = served.ask("GET", f"{STREAM}?last=1&live={live}")
    engine.state.evict(first)
    held.release_all()
    assert engine.shard.find(NAME) is not first
    assert slot.status == 200
    if live == "sse":
        engine.append(b"more", NAME)
        engine.commit()
        assert b"data:more" in slot.body


@pytest.mark.parametrize("query", ["lengths=true", "last=2", "last=1&live=sse&lengths=true"])
def test_client_that_leaves_meanwhile(served, held, query):
    slot = served.ask("GET", f"{STREAM}?{query}")
    slot.on_gone()
    held.release_all()
    assert slot.status == 0


def test_events_of_a_stream_that_is_deleted_between_bytes_and_boundaries(served, held):
    slot = served.ask("GET", f"{STREAM}?offset=-1&live=sse&lengths=true")
    served.engine.clock.run()
    served.engine.delete(NAME)
    served.engine.commit()
    held.release_all()
    assert (slot.status, slot.code) == (404, "stream_not_found")


def test_live_reads_are_refused_later_too(served, held):
    """A server may begin to shut down while boundaries are looked up."""
    slot = served.ask("GET", f"{STREAM}?last=1&live=sse")
    served.app.end_live_readers()
    held.release_all()
    assert slot.status == 503


def test_both_kinds_of_readers_share_their_events():
    served = Served()
    served.engine.committed(served.engine.create(NAME))
    slots = [
        served.ask("GET", f"{STREAM}?offset=-1&live=sse&lengths={lengths}")
        for lengths in ("true", "false", "true", "false")
    ]
    served.engine.append(b"abc", NAME)
    served.engine.append(b"de", NAME)
    served.engine.commit()
    served.engine.clock.run()
    events = [slot.pieces[-1] for slot in slots]
    assert events[0] is events[2]
    assert events[1] is events[3]
    controls = [json.loads(event.rpartition(b"data:")[2]) for event in events[:2]]
    assert controls[0].pop("streamMessageLengths") == [3, 2]
    assert controls[0] == controls[1]
    for one, other in pairwise(slots):
        assert ("stream-message-lengths" in one.fields) != (
            "stream-message-lengths" in other.fields
        )
