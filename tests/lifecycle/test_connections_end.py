"""The end of connections, seen from inside the server: none stays for good, none goes too early."""

import asyncio
import contextlib
import gc
import socket
import time
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from holdfast.clock import SystemClock
from holdfast.http.connection import WRITE_BUFFER_BYTES, Connection
from holdfast.node.server import Server
from holdfast.settings import HttpSettings, ReadSettings, ServerSettings, Settings
from tests.crash.wire import Wire
from tests.thorough import some_of

DEADLINE_S = 20.0
MIB = 1024 * 1024
STREAM = "/v1/stream/answers"
# Less than the mark at which the server stops to take requests.
SMALL_BYTES = 48 * 1024
IDLE_S = 1
PACE_BYTES = 64 * 1024


@contextlib.asynccontextmanager
async def serving(**http: float) -> AsyncIterator[Server]:
    """A server in this process and on this loop; what it does to the collector is undone."""
    settings = Settings(
        server=ServerSettings(listen="127.0.0.1:0", durability="memory", shutdown_timeout_s=1),
        http=HttpSettings(**http),
        read=ReadSettings(read_bytes_max=8 * MIB),
    )
    thresholds = gc.get_threshold()
    server = Server(settings, SystemClock())
    await server.start()
    try:
        await server.ready()
        yield server
    finally:
        await server.stop()
        gc.unfreeze()
        gc.set_threshold(*thresholds)


def run(scenario: Callable[[], object]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


def port_of(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


def connections_of(server: Server) -> list[Connection]:
    return list(server._listener._connections)


async def until(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.005)


async def store(server: Server, size_bytes: int) -> None:
    """Make an answer of this size, and have nobody connected afterwards."""
    async with await Wire.open(port_of(server)) as wire:
        body = b"x" * size_bytes
        answer = await wire.request("PUT", STREAM, body, content_type="text/plain")
        assert answer.status == 201
    await until(lambda: not connections_of(server))


def connect(server: Server, receive_bytes: int = 4096) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        client.connect(("127.0.0.1", port_of(server)))
    return client


def test_closed_connection_is_freed_without_a_collection() -> None:
    def living() -> int:
        return sum(type(each) is Connection for each in gc.get_objects())

    async def scenario() -> None:
        async with serving() as server:
            # Only now: starting a server hides from the collector what other tests have left.
            before = living()
            wires = [await Wire.open(port_of(server)) for _ in range(50)]
            for wire in wires:
                assert (await wire.request("GET", "/healthz")).status == 200
            assert living() == before + 50
            # What lives this long belongs to the oldest generation, which is hardly ever looked at.
            gc.collect()
            gc.disable()
            try:
                for wire in wires:
                    await wire.__aexit__()
                await until(lambda: not connections_of(server))
                gc.collect(1)
                assert living() == before
            finally:
                gc.enable()

    run(scenario)


async def fill(server: Server, client: socket.socket) -> Connection:
    """Ask until the kernel takes no more, but stay below the mark at which asking is in vain."""
    loop = asyncio.get_running_loop()
    await until(lambda: connections_of(server))
    (connection,) = connections_of(server)
    request = f"GET {STREAM} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    waiting = connection.transport.get_write_buffer_size
    answered = server._node.app.counters.count
    counted = 0

    def count(*args: object) -> None:
        nonlocal counted
        counted += 1
        answered(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(server._node.app.counters), "count", lambda _, *args: count(*args))
        for number in range(1, 1000):
            await loop.sock_sendall(client, request)
            await until(lambda number=number: counted == number)
            # The loop has come round: what the kernel takes now it has taken.
            await asyncio.sleep(0)
            if waiting():
                break
    assert 0 < waiting() < WRITE_BUFFER_BYTES
    assert not connection.paused
    return connection


@pytest.mark.slow
@pytest.mark.parametrize("closing", some_of([True, False], 1), ids=["asked to close", "idle"])
def test_client_that_stops_reading_below_the_mark_is_dropped(closing) -> None:
    """What it has not read keeps the connection from closing, but not for good."""

    async def scenario() -> None:
        async with serving(idle_timeout_s=IDLE_S) as server:
            await store(server, SMALL_BYTES)
            with connect(server) as client:
                connection = await fill(server, client)
                if closing:
                    last = b"HEAD /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
                    await asyncio.get_running_loop().sock_sendall(client, last)
                    await until(connection.transport.is_closing)
                    assert connections_of(server) == [connection]
                await until(lambda: not connections_of(server))

    run(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("connection", some_of(["keep-alive", "close"], 1))
def test_slow_but_steady_reader_is_not_cut_off(connection) -> None:
    """Though the whole takes several times as long as an idle connection may last."""

    async def scenario() -> None:
        async with serving(idle_timeout_s=IDLE_S) as server:
            await store(server, 8 * MIB)
            loop = asyncio.get_running_loop()
            with connect(server) as client:
                await until(lambda: connections_of(server))
                request = f"GET {STREAM} HTTP/1.1\r\nHost: a\r\nConnection: {connection}\r\n\r\n"
                await loop.sock_sendall(client, request.encode())
                slow_until_s = time.monotonic() + 5 * IDLE_S
                size, pause_at = 0, PACE_BYTES
                while size < 8 * MIB:
                    piece = await loop.sock_recv(client, PACE_BYTES)
                    assert piece, f"cut off after {size} bytes"
                    size += len(piece)
                    if size >= pause_at and time.monotonic() < slow_until_s:
                        # The pace of the client, not a wait for the server.
                        await asyncio.sleep(0.3)
                        pause_at = size + PACE_BYTES

    run(scenario)
