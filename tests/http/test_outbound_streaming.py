"""Answers and bodies in pieces over HTTP/1.1: how they end, break off, come late or are left."""

import asyncio
import socket
import struct
from contextlib import suppress

import pytest
import uvloop

from holdfast.errors import OutboundError
from tests.http.calls_out import calling, collected, run, until
from tests.http.loopback import answer, serving

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def telling(said, *, then_close=True):
    """A server that says the same to everyone."""

    async def behave(_head, _body, writer):
        writer.write(said)
        await writer.drain()
        if then_close:
            writer.close()

    return behave


async def echo(head, body, writer):
    writer.write(answer("200 OK", head + body))


async def into(got, outbound, url):
    async with outbound.stream("GET", url, {}, silence_s=5) as response:
        async for chunk in response.chunks():
            got.append(chunk)


@pytest.mark.parametrize(
    ("said", "came"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", b"ab"),
        (CHUNKED + b"2\r\nab\r\n", b"ab"),
        (CHUNKED + b"2\r\nab\r\n0\r\n", b"ab"),
        (CHUNKED + b"5\r\nab", b"ab"),
        (CHUNKED, b""),
    ],
    ids=["length", "no last chunk", "half a last chunk", "half a chunk", "nothing"],
)
def test_an_answer_that_breaks_off_is_an_error_behind_what_came(said, came):
    async def scenario():
        async with serving(telling(said)) as server, calling() as outbound:
            url = f"http://127.0.0.1:{server.port}/"
            got = []
            with pytest.raises(OutboundError, match="broke off") as caught:
                await into(got, outbound, url)
            assert b"".join(got) == came
            assert caught.value.sent
            assert not caught.value.late

    run(scenario())


def test_an_answer_without_a_length_ends_with_its_connection():
    async def scenario():
        said = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nall of it"
        async with serving(telling(said)) as server, calling() as outbound:
            status, chunks = await collected(outbound, "GET", f"http://127.0.0.1:{server.port}/")
            assert (status, b"".join(chunks)) == (200, b"all of it")

    run(scenario())


def test_a_reset_in_the_middle_is_an_error():
    async def scenario():
        async def reset(_head, _body, writer):
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nsome")
            await writer.drain()
            await go_on.wait()
            # No lingering: the connection is reset instead of being ended.
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

        go_on = asyncio.Event()
        async with serving(reset) as server, calling() as outbound:
            url = f"http://127.0.0.1:{server.port}/"
            async with outbound.stream("GET", url, {}, silence_s=5) as response:
                chunks = response.chunks()
                assert await anext(chunks) == b"some"
                go_on.set()
                with pytest.raises(OutboundError, match="broke the connection off"):
                    await anext(chunks)

    run(scenario())


@pytest.mark.parametrize(
    "before",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n" * 3,
        b"HTTP/1.1 102 Processing\r\nContent-Length: 5\r\n\r\n",
    ],
)
def test_informational_answers_are_passed_over(before):
    async def scenario():
        said = before + answer("201 Created", b"hello", "X-A: b")
        async with (
            serving(telling(said, then_close=False)) as server,
            calling() as outbound,
        ):
            url = f"http://127.0.0.1:{server.port}/"
            for _ in range(2):
                async with outbound.stream("POST", url, {}, b"{}", silence_s=5) as response:
                    assert response.status == 201
                    assert ("x-a", "b") in response.headers
                    assert "link" not in dict(response.headers)
                    assert await response.read(10) == b"hello"
            assert server.connections == 1

    run(scenario())


def test_a_switch_of_protocols_that_nobody_asked_for_is_an_error():
    async def scenario():
        said = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nxyz"
        async with (
            serving(telling(said, then_close=False)) as server,
            calling() as outbound,
        ):
            with pytest.raises(OutboundError, match="valid HTTP"):
                await collected(outbound, "GET", f"http://127.0.0.1:{server.port}/")

    run(scenario())


class Silent:
    """A server that says the beginning, and notes who hangs up."""

    def __init__(self, first=b""):
        self.first = first
        self.accepted = self.gone = 0

    async def on_connection(self, reader, writer):
        self.accepted += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.first)
            while await reader.read(1000):
                pass
        self.gone += 1
        writer.close()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.on_connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/"
        return self

    async def __aexit__(self, *_error):
        self.server.close()
        await until(lambda: self.gone == self.accepted)


