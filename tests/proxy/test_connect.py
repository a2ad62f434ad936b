"""Connect: the stream of a session, and who may see it."""

import re
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4, uuid5

import pytest

from tests.proxy.proxying import (
    check_error,
    ended,
    expired,
    expires_of,
    id_of,
    sign,
)

# As it was when the first sessions were made; it can never be another one.
NAMESPACE = UUID("6c1d2f0a-7f4e-5b1c-9a53-0d6e8b7f2a41")


@pytest.mark.spec("proxy 4.4-15", "proxy 4.4-1", "proxy 4.4-4", "proxy 8.1-1")
def test_the_answers_of_a_connect(proxy, server) -> None:
    session_id = uuid4().hex
    for status in (201, 200, 200):
        answer = proxy.connect(session_id)
        assert answer.status_code == status
        assert answer.content == b""
        assert answer.headers["content-length"] == "0"
        assert answer.headers["cache-control"] == "no-store"
        assert not answer.headers.keys() & {"upstream-content-type", "stream-response-id"}
        location = answer.headers["location"]
        stream_id, expires = id_of(location), expires_of(location)
        assert location == f"{server.url}/v1/proxy/{stream_id}?{sign(stream_id, expires)}"
    read = proxy.client.get(location)
    assert (read.status_code, read.content) == (200, b"")
    assert read.headers["content-type"] == "application/octet-stream"
    assert read.headers["stream-next-offset"] == "0" * 20


@pytest.mark.spec("proxy 4.4-6", "proxy 4.4-7", "proxy 4.4-8", "proxy 13.7-1")
@pytest.mark.parametrize("session_id", ["a", "chat/42?x=1&y", "x" * 1024, "sitzung äöü", "会话"])
def test_ids_follow_from_those_of_sessions(proxy, session_id) -> None:
    answer = proxy.connect(session_id.encode())
    assert id_of(answer.headers["location"]) == str(uuid5(NAMESPACE, session_id))


@pytest.mark.spec("proxy 4.4-6")
def test_sessions_do_not_share_streams(proxy) -> None:
    ids = [id_of(proxy.connected(each)) for each in ("Session", "session", "session2", "ses sion")]
    assert len(set(ids)) == 4


@pytest.mark.spec("proxy 4.4-16", "proxy 4.5-8", "proxy 4.5-9")
def test_connecting_again_renews_an_expired_url(proxy, upstream) -> None:
    session_id = uuid4().hex
    location = proxy.connected(session_id)
    proxy.appended(location, upstream.url("/fixed", body="hello"))
    error = check_error(proxy.client.get(expired(location)), 401, "SIGNATURE_EXPIRED")
    assert error["renewable"] is True
    frames = proxy.frames(proxy.connected(session_id))
    assert frames[1].payload == b"hello"


@pytest.mark.spec("proxy 4.4-15")
def test_only_one_of_many_at_once_creates(proxy) -> None:
    session_id = uuid4().hex
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: proxy.connect(session_id), range(16)))
    assert sorted(each.status_code for each in answers) == [200] * 15 + [201]
    assert len({id_of(each.headers["location"]) for each in answers}) == 1


@pytest.mark.spec("proxy 4.4-2", "proxy 4.4-5", "proxy 4.4-9", "proxy 6.1-7", "proxy 4.4-14")
@pytest.mark.parametrize("method", [None, "GET", "nonsense"])
def test_what_the_endpoint_is_asked(proxy, upstream, method) -> None:
    headers = {
        "Upstream-URL": upstream.url("/auth", a="b"),
        "Upstream-Authorization": "Bearer the user's",
        "Content-Type": "application/x-ticket",
        "Cookie": "user=1",
        "X-Forwarded-For": "192.0.2.7",
    }
    if method is not None:
        headers["Upstream-Method"] = method
    answer = proxy.connect(headers=headers, content=b"a ticket")
    assert (answer.status_code, answer.content) == (201, b"")
    asked = upstream.next()
    assert (asked.method, asked.target, asked.body) == ("POST", "/auth?a=b", b"a ticket")
    assert asked.header("Stream-Id") == id_of(answer.headers["location"])
    assert asked.header("Authorization") == "Bearer the user's"
    assert asked.header("Content-Type") == "application/x-ticket"
    assert asked.header("Cookie") == "user=1"
    assert asked.header("X-Forwarded-For") == "192.0.2.7"
    assert not asked.values("Session-Id")


@pytest.mark.spec("proxy 4.4-9", "proxy 6.1-7")
def test_nobody_else_says_which_stream_it_is(proxy, upstream) -> None:
    other = id_of(proxy.connected())
    for name in ("Stream-Id", "stream-id", "STREAM-ID"):
        headers = {"Upstream-URL": upstream.url("/auth"), name: other}
        answer = proxy.connect(headers=headers)
        asked = upstream.next()
        assert asked.values("stream-id") == [id_of(answer.headers["location"])] != [other]


