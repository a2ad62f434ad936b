"""Calls over HTTP/2: answers that share a connection, and that the server is told what is left."""

import asyncio
import gc
import ssl
from contextlib import suppress

import h2.errors
import h2.events
import h2.settings
import pytest
import trustme
import uvloop

from holdfast.errors import OutboundError
from holdfast.net import http2
from holdfast.net.exchange import OutboundRequest, OutboundStream, make_request
from holdfast.net.failures import RequestRefusedError
from holdfast.net.http2 import RESPONSE_WINDOW_BYTES
from holdfast.net.targets import parse_target
from tests.http.calls_out import calling, collected, run, until
from tests.http.loopback_http2 import serving_http2


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def tls(authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def hello(exchange):
    exchange.head(("x-a", "b"))
    exchange.data(b"hello", end=True)


async def nothing(_exchange):
    pass


async def only_head(exchange):
    exchange.head()


def url_of(server):
    return f"https://127.0.0.1:{server.port}/a?b=c"


def test_a_request_and_its_answer(authority, tls):
    async def behave(exchange):
        await exchange.whole.wait()
        exchange.head(("x-a", "b"), ("x-a", "c"), status="103")
        exchange.head(("x-a", "1"), ("x-a", "2"), status="201")
        exchange.data(exchange.body[::-1])
        exchange.data(b"", end=True)

    async def scenario():
        async with serving_http2(behave, authority) as server, calling(tls=tls) as outbound:
            headers = {"X-Mine": b"\xc3\xa4", "Connection": "close"}
            for _ in range(3):
                async with outbound.stream(
                    "POST", url_of(server), headers, b"abc", silence_s=5
                ) as answer:
                    assert (answer.status, await answer.read(10)) == (201, b"cba")
                    assert answer.headers == [("x-a", "1"), ("x-a", "2")]
            seen = server.exchanges[0].headers
            assert seen[":method"] == "POST"
            assert seen[":path"] == "/a?b=c"
            assert seen[":authority"] == f"127.0.0.1:{server.port}"
            assert seen["x-mine"] == "ä"
            assert "connection" not in seen
            assert len(server.connections) == 1

    run(scenario())


def test_every_answer_is_handed_out_when_it_comes(authority, tls):
    """None of them waits until another one, which reads from the connection, has news."""

    async def scenario():
        async with serving_http2(only_head, authority) as server, calling(tls=tls) as outbound:
            got = [[] for _ in range(6)]

            async def follow(number):
                async with outbound.stream("GET", url_of(server), {}, silence_s=10) as answer:
                    async for chunk in answer.chunks():
                        got[number].append(chunk)

            calls = []
            for number in range(6):
                calls.append(asyncio.create_task(follow(number)))
                await until(lambda: len(server.exchanges) == len(calls))
            for number in (5, 0, 3, 3, 1):
                before = len(got[number])
                server.exchanges[number].data(b"x")
                await until(lambda: len(got[number]) > before)  # noqa: B023 (awaited right here)
            for exchange in reversed(server.exchanges):
                exchange.data(b"end", end=True)
            await asyncio.gather(*calls)
            assert [len(each) for each in got] == [2, 2, 1, 3, 1, 2]
            assert len(server.connections) == 1

    run(scenario())


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("behave", [nothing, only_head])
def test_a_call_that_is_cancelled_is_reset_and_its_neighbours_go_on(
    authority, tls, behave, loop_factory
):
    async def scenario():
        async with serving_http2(behave, authority) as server, calling(tls=tls) as outbound:
            calls = [
                asyncio.create_task(collected(outbound, "GET", url_of(server))) for _ in range(3)
            ]
            await until(lambda: len(server.exchanges) == 3)
            # A second time, while the first is being dealt with, must not matter.
            calls[1].cancel()
            await asyncio.sleep(0)
            calls[1].cancel()
            with pytest.raises(asyncio.CancelledError):
                await calls[1]
            left = server.exchanges.pop(1)
            assert await left.reset == h2.errors.ErrorCodes.CANCEL
            for exchange in server.exchanges:
                if behave is nothing:
                    exchange.head()
                exchange.data(b"end", end=True)
            assert await calls[0] == await calls[2] == (200, [b"end"])
            assert len(server.connections) == 1
            assert outbound._calls == 0

    run(scenario(), loop_factory=loop_factory)


def test_an_answer_that_is_left_early_is_reset_and_gives_its_window_back(authority, tls):
    async def flood(exchange):
        exchange.head()
        while not exchange.reset.done():
            while (room := exchange.room()) > 0:
                exchange.data(bytes(min(room, 16_000)))
            exchange.connection.room.clear()
            await exchange.connection.room.wait()

    async def scenario():
        async with serving_http2(flood, authority) as server, calling(tls=tls) as outbound:
            # More than the window of the connection in all.
            for number in range(20):
                async with outbound.stream("GET", url_of(server), {}, silence_s=10) as answer:
                    async for _ in answer.chunks():
                        break
                    # All that it may send is there, though nobody takes it.
                    exchange = server.exchanges[number]
                    await until(lambda: exchange.room() == 0)  # noqa: B023 (awaited right here)
                assert await exchange.reset == h2.errors.ErrorCodes.CANCEL
                exchange.connection.room.set()
            assert len(server.connections) == 1
            taken = RESPONSE_WINDOW_BYTES * 20
            assert taken > server.connections[0].state.outbound_flow_control_window

    run(scenario())


def test_what_nobody_takes_stays_with_the_server(authority, tls):
    async def scenario():
        async with serving_http2(only_head, authority) as server, calling(tls=tls) as outbound:
            async with outbound.stream("GET", url_of(server), {}, silence_s=10) as answer:
                await until(lambda: server.exchanges[0].room() > 0)
                exchange = server.exchanges[0]
                state = exchange.connection.state
                window = state.local_flow_control_window(exchange.stream_id)
                assert window == RESPONSE_WINDOW_BYTES
                sent = 0
                while room := min(exchange.room(), 16_000):
                    exchange.data(bytes(room))
                    sent += room
                assert sent == window
                size = 0
                async for chunk in answer.chunks():
                    size += len(chunk)
                    if size == sent:
                        exchange.data(b"", end=True)
                assert size == sent

    run(scenario())


def test_a_large_body_goes_as_fast_as_it_is_taken(authority, tls):
    async def behave(exchange):
        await exchange.whole.wait()
        exchange.head()
        exchange.data(str(len(exchange.body)).encode(), end=True)

    async def pieces():
        for _ in range(50):
            yield bytes(100_000)

    async def scenario():
        async with serving_http2(behave, authority) as server, calling(tls=tls) as outbound:
            for body in (bytes(5_000_000), pieces()):
                _, chunks = await collected(outbound, "PUT", url_of(server), {}, body)
                assert chunks == [b"5000000"]

    run(scenario())


def test_an_answer_before_the_whole_body_ends_the_body(authority, tls):
    async def refuse(exchange):
        exchange.head(status="413")
        exchange.data(b"too large", end=True)

    async def endless():
        while True:
            yield bytes(100_000)
            await asyncio.sleep(0)

    async def scenario():
        async with serving_http2(refuse, authority) as server, calling(tls=tls) as outbound:
            answer = await collected(outbound, "PUT", url_of(server), {}, endless())
            assert answer == (413, [b"too large"])
            await server.exchanges[0].reset

    run(scenario())


def test_a_reset_while_the_body_is_still_to_come_is_an_error(authority, tls):
    async def behave(exchange):
        exchange.connection.state.reset_stream(exchange.stream_id, 2)
        exchange.connection.flush()

    async def scenario():
        async with serving_http2(behave, authority) as server, calling(tls=tls) as outbound:

            async def body():
                await until(lambda: server.exchanges)
                # What comes of this one comes behind the other's reset.
                with suppress(OutboundError):
                    await collected(outbound, "GET", url_of(server))
                yield b""

            with pytest.raises(OutboundError, match="broke off"):
                await collected(outbound, "PUT", url_of(server), {}, body())
            assert len(server.connections) == 1

    run(scenario())


@pytest.mark.parametrize("code", [h2.errors.ErrorCodes.INTERNAL_ERROR, 0, 8])
@pytest.mark.parametrize("begun", [True, False])
def test_a_reset_by_the_server_is_an_error(authority, tls, code, begun):
    async def behave(exchange):
        if begun:
            exchange.head()
            exchange.data(b"some")
        exchange.connection.state.reset_stream(exchange.stream_id, code)
        exchange.connection.flush()

    async def scenario():
        async with serving_http2(behave, authority) as server, calling(tls=tls) as outbound:
            for _ in range(2):
                with pytest.raises(OutboundError, match="broke off") as caught:
                    await collected(outbound, "GET", url_of(server))
                assert caught.value.sent
            assert len(server.connections) == 1

    run(scenario())


@pytest.mark.parametrize("begun", [True, False])
def test_a_reset_leaves_nothing_behind(authority, tls, begun):
    """Not even for the collector, which comes late to a server with much in memory."""

    async def behave(exchange):
        if begun:
            exchange.head()
            exchange.data(b"some")
        exchange.connection.state.reset_stream(exchange.stream_id, 2)
        exchange.connection.flush()

    def left():
        return [
            each for each in gc.get_objects() if isinstance(each, OutboundStream | OutboundRequest)
        ]

    async def scenario():
        async with serving_http2(behave, authority) as server, calling(tls=tls) as outbound:
            gc.collect()
            gc.disable()
            # Errors that other tests keep may hold theirs.
            before = left()
            try:
                for _ in range(5):
                    with suppress(OutboundError):
                        await collected(outbound, "GET", url_of(server))
                assert len(server.exchanges) == 5
                assert left() == before
            finally:
                gc.enable()

    run(scenario())


def test_a_request_that_the_server_refuses_counts_as_not_sent(authority, tls):
    async def behave(exchange):
        code = h2.errors.ErrorCodes.REFUSED_STREAM
        exchange.connection.state.reset_stream(exchange.stream_id, code)
        exchange.connection.flush()

    async def scenario():
        async with serving_http2(behave, authority) as server, calling(tls=tls) as outbound:
            with pytest.raises(OutboundError, match="did not accept the request") as caught:
                await collected(outbound, "GET", url_of(server))
            assert not caught.value.sent

    run(scenario())


@pytest.mark.parametrize(
    "headers",
    [[("content-length", "9")], [("bad header", "x")], [("x-a", "b\r\nx-c: d")], [("x-ä", "b")]],
)
def test_what_is_no_http_2_is_an_error(authority, tls, headers):
    async def behave(exchange):
        exchange.head(*headers)
        exchange.data(b"some", end=True)

    async def scenario():
        async with serving_http2(behave, authority) as server, calling(tls=tls) as outbound:
            with pytest.raises(OutboundError, match="valid HTTP"):
                await collected(outbound, "GET", url_of(server))

    run(scenario())


def test_a_server_that_hangs_up_is_an_error_for_all(authority, tls):
    async def scenario():
        async with serving_http2(only_head, authority) as server, calling(tls=tls) as outbound:
            calls = [
                asyncio.create_task(collected(outbound, "GET", url_of(server))) for _ in range(3)
            ]
            await until(lambda: len(server.exchanges) == 3)
            server.connections[0].transport.abort()
            failures = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(each) for each in failures] == [OutboundError] * 3
            assert not any(each.late for each in failures)

    run(scenario())


