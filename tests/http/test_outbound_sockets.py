"""The connections under outbound calls: one packet for a request, and limits in both directions."""

import asyncio
import ssl
from contextlib import asynccontextmanager, suppress

import pytest
import trustme

from holdfast.errors import OutboundError
from holdfast.net.failures import ConnectFailedError, SilenceError, TransportError
from holdfast.net.http1 import UNREAD_BYTES_MAX
from holdfast.net.outbound import Outbound
from holdfast.net.sockets import open_socket
from holdfast.net.targets import AnyTarget

LARGE = 64 * 1024 * 1024


def run(scenario):
    async def limited():
        async with asyncio.timeout(30):
            await scenario

    asyncio.run(limited())


class Receiving:
    """Notes what a connection receives, and how it ends."""

    def __init__(self):
        self.data = b""
        self.errors = []

    def data_received(self, data):
        self.data += data

    def connection_lost(self, error):
        self.errors.append(error)


async def connected(port):
    """A connection, and what it receives."""
    opened, receiving = await open_socket("127.0.0.1", port, 5), Receiving()
    opened.receive(receiving)
    return opened, receiving


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


@asynccontextmanager
async def listening(behave, **options):
    """A server that does as it is told with each connection; gives its port."""
    done = []

    async def on_connection(reader, writer):
        try:
            await behave(reader, writer)
        finally:
            writer.close()
            done.append(True)

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def test_head_and_body_of_a_request_are_one_packet():
    packets = []

    async def behave(reader, writer):
        packets.append(await reader.read(65_536))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()

    async def scenario():
        async with listening(behave) as port:
            outbound = Outbound(AnyTarget())
            url = f"http://127.0.0.1:{port}/x"
            await outbound.request("POST", url, {}, b"the body", timeout_s=5, bytes_max=10)
            await outbound.aclose()

    run(scenario())
    assert packets[0].endswith(b"\r\n\r\nthe body")