@pytest.mark.spec("proxy 9.1-1")
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_a_head_that_does_not_come_in_time_is_late(first, alone):
    async def scenario():
        async with Silent(first) as server, calling() as outbound:
            with pytest.raises(OutboundError, match=r"within 0\.1 s") as caught:
                await collected(
                    outbound, "GET", server.url, silence_s=60, header_timeout_s=0.1, alone=alone
                )
            assert caught.value.late
            await until(lambda: server.gone)

    run(scenario())


def test_the_time_for_the_head_does_not_limit_the_body():
    async def scenario():
        async def slow(_head, _body, writer):
            writer.write(CHUNKED)
            await asyncio.sleep(1.1)
            writer.write(b"1\r\nx\r\n0\r\n\r\n")

        async with serving(slow) as server, calling() as outbound:
            url = f"http://127.0.0.1:{server.port}/"
            _, chunks = await collected(outbound, "GET", url, header_timeout_s=1)
            assert chunks == [b"x"]

    run(scenario())


def test_waiting_for_a_connection_counts_against_the_time_for_the_head():
    async def scenario():
        async with Silent(CHUNKED) as server, calling(connections_max=1) as outbound:
            async with outbound.stream("GET", server.url, {}, silence_s=60) as response:
                assert response.status == 200
                with pytest.raises(OutboundError, match=r"within 0\.1 s") as caught:
                    await collected(outbound, "GET", server.url, silence_s=60, header_timeout_s=0.1)
            assert caught.value.late

    run(scenario())


@pytest.mark.parametrize("first", [b"", CHUNKED + b"1\r\nx\r\n"], ids=["head", "body"])
def test_silence_is_late(first):
    async def scenario():
        async with Silent(first) as server, calling() as outbound:
            with pytest.raises(OutboundError, match="did not respond within") as caught:
                await collected(outbound, "GET", server.url, silence_s=0.1)
            assert caught.value.late
            await until(lambda: server.gone)

    run(scenario())