def say_good_bye(connection, last_stream_id):
    """h2 would take its own good-bye for the end, so it is written past it."""
    frame = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + last_stream_id.to_bytes(4) + bytes(4)
    connection.transport.write(frame)


def test_a_server_that_says_good_bye_finishes_what_it_has(authority, tls):
    async def scenario():
        async with serving_http2(only_head, authority) as server, calling(tls=tls) as outbound:
            url = url_of(server)
            async with outbound.stream("GET", url, {}, silence_s=5) as first:
                exchange = server.exchanges[0]
                exchange.data(b"before ")
                say_good_bye(exchange.connection, exchange.stream_id)
                chunks = first.chunks()
                assert await anext(chunks) == b"before "
                exchange.data(b"behind ")
                assert await anext(chunks) == b"behind "
                # Others go elsewhere.
                second = asyncio.create_task(collected(outbound, "GET", url))
                await until(lambda: len(server.exchanges) == 2)
                assert len(server.connections) == 2
                server.exchanges[1].data(b"elsewhere", end=True)
                assert await second == (200, [b"elsewhere"])
                exchange.data(b"end", end=True)
                assert [chunk async for chunk in chunks] == [b"end"]
            await server.connections[0].lost.wait()

    run(scenario())


def test_a_request_behind_the_good_bye_counts_as_not_sent(authority, tls):
    async def behave(exchange):
        say_good_bye(exchange.connection, 0)

    async def scenario():
        async with serving_http2(behave, authority) as server, calling(tls=tls) as outbound:
            with pytest.raises(OutboundError, match="did not accept the request") as caught:
                await collected(outbound, "GET", url_of(server))
            assert not caught.value.sent

    run(scenario())


