"""After a crash: every response that was under way ends, whatever the crash has left of it."""

import pytest

from holdfast.protocol.frames import DATA, decode_error, encode_frame, encode_start
from holdfast.protocol.producer import Producer
from tests.unit.engine.driver import COMMITTED, FAILED, UNKNOWN
from tests.unit.proxy.driver import body_of, ends_of, parse

# Every record is a batch of its own, so that a crash may come between any two.
SINGLE = {"batch_bytes_max": 1}


def name_of(call):
    return f"_proxy/{call.stream_id}"


@pytest.mark.spec("proxy 5.3-1")
def test_a_response_under_way_ends_with_an_error(proxy):
    session = proxy.session()
    ended, open_ = proxy.begun(session, b"one"), proxy.begun(session, b"two")
    proxy.end(ended)
    proxy.commit()
    proxy.send(open_, b" gathered, and lost")
    again = proxy.restart()
    again.commit()
    assert again.kinds(session) == "S1 D1 S2 D2 C1 E2"
    said = decode_error(again.frames(session)[-1].payload)
    assert (said.code, said.message) == (
        "UPSTREAM_ERROR",
        "The server ended before the upstream's response did.",
    )
    assert (again.documents, again.service._by_stream) == ({}, {})
    assert again.outcomes == {"failed": 1}
    assert again.begun(session).slot.response_id == 3


def test_a_document_without_a_start_frame(make_proxy):
    proxy = make_proxy(engine=SINGLE)
    session = proxy.session()
    appended, created = proxy.begin(session), proxy.begin()
    proxy.answer(COMMITTED)
    assert len(proxy.documents) == 1
    again = proxy.restart()
    again.commit()
    assert again.kinds(session) == ""
    assert not again.engine.exists(name_of(created))
    assert again.documents == {}
    assert not appended.slot.answered
    assert again.begun(session).slot.response_id == 1


def test_a_response_that_has_ended_and_whose_document_is_left(make_proxy):
    proxy = make_proxy(engine=SINGLE)
    call = proxy.begun(piece=b"some")
    proxy.end(call)
    proxy.answer(COMMITTED)
    assert ends_of(proxy.frames(call.stream_id)) == {1: b"C"}
    assert len(proxy.documents) == 1
    again = proxy.restart()
    again.commit()
    assert again.kinds(call.stream_id) == "S1 D1 C1"
    assert (again.documents, again.outcomes) == ({}, {})


def test_a_document_that_another_response_uses_now(make_proxy):
    """Its removal failed, and the next response took its place."""
    proxy = make_proxy(engine=SINGLE)
    session = proxy.session()
    first = proxy.begun(session)
    proxy.end(first)
    proxy.answer(COMMITTED)
    proxy.answer(FAILED)
    second = proxy.begun(session, b"x")
    assert len(proxy.documents) == 1
    again = proxy.restart()
    again.commit()
    assert ends_of(again.frames(session)) == {1: b"C", 2: b"E"}
    assert second.slot.response_id == 2
    assert again.documents == {}


@pytest.mark.parametrize("how", ["deleted", "replaced", "replaced and in use", "closed"])
def test_a_document_whose_stream_takes_no_more(proxy, how):
    session = proxy.session()
    proxy.begun(session, b"x")
    name = f"_proxy/{session}"
    # A server that knows nothing of the proxy.
    other = proxy.engine.restart()
    if how == "closed":
        other.append(name=name, close=True)
    else:
        other.delete(name)
    if how.startswith("replaced"):
        other.create(name, "application/octet-stream")
    if how == "replaced and in use":
        # As the proxy would, but for the document, which it would replace.
        body = encode_start(1, 200, {}) + encode_frame(DATA, 1, b"x")
        other.append(body, name, "application/octet-stream", producer=Producer(b"proxy-0", 0, 0))
    other.commit()
    assert list(other.shard.documents.items("proxy/"))
    proxy.engine.log.batches[:] = other.log.batches
    again = proxy.restart()
    again.settle()
    if how == "deleted":
        assert not again.engine.exists(name)
    else:
        kinds = {"replaced": "", "replaced and in use": "S1 D1", "closed": "S1 D1"}
        assert again.kinds(session) == kinds[how]
    assert again.documents == {}


