"""The pool under outbound calls: limits, waiting in order, keep-alive, sharing, cancellation."""

import asyncio
import ssl

import pytest
import trustme
import uvloop

from holdfast.errors import OutboundError
from holdfast.net import http2, pool
from holdfast.net.pool import IDLE_CONNECTIONS_MAX
from tests.http.calls_out import calling, collected, run, until
from tests.http.loopback import answer, serving
from tests.http.loopback_http2 import serving_http2

LOOPS = pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])


class Held:
    """A server that responds when it is told to, in the order of the requests."""

    def __init__(self):
        self.paths = []
        self.gates = []

    async def behave(self, head, _body, writer):
        gate = asyncio.Event()
        self.paths.append(head.split(b" ")[1].decode())
        self.gates.append(gate)
        await gate.wait()
        writer.write(answer("200 OK", b"hello"))

    def let_go(self, number):
        self.gates[number].set()


def calls_to(outbound, server, paths, **limits):
    url = f"http://127.0.0.1:{server.port}/"
    return [asyncio.create_task(collected(outbound, "GET", url + path, **limits)) for path in paths]


async def hello(_head, _body, writer):
    writer.write(answer("200 OK", b"hello"))


@LOOPS
def test_no_more_connections_than_allowed_and_who_waits_is_served_in_order(loop_factory):
    held = Held()

    async def scenario():
        async with serving(held.behave) as server, calling(connections_max=2) as outbound:
            calls = calls_to(outbound, server, "abcdef")
            for number in range(6):
                await until(lambda: len(held.paths) >= min(number + 2, 6))  # noqa: B023
                await asyncio.sleep(0.01)
                assert len(held.paths) == min(number + 2, 6)
                held.let_go(number)
                # Whoever comes later is behind those who wait.
                if number < 4:
                    calls += calls_to(outbound, server, "z")
                    calls.pop().cancel()
            await asyncio.gather(*calls)
            assert held.paths == ["/a", "/b", "/c", "/d", "/e", "/f"]
            assert server.connections == 2

    run(scenario(), loop_factory=loop_factory)


def test_a_finished_call_does_not_take_its_connection_from_one_that_waits():
    """The same task asks again at once, and yet is behind the one that was there before."""

    async def scenario():
        async with serving(hello) as server, calling(connections_max=1) as outbound:
            url = f"http://127.0.0.1:{server.port}/"
            finished = []

            async def call_often(name):
                for _ in range(20):
                    await collected(outbound, "GET", url)
                    finished.append(name)

            await asyncio.gather(*(call_often(name) for name in "abc"))
            assert finished == list("abc") * 20
            assert server.connections == 1

    run(scenario())


def test_a_wait_for_a_connection_ends_in_time_and_nothing_was_sent():
    held = Held()

    async def scenario():
        async with serving(held.behave) as server, calling(connections_max=1) as outbound:
            first = calls_to(outbound, server, "a")[0]
            await until(lambda: held.paths)
            with pytest.raises(OutboundError, match="no connection became free in time") as caught:
                await calls_to(outbound, server, "b", silence_s=0.05)[0]
            assert caught.value.late
            assert not caught.value.sent
            held.let_go(0)
            await first
            third = calls_to(outbound, server, "c")[0]
            await until(lambda: len(held.paths) == 2)
            held.let_go(1)
            await third
            assert held.paths == ["/a", "/c"]

    run(scenario())


@LOOPS
@pytest.mark.parametrize("rounds", range(4))
def test_a_cancelled_waiter_gives_back_what_it_was_handed(loop_factory, rounds):
    """The connection may be on its way to the waiter at that very moment."""
    held = Held()

    async def scenario():
        async with serving(held.behave) as server, calling(connections_max=1) as outbound:
            first, second, third = calls_to(outbound, server, "abc")
            await until(lambda: held.paths)
            held.let_go(0)
            if rounds:
                await first
            for _ in range(rounds - 1):
                await asyncio.sleep(0)
            second.cancel()
            await until(lambda: "/c" in held.paths)
            for number in range(len(held.gates)):
                held.let_go(number)
            assert (await third)[0] == 200
            assert outbound._calls == 0
            assert not outbound._pool._waiting

    run(scenario(), loop_factory=loop_factory)


