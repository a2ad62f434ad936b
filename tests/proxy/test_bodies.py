"""Bodies of requests on their way to the upstream."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.http.raw import RawConnection
from tests.proxy.proxying import DEADLINE_S, PATH, SECRET, body_of, check_error
from tests.upstreams import pattern

MEBIBYTE = 1 << 20


def start(connection: RawConnection, url: str, *more: str) -> None:
    """Send the head of a POST."""
    lines = [f"Authorization: Bearer {SECRET}", f"Upstream-URL: {url}", "Upstream-Method: POST"]
    connection.request("POST", PATH, *lines, *more)


@contextmanager
def listening() -> Iterator[tuple[str, Callable[[], socket.socket]]]:
    """An upstream that is played by hand: its URL, and what gives its next connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(DEADLINE_S)

        def accept() -> socket.socket:
            connection, _ = server.accept()
            connection.settimeout(DEADLINE_S)
            return connection

        yield f"http://127.0.0.1:{server.getsockname()[1]}/", accept


def receive(connection: socket.socket, enough: Callable[[bytes], bool]) -> bytes:
    """What comes until it is enough, or to its end."""
    data = b""
    while not enough(data) and (piece := connection.recv(65_536)):
        data += piece
    return data


@pytest.mark.spec("proxy 4.2-7", "proxy 4.4-5")
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "GET"])
@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537])
def test_bodies_of_a_known_length(proxy, upstream, method, size) -> None:
    answer = proxy.create(upstream.url("/echo"), method, content=pattern(size))
    assert answer.status_code == 201
    asked = upstream.next()
    assert asked.body == pattern(size)
    assert asked.header("Content-Length") == (
        str(size) if size or method in {"POST", "PUT", "PATCH"} else None
    )
    assert not asked.values("Transfer-Encoding")


@pytest.mark.spec("proxy 4.2-7")
def test_large_bodies_keep_their_length(proxy, upstream) -> None:
    body = pattern(5 * MEBIBYTE)
    assert proxy.create(upstream.url("/echo"), content=body).status_code == 201
    asked = upstream.next()
    assert asked.body == body
    assert asked.header("Content-Length") == str(len(body))
    assert not asked.values("Transfer-Encoding")


@pytest.mark.spec("proxy 4.2-7")
@pytest.mark.parametrize("sizes", [[], [1], [5, 6, 7], [MEBIBYTE] * 3])
def test_bodies_in_chunks(proxy, upstream, sizes) -> None:
    pieces = [pattern(size) for size in sizes]
    assert proxy.create(upstream.url("/echo"), content=iter(pieces)).status_code == 201
    assert upstream.next().body == b"".join(pieces)


@pytest.mark.spec("proxy 4.2-7")
def test_bodies_of_any_bytes(proxy, upstream) -> None:
    body = bytes(range(256)) * 10
    proxy.create(upstream.url("/echo"), content=body, headers={"Content-Encoding": "gzip"})
    asked = upstream.next()
    assert (asked.body, asked.header("Content-Encoding")) == (body, "gzip")


@pytest.mark.spec("proxy 4.2-7")
@pytest.mark.parametrize("framing", ["Content-Length: 200000", "Transfer-Encoding: chunked"])
def test_a_long_body_is_sent_on_as_it_comes(connect, framing) -> None:
    """The upstream has the head, and a part of the body, before the rest of it is sent."""
    piece = b"x" * 100_000
    sent = b"%x\r\n%b\r\n" % (len(piece), piece) if "chunked" in framing else piece
    end = b"0\r\n\r\n" if "chunked" in framing else b""
    connection = connect()
    with listening() as (url, accept):
        start(connection, url, framing)
        connection.send(sent)
        with accept() as upstream:
            received = receive(upstream, lambda data: data.count(b"x") >= len(piece))
            assert received.count(b"x") == len(piece)
            connection.send(sent + end)
            receive(upstream, lambda data: data.count(b"x") == len(piece))
            upstream.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            assert connection.response().status == 201


@pytest.mark.parametrize("framing", ["Content-Length: 5", "Transfer-Encoding: chunked"])
def test_leave_is_given_to_send_the_body(upstream, connect, framing) -> None:
    connection = connect()
    start(connection, upstream.url("/echo"), framing, "Expect: 100-continue")
    assert connection.response().status == 100
    connection.send(b"5\r\nhello\r\n0\r\n\r\n" if "chunked" in framing else b"hello")
    assert connection.response().status == 201
    asked = upstream.next()
    assert asked.body == b"hello"
    assert not asked.values("Expect")


@pytest.mark.parametrize("wrong", ["Session-Id: " + "x" * 2000, "Use-Stream-URL: nonsense"])
def test_no_leave_is_given_for_requests_that_are_refused(upstream, connect, wrong) -> None:
    connection = connect()
    start(connection, upstream.url("/echo"), "Content-Length: 50", "Expect: 100-continue", wrong)
    assert connection.response().status == 400
    assert connection.ended()
    assert not upstream.requests