@pytest.mark.parametrize("outcome", ["lost", "failed", "unknown, stored", "unknown, lost"])
def test_recovery_that_does_not_succeed_at_once(proxy, outcome):
    calls = [proxy.begun(piece=b"x") for _ in range(3)]
    again = proxy.restart()
    again.run()
    if outcome == "lost":
        for _ in range(3):
            again = again.restart()
    elif outcome == "failed":
        again.answer(FAILED)
        again.advance(0.15)
        again.answer(FAILED)
    else:
        stored = outcome == "unknown, stored"
        again.answer(UNKNOWN, stored=stored)
        again.advance(20)
        again.answer(COMMITTED if stored else FAILED)
    # New responses do not wait for that.
    more = again.begin(calls[0].stream_id)
    again.settle()
    assert more.slot.response_id == 2
    for call in calls:
        assert ends_of(again.frames(call.stream_id))[1] == b"E"
    assert len(again.documents) == 1
    final = again.restart()
    final.commit()
    assert ends_of(final.frames(calls[0].stream_id)) == {1: b"E", 2: b"E"}
    assert final.documents == {}


def test_an_abort_after_a_crash_waits_for_the_error_frame(proxy):
    call = proxy.begun()
    again = proxy.restart()
    answers = again.abort(call.stream_id)
    assert answers == []
    again.commit()
    assert answers == [204]
    assert again.kinds(call.stream_id) == "S1 E1"


def story(proxy):
    """Some of everything; one step at a time."""
    session = proxy.session()
    first = proxy.begin(session, b"1" * 5000)
    yield
    second = proxy.begin(session, b"2")
    yield
    created = proxy.begin(None, b"3" * 5000)
    proxy.send(first, b"1" * 3)
    yield
    proxy.end(first)
    third = proxy.begin(session, b"4")
    yield
    proxy.abort(session, 2)
    yield
    proxy.end(created)
    proxy.send(third, b"4" * 9000)
    yield
    proxy.begin(created.stream_id, b"5")
    proxy.close_stream(created.stream_id)
    yield
    other = proxy.session("other")
    proxy.begin(other, b"6" * 5000)
    yield
    proxy.delete_stream(other)
    yield
    second.upstream.end()
    proxy.begin(session)
    yield


@pytest.mark.parametrize("stored", [True, False])
def test_a_crash_behind_every_batch(make_proxy, stored):
    """As many batches as one likes are stored; then all that was promised is there, and ends."""
    batches = 0
    while True:
        proxy = make_proxy(engine=SINGLE)
        proxy.session("other")
        is_over = run_story(proxy, batches)
        seen = {name: proxy.engine.read(name) for name in proxy.shard.names("_proxy/")}
        again = proxy.restart(stored=stored)
        again.commit()
        for name in again.shard.names("_proxy/"):
            data = again.engine.read(name)
            assert data.startswith(seen.get(name, b""))
            frames = parse(data)
            ends = ends_of(frames)
            assert None not in ends.values(), (batches, name)
            for response_id, end in ends.items():
                check_body(body_of(frames, response_id), end)
        assert again.documents == {}
        assert not again.service._by_stream
        if is_over:
            break
        batches += 1
    assert batches > 30


def run_story(proxy, batches):
    """Tell the story until so many batches are stored; whether that was all of it."""
    log = proxy.engine.log
    wanted = len(log.batches) + batches
    try:
        for _ in story(proxy):
            while log.under_way is not None and len(log.batches) < wanted:
                proxy.answer(COMMITTED)
            if len(log.batches) >= wanted:
                return False
    except AssertionError:
        # Somebody waits for the log, which says nothing any more.
        assert len(log.batches) >= wanted
        return False
    return True


def check_body(body, end):
    """A part of what an upstream said: one digit, over and over."""
    assert len(set(body)) <= 1
    if end == b"C":
        assert len(body) in {5000, 5003}
