"""How responses begin: ids without gaps, whatever becomes of the Start frames."""

import pytest

from holdfast.errors import UpstreamError
from tests.unit.engine.driver import COMMIT_TIMEOUT_S, COMMITTED, FAILED, UNKNOWN
from tests.unit.proxy.driver import ends_of

STORAGE_ERROR = (502, "STORAGE_ERROR")


def refusal(call):
    return call.slot.status, call.slot.code


@pytest.mark.spec("proxy 4.2-11", "proxy 5.3-2")
def test_ids_count_from_one(proxy):
    first = proxy.begun()
    assert first.slot.response_id == 1
    assert first.slot.field("Upstream-Content-Type") == "text/plain"
    proxy.end(first)
    proxy.commit()
    assert [proxy.begun(first.stream_id).slot.response_id for _ in range(3)] == [2, 3, 4]
    assert proxy.kinds(first.stream_id) == "S1 C1 S2 S3 S4"
    other = proxy.begun()
    assert (other.slot.response_id, other.stream_id != first.stream_id) == (1, True)


@pytest.mark.spec("proxy 4.2-9")
def test_the_answer_comes_once_the_start_frame_is_durable(proxy):
    call = proxy.begin(piece=b"early")
    assert not call.slot.answered
    assert not proxy.engine.exists(f"_proxy/{call.stream_id}")
    proxy.answer(COMMITTED)
    assert call.slot.status == 201
    # What comes first of the body does not hold the answer up.
    assert proxy.kinds(call.stream_id) == "S1"


@pytest.mark.spec("proxy 5.3-2", "proxy 5.3-4")
def test_starts_at_the_same_time_have_ids_in_the_order_of_their_frames(proxy):
    session = proxy.session()
    calls = [proxy.post(session) for _ in range(5)]
    for call in (calls[3], calls[1], calls[4], calls[0], calls[2]):
        call.upstream.send(b"hello")
    proxy.commit()
    assert sorted(call.slot.response_id for call in calls) == [1, 2, 3, 4, 5]
    assert calls[3].slot.response_id == 1
    offsets = [int(call.slot.field("Stream-Start-Offset")) for call in calls]
    data = proxy.engine.read(f"_proxy/{session}")
    for call, offset in zip(calls, offsets, strict=True):
        assert data[offset : offset + 1] == b"S"
        assert data[offset + 4] == call.slot.response_id


@pytest.mark.spec("proxy 5.3-3")
def test_an_upstream_that_never_answers_well_takes_no_id(proxy):
    session = proxy.session()
    calls = [proxy.post(session) for _ in range(2)]
    calls[0].upstream.refuse(UpstreamError("Nobody is there."))
    proxy.commit()
    assert calls[0].slot.status == 502
    calls[1].upstream.end()
    proxy.commit()
    assert calls[1].slot.response_id == 1
    assert proxy.kinds(session) == "S1 C1"


def test_producers_take_turns_and_their_epochs_grow(proxy):
    session = proxy.session()
    for turn in range(3):
        one, two = proxy.begun(session), proxy.begun(session)
        proxy.end(two)
        proxy.commit()
        three = proxy.begun(session)
        for call in (one, three):
            proxy.end(call)
        proxy.commit()
        producers = proxy.shard.find(f"_proxy/{session}").producers
        assert {key: state.epoch for key, state in producers.items()} == {
            b"proxy-0": 2 * turn + 1,
            b"proxy-1": 4 * turn + 3,
        }
    assert set(ends_of(proxy.frames(session)).values()) == {b"C"}


def test_a_start_that_was_not_stored_takes_no_id(proxy):
    session = proxy.session()
    failed = proxy.begin(session, b"lost")
    proxy.answer(FAILED)
    assert refusal(failed) == STORAGE_ERROR
    assert failed.upstream.left
    again = proxy.begun(session)
    assert again.slot.response_id == 1
    proxy.end(again)
    proxy.settle()
    assert proxy.kinds(session) == "S1 C1"
    assert proxy.documents == {}
    assert proxy.outcomes == {"complete": 1}


def test_a_creation_that_was_not_stored_leaves_nothing(proxy):
    failed = proxy.begin()
    proxy.answer(FAILED)
    assert refusal(failed) == STORAGE_ERROR
    proxy.settle()
    assert not proxy.engine.exists(f"_proxy/{failed.stream_id}")
    assert (proxy.documents, proxy.outcomes) == ({}, {})


