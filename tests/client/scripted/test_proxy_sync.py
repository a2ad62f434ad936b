"""The proxy for code that is not async: the same as behind it."""

import pytest

from holdfast.client import Outcome, StartInfo
from holdfast.client.sync import SyncProxyResponse, SyncProxySession
from holdfast.errors import UpstreamError
from tests.client.scripted.proxying import HEADERS, ProxyServer, data, refusal, start
from tests.client.scripted.server import answer
from tests.client.scripted.test_proxy_following import BODY, EVENTS, FRAMES, served
from tests.client.scripted.test_proxy_requests import APPENDED, CREATED, SIGNED, UPSTREAM
from tests.client.scripted.test_proxy_sessions import Conversation
from tests.client.scripted.test_sync_face import scripted_sync


def test_create_append_and_the_rest():
    script = (CREATED, APPENDED, answer(204), answer(200, stream_next_offset="5"), answer(204))
    with scripted_sync(*script) as (server, client):
        proxy = client.proxy
        assert proxy.url == server.url + "/v1/proxy"
        response = proxy.create(UPSTREAM, body={"a": 1})
        assert isinstance(response, SyncProxyResponse)
        assert response.url == server.url + SIGNED
        assert response.content_type == "text/event-stream"
        assert proxy.append(response.url, UPSTREAM).response_id == 7
        proxy.abort(response.url)
        assert proxy.head(response.stream_id).next_offset == "5"
        proxy.delete(response.stream_id)
        methods = ["POST", "POST", "PATCH", "HEAD", "DELETE"]
        assert [request.method for request in server.requests] == methods
        for each in (proxy, response):
            assert "s3cr3t" not in repr(each)


def test_following():
    with scripted_sync(handler=served(answer_bytes=30)) as (server, client):
        url = server.url + server.handler.url()
        with client.proxy.follow(url, 2) as reading:
            assert reading.start() == StartInfo(201, HEADERS)
            assert b"".join(reading.bytes()) == BODY
        assert reading.outcome is Outcome.COMPLETE
        assert reading.response_id == 2
        assert client.proxy.follow(url, 2, state=reading.state).read() == b""
        assert list(client.proxy.follow(url, 2).events()) == EVENTS
        with client.proxy.frames(url, live=False) as frames:
            assert {frame.response_id for frame, _ in frames} == {1, 2, 3}
        assert frames.offset == f"{len(b''.join(FRAMES)):020d}"
        assert not frames.closed
        assert list(client.proxy.frames(url, live=False, state=frames.state)) == []


def test_that_stops_early_ends_its_connection():
    with scripted_sync(handler=ProxyServer(start(), data(b"half"))) as (server, client):
        with client.proxy.follow(server.url + server.handler.url()) as reading:
            assert next(reading.bytes()) == b"half"
        assert reading.outcome is Outcome.OPEN


def test_sessions():
    with scripted_sync(handler=Conversation()) as (server, client):
        session = client.proxy.connect("chat")
        assert isinstance(session, SyncProxySession)
        assert (session.session_id, session.created) == ("chat", False)
        response = session.request(UPSTREAM, body="hello")
        assert response.follow().read() == b"hello"
        server.handler.expire()
        assert session.follow(response.response_id).read() == b"hello"
        assert len(list(session.frames(live=False))) == 3
        session.abort()
        assert session.renew() == session.url
        assert session.stream_id == response.stream_id


def test_errors_are_the_same():
    with scripted_sync(refusal(502, "UPSTREAM_ERROR")) as (_, client):
        with pytest.raises(UpstreamError):
            client.proxy.create(UPSTREAM)