@pytest.mark.parametrize("politely", [True, False])
def test_an_idle_connection_that_the_server_closed_is_not_used_again(authority, tls, politely):
    async def scenario():
        async with serving_http2(hello, authority) as server, calling(tls=tls) as outbound:
            for number in range(1, 4):
                assert await collected(outbound, "GET", url_of(server)) == (200, [b"hello"])
                assert len(server.connections) == number
                connection = server.connections[-1]
                if politely:
                    say_good_bye(connection, server.exchanges[-1].stream_id)
                connection.transport.close()
                await connection.lost.wait()

    run(scenario())


def test_silence_is_late_and_ends_one_answer_only(authority, tls):
    async def scenario():
        async with serving_http2(only_head, authority) as server, calling(tls=tls) as outbound:
            url = url_of(server)
            patient = asyncio.create_task(collected(outbound, "GET", url, silence_s=10))
            await until(lambda: len(server.exchanges) == 1)
            with pytest.raises(OutboundError, match="did not respond within") as caught:
                await collected(outbound, "GET", url, silence_s=0.1)
            assert caught.value.late
            await until(lambda: len(server.exchanges) == 2)
            assert await server.exchanges[1].reset == h2.errors.ErrorCodes.CANCEL
            server.exchanges[0].data(b"end", end=True)
            assert await patient == (200, [b"end"])

    run(scenario())


