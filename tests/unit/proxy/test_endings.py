"""How responses end: with one terminal frame, whoever ends them, and in whatever order."""

from itertools import permutations

import pytest

from holdfast.errors import OutboundError, StreamClosedError
from holdfast.protocol.frames import decode_error
from tests.unit.engine.driver import COMMITTED, FAILED, UNKNOWN
from tests.unit.proxy.driver import ends_of


def last_error(proxy, stream_id):
    frame = proxy.frames(stream_id)[-1]
    assert frame.type == b"E"
    return decode_error(frame.payload)


@pytest.mark.spec("proxy 5.3-1", "proxy 9.2-2")
def test_complete(proxy):
    call = proxy.begun(piece=b"hello")
    proxy.end(call)
    proxy.commit()
    assert proxy.kinds(call.stream_id) == "S1 D1 C1"
    assert call.upstream.left
    assert proxy.outcomes == {"complete": 1}
    assert proxy.documents == {}
    assert not proxy.service._by_stream


@pytest.mark.spec("proxy 9.1-2", "proxy 9.2-2")
@pytest.mark.parametrize("late", [True, False])
def test_an_upstream_that_breaks_off(proxy, late):
    call = proxy.begun(piece=b"hello")
    proxy.send(call, b" there")
    proxy.do(call.upstream.fail, OutboundError("It broke.", late=late))
    proxy.commit()
    assert proxy.kinds(call.stream_id) == "S1 D1 D1 E1"
    assert proxy.body(call.stream_id) == b"hello there"
    said = last_error(proxy, call.stream_id)
    assert said.code == ("UPSTREAM_TIMEOUT" if late else "UPSTREAM_ERROR")
    assert proxy.outcomes == {"failed": 1}


@pytest.mark.spec("proxy 4.6-3", "proxy 4.6-4", "proxy 9.3-2")
def test_an_abort_writes_what_was_gathered_and_is_answered_once_that_is_durable(proxy):
    call = proxy.begun(piece=b"first")
    proxy.send(call, b" gathered")
    answers = proxy.abort(call.stream_id)
    assert call.upstream.left
    assert answers == []
    twice = proxy.abort(call.stream_id)
    proxy.commit()
    assert (answers, twice) == ([204], [204])
    assert proxy.kinds(call.stream_id) == "S1 D1 D1 A1"
    assert proxy.body(call.stream_id) == b"first gathered"
    assert proxy.abort(call.stream_id) == [204]
    assert proxy.outcomes == {"aborted": 1}


def test_an_abort_waits_until_the_log_takes_it(proxy):
    call = proxy.begun()
    answers = proxy.abort(call.stream_id)
    proxy.answer(FAILED)
    assert answers == []
    proxy.settle()
    assert answers == [204]
    assert proxy.kinds(call.stream_id) == "S1 A1"


@pytest.mark.spec("proxy 4.6-1", "proxy 4.6-3")
def test_an_abort_ends_all_or_one(proxy):
    session = proxy.session()
    calls = [proxy.begun(session) for _ in range(3)]
    assert proxy.abort(session, 7) == [204]
    one = proxy.abort(session, 2)
    proxy.commit()
    assert one == [204]
    assert [call.upstream.left for call in calls] == [False, True, False]
    waiting = proxy.post(session)
    rest = proxy.abort(session)
    proxy.commit()
    assert rest == [204]
    assert ends_of(proxy.frames(session)) == dict.fromkeys([1, 2, 3], b"A")
    # The one whose upstream had not answered has no frames at all.
    assert (waiting.slot.status, waiting.slot.code) == (502, "UPSTREAM_ERROR")
    assert waiting.upstream.left
    assert not proxy.service._by_stream


@pytest.mark.spec("proxy 4.6-3")
def test_an_abort_while_the_start_frame_is_on_its_way(proxy):
    session = proxy.session()
    call = proxy.begin(session, b"early")
    answers = proxy.abort(session)
    assert call.upstream.left
    assert answers == []
    proxy.commit()
    assert answers == [204]
    assert proxy.kinds(session) == "S1 A1"
    assert proxy.documents == {}
    assert not proxy.service._by_stream


def test_an_abort_of_a_start_frame_that_is_lost(proxy):
    session = proxy.session()
    call = proxy.begin(session)
    answers = proxy.abort(session)
    proxy.answer(FAILED)
    again = proxy.begun(session)
    assert again.slot.response_id == 1
    proxy.settle()
    assert answers == [204]
    assert call.slot.status == 502
    assert proxy.kinds(session) == "S1"
    assert proxy.outcomes == {}
    proxy.end(again)
    proxy.commit()
    assert proxy.kinds(session) == "S1 C1"
    assert proxy.documents == {}