@pytest.mark.spec("proxy 4.4-10", "proxy 4.4-11", "proxy 12.2-1")
@pytest.mark.parametrize("status", [301, 302, 304, 307, 400, 401, 403, 404, 429, 500, 503])
def test_sessions_that_are_not_approved(proxy, upstream, status) -> None:
    session_id = uuid4().hex
    headers = {"Upstream-URL": upstream.url("/auth", status=status, header="Location: /auth")}
    answer = proxy.connect(session_id, headers=headers)
    error = check_error(answer, 401, "CONNECT_REJECTED")
    assert "of no interest" not in error["message"]
    assert "location" not in answer.headers
    assert len(upstream.requests) == 1
    assert str(uuid5(NAMESPACE, session_id)) not in proxy.streams()


@pytest.mark.spec("proxy 4.4-10")
@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_approves(proxy, upstream, status) -> None:
    headers = {"Upstream-URL": upstream.url("/auth", status=status)}
    assert proxy.connect(headers=headers).status_code == 201


@pytest.mark.spec("proxy 4.4-10")
def test_endpoints_that_cannot_be_asked_do_not_approve(proxy, upstream) -> None:
    raw = upstream.url("/raw", body="SSH-2.0-test\r\n")
    cut = "http://127.0.0.1:9/"
    for url in (raw, cut):
        check_error(proxy.connect(headers={"Upstream-URL": url}), 401, "CONNECT_REJECTED")


@pytest.mark.spec("proxy 4.4-10", "proxy 4.4-16")
def test_a_session_can_be_refused_later(proxy, upstream) -> None:
    """The stream stays as it is, and the URL that was given is good until it expires."""
    session_id = uuid4().hex
    location = proxy.connected(session_id)
    proxy.appended(location, upstream.url("/fixed", body="x"))
    before = proxy.frames(location)
    answer = proxy.connect(session_id, headers={"Upstream-URL": upstream.url("/auth", status=403)})
    check_error(answer, 401, "CONNECT_REJECTED")
    assert proxy.frames(location) == before


@pytest.mark.spec("proxy 4.4-11")
def test_the_stream_is_not_there_before_the_endpoint_approves(proxy, upstream) -> None:
    session_id = uuid4().hex
    stream_id = str(uuid5(NAMESPACE, session_id))
    headers = {"Upstream-URL": upstream.url("/auth", gate="headers")}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(proxy.connect, session_id, headers=headers)
        asked = upstream.next()
        assert proxy.client.head(f"/v1/proxy/{stream_id}", headers=proxy.service).status_code == 404
        asked.release_all()
        assert answer.result().status_code == 201
    assert proxy.client.head(f"/v1/proxy/{stream_id}", headers=proxy.service).status_code == 200


@pytest.mark.spec("proxy 4.4-14")
def test_the_endpoints_answer_is_discarded(proxy, upstream) -> None:
    """Not even an endless one is waited for."""
    url = upstream.url("/bytes", count=10, piece=5, after=1, end="silent")
    answer = proxy.connect(headers={"Upstream-URL": url})
    assert (answer.status_code, answer.content) == (201, b"")
    upstream.next().wait_for_disconnect()
    assert proxy.now(answer.headers["location"]) == []


@pytest.mark.spec("proxy 4.4-3")
@pytest.mark.parametrize("url", ["http://192.0.2.1/auth", "nonsense", "https://127.0.0.1/auth"])
def test_endpoints_that_are_not_allowed(proxy, url) -> None:
    session_id = uuid4().hex
    check_error(
        proxy.connect(session_id, headers={"Upstream-URL": url}), 403, "UPSTREAM_NOT_ALLOWED"
    )
    assert str(uuid5(NAMESPACE, session_id)) not in proxy.streams()


def test_a_closed_session_can_be_read(proxy) -> None:
    session_id = uuid4().hex
    proxy.close(proxy.connected(session_id))
    answer = proxy.connect(session_id)
    assert answer.status_code == 200
    read = proxy.client.get(answer.headers["location"])
    assert read.headers["stream-closed"] == "true"


def test_a_deleted_session_starts_again(proxy, upstream) -> None:
    session_id = uuid4().hex
    location = proxy.connected(session_id)
    proxy.appended(location, upstream.url("/fixed", body="x"))
    proxy.frames(location, ended(1))
    assert proxy.client.delete(location, headers=proxy.service).status_code == 204
    answer = proxy.connect(session_id)
    assert answer.status_code == 201
    assert proxy.now(answer.headers["location"]) == []
    assert proxy.appended(answer.headers["location"], upstream.url()) == 1


@pytest.mark.spec("proxy 13.7-1")
def test_the_session_is_not_told_to_readers(proxy, upstream) -> None:
    session_id = "a-secret-conversation"
    answer = proxy.connect(session_id)
    proxy.appended(answer.headers["location"], upstream.url("/echo"))
    read = proxy.client.get(answer.headers["location"])
    for text in (str(answer.headers), str(read.headers), read.text):
        assert not re.search(session_id, text)