def test_a_whole_answer_that_takes_too_long_is_late_and_a_refused_connection_is_not():
    async def scenario():
        async with Silent() as server, calling() as outbound:
            with pytest.raises(OutboundError) as caught:
                await outbound.request("GET", server.url, {}, timeout_s=0.1, bytes_max=1)
            assert caught.value.late
        async with calling() as outbound:
            with pytest.raises(OutboundError) as caught:
                await outbound.request("GET", server.url, {}, timeout_s=5, bytes_max=1)
            assert not caught.value.late

    run(scenario())


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("first", [b"", CHUNKED + b"1\r\nx\r\n"], ids=["head", "body"])
def test_a_cancelled_call_hangs_up_and_leaves_nothing_behind(first, alone, loop_factory):
    async def scenario():
        async with Silent(first) as server, calling(connections_max=1) as outbound:
            # Cancelling again while the first time is being dealt with must not matter.
            for rounds in range(8):
                call = asyncio.create_task(
                    collected(outbound, "GET", server.url, silence_s=60, alone=alone)
                )
                for _ in range(rounds):
                    await asyncio.sleep(0)
                if rounds % 2:
                    await asyncio.sleep(0.02)
                call.cancel()
                for _ in range(rounds // 2):
                    await asyncio.sleep(0)
                    call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            async with serving(echo) as other:
                # The only connection there is is free again.
                url = f"http://127.0.0.1:{other.port}/"
                assert (await collected(outbound, "GET", url, header_timeout_s=5))[0] == 200
            await until(lambda: server.gone == server.accepted)
            assert server.accepted
            assert outbound._calls == 0

    run(scenario(), loop_factory=loop_factory)


@pytest.mark.parametrize("alone", [True, False])
def test_an_answer_that_is_left_early_hangs_up(alone):
    async def scenario():
        async with Silent(CHUNKED + b"1\r\nx\r\n") as server, calling() as outbound:
            async with outbound.stream("GET", server.url, {}, silence_s=60, alone=alone) as got:
                async for _ in got.chunks():
                    break
            await until(lambda: server.gone)

    run(scenario())


async def pieces(*parts):
    for part in parts:
        yield part


def test_a_body_in_pieces_is_sent_with_its_length_where_it_is_given():
    async def scenario():
        async with serving(echo) as server, calling() as outbound:
            url = f"http://127.0.0.1:{server.port}/"
            headers = {"content-length": b"6"}
            _, chunks = await collected(outbound, "POST", url, headers, pieces(b"abc", b"def"))
            seen = b"".join(chunks)
            assert b"content-length: 6\r\n" in seen
            assert b"chunked" not in seen.lower()
            assert seen.endswith(b"\r\n\r\nabcdef")
            # The connection is good for another call.
            await collected(outbound, "POST", url, headers, pieces(b"abcdef"))
            assert server.connections == 1

    run(scenario())


@pytest.mark.parametrize(
    ("length", "parts"), [("5", [b"abc", b"def"]), ("7", [b"abc", b"def"]), ("1", [])]
)
def test_a_body_of_another_length_than_announced_is_given_up(length, parts):
    async def scenario():
        async with serving(echo) as server, calling() as outbound:
            url = f"http://127.0.0.1:{server.port}/"
            with pytest.raises(OutboundError, match="Content-Length") as caught:
                await collected(outbound, "POST", url, {"Content-Length": length}, pieces(*parts))
            assert not caught.value.passing

    run(scenario())


@pytest.mark.parametrize("error", [RuntimeError("mine"), TimeoutError("mine"), OSError("mine")])
def test_what_the_callers_body_fails_with_is_the_callers(error):
    async def failing():
        yield b"abc"
        raise error

    async def scenario():
        async with Silent() as server, calling() as outbound:
            with pytest.raises(type(error), match="mine"):
                await collected(outbound, "POST", server.url, {}, failing(), header_timeout_s=5)
            await until(lambda: server.gone)

    run(scenario())


@pytest.mark.parametrize(
    "headers",
    [
        {"X-A": "b\r\nX-C: d"},
        {"X-A": b"b\r\nX-C: d"},
        {"X-A": b"b\nX-C: d"},
        {"X-A": b"\x00"},
        {"X-A": b"\x7f"},
        {"X-A": "b\N{SNOWMAN}"},
        {"X-A\r\nX-C": "d"},
        {"X-A: b": "d"},
        {"X A": "d"},
        {"X-A ": "d"},
        {"": "d"},
        {"X-\N{SNOWMAN}": "d"},
        {":path": "/other"},
        {"Content-Length": "+2"},
        {"Content-Length": "2", "Transfer-Encoding": "chunked"},
        {"Transfer-Encoding": "gzip"},
    ],
)
@pytest.mark.parametrize("body", [b"{}", None], ids=["bytes", "pieces"])
def test_headers_that_would_be_others_are_not_sent(headers, body):
    async def scenario():
        async with serving(echo) as server, calling() as outbound:
            url = f"http://127.0.0.1:{server.port}/"
            with pytest.raises(OutboundError, match="cannot be sent") as caught:
                await collected(outbound, "POST", url, headers, body or pieces(b"{}"))
            assert not caught.value.sent
            assert not caught.value.passing
            assert server.heads == []

    run(scenario())


def test_a_length_that_is_wrong_or_a_method_that_is_none_is_not_sent():
    async def scenario():
        async with serving(echo) as server, calling() as outbound:
            url = f"http://127.0.0.1:{server.port}/"
            for length in ("1", "3"):
                with pytest.raises(OutboundError, match="cannot be sent"):
                    await collected(outbound, "POST", url, {"Content-Length": length}, b"{}")
            for method in ("", "GET /x", "G\r\nT", "GÉT"):
                with pytest.raises(OutboundError, match="cannot be sent"):
                    await collected(outbound, method, url)
            assert server.heads == []

    run(scenario())


def test_values_in_bytes_are_sent_as_they_are():
    async def scenario():
        async with serving(echo) as server, calling() as outbound:
            url = f"http://127.0.0.1:{server.port}/"
            value = "Grüße\t".encode() + b"\xff x"
            await collected(outbound, "GET", url, {"X-A": value, "Authorization": b"Bearer x"})
            assert b"\r\nX-A: " + value + b"\r\n" in server.heads[0]
            assert b"\r\nAuthorization: Bearer x\r\n" in server.heads[0]

    run(scenario())
