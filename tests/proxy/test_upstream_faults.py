"""Upstreams that fail in the middle of a response: what came of it is kept, and it is told."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.proxy.proxying import body_of, check_error, ended, kinds_of
from tests.upstreams import Reply, pattern

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
# A response as it goes over the wire, what can be told of its body, and how it ends.
BROKEN = {
    "shorter than its length": (b"content-length: 20\r\n\r\nten bytes!", b"ten bytes!", "E"),
    "nothing of its length": (b"content-length: 20\r\n\r\n", b"", "E"),
    "between two chunks": (b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", b"hello", "E"),
    "within a chunk": (b"transfer-encoding: chunked\r\n\r\nff\r\nhello", b"hello", "E"),
    "within a chunk's size": (b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n1", b"hello", "E"),
    "a size that is none": (
        b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
        b"hello",
        "E",
    ),
    "a negative size": (b"transfer-encoding: chunked\r\n\r\n-5\r\nhello\r\n", b"", "E"),
    "no last chunk's end": (
        b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        b"hello",
        "E",
    ),
    "without a length": (b"\r\nall there is", b"all there is", "C"),
    "without a length or a body": (b"\r\n", b"", "C"),
    "longer than its length": (b"content-length: 5\r\n\r\nhello, there", b"hello", "C"),
    "trailers": (
        b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-checksum: 1\r\n\r\n",
        b"hello",
        "C",
    ),
}


@pytest.mark.spec("proxy 9.2-2", "proxy 5.3-1")
@pytest.mark.parametrize("name", BROKEN)
def test_bodies_that_break_off(proxy, upstream, name) -> None:
    raw, body, end = BROKEN[name]
    upstream.routes["/broken"] = lambda _request: Reply(raw=HEAD + raw)
    *_, last = frames = proxy.recorded(upstream.url("/broken"))
    assert (last.type, frames[0].type) == (end, "S")
    # What comes together with the fault may be lost with it, but nothing else is made of it.
    assert body.startswith(body_of(frames)) if name.startswith("a ") else body_of(frames) == body
    if end == "E":
        assert last.json["code"] == "UPSTREAM_ERROR"
        assert upstream.base_url in last.json["message"]


def test_a_fault_is_nobody_elses(proxy, upstream) -> None:
    """All of these share a stream, and most of them connections."""
    location = proxy.connected()
    for number in range(1, 31, 3):
        urls = (
            upstream.url("/bytes", count=2000, piece=100, after=10, end="cut"),
            upstream.url("/bytes", count=2000, piece=100, after=10, end="reset", framing="length"),
            upstream.url("/bytes", count=2000, piece=100, delay_ms=1),
        )
        assert [proxy.appended(location, url) for url in urls] == [number, number + 1, number + 2]
    frames = proxy.frames(location, ended(*range(1, 31)))
    for number in range(1, 31):
        is_whole = number % 3 == 0
        body = body_of(frames, number)
        assert kinds_of(frames, number)[-1] == ("C" if is_whole else "E")
        assert body == pattern(2000 if is_whole else len(body))


@pytest.mark.spec("proxy 12.4-1")
def test_an_upstream_that_is_not_there(proxy, upstream) -> None:
    location = proxy.connected()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    check_error(proxy.create(url), 502, "UPSTREAM_ERROR")
    error = check_error(proxy.append(location, url), 502, "UPSTREAM_ERROR")
    assert f"http://127.0.0.1:{port}" in error["message"]
    assert proxy.now(location) == []
    assert proxy.appended(location, upstream.url()) == 1


def test_an_upstream_that_hangs_up_on_every_request(proxy) -> None:
    """A connection that cannot be used again is no reason to ask twice."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        accepted = []
        for _ in range(3):
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(proxy.create, url, content=b"once")
                connection, _ = server.accept()
                accepted.append(connection.recv(65_536))
                connection.close()
                check_error(answer.result(), 502, "UPSTREAM_ERROR")
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert len(accepted) == 3
