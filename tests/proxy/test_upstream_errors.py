"""Upstreams that refuse, redirect or break off before there is a response."""

import pytest

from tests.proxy.proxying import check_error, ended, kinds_of
from tests.upstreams import Reply


@pytest.mark.spec("proxy 4.2-12", "proxy 4.2-14", "proxy 12.4-1")
@pytest.mark.parametrize(
    "status", [400, 401, 403, 404, 409, 418, 422, 429, 500, 502, 503, 529, 599]
)
def test_errors_are_passed_on(proxy, upstream, status) -> None:
    before = proxy.streams()
    url = upstream.url("/error", status=status, header=["Retry-After: 3", "Set-Cookie: a=b"])
    answer = proxy.create(url)
    assert answer.status_code == 502
    assert answer.headers["upstream-status"] == str(status)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"error": {"type": "test_error", "message": ""}}
    assert answer.headers["cache-control"] == "no-store"
    assert not answer.headers.keys() & {"location", "stream-response-id", "set-cookie"}
    assert proxy.streams() == before


@pytest.mark.spec("proxy 4.2-12")
def test_errors_of_any_type(proxy, upstream) -> None:
    url = upstream.url("/fixed", status=500, body="<h1>oh</h1>", type="text/html; charset=utf-8")
    answer = proxy.create(url)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.content == b"<h1>oh</h1>"


@pytest.mark.spec("proxy 4.2-12")
def test_errors_without_a_body_or_a_type(proxy, upstream) -> None:
    raw = "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    answer = proxy.create(upstream.url("/raw", body=raw))
    assert (answer.status_code, answer.headers["upstream-status"]) == (502, "503")
    assert answer.content == b""


@pytest.mark.spec("proxy 4.2-13", "proxy 13.5-1")
@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 1_000_000])
@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_long_errors_are_cut(proxy, upstream, size, encoding) -> None:
    url = upstream.url("/fixed", status=500, encoding=encoding)
    upstream.routes["/fixed"] = lambda _request: Reply(b"x" * size, framing="chunked")
    answer = proxy.create(url)
    assert answer.headers["upstream-status"] == "500"
    assert answer.content == b"x" * min(size, 65_536)


@pytest.mark.spec("proxy 4.2-13")
def test_endless_errors_are_not_read_to_their_end(proxy, upstream) -> None:
    url = upstream.url("/bytes", count=1 << 30, delay_ms=1, status=500)
    answer = proxy.create(url)
    assert (answer.status_code, len(answer.content)) == (502, 65_536)
    request = upstream.next()
    request.wait_for_disconnect()
    assert request.sent < 1000


def test_errors_that_break_off_are_told_as_far_as_they_came(proxy, upstream) -> None:
    url = upstream.url("/fixed", body="abcdef", piece=3, after=1, end="cut", status=500)
    answer = proxy.create(url)
    assert (answer.status_code, answer.headers["upstream-status"]) == (502, "500")
    assert answer.content == b"abc"


@pytest.mark.spec("proxy 5.3-3", "proxy 4.2-14")
def test_refused_requests_use_up_no_id(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/fixed", body="one"))
    for url in (upstream.url("/error"), upstream.url("/redirect"), upstream.url("/error")):
        assert proxy.append(location, url).status_code in {400, 502}
    assert proxy.appended(location, upstream.url("/fixed", body="two")) == 2
    frames = proxy.frames(location, ended(2))
    assert [each.type for each in frames] == ["S", "D", "C", "S", "D", "C"]


@pytest.mark.spec("proxy 4.2-15", "proxy 4.2-16", "proxy 7.1-1", "proxy 7.1-2", "proxy 12.1-1")
@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 305, 307, 308, 399])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_redirects_are_not_followed(proxy, upstream, status, method) -> None:
    before = proxy.streams()
    allowed = upstream.url("/fixed", body="not to be seen")
    answer = proxy.create(upstream.url("/redirect", to=allowed, status=status), method)
    check_error(answer, 400, "REDIRECT_NOT_ALLOWED")
    assert "location" not in answer.headers
    assert len(upstream.requests) == 1
    assert proxy.streams() == before


@pytest.mark.spec("proxy 12.4-1")
@pytest.mark.parametrize(
    "raw",
    [
        "",
        "SSH-2.0-test\r\n",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        "HTTP/1.1 999999 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\n" + "x: y\r\n" * 20_000 + "\r\n",
    ],
    ids=["nothing", "ssh", "cut", "header", "status", "negative", "two lengths", "long head"],
)
def test_answers_that_are_no_http(proxy, upstream, raw) -> None:
    before = proxy.streams()
    upstream.routes["/raw"] = lambda _request: Reply(raw=raw.encode())
    answer = proxy.create(upstream.url("/raw"))
    error = check_error(answer, 502, "UPSTREAM_ERROR")
    assert "upstream-status" not in answer.headers
    assert upstream.base_url in error["message"]
    assert proxy.streams() == before


def test_switching_protocols_is_no_success(proxy, upstream) -> None:
    raw = "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello"
    answer = proxy.create(upstream.url("/raw", body=raw))
    assert answer.status_code == 502


@pytest.mark.parametrize("end", ["cut", "reset"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_responses_that_break_off_keep_what_came(proxy, upstream, end, framing) -> None:
    url = upstream.url("/bytes", count=30, piece=10, after=2, end=end, framing=framing, gate=1)
    location = proxy.created(url)
    request = upstream.next()
    for size in (10, 20):
        request.release()
        proxy.frames(location, lambda frames, n=size: sum(map(data_bytes, frames)) == n)
    request.release()
    *_, error = frames = proxy.frames(location)
    assert kinds_of(frames) == "SDE"
    assert error.json["code"] == "UPSTREAM_ERROR"


def data_bytes(frame) -> int:
    return len(frame.payload) if frame.type == "D" else 0