def test_an_idle_connection_makes_room_for_another_server():
    async def scenario():
        async with (
            serving(hello) as one,
            serving(hello) as other,
            calling(connections_max=1) as outbound,
        ):
            for server in (one, other, one, other):
                await calls_to(outbound, server, "a")[0]
            assert (one.connections, other.connections) == (2, 2)

    run(scenario())


def test_a_connection_that_is_given_back_makes_room_for_who_waits_for_another_server():
    held = Held()

    async def scenario():
        async with (
            serving(held.behave) as one,
            serving(hello) as other,
            calling(connections_max=1) as outbound,
        ):
            first = calls_to(outbound, one, "a")[0]
            await until(lambda: held.paths)
            second = calls_to(outbound, other, "b")[0]
            await asyncio.sleep(0.02)
            assert other.connections == 0
            held.let_go(0)
            assert (await first)[0] == (await second)[0] == 200

    run(scenario())


def test_a_connection_is_used_until_it_was_idle_for_too_long(monkeypatch):
    async def scenario():
        async with serving(hello) as server, calling() as outbound:
            for _ in range(3):
                await calls_to(outbound, server, "a")[0]
            assert server.connections == 1
            monkeypatch.setattr(pool, "KEEP_ALIVE_S", 0.05)
            await calls_to(outbound, server, "a")[0]
            await asyncio.sleep(0.1)
            await calls_to(outbound, server, "a")[0]
            assert server.connections == 2
            assert len(outbound._pool._connections) == 1

    run(scenario())


def test_after_a_rush_few_connections_are_kept_and_as_many_may_come_again():
    held = Held()
    count = IDLE_CONNECTIONS_MAX + 20

    async def scenario():
        async with serving(held.behave) as server, calling(connections_max=count) as outbound:
            for _ in range(2):
                before = len(held.gates)
                calls = calls_to(outbound, server, ["x"] * count)
                await until(lambda: len(held.gates) == before + count)  # noqa: B023
                for number in range(before, before + count):
                    held.let_go(number)
                await asyncio.gather(*calls)
                assert len(outbound._pool._connections) == IDLE_CONNECTIONS_MAX
            assert server.connections == count + 20

    run(scenario())


def test_a_connection_that_the_server_closed_between_requests_is_not_used_again():
    async def scenario():
        async def hello_and_close(_head, _body, writer):
            writer.write(answer("200 OK", b"hello"))
            await writer.drain()
            asyncio.get_running_loop().call_later(0.02, writer.close)

        async with serving(hello_and_close) as server, calling() as outbound:
            for number in range(1, 4):
                assert (await calls_to(outbound, server, "a")[0])[1] == [b"hello"]
                assert server.connections == number
                await until(lambda: not outbound._pool._connections)
            assert not outbound._pool._origins

    run(scenario())


def test_bytes_that_nobody_asked_for_end_an_idle_connection():
    async def scenario():
        async def chatter(_head, _body, writer):
            writer.write(answer("200 OK", b"hello"))
            await writer.drain()
            asyncio.get_running_loop().call_later(0.02, writer.write, b"HTTP/1.1 408 Bye\r\n\r\n")

        async with serving(chatter) as server, calling() as outbound:
            await calls_to(outbound, server, "a")[0]
            await until(lambda: not outbound._pool._connections)
            assert (await calls_to(outbound, server, "a")[0])[0] == 200

    run(scenario())


