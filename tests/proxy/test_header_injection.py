"""Headers that would be more than they seem, over raw connections."""

import re

import pytest

from tests.proxy.proxying import PATH, SECRET

AUTHORIZED = f"Authorization: Bearer {SECRET}"


def lines_for(upstream, *more: str, method: str = "GET") -> list[str]:
    url = f"Upstream-URL: {upstream.url('/echo')}"
    return [AUTHORIZED, url, f"Upstream-Method: {method}", *more]


@pytest.mark.spec("proxy 13.1-2")
@pytest.mark.parametrize(
    "line",
    [
        "X-A: b\rX-Injected: c",
        "X-A: b\nX-Injected: c",
        "X-A: b\x00c",
        "X-A: \x0b\x0cX-Injected: c",
        "X-A: b\x7f",
        "X-A: b\r\n X-Injected: c",
        "X-A: b\r\n\tX-Injected: c",
        "X A: b",
        "X-A : b",
        ": b",
        "X-A(b): c",
        "X-\xfc: b",
        "Upstream-Authorization: a\rX-Injected: c",
        "Upstream-Authorization: a\x00b",
        "Upstream-Authorization: a\x01b",
        "Upstream-Authorization: a\r\n X-Injected: c",
    ],
)
def test_nothing_comes_of_control_characters(upstream, connect, line) -> None:
    """The request is refused, or the line is two by HTTP's own rules and forwarded as those."""
    connection = connect()
    connection.request("POST", PATH, *lines_for(upstream, line))
    answer = connection.response()
    if line == "X-A: b\nX-Injected: c":
        assert answer.status in {201, 400}
    else:
        assert answer.status == 400
        assert not upstream.requests


@pytest.mark.spec("proxy 13.1-2")
@pytest.mark.parametrize(
    "text", ["%0d%0aX-Injected:%20c", "\\r\\nX-Injected: c", "%00", "\u010d\u010a"]
)
def test_encoded_line_ends_stay_encoded(proxy, upstream, text) -> None:
    answer = proxy.create(
        upstream.url("/echo"), headers={"X-A": text.encode(), "Content-Type": text.encode()}
    )
    assert answer.status_code == 201
    asked = upstream.next()
    assert asked.header("X-A").encode("latin-1") == text.encode()
    assert not asked.values("X-Injected")


@pytest.mark.spec("proxy 13.1-2")
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/echo HTTP/1.1",
        "http://127.0.0.1:{port}/echo?a b",
        "http://127.0.0.1:{port}/echo\tx",
        "http://127.0.0.1:{port}/echo?\xfc",
    ],
)
def test_urls_hold_no_blanks(upstream, connect, url) -> None:
    connection = connect()
    lines = [AUTHORIZED, f"Upstream-URL: {url.format(port=upstream.port)}", "Upstream-Method: GET"]
    connection.request("POST", PATH, *lines)
    assert connection.response().status in {400, 403}
    assert not upstream.requests


@pytest.mark.parametrize(
    "name",
    [
        "Upstream-URL",
        "Upstream-Method",
        "Upstream-Authorization",
        "Use-Stream-URL",
        "Session-Id",
        "Stream-Signed-URL-TTL",
    ],
)
@pytest.mark.parametrize("same", [True, False])
def test_the_proxys_own_headers_come_once(upstream, connect, name, same) -> None:
    """Two servers in a row could each believe another one."""
    connection = connect()
    first, second = f"{name}: 1", f"{name.lower()}: {1 if same else 2}"
    lines = [line for line in lines_for(upstream) if not line.startswith(f"{name}:")]
    connection.request("POST", PATH, *lines, first, second)
    answer = connection.response()
    assert answer.status == 400
    assert b"more than once" in answer.body
    assert not upstream.requests


@pytest.mark.parametrize("name", ["Authorization", "Content-Type", "Content-Length", "Host"])
def test_other_headers_that_come_once(upstream, connect, name) -> None:
    connection = connect()
    connection.request("POST", PATH, *lines_for(upstream, f"{name}: 1", f"{name}: 1"))
    assert connection.response().status == 400
    assert not upstream.requests


@pytest.mark.parametrize(
    "framing",
    [
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked, identity"],
        ["Transfer-Encoding: gzip, chunked"],
        ["Transfer-Encoding: xchunked"],
        ["Content-Length: 5", "Content-Length: 6"],
        ["Content-Length: +5"],
        ["Content-Length: 5, 5"],
    ],
)
def test_bodies_of_two_lengths_are_not_forwarded(upstream, connect, framing) -> None:
    connection = connect()
    connection.request("POST", PATH, *lines_for(upstream, *framing, method="POST"))
    connection.send(b"0\r\n\r\nGET /admin HTTP/1.1\r\n\r\n")
    assert connection.response().status == 400
    assert not upstream.requests


def test_trailers_are_not_forwarded(upstream, connect) -> None:
    connection = connect()
    lines = lines_for(upstream, "Transfer-Encoding: chunked", "Trailer: X-Late", method="POST")
    connection.request("POST", PATH, *lines)
    connection.send(b"3\r\nabc\r\n0\r\nX-Late: 1\r\nUpstream-URL: http://192.0.2.1/\r\n\r\n")
    assert connection.response().status == 201
    asked = upstream.next()
    assert asked.body == b"abc"
    assert not asked.values("X-Late")


def test_requests_in_a_row_do_not_share_headers(upstream, connect) -> None:
    connection = connect()
    for number in range(3):
        line = f"X-Number-{number}: {number}"
        connection.request(
            "POST", PATH, *lines_for(upstream, line, method="PUT"), body=b"x" * number
        )
    asked = []
    for _ in range(3):
        assert connection.response().status == 201
        asked.append(upstream.next())
    for number in range(3):
        request = next(each for each in asked if len(each.body) == number)
        names = [name for name, _ in request.headers if re.match("(?i)x-number", name)]
        assert names == [f"x-number-{number}"]


def test_too_many_headers(upstream, connect) -> None:
    connection = connect()
    connection.request("POST", PATH, *lines_for(upstream, *["X-A: " + "b" * 1000] * 40))
    assert connection.response().status == 431
    assert not upstream.requests
