"""The end of a server: readers are told, requests are answered, and it does not take long."""

import asyncio
import contextlib
import os
import signal
import socket
import time

import pytest

from tests.crash.wire import Lost, Wire
from tests.http.raw import RawConnection
from tests.http.streams import check_error
from tests.lifecycle.live import EventConnection
from tests.storage_stats import flush, metrics, until
from tests.thorough import some_of

READERS = 1000
AUTHORS = 20
EXIT_S = 10.0
TYPE = "Content-Type: text/plain"


def exit_of(server, started_s: float) -> int:
    status = server.wait()
    assert time.monotonic() - started_s < EXIT_S, "the promise is 10 s"
    return status


def refuses_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except ConnectionError:
        return True
    return False


def until_draining(server) -> None:
    """Wait until the server accepts nobody any more."""
    ends_s = time.monotonic() + EXIT_S
    while not refuses_connections(server.port):
        assert time.monotonic() < ends_s


def begin_append(server, stream) -> RawConnection:
    """Start an append that the server waits for: it has asked for the body."""
    connection = RawConnection(server.port)
    connection.request("POST", stream.url, TYPE, "Content-Length: 5", "Expect: 100-continue")
    assert connection.response().status == 100
    return connection


async def open_readers(server, stream) -> list[EventConnection]:
    target = f"{stream.url}?offset=-1&live=sse"
    readers = []
    for _ in range(READERS // 50):
        opening = (EventConnection.open(server.port, target) for _ in range(50))
        readers += await asyncio.gather(*opening)
    for reader in readers:
        await reader.read_until(0)
    return readers


async def append_until_the_end(server, stream, author: int, acknowledged: list[bytes]) -> None:
    with contextlib.suppress(Lost):
        async with await Wire.open(server.port) as wire:
            for number in range(1_000_000):
                body = b"<%d:%d>" % (author, number)
                answer = await wire.request("POST", stream.url, body, content_type="text/plain")
                assert answer.status == 204
                acknowledged.append(body)
                if answer.headers.get("connection") == "close":
                    return


def test_sigterm_with_a_thousand_readers_and_appends_in_flight(
    start_server, stream_on, client_of
) -> None:
    server = start_server(sse_lifetime=600)
    stream = stream_on(server)
    acknowledged: list[bytes] = []

    async def scenario() -> tuple[list[EventConnection], float]:
        readers = await open_readers(server, stream)
        authors = [
            asyncio.create_task(append_until_the_end(server, stream, author, acknowledged))
            for author in range(AUTHORS)
        ]
        while len(acknowledged) < 5 * AUTHORS:
            await asyncio.sleep(0)
        with begin_append(server, stream) as waiting:
            signalled_s = time.monotonic()
            server.signal(signal.SIGTERM)
            await asyncio.gather(*(reader.read_to_end() for reader in readers))
            waiting.send(b"<end>")
            answer = waiting.response()
            assert answer.status == 204
            assert answer.headers["connection"] == "close"
            acknowledged.append(b"<end>")
        await asyncio.gather(*authors)
        for reader in readers:
            await reader.__aexit__()
        return readers, signalled_s

    readers, signalled_s = asyncio.run(scenario())
    assert exit_of(server, signalled_s) == 0
    stream.client = client_of(start_server())
    stored = stream.read().content
    assert sorted(stored.replace(b"><", b">\n<").splitlines()) == sorted(acknowledged)
    for reader in readers:
        reader.check_goodbye()
        assert stored.startswith(reader.data)
    assert any(reader.data for reader in readers)


@pytest.mark.parametrize("number", some_of([signal.SIGTERM, signal.SIGINT], 1))
def test_idle_connections_do_not_keep_it(start_server, number) -> None:
    server = start_server()
    with RawConnection(server.port) as used, RawConnection(server.port) as unused:
        used.request("GET", "/healthz")
        assert used.response().status == 200
        server.signal(number)
        assert used.ended()
        assert unused.ended()
    assert exit_of(server, time.monotonic()) == 0
    assert server.stderr().count(number.name) == 1


def test_unfinished_request_keeps_it_for_a_while_only(start_server, stream_on) -> None:
    server = start_server(shutdown_timeout=0.5)
    stream = stream_on(server)
    with begin_append(server, stream) as waiting:
        started_s = time.monotonic()
        server.signal(signal.SIGTERM)
        assert exit_of(server, started_s) == 0
        assert waiting.ended()


def test_read_that_hangs_in_the_store_does_not_keep_it(start_server, stream_on) -> None:
    """The thread that waits for the disk is left behind."""
    server = start_server(shutdown_timeout=0.5)
    stream = stream_on(server, body=b"in a pack")
    flush(stream.client)
    (pack,) = (server.data_dir / "objects" / "packs").iterdir()
    pack.unlink()
    # Opening it blocks until somebody writes to it, which nobody does.
    os.mkfifo(pack)
    with RawConnection(server.port) as waiting:
        waiting.request("GET", stream.url)
        until(lambda: metrics(stream.client)["holdfast_cold_reads_total"] == 1)
        started_s = time.monotonic()
        server.signal(signal.SIGTERM)
        assert exit_of(server, started_s) == 0
        assert waiting.ended()


@pytest.mark.parametrize("number", some_of([signal.SIGTERM, signal.SIGINT], 1))
def test_second_signal_ends_it_at_once(start_server, stream_on, number) -> None:
    server = start_server()
    stream = stream_on(server)
    with begin_append(server, stream):
        server.signal(signal.SIGTERM)
        until_draining(server)
        assert server.running
        server.signal(number)
        assert server.wait() == 128 + number


def test_draining_server_is_not_ready_and_takes_no_readers(start_server, stream_on) -> None:
    server = start_server()
    stream = stream_on(server, body=b"kept")
    targets = ["/readyz/local", "/readyz/cluster", f"{stream.url}?offset=-1&live=sse"]
    targets += [f"{stream.url}?offset=now&live=long-poll", "/healthz", "/cluster/status"]
    targets += [stream.url]
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(server.port)) for _ in targets]
        for connection, target in zip(connections, targets, strict=True):
            # The server has this much, or it would close the connection as an idle one.
            connection.request("GET", "/healthz")
            connection.send(f"GET {target} HTTP/1.1\r\nHost".encode())
            assert connection.response().status == 200
        server.signal(signal.SIGTERM)
        until_draining(server)
        answers = []
        for connection in connections:
            connection.send(b": a\r\n\r\n")
            answers.append(connection.response())
            assert answers[-1].headers["connection"] == "close"
            assert connection.ended()
    assert [answer.status for answer in answers] == [503, 503, 503, 503, 200, 200, 200]
    assert all(int(answer.headers["retry-after"]) for answer in answers[:4])
    assert b'"draining"' in answers[5].body
    assert answers[6].body == b"kept"
    assert exit_of(server, time.monotonic()) == 0