def test_closing_ends_calls_under_way_and_those_that_wait():
    held = Held()

    async def scenario():
        async with serving(held.behave) as server, calling(connections_max=1) as outbound:
            calls = calls_to(outbound, server, "ab")
            await until(lambda: held.paths)
            await outbound.aclose()
            failures = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(each) for each in failures] == [OutboundError, OutboundError]
            assert held.paths == ["/a"]
            held.let_go(0)

    run(scenario())


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def tls(authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def only_head(exchange):
    exchange.head()


def test_one_http_2_connection_serves_many_calls_and_hands_on_what_becomes_free(authority, tls):
    async def scenario():
        async with (
            serving_http2(only_head, authority) as server,
            calling(tls=tls, connections_max=1) as outbound,
        ):
            server.streams_max = 2
            url = f"https://127.0.0.1:{server.port}/"
            calls = [asyncio.create_task(collected(outbound, "GET", url)) for _ in range(6)]
            for number in range(6):
                await until(lambda: len(server.exchanges) >= min(number + 2, 6))  # noqa: B023
                await asyncio.sleep(0.01)
                assert len(server.exchanges) == min(number + 2, 6)
                if number == 1:
                    calls[4].cancel()
                    break
                server.exchanges[number].data(b"end", end=True)
            while len(server.exchanges) < 5:
                server.exchanges[len(server.exchanges) - 2].data(b"end", end=True)
                count = len(server.exchanges)
                await until(lambda: len(server.exchanges) > count)  # noqa: B023
            for exchange in server.exchanges[-2:]:
                exchange.data(b"end", end=True)
            got = await asyncio.gather(*calls, return_exceptions=True)
            assert [each for each in got if isinstance(each, tuple)] == [(200, [b"end"])] * 5
            assert len(server.connections) == 1

    run(scenario())


def test_calls_to_a_tls_server_with_http_1_open_their_connections_at_once(authority, tls):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    held = Held()

    async def scenario():
        async with serving(held.behave, context) as server, calling(tls=tls) as outbound:
            url = f"https://127.0.0.1:{server.port}/"
            calls = [asyncio.create_task(collected(outbound, "GET", url)) for _ in range(5)]
            await until(lambda: len(held.gates) == 5)
            assert server.connections == 5
            for number in range(5):
                held.let_go(number)
            await asyncio.gather(*calls)

    run(scenario())


def test_a_connection_that_cannot_be_opened_fails_its_call_and_the_next_one_tries_again(
    authority, tls
):
    async def scenario():
        async with (
            serving_http2(only_head, authority) as server,
            calling(tls=ssl.create_default_context(), connections_max=1) as outbound,
        ):
            url = f"https://127.0.0.1:{server.port}/"
            failures = await asyncio.gather(
                *(collected(outbound, "GET", url) for _ in range(4)), return_exceptions=True
            )
            assert all("certificate" in each.message for each in failures)
            assert not any(each.sent for each in failures)
            assert outbound._pool._slots == 1
            assert not outbound._pool._origins

    run(scenario())


def test_calls_to_a_server_that_cannot_be_reached_do_not_wait_for_one_another_for_long(tls):
    async def scenario():
        async def hang_up(_reader, writer):
            await asyncio.sleep(0.3)
            writer.close()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with calling(tls=tls) as outbound:
            began_s = asyncio.get_running_loop().time()
            failures = await asyncio.gather(
                *(collected(outbound, "GET", url, silence_s=0.5) for _ in range(12)),
                return_exceptions=True,
            )
            assert asyncio.get_running_loop().time() - began_s < 2.5
            assert not any(each.sent for each in failures)
        server.close()

    run(scenario())


def test_a_request_that_waits_gets_a_connection_that_reacts_again(authority, tls, monkeypatch):
    monkeypatch.setattr(http2, "REACTION_S", 0.05)

    async def scenario():
        async def nothing(_exchange):
            pass

        async with (
            serving_http2(nothing, authority) as server,
            calling(tls=tls, connections_max=1) as outbound,
        ):
            url = f"https://127.0.0.1:{server.port}/"
            calls = [asyncio.create_task(collected(outbound, "GET", url))]
            await until(lambda: server.exchanges)
            connection = next(iter(outbound._pool._connections))
            await until(connection.settled.done)
            # The settings are a reaction: one more request that gets none.
            calls.append(asyncio.create_task(collected(outbound, "GET", url)))
            await until(lambda: len(server.exchanges) == 2)
            await until(lambda: not connection.has_room)
            calls.append(asyncio.create_task(collected(outbound, "GET", url)))
            await until(lambda: outbound._pool._waiting)
            server.exchanges[0].head()
            async with asyncio.timeout(3):
                await until(lambda: len(server.exchanges) == 3)
            for call in calls:
                call.cancel()

    run(scenario())