def test_a_graceful_stop_ends_everything_with_an_error(proxy):
    session = proxy.session()
    open_, starting, waiting = (
        proxy.begun(session, b"x"),
        proxy.begin(session),
        proxy.post(session),
    )
    proxy.do(proxy.service.stop)
    proxy.commit()
    assert ends_of(proxy.frames(session)) == {1: b"E", 2: b"E"}
    assert "shutting down" in last_error(proxy, session).message
    assert all(call.upstream.left for call in (open_, starting, waiting))
    assert (waiting.slot.status, waiting.slot.field("Retry-After")) == (503, "1")
    late = proxy.post(session)
    assert late.slot.status == 503
    assert proxy.documents == {}


@pytest.mark.spec("proxy 4.9-2")
def test_closing_ends_all_responses_first(proxy):
    session = proxy.session()
    calls = [proxy.begun(session, b"some"), proxy.begin(session), proxy.post(session)]
    proxy.send(calls[0], b" more")
    closing = proxy.close_stream(session)
    proxy.commit()
    assert closing.outcome.closed
    assert ends_of(proxy.frames(session)) == {1: b"A", 2: b"A"}
    assert proxy.body(session, 1) == b"some more"
    assert all(call.upstream.left for call in calls)
    assert (proxy.documents, proxy.service._by_stream) == ({}, {})


def test_closing_while_the_log_is_tried_again(proxy):
    """What waits to be sent again goes ahead of the closure, or there is none."""
    call = proxy.begun(piece=b"some")
    proxy.send(call, b"x" * 5000)
    proxy.answer(FAILED)
    closing = proxy.close_stream(call.stream_id)
    proxy.commit()
    assert closing.outcome.closed
    assert ends_of(proxy.frames(call.stream_id)) == {1: b"A"}
    assert proxy.body(call.stream_id) == b"some" + b"x" * 5000


def test_no_stream_is_closed_while_its_responses_cannot_end(proxy):
    call = proxy.begun(piece=b"some")
    proxy.send(call, b"x" * 5000)
    proxy.answer(UNKNOWN, stored=False)
    refused = proxy.close_stream(call.stream_id)
    assert refused.outcome.retryable
    assert call.upstream.left
    proxy.answer(FAILED)
    closing = proxy.close_stream(call.stream_id)
    proxy.commit()
    assert closing.outcome.closed
    assert proxy.kinds(call.stream_id) == "S1 D1 D1 A1"
    assert proxy.body(call.stream_id) == b"some" + b"x" * 5000


@pytest.mark.spec("proxy 4.8-2")
def test_deleting_ends_the_upstreams(proxy):
    session = proxy.session()
    calls = [proxy.begun(session, b"some"), proxy.begin(session), proxy.post(session)]
    proxy.delete_stream(session)
    proxy.commit()
    assert all(call.upstream.left for call in calls)
    assert calls[2].slot.status == 404
    proxy.settle()
    assert (proxy.documents, proxy.service._by_stream) == ({}, {})
    assert proxy.outcomes.get("aborted", 0) == sum(proxy.outcomes.values()) <= 2


def test_a_new_stream_that_is_deleted_at_once(proxy):
    """Before whoever created it has heard of it."""
    call = proxy.begin()

    def create_and_delete():
        proxy.engine.log.answer(COMMITTED)
        proxy.engine.committed(proxy.engine.delete(f"_proxy/{call.stream_id}"))

    proxy.do(create_and_delete)
    assert call.upstream.left
    proxy.settle()
    assert (proxy.documents, proxy.service._by_stream) == ({}, {})


def test_data_while_a_deletion_is_on_its_way(proxy):
    call = proxy.begun(piece=b"some")
    proxy.send(call, b"x" * 5000)
    proxy.delete_stream(call.stream_id)
    proxy.send(call, b"y" * 5000)
    proxy.send(call, b"z" * 5000)
    proxy.commit()
    assert call.upstream.left
    assert proxy.outcomes == {"aborted": 1}
    assert (proxy.documents, proxy.service._by_stream) == ({}, {})


def test_a_deletion_that_fails_ends_nothing(proxy):
    call = proxy.begun(piece=b"some")
    proxy.delete_stream(call.stream_id)
    proxy.send(call, b"x" * 5000)
    proxy.send(call, b"y" * 5000)
    proxy.answer(FAILED)
    proxy.send(call, b"z")
    proxy.end(call)
    proxy.settle()
    assert ends_of(proxy.frames(call.stream_id)) == {1: b"C"}
    assert proxy.body(call.stream_id) == b"some" + b"x" * 5000 + b"y" * 5000 + b"z"


