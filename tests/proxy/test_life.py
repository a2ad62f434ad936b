"""What ends a response early, and what does not: clients, streams and servers come and go."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.proxy.proxying import (
    PATH,
    SECRET,
    Proxy,
    body_of,
    check_error,
    ended,
    id_of,
    kinds_of,
)
from tests.upstreams import pattern


def begun(proxy, upstream, location: str, size: int = 10):
    """A response that has begun, and of which so many bytes can be read; its upstream's side."""
    number = proxy.appended(location, upstream.url("/bytes", count=1000, piece=10, gate=1))
    request = upstream.next()
    request.release(size // 10)
    proxy.frames(location, lambda frames: len(body_of(frames, number)) == size)
    return request


# Clients.


@pytest.mark.spec("proxy 9.2-2")
@pytest.mark.parametrize("moment", ["before the answer", "after the answer"])
def test_a_client_that_leaves_is_not_waited_for(proxy, upstream, connect, moment) -> None:
    location = proxy.connected()
    url = upstream.url("/bytes", count=50, piece=10, gate="headers")
    connection = connect()
    connection.request(
        "POST",
        PATH,
        f"Authorization: Bearer {SECRET}",
        f"Use-Stream-URL: {location}",
        f"Upstream-URL: {url}",
        "Upstream-Method: POST",
    )
    request = upstream.next()
    if moment == "after the answer":
        request.release(2)
        assert connection.response("POST").status == 200
    connection.__exit__()
    # A later request is answered by a server that knows of it.
    assert proxy.now(location) is not None
    assert not request.disconnected
    request.release_all()
    frames = proxy.frames(location)
    assert kinds_of(frames) == "SDC"
    assert body_of(frames) == pattern(50)


def test_nobody_has_to_read_a_response_for_it_to_be_recorded(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/bytes", count=3_000_000))
    upstream.next().wait_for_end()
    frames = proxy.frames(location)
    assert kinds_of(frames) == "SDC"
    assert body_of(frames) == pattern(3_000_000)


# Streams.


@pytest.mark.spec("proxy 4.9-2")
def test_closing_ends_what_is_under_way(proxy, upstream) -> None:
    location = proxy.connected()
    requests = [begun(proxy, upstream, location, size) for size in (10, 30)]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(proxy.append, location, upstream.url("/never"))
        requests.append(upstream.next())
        assert proxy.close(location).status_code == 204
        check_error(waiting.result(), 409, "STREAM_CLOSED")
    for request in requests:
        request.wait_for_disconnect()
    frames = proxy.now(location)
    assert [kinds_of(frames, number) for number in (1, 2, 3)] == ["SDA", "SDA", ""]
    assert body_of(frames, 2) == pattern(30)
    answer = proxy.client.head(f"{PATH}/{id_of(location)}", headers=proxy.service)
    assert answer.headers["stream-closed"] == "true"


@pytest.mark.spec("proxy 4.8-2", "proxy 5.3-2")
def test_a_session_that_is_deleted_begins_anew(proxy, upstream) -> None:
    location = proxy.connected("a session of several lives")
    for _ in range(3):
        old = [begun(proxy, upstream, location), begun(proxy, upstream, location)]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(proxy.append, location, upstream.url("/never"))
            old.append(upstream.next())
            answer = proxy.client.delete(f"{PATH}/{id_of(location)}", headers=proxy.service)
            assert answer.status_code == 204
            assert proxy.connect("a session of several lives").status_code == 201
            check_error(waiting.result(), 404, "STREAM_NOT_FOUND")
        assert proxy.now(location) == []
        for request in old:
            request.wait_for_disconnect()
    proxy.appended(location, upstream.url("/fixed", body="new"))
    frames = proxy.frames(location)
    assert [each.type for each in frames] == ["S", "D", "C"]
    assert body_of(frames) == b"new"


def test_a_stream_that_is_idle_for_too_long(start_proxy, upstream) -> None:
    """A silent response does not keep it, and one that goes on does."""
    proxy = start_proxy(proxy_stream_ttl=1)
    silent = proxy.created(upstream.url("/bytes", count=20, piece=10, gate=1))
    unheard = upstream.next()
    busy = proxy.created(upstream.url("/bytes", count=12, piece=1, delay_ms=200))
    heard = upstream.next()
    unheard.wait_for_disconnect()
    check_error(proxy.client.get(silent), 404, "STREAM_NOT_FOUND")
    heard.wait_for_end()
    frames = proxy.frames(busy)
    assert kinds_of(frames) == "SDC"
    assert body_of(frames) == pattern(12)


# The server.


def test_a_graceful_end(start_server, client_of, upstream) -> None:
    server = start_server()
    proxy = Proxy(client_of(server))
    locations = [proxy.connected(), proxy.created(upstream.url("/fixed", body="done"))]
    proxy.frames(locations[1])
    upstream.next()
    requests = [begun(proxy, upstream, location, 20) for location in locations * 2]
    with ThreadPoolExecutor(3) as pool:
        waiting = [
            pool.submit(proxy.append, locations[0], upstream.url("/never")),
            pool.submit(proxy.create, upstream.url("/never")),
            pool.submit(proxy.connect, headers={"Upstream-URL": upstream.url("/never")}),
        ]
        requests += [upstream.next() for _ in waiting]
        # Gathered, but not written when the end comes.
        for request in requests[:4]:
            request.release()
        server.signal(signal.SIGTERM)
        answers = [each.result() for each in waiting]
    assert server.wait() == 0
    for answer in answers:
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
    for request in requests:
        request.wait_for_disconnect()
    proxy = Proxy(client_of(start_server()))
    for location, first in zip(locations, (1, 2), strict=True):
        frames = proxy.now(location)
        numbers = (first, first + 1)
        assert [kinds_of(frames, number) for number in numbers] == ["SDE", "SDE"]
        for number in numbers:
            body = body_of(frames, number)
            assert body in {pattern(20), pattern(30)}
        errors = [each.json for each in frames if each.type == "E"]
        assert {each["code"] for each in errors} == {"UPSTREAM_ERROR"}
        assert {each["message"] for each in errors} == {"The server is shutting down."}
        assert proxy.appended(location, upstream.url("/fixed", body="again")) == first + 2
        assert body_of(proxy.frames(location, ended(first + 2)), first + 2) == b"again"
    assert "cut off" not in server.stderr()
