"""Create: an upstream's response in a stream of its own."""

import time
from uuid import UUID

import pytest

from tests.proxy.proxying import (
    PATH,
    body_of,
    check_error,
    ended,
    expires_of,
    frames_of,
    id_of,
    kinds_of,
    sign,
)
from tests.upstreams import Upstream, pattern


@pytest.mark.spec("proxy 4.2-8", "proxy 4.2-11", "proxy 8.1-1", "proxy 8.2-1", "proxy 13.2-1")
def test_the_answer_of_a_create(proxy, server, upstream) -> None:
    before_s = int(time.time())
    answer = proxy.create(upstream.url("/fixed", body="hello", type="text/x-story; a=b"))
    after_s = int(time.time())
    assert answer.status_code == 201
    assert answer.content == b""
    assert answer.headers["content-length"] == "0"
    assert answer.headers["upstream-content-type"] == "text/x-story; a=b"
    assert answer.headers["stream-response-id"] == "1"
    assert answer.headers["stream-start-offset"] == "0" * 20
    assert answer.headers["cache-control"] == "no-store"
    assert "upstream-status" not in answer.headers
    location = answer.headers["location"]
    stream_id, expires = id_of(location), expires_of(location)
    assert location == f"{server.url}{PATH}/{stream_id}?{sign(stream_id, expires)}"
    assert before_s + 86_400 <= expires <= after_s + 86_400


@pytest.mark.spec("proxy 3-2")
def test_ids_of_streams_are_random(proxy, upstream) -> None:
    ids = {id_of(proxy.created(upstream.url())) for _ in range(3)}
    assert len(ids) == 3
    assert {UUID(each).version for each in ids} == {4}
    assert all(str(UUID(each)) == each for each in ids)


def test_the_location_is_as_the_client_knows_the_server(proxy, upstream) -> None:
    headers = {"Host": "streams.example:8443"}
    location = proxy.created(upstream.url(), headers=headers)
    assert location.startswith(f"http://streams.example:8443{PATH}/")


def test_the_location_starts_with_the_public_url(strict, upstream) -> None:
    location = strict.created(upstream.url())
    assert location.startswith(f"https://streams.example/base{PATH}/")
    assert strict.connected().startswith(f"https://streams.example/base{PATH}/")


@pytest.mark.spec("proxy 4.2-10", "proxy 5.2-6", "proxy 5.2-8", "proxy 9.2-2")
def test_the_response_is_recorded(proxy, upstream) -> None:
    frames = proxy.recorded(upstream.url("/bytes", count=300_000))
    assert kinds_of(frames) == "SDC"
    assert body_of(frames) == pattern(300_000)
    assert max(len(each.payload) for each in frames) <= 65_536


@pytest.mark.spec("proxy 4.2-9")
def test_the_answer_comes_before_the_body(proxy, upstream) -> None:
    answer = proxy.create(upstream.url("/bytes", count=30, piece=10, gate=1))
    assert answer.status_code == 201
    location, request = answer.headers["location"], upstream.next()
    assert request.sent == 0
    for sent in range(3):
        assert body_of(proxy.now(location)) == pattern(10 * sent)
        assert not ended(1)(proxy.now(location))
        request.release()
        frames = proxy.frames(location, lambda frames, size=10 * sent + 10: has(frames, size))
        assert body_of(frames) == pattern(10 * sent + 10)
    request.release()
    assert kinds_of(proxy.frames(location)) == "SDC"


def has(frames, size: int) -> bool:
    return len(body_of(frames)) == size


@pytest.mark.spec("proxy 4.2-8")
def test_the_start_frame_is_durable_with_the_answer(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/bytes", count=1, gate=1))
    (frame,) = frames_of(proxy.client.get(location).content)
    assert (frame.type, frame.response_id) == ("S", 1)
    upstream.next().release_all()


@pytest.mark.spec("proxy 5.2-6")
@pytest.mark.parametrize("query", [{}, {"framing": "chunked"}, {"status": 204}])
def test_responses_without_a_body_have_no_data(proxy, upstream, query) -> None:
    answer = proxy.create(upstream.url("/fixed", **query))
    assert answer.status_code == 201
    frames = proxy.frames(answer.headers["location"])
    assert [each.type for each in frames] == ["S", "C"]
    assert frames[0].json["status"] == query.get("status", 200)


@pytest.mark.parametrize("status", [200, 201, 202, 206, 226, 299])
def test_every_2xx_is_a_success(proxy, upstream, status) -> None:
    frames = proxy.recorded(upstream.url("/fixed", body="x", status=status))
    assert frames[0].json["status"] == status
    assert body_of(frames) == b"x"


def test_interim_responses_are_passed_over(proxy, upstream) -> None:
    frames = proxy.recorded(upstream.url("/fixed", body="x", early=103))
    assert frames[0].json["status"] == 200
    assert body_of(frames) == b"x"


def test_without_a_content_type_there_is_none_to_tell(proxy, upstream) -> None:
    raw = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi"
    answer = proxy.create(upstream.url("/raw", body=raw))
    assert answer.headers.get("upstream-content-type", "") == ""
    frames = proxy.frames(answer.headers["location"])
    assert frames[0].json == {"status": 200, "headers": {"content-length": "2"}}


@pytest.mark.spec("proxy 4.2-3")
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "get", "Post"])
def test_methods(proxy, upstream, method) -> None:
    assert proxy.create(upstream.url(), method).status_code == 201
    assert upstream.next().method == method.upper()


@pytest.mark.spec("proxy 4.2-3")
@pytest.mark.parametrize(
    "method", ["HEAD", "OPTIONS", "CONNECT", "TRACE", "LIST", "GET, POST", "*"]
)
def test_other_methods_are_refused(proxy, upstream, method) -> None:
    check_error(proxy.create(upstream.url(), method), 400, "INVALID_UPSTREAM_METHOD")
    assert not upstream.requests


@pytest.mark.spec("proxy 4.2-1", "proxy 4.2-2", "proxy 7-1", "proxy 13.1-1")
@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1:{port}/fixed",
        "http://127.0.0.2:{port}/fixed",
        "http://localhost:{port}/fixed",
        "http://example.com/",
        "http://user:password@127.0.0.1:{port}/fixed",
        "http://0x7f.0.0.1:{port}/fixed",
        "http://2130706433:{port}/fixed",
        "http://[::ffff:127.0.0.1]:{port}x/fixed",
        "http://127.0.0.1:{port}/a/../fixed",
        "http://127.0.0.1:{port}#@example.com/fixed",
        "http://127.0.0.1:99999/",
        "ftp://127.0.0.1:{port}/fixed",
        "file:///etc/hostname",
        "//127.0.0.1:{port}/fixed",
        "127.0.0.1:{port}/fixed",
        "/fixed",
        "fixed",
        "http://",
        "http:///fixed",
    ],
)
def test_urls_that_are_none_or_not_allowed(proxy, upstream, url) -> None:
    answer = proxy.create(url.format(port=upstream.port), "GET")
    check_error(answer, 403, "UPSTREAM_NOT_ALLOWED")
    assert not upstream.requests


def test_a_url_that_cannot_be_connected_to(proxy) -> None:
    with Upstream() as gone:
        url = gone.url()
    error = check_error(proxy.create(url), 502, "UPSTREAM_ERROR")
    assert "cannot be connected to" in error["message"]