def test_what_nobody_reads_stays_with_the_server():
    sent = 0

    async def behave(reader, writer):
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LARGE)
        for _ in range(LARGE // 65_536):
            writer.write(bytes(65_536))
            await writer.drain()
            sent += 65_536

    async def scenario():
        async with listening(behave) as port:
            outbound = Outbound(AnyTarget())
            url = f"http://127.0.0.1:{port}/"
            async with outbound.stream("GET", url, {}, silence_s=20) as response:
                size = len(await response.next_chunk())
                # Until the server cannot send any more: what it sent is in buffers of known size.
                before = -1
                while before != sent:
                    before = sent
                    await asyncio.sleep(0.1)
                held = response.unread_bytes
                while chunk := await response.next_chunk():
                    size += len(chunk)
            await outbound.aclose()
            assert held <= UNREAD_BYTES_MAX + 1_000_000
            assert size == LARGE

    run(scenario())
    assert sent == LARGE


def test_a_connection_whose_response_was_not_read_to_its_end_is_read_from_again():
    async def behave(reader, writer):
        while await reader.readuntil(b"\r\n\r\n"):
            body = bytes(4 * UNREAD_BYTES_MAX)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()

    async def scenario():
        async with listening(behave) as port:
            outbound = Outbound(AnyTarget())
            url = f"http://127.0.0.1:{port}/"
            for _ in range(3):
                async with outbound.stream("GET", url, {}, silence_s=20) as response:
                    await until(lambda: response.unread_bytes > UNREAD_BYTES_MAX)
                    while not response.is_over:
                        await response.next_chunk()
            await outbound.aclose()

    run(scenario())


def test_a_write_waits_for_a_server_that_does_not_read():
    go_on = asyncio.Event()
    size = 0

    async def behave(reader, _writer):
        nonlocal size
        await go_on.wait()
        while data := await reader.read(1_000_000):
            size += len(data)

    async def scenario():
        async with listening(behave) as port:
            opened, _ = await connected(port)
            with pytest.raises(SilenceError):
                await write_much(opened)
            go_on.set()
            opened.write(b"end")
            await opened.drain(5)
            opened.close()

    async def write_much(opened):
        for _ in range(LARGE // 65_536):
            opened.write(bytes(65_536))
            await opened.drain(0.2)

    run(scenario())


def test_what_came_before_there_is_a_receiver_is_passed_on():
    async def behave(_reader, writer):
        writer.write(b"bye")

    async def scenario():
        async with listening(behave) as port:
            opened = await open_socket("127.0.0.1", port, 5)
            await until(lambda: opened.is_lost)
            receiving = Receiving()
            opened.receive(receiving)
            assert (receiving.data, receiving.errors) == (b"bye", [None])

    run(scenario())


def test_a_hang_up_is_noticed_before_the_connection_is_used_again():
    async def behave(_reader, writer):
        writer.write(b"bye")

    async def scenario():
        async with listening(behave) as port:
            opened, receiving = await connected(port)
            await until(lambda: receiving.errors)
            assert (receiving.data, receiving.errors) == (b"bye", [None])
            opened.write(b"more")
            with pytest.raises(TransportError):
                await opened.drain(5)
            opened.close()

    run(scenario())


def test_a_reset_ends_the_connection():
    async def behave(_reader, writer):
        writer.transport.abort()

    async def scenario():
        async with listening(behave) as port:
            opened, receiving = await connected(port)
            opened.write(b"something")
            await until(lambda: receiving.errors)
            assert len(receiving.errors) == 1
            opened.close()

    run(scenario())


def test_large_bodies_go_both_ways_through_tls():
    authority = trustme.CA()
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    client_side = ssl.create_default_context()
    authority.configure_trust(client_side)
    body = bytes(range(256)) * 40_000

    async def behave(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        got = await reader.readexactly(len(body))
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(got)
        writer.write(head + got)
        await writer.drain()

    async def scenario():
        async with listening(behave, ssl=server_side) as port:
            outbound = Outbound(AnyTarget(), tls=client_side)
            url = f"https://127.0.0.1:{port}/"
            answer = await outbound.request("PUT", url, {}, body, timeout_s=20, bytes_max=LARGE)
            assert answer.body == body
            await outbound.aclose()

    run(scenario())


def test_a_server_that_hangs_up_on_a_large_body_is_an_error_like_any_other():
    async def behave(reader, writer):
        await reader.read(100)
        writer.transport.abort()

    async def scenario():
        async with listening(behave) as port:
            outbound = Outbound(AnyTarget())
            url = f"http://127.0.0.1:{port}/"
            for _ in range(5):
                with pytest.raises(OutboundError):
                    await outbound.request("PUT", url, {}, bytes(LARGE), timeout_s=20, bytes_max=10)
            await outbound.aclose()

    run(scenario())


def test_a_connection_that_is_lost_can_be_closed():
    async def behave(_reader, writer):
        writer.transport.abort()

    async def scenario():
        async with listening(behave) as port:
            opened, _ = await connected(port)
            opened.write(bytes(1_000_000))
            await until(lambda: opened.is_lost)
            opened.close()
            opened.close()

    run(scenario())


@pytest.mark.parametrize("leaves", ["fails", "is cancelled"])
def test_a_connection_with_half_a_request_on_it_is_not_used_again(leaves):
    """The server would take the next request for the rest of the body."""
    connections = []

    async def early(reader, writer):
        connections.append(writer)
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\nno")

    async def scenario():
        async with listening(early) as port:
            outbound = Outbound(AnyTarget())
            url = f"http://127.0.0.1:{port}/"
            responded = asyncio.Event()

            async def body():
                yield b"half"
                await until(lambda: next(iter(outbound._pool._connections))._response.is_over)
                responded.set()
                if leaves == "fails":
                    raise RuntimeError("mine")
                await asyncio.sleep(30)

            async def call():
                headers = {"Content-Length": "100"}
                async with outbound.stream("POST", url, headers, body(), silence_s=5):
                    pass

            task = asyncio.create_task(call())
            await responded.wait()
            if leaves == "is cancelled":
                task.cancel()
            with pytest.raises((RuntimeError, asyncio.CancelledError)):
                await task
            assert not outbound._pool._connections
            response = await outbound.request("GET", url, {}, timeout_s=5, bytes_max=10)
            assert response.status == 401
            assert len(connections) == 2
            await outbound.aclose()

    run(scenario())


def test_a_body_that_answers_head_ends_the_connection():
    """Its end may still be on the way, and would precede the next response."""
    connections = []

    async def talkative(reader, writer):
        connections.append(writer)
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell")

    async def scenario():
        async with listening(talkative) as port:
            outbound = Outbound(AnyTarget())
            url = f"http://127.0.0.1:{port}/"
            for _ in range(2):
                response = await outbound.request("HEAD", url, {}, timeout_s=5, bytes_max=10)
                assert response.body == b""
            assert len(connections) == 2
            await outbound.aclose()

    run(scenario())


def test_trailers_have_a_limit():
    async def endless(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"2\r\nok\r\n0\r\nX-Trailer: ")
        with suppress(ConnectionError):
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()

    async def scenario():
        async with listening(endless) as port:
            outbound = Outbound(AnyTarget())
            url = f"http://127.0.0.1:{port}/"
            with pytest.raises(OutboundError, match="valid HTTP"):
                await outbound.request("GET", url, {}, timeout_s=3, bytes_max=10)
            await outbound.aclose()

    run(scenario())


def test_bytes_before_the_handshake_are_not_taken_for_the_servers():
    """Anybody on the way could have sent them."""

    async def plain(reader, writer):
        writer.write(b"not encrypted")
        await reader.read()

    async def scenario():
        async with listening(plain) as port:
            opened = await open_socket("127.0.0.1", port, 5)
            await until(lambda: opened._early)
            with pytest.raises(ConnectFailedError):
                await opened.start_tls(ssl.create_default_context(), "127.0.0.1", 0.5)

    run(scenario())