def test_a_busy_neighbour_does_not_hide_silence(authority, tls):
    async def scenario():
        async with serving_http2(only_head, authority) as server, calling(tls=tls) as outbound:
            url = url_of(server)
            busy = asyncio.create_task(collected(outbound, "GET", url))
            silent = asyncio.create_task(collected(outbound, "GET", url, silence_s=0.2))
            await until(lambda: len(server.exchanges) == 2)
            while not silent.done():
                server.exchanges[0].data(b"x")
                server.connections[0].state.increment_flow_control_window(1)
                server.connections[0].flush()
                await asyncio.sleep(0.01)
            with pytest.raises(OutboundError, match="did not respond within"):
                await silent
            server.exchanges[0].data(b"", end=True)
            await busy

    run(scenario())


def test_a_head_that_does_not_come_is_late(authority, tls):
    async def behave(exchange):
        if exchange.stream_id == 1:
            await hello(exchange)

    async def scenario():
        async with serving_http2(behave, authority) as server, calling(tls=tls) as outbound:
            await collected(outbound, "GET", url_of(server))
            with pytest.raises(OutboundError, match=r"within 0\.1 s") as caught:
                await collected(outbound, "GET", url_of(server), header_timeout_s=0.1)
            assert caught.value.late
            await until(lambda: len(server.exchanges) == 2)
            assert await server.exchanges[1].reset == h2.errors.ErrorCodes.CANCEL

    run(scenario())


def test_a_connection_without_any_reaction_gets_no_further_requests(authority, tls, monkeypatch):
    """It may be dead: nobody says so where a router has forgotten it."""
    monkeypatch.setattr(http2, "REACTION_S", 0.05)

    async def scenario():
        async with serving_http2(hello, authority) as server, calling(tls=tls) as outbound:
            await collected(outbound, "GET", url_of(server))
            dead = server.connections[0]
            dead.transport.pause_reading()
            with pytest.raises(OutboundError) as caught:
                await collected(outbound, "GET", url_of(server), header_timeout_s=0.2)
            assert caught.value.late
            assert await collected(outbound, "GET", url_of(server)) == (200, [b"hello"])
            assert len(server.connections) == 2

    run(scenario())