def test_long_polls_are_answered_at_the_end(start_server, stream_on) -> None:
    server = start_server(long_poll_timeout=600)
    stream = stream_on(server, body=b"x")
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(RawConnection(server.port)) for _ in range(50)]
        for connection in waiting:
            connection.request("GET", f"{stream.url}?offset=now&live=long-poll")
        while b"holdfast_live_readers 50.0" not in stream.client.get("/metrics").content:
            pass
        server.signal(signal.SIGTERM)
        for connection in waiting:
            answer = connection.response()
            assert answer.status == 204
            assert answer.headers["stream-next-offset"] == "1".zfill(20)
            assert connection.ended()
    assert exit_of(server, time.monotonic()) == 0


def test_reader_that_does_not_read_does_not_keep_it(start_server, stream_on) -> None:
    server = start_server(shutdown_timeout=1, sse_lifetime=600)
    stream = stream_on(server)
    for _ in range(8):
        stream.append(b"x" * 4_000_000)

    async def scenario() -> None:
        target = f"{stream.url}?offset=-1&live=sse"
        async with await EventConnection.open(server.port, target, receive_bytes=4096):
            started_s = time.monotonic()
            server.signal(signal.SIGTERM)
            assert exit_of(server, started_s) == 0

    asyncio.run(scenario())


def test_server_takes_the_same_address_again_at_once(start_server, stream_on) -> None:
    server = start_server()
    stream = stream_on(server, body=b"x")
    with stream.sse() as events:
        events.until_up_to_date()
        server.stop()
        server._arguments[server._arguments.index("127.0.0.1:0")] = f"127.0.0.1:{server.port}"
        server.start()
    assert stream.read().content == b"x"
    check_error(stream.read("garbage"), 400)