def test_a_refusal_for_want_of_room_leaves_no_gap(make_proxy):
    """Its answer waits for what was written before it, and others begin meanwhile."""
    proxy = make_proxy(engine={"bucket_bytes_max": 400})
    session = proxy.session()
    calls = [proxy.post(session) for _ in range(3)]
    calls[1].upstream.headers = {"x-long": "x" * 600}
    for call in calls:
        call.upstream.answered.set()
    proxy.run()
    proxy.commit()
    assert [call.slot.status for call in calls] == [200, 502, 200]
    assert proxy.kinds(session) == "S1 S2"
    assert [calls[0].slot.response_id, calls[2].slot.response_id] == [1, 2]
    restarted = proxy.restart()
    restarted.settle()
    assert ends_of(restarted.frames(session)) == {1: b"E", 2: b"E"}
    assert restarted.documents == {}


def unknown_start(proxy, stream_id, *, stored):
    """A Start frame of which nobody knows whether it is stored."""
    call = proxy.begin(stream_id, b"never recorded")
    proxy.answer(UNKNOWN, stored=stored)
    proxy.advance(COMMIT_TIMEOUT_S)
    assert refusal(call) == STORAGE_ERROR
    assert call.upstream.left
    return call


@pytest.mark.parametrize("stored", [True, False])
def test_a_start_of_unknown_outcome(proxy, stored):
    session = proxy.session()
    unknown_start(proxy, session, stored=stored)
    refused = proxy.begin(session)
    assert refusal(refused) == STORAGE_ERROR
    proxy.answer(COMMITTED if stored else FAILED)
    # Before whoever is in doubt has looked again.
    following = proxy.begun(session)
    proxy.end(following)
    proxy.settle()
    if stored:
        assert following.slot.response_id == 2
        assert ends_of(proxy.frames(session)) == {1: b"E", 2: b"C"}
        assert proxy.outcomes == {"complete": 1, "failed": 1}
    else:
        assert following.slot.response_id == 1
        assert proxy.kinds(session) == "S1 C1"
        assert proxy.outcomes == {"complete": 1}
    assert proxy.documents == {}
    assert not proxy.service._by_stream


@pytest.mark.parametrize("stored", [True, False])
def test_a_creation_of_unknown_outcome(proxy, stored):
    call = unknown_start(proxy, None, stored=stored)
    proxy.answer(COMMITTED if stored else FAILED)
    proxy.settle()
    if stored:
        assert proxy.kinds(call.stream_id) == "S1 E1"
    else:
        assert not proxy.engine.exists(f"_proxy/{call.stream_id}")
    assert proxy.documents == {}
    assert not proxy.service._by_stream


@pytest.mark.parametrize("stored", [True, False])
def test_a_crash_while_the_outcome_of_a_start_is_unknown(proxy, stored):
    session = proxy.session()
    unknown_start(proxy, session, stored=stored)
    again = proxy.restart()
    again.settle()
    assert again.kinds(session) == ("S1 E1" if stored else "")
    assert again.documents == {}
    assert again.begun(session).slot.response_id == (2 if stored else 1)


def test_a_start_waits_for_nothing_that_failed_before_it(proxy):
    """Two Start frames in two batches: if the first is lost so is the second."""
    session = proxy.session()
    first = proxy.begin(session)
    proxy.run()
    second = proxy.begin(session)
    proxy.answer(FAILED)
    assert refusal(first) == refusal(second) == STORAGE_ERROR
    assert proxy.begun(session).slot.response_id == 1


def test_a_stream_that_goes_away_while_its_upstream_is_asked(proxy):
    session = proxy.session()
    call = proxy.post(session)
    proxy.delete_stream(session)
    proxy.commit()
    assert (call.slot.status, call.slot.code) == (404, "STREAM_NOT_FOUND")
    assert call.upstream.left
    assert not proxy.service._by_stream


def test_a_stream_that_is_replaced_while_its_upstream_is_asked(proxy):
    """The new stream of the same name is not the one that the client meant."""
    session = proxy.session()
    call = proxy.post(session)
    proxy.delete_stream(session)
    proxy.engine.create(f"_proxy/{session}", "application/octet-stream")
    call.upstream.send(b"for the stream that was")
    proxy.run()
    proxy.commit()
    proxy.settle()
    assert call.slot.status == 404
    assert call.upstream.left
    assert proxy.kinds(session) == ""
    assert proxy.begun(session).slot.response_id == 1