def test_no_leave_is_given_to_strangers(connect) -> None:
    connection = connect()
    connection.request("POST", PATH, "X-A: b", "Content-Length: 50", "Expect: 100-continue")
    assert connection.response().status == 401
    assert connection.ended()


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_that_are_too_large(strict, upstream, chunked) -> None:
    body = b"x" * 200_001
    answer = strict.create(upstream.url("/echo"), content=iter([body]) if chunked else body)
    assert answer.status_code == 413, answer.text
    assert answer.json()["error"]["code"] == "payload_too_large"
    assert not upstream.requests
    assert strict.create(upstream.url("/echo"), content=body[1:]).status_code == 201


def test_a_client_that_leaves_in_its_body(upstream, connect) -> None:
    """What it asked for was never whole: nothing is asked of the upstream, or it is broken off."""
    with connect() as connection:
        start(connection, upstream.url("/echo"), "Content-Length: 200000")
        connection.send(b"x" * 100_000)
    follow = connect()
    start(follow, upstream.url("/echo"), "Content-Length: 2")
    follow.send(b"ok")
    assert follow.response().status == 201
    assert upstream.next().body == b"ok"
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("status", [200, 413])
def test_an_upstream_that_answers_before_it_has_the_body(proxy, connect, status) -> None:
    """As servers do that will not take a body."""
    connection = connect()
    with listening() as (url, accept):
        start(connection, url, "Content-Length: 300000")
        connection.send(b"x" * 100_000)
        with accept() as upstream:
            receive(upstream, lambda data: b"\r\n\r\n" in data)
            head = f"HTTP/1.1 {status} Early\r\ncontent-length: 5\r\nconnection: close\r\n\r\n"
            upstream.sendall(head.encode() + b"early")
            upstream.shutdown(socket.SHUT_WR)
            connection.send(b"x" * 200_000)
            receive(upstream, lambda _data: False)
    answer = connection.response()
    if status == 200:
        assert answer.status == 201, answer.body
        assert body_of(proxy.frames(answer.headers["location"])) == b"early"
    else:
        assert answer.status == 502
        assert answer.headers["upstream-status"] == "413"
        assert answer.body == b"early"


def test_what_nobody_takes_of_a_long_body_does_not_hold_up_the_answer(proxy, connect) -> None:
    """The upstream has answered: the rest of the body is not waited for, nor read."""
    connection = connect()
    with listening() as (url, accept):
        start(connection, url, f"Content-Length: {5 * MEBIBYTE}")
        connection.send(b"x" * 100_000)
        with accept() as upstream:
            receive(upstream, lambda data: b"\r\n\r\n" in data)
            head = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\n"
            upstream.sendall(head + b"early")
        # What follows is refused by the upstream's side, whose connection is gone.
        connection.send(b"x" * 100_000)
        answer = connection.response()
    assert answer.status == 201, answer.body
    assert answer.headers["connection"] == "close"
    assert body_of(proxy.frames(answer.headers["location"])) == b"early"


@pytest.mark.parametrize("size", [10, 3 * MEBIBYTE])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_connect_without_an_endpoint_has_no_use_for_a_body(proxy, size, chunked) -> None:
    body = iter([b"x" * size]) if chunked else b"x" * size
    assert proxy.connect(content=body).status_code == 201


def test_an_endpoint_that_does_not_wait_for_the_body(proxy, connect) -> None:
    connection = connect()
    with listening() as (url, accept):
        start(connection, url, f"Content-Length: {5 * MEBIBYTE}", "Session-Id: an early one")
        connection.send(b"x" * 100_000)
        with accept() as upstream:
            receive(upstream, lambda data: b"\r\n\r\n" in data)
            upstream.sendall(b"HTTP/1.1 204 Early\r\nconnection: close\r\n\r\n")
        connection.send(b"x" * 100_000)
        assert connection.response().status == 201


def test_what_was_asked_is_recorded_if_the_upstream_says_it(proxy, upstream) -> None:
    frames = proxy.recorded(upstream.url("/echo"), json={"prompt": "häh?"})
    said = json.loads(body_of(frames))
    assert json.loads(said["body"]) == {"prompt": "häh?"}
    assert ["content-type", "application/json"] in said["headers"]


def test_errors_leave_the_connection_usable(proxy, upstream, connect) -> None:
    """A refused request whose body has come does not cost the connection."""
    connection = connect()
    for _ in range(2):
        start(connection, upstream.url("/error", status=404), "Content-Length: 5")
        connection.send(b"hello")
        answer = connection.response()
        assert (answer.status, answer.headers["upstream-status"]) == (502, "404")
    assert len(upstream.requests) == 2


def test_answers_while_the_body_is_still_coming_end_the_connection(proxy, connect) -> None:
    connection = connect()
    start(connection, "http://192.0.2.1/", "Content-Length: 50000")
    answer = connection.response()
    assert answer.status == 403
    assert answer.headers["connection"] == "close"
    assert connection.ended()
    check_error(proxy.create("http://192.0.2.1/"), 403, "UPSTREAM_NOT_ALLOWED")
