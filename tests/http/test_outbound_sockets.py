"""The connections under outbound calls: one packet for a request, and limits in both directions."""

import asyncio
import ssl
from contextlib import asynccontextmanager, suppress

import httpcore
import pytest
import trustme

from holdfast.errors import OutboundError
from holdfast.net.outbound import Outbound
from holdfast.net.sockets import UNREAD_BYTES_MAX, connect
from holdfast.net.targets import AnyTarget

LARGE = 64 * 1024 * 1024


def run(scenario):
    async def limited():
        async with asyncio.timeout(30):
            await scenario

    asyncio.run(limited())


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

    async def behave(_reader, writer):
        nonlocal sent
        for _ in range(LARGE // 65_536):
            writer.write(bytes(65_536))
            await writer.drain()
            sent += 65_536

    async def scenario():
        async with listening(behave) as port:
            stream = await connect("127.0.0.1", port, 5)
            first = await stream.read(10)
            # Until the server cannot send any more: what it sent is in buffers of known size.
            before = -1
            while before != sent:
                before = sent
                await asyncio.sleep(0.1)
            held = stream._protocol.unread_bytes
            size = len(first)
            while data := await stream.read(1_000_000):
                size += len(data)
            await stream.aclose()
            assert held <= UNREAD_BYTES_MAX + 1_000_000
            assert size == LARGE

    run(scenario())
    assert sent == LARGE


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
            stream = await connect("127.0.0.1", port, 5)
            with pytest.raises(httpcore.WriteTimeout):
                await write_much(stream)
            go_on.set()
            await stream.write(b"end", timeout=5)
            await stream.aclose()

    async def write_much(stream):
        for _ in range(LARGE // 65_536):
            await stream.write(bytes(65_536), timeout=0.2)

    run(scenario())


def test_silence_is_an_error_after_its_time():
    async def behave(reader, _writer):
        await reader.read()

    async def scenario():
        async with listening(behave) as port:
            stream = await connect("127.0.0.1", port, 5)
            with pytest.raises(httpcore.ReadTimeout):
                await stream.read(10, timeout=0.05)
            await stream.aclose()

    run(scenario())


def test_a_hang_up_is_noticed_before_the_connection_is_used_again():
    async def behave(_reader, writer):
        writer.write(b"bye")

    async def scenario():
        async with listening(behave) as port:
            stream = await connect("127.0.0.1", port, 5)
            assert await stream.read(2) == b"by"
            assert stream.get_extra_info("is_readable")
            assert await stream.read(2) == b"e"
            assert await stream.read(2) == b""
            assert stream.get_extra_info("is_readable")
            with pytest.raises(httpcore.WriteError):
                await stream.write(b"more")
            await stream.aclose()

    run(scenario())


def test_a_reset_is_a_read_error():
    async def behave(_reader, writer):
        writer.transport.abort()

    async def scenario():
        async with listening(behave) as port:
            stream = await connect("127.0.0.1", port, 5)
            await stream.write(b"something")
            with suppress(httpcore.ReadError):
                assert await stream.read(10, timeout=5) == b""
            await stream.aclose()

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
            stream = await connect("127.0.0.1", port, 5)
            await stream.write(bytes(1_000_000), timeout=5)
            while not stream._protocol.is_lost:
                await asyncio.sleep(0.01)
            await stream.aclose()
            await stream.aclose()

    run(scenario())