def test_a_stream_of_the_same_name_gets_nothing(proxy):
    session = proxy.session()
    old = proxy.begun(session, b"old")
    proxy.send(old, b"x" * 5000)
    proxy.delete_stream(session)
    proxy.engine.create(f"_proxy/{session}", "application/octet-stream")
    proxy.send(old, b"y" * 5000)
    proxy.commit()
    assert old.upstream.left
    new = proxy.begun(session, b"new")
    proxy.settle()
    assert new.slot.response_id == 1
    assert proxy.kinds(session) == "S1 D1"
    # Its own end is heard of as well.
    proxy.delete_stream(session)
    proxy.commit()
    assert new.upstream.left


def test_a_replacement_that_fails_ends_nothing(proxy):
    session = proxy.session()
    call = proxy.begun(session, b"some")
    proxy.delete_stream(session)
    proxy.engine.create(f"_proxy/{session}", "application/octet-stream")
    proxy.send(call, b"x" * 5000)
    proxy.answer(FAILED)
    proxy.end(call)
    proxy.settle()
    assert proxy.kinds(session) == "S1 D1 D1 C1"


def test_a_stream_that_expires(make_proxy):
    proxy = make_proxy(stream_ttl_s=10)
    silent, busy = proxy.begun(piece=b"x"), proxy.begun(piece=b"x")
    for _ in range(4):
        proxy.advance(4)
        proxy.send(busy, b"still here")
        proxy.commit()
    assert (silent.upstream.left, busy.upstream.left) == (True, False)
    assert not proxy.engine.exists(f"_proxy/{silent.stream_id}")
    proxy.end(busy)
    proxy.commit()
    assert ends_of(proxy.frames(busy.stream_id)) == {1: b"C"}


def test_a_full_bucket_ends_the_response_and_its_upstream(make_proxy):
    proxy = make_proxy(engine={"bucket_bytes_max": 1000})
    call = proxy.begun(piece=b"kept")
    proxy.send(call, b"x" * 200_000)
    assert call.upstream.left
    proxy.settle()
    assert proxy.kinds(call.stream_id) == "S1 D1 E1"
    assert proxy.body(call.stream_id) == b"kept"
    assert last_error(proxy, call.stream_id).code == "STORAGE_ERROR"
    assert (proxy.documents, proxy.service._by_stream) == ({}, {})


def test_a_response_that_is_too_long(make_proxy):
    proxy = make_proxy(response_bytes_max=10)
    call = proxy.begun(piece=b"0123456789")
    proxy.send(call, b"x")
    proxy.commit()
    assert proxy.body(call.stream_id) == b"0123456789"
    assert last_error(proxy, call.stream_id).code == "UPSTREAM_ERROR"
    assert call.upstream.left


# What ends a response, and the frame that comes of it if nothing else came first.
ENDS = {
    "end": (lambda proxy, call: call.upstream.end(), b"C"),
    "break": (lambda proxy, call: call.upstream.fail(OutboundError("It broke.")), b"E"),
    "abort": (lambda proxy, call: proxy.service.abort_all(call.stream_id), b"A"),
    "stop": (lambda proxy, call: proxy.service.stop(), b"E"),
}


@pytest.mark.spec("proxy 5.3-1")
@pytest.mark.parametrize("moment", ["at once", "in turn", "one commit in between", "a failure"])
@pytest.mark.parametrize("order", list(permutations(ENDS, 3)), ids="-".join)
def test_one_terminal_frame_whatever_ends_it(proxy, order, moment):
    call = proxy.begun(piece=b"some")
    proxy.send(call, b" gathered")
    if moment == "at once":

        def all_at_once():
            for name in order:
                ENDS[name][0](proxy, call)

        proxy.do(all_at_once)
    else:
        for name in order:
            proxy.do(ENDS[name][0], proxy, call)
            if moment != "in turn" and proxy.engine.log.under_way is not None:
                proxy.answer(COMMITTED if moment == "one commit in between" else FAILED)
    proxy.settle()
    [end] = ends_of(proxy.frames(call.stream_id)).values()
    if moment == "at once":
        # The upstream's words are heard a moment later than ours.
        ours = [name for name in order if name in {"abort", "stop"}]
        assert end == ENDS[ours[0]][1]
    else:
        assert end == ENDS[order[0]][1]
    assert proxy.body(call.stream_id) == b"some gathered"
    assert sum(proxy.outcomes.values()) == 1
    assert (proxy.documents, proxy.service._by_stream) == ({}, {})


def test_nothing_is_written_behind_a_closure(proxy):
    call = proxy.begun()
    proxy.close_stream(call.stream_id)
    proxy.commit()
    with pytest.raises(StreamClosedError):
        proxy.post(call.stream_id)