def test_no_more_requests_at_a_time_than_the_server_takes(authority, tls):
    async def scenario():
        async with serving_http2(only_head, authority) as server, calling(tls=tls) as outbound:
            server.streams_max = 2
            calls = [
                asyncio.create_task(collected(outbound, "GET", url_of(server))) for _ in range(6)
            ]
            await until(lambda: len(server.exchanges) == 6)
            assert len(server.connections) == 3
            assert all(len(each.exchanges) == 2 for each in server.connections)
            for exchange in server.exchanges:
                exchange.data(b"end", end=True)
            assert await asyncio.gather(*calls) == [(200, [b"end"])] * 6

    run(scenario())


def test_a_request_that_was_handed_a_connection_goes_elsewhere_if_the_server_leaves(authority, tls):
    async def scenario():
        async with (
            serving_http2(only_head, authority) as server,
            calling(tls=tls, connections_max=1) as outbound,
        ):
            server.streams_max = 1
            url = url_of(server)
            async with outbound.stream("GET", url, {}, silence_s=5):
                second = asyncio.create_task(collected(outbound, "GET", url))
                await until(lambda: outbound._pool._waiting)
                connection = server.connections[0]
                # Room for a second request, and the end of the connection.
                more = b"\x00\x00\x06\x04\x00" + bytes(4) + b"\x00\x03\x00\x00\x00\x02"
                good_bye = b"\x00\x00\x08\x07\x00" + bytes(4) + (1).to_bytes(4) + bytes(4)
                connection.transport.write(more + good_bye)
                await until(lambda: next(iter(outbound._pool._connections))._is_leaving)
                await asyncio.sleep(0.05)
                assert len(server.exchanges) == 1
            await until(lambda: len(server.exchanges) == 2)
            assert len(server.connections) == 2
            server.exchanges[1].data(b"elsewhere", end=True)
            assert await second == (200, [b"elsewhere"])

    run(scenario())


def test_a_response_without_a_status_is_reset(authority, tls):
    async def behave(exchange):
        exchange.head(status="none")

    async def scenario():
        async with serving_http2(behave, authority) as server, calling(tls=tls) as outbound:
            with pytest.raises(OutboundError, match="valid HTTP"):
                await collected(outbound, "GET", url_of(server))
            assert await server.exchanges[0].reset == h2.errors.ErrorCodes.CANCEL
            assert next(iter(outbound._pool._connections))._state.open_outbound_streams == 0

    run(scenario())


def test_an_answer_before_the_whole_body_counts_though_the_server_then_hangs_up(authority, tls):
    async def behave(exchange):
        connection = exchange.connection
        if exchange.headers[":method"] == "GET":
            # Room for so much that the socket is full first.
            settings = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2**30}
            connection.state.update_settings(settings)
            connection.state.increment_flow_control_window(2**30)
            exchange.head(end=True)
            return
        connection.transport.pause_reading()
        await asyncio.sleep(0.3)
        exchange.head(status="413", end=True)
        await asyncio.sleep(0.3)
        connection.transport.abort()

    async def scenario():
        async with serving_http2(behave, authority) as server, calling(tls=tls) as outbound:
            await collected(outbound, "GET", url_of(server))
            body = bytes(64 * 1024 * 1024)
            assert await collected(outbound, "POST", url_of(server), {}, body) == (413, [])

    run(scenario())


def test_a_server_that_takes_no_requests_at_all_may_take_some_later(authority, tls):
    async def scenario():
        async with serving_http2(nothing, authority) as server, calling(tls=tls) as outbound:
            server.streams_max = 0
            url = url_of(server)
            connection = await outbound._connector.connect(parse_target(url), 5)
            await connection.settled
            with pytest.raises(RequestRefusedError):
                await connection.send(make_request(parse_target(url), "GET", url, {}, b"", 5))
            assert connection.is_closed

    run(scenario())
