"""The producer on its good days: batches, their order, and what it says."""

import asyncio
from collections import Counter

import pytest

from holdfast.client import ProducerLimits
from holdfast.errors import InvalidRequestError
from holdfast.protocol.content import frame_all
from holdfast.testing import FakeClock, HurriedClock
from tests.client.scripted.producing import ProducerServer
from tests.client.scripted.server import answer, rounds, run, scripted

JOINED = {"joins": True, "linger_s": 1000.0}


def producer_of(client, *, content_type="text/plain", framing=None, limits=None, **options):
    stream = client.stream("b/s", content_type=content_type, framing=framing)
    options = {"epoch": 0} | options
    return stream.producer("me", limits=ProducerLimits(**(limits or {})), **options)


def stamps(server):
    return [request.stamp for request in server.requests]


def bodies(server):
    return [request.body for request in server.requests]


class TestBatches:
    def test_are_as_large_as_they_may_be(self):
        async def scenario():
            async with scripted(handler=ProducerServer(), clock=FakeClock()) as (server, client):
                limits = JOINED | {"batch_bytes": 10}
                async with producer_of(client, limits=limits) as producer:
                    for message in ("1234", "5678", "abc", "d" * 25, "x"):
                        await producer.append(message)
                assert bodies(server) == [b"12345678", b"abc", b"d" * 25, b"x"]
                assert stamps(server) == [(0, 0), (0, 1), (0, 2), (0, 3)]
                assert set(server.sent("producer-id")) == {"me"}

        run(scenario())

    def test_one_that_is_exactly_full_waits_for_no_more(self):
        async def scenario():
            async with scripted(handler=ProducerServer(), clock=FakeClock()) as (server, client):
                limits = JOINED | {"batch_bytes": 10}
                async with producer_of(client, limits=limits) as producer:
                    await producer.append_many(["12345", "67890"])
                    await server.until(1)
                    assert bodies(server) == [b"1234567890"]

        run(scenario())

    def test_hold_as_many_messages_as_they_may(self):
        async def scenario():
            async with scripted(handler=ProducerServer(), clock=FakeClock()) as (server, client):
                limits = JOINED | {"batch_messages": 2}
                async with producer_of(client, limits=limits) as producer:
                    await producer.append_many(["a", "b", "c", "d", "e"])
                assert bodies(server) == [b"ab", b"cd", b"e"]
                assert producer.acknowledged == 5

        run(scenario())

    def test_of_a_byte_stream_can_list_the_lengths_of_their_messages(self):
        """As many as the list has room for; one message needs none."""

        async def scenario():
            async with scripted(handler=ProducerServer(), clock=FakeClock()) as (server, client):
                limits = {"lists_lengths": True, "linger_s": 1000.0}
                async with producer_of(client, limits=limits) as producer:
                    await producer.append_many(["a" * 10] * 1001)
                    await producer.flush()
                    await producer.append("alone")
                listed = [
                    request.headers.get("stream-message-lengths") for request in server.requests
                ]
                assert listed == [",".join(["10"] * 666), ",".join(["10"] * 335), None]
                assert [len(body) for body in bodies(server)] == [6660, 3350, 5]
                assert producer.acknowledged == 1002

        run(scenario())

    def test_wait_for_company_as_long_as_they_may(self):
        async def scenario():
            clock = FakeClock()
            async with scripted(handler=ProducerServer(), clock=clock) as (server, client):
                limits = {"joins": True, "linger_s": 5.0}
                async with producer_of(client, limits=limits) as producer:
                    await producer.append("a")
                    clock.advance(4.9)
                    await producer.append("b")
                    await rounds()
                    assert server.requests == []
                    # The first message counts, not the last.
                    clock.advance(0.1)
                    await server.until(1)
                    assert bodies(server) == [b"ab"]
                    await producer.append("c")
                    clock.advance(4.9)
                    await rounds()
                    assert len(server.requests) == 1
                    clock.advance(0.1)
                    await server.until(2)
                assert bodies(server) == [b"ab", b"c"]

        run(scenario())

    def test_flush_sends_what_waits(self):
        async def scenario():
            clock = FakeClock()
            async with scripted(handler=ProducerServer(), clock=clock) as (server, client):
                async with producer_of(client, limits=JOINED) as producer:
                    assert await producer.flush() is None
                    await producer.append("abc")
                    assert producer.pending_bytes == 3
                    flushed = await producer.flush()
                    assert flushed.next_offset == "00000000000000000003"
                    assert not flushed.duplicate
                    assert (producer.pending_bytes, producer.acknowledged) == (0, 1)
                    # The timer that waited for company is gone.
                    clock.advance(2000)
                    await rounds()
                    assert len(server.requests) == 1

        run(scenario())

    def test_of_a_byte_stream_are_single_messages(self):
        async def scenario():
            async with scripted(handler=ProducerServer()) as (server, client):
                async with producer_of(client) as producer:
                    await producer.append_many(["a", b"b", "c"])
                assert sorted(set(bodies(server))) == [b"a", b"b", b"c"]
                assert all(
                    request.headers["content-type"] == "text/plain" for request in server.requests
                )

        run(scenario())

    def test_of_json_are_arrays(self):
        async def scenario():
            async with scripted(handler=ProducerServer(), clock=FakeClock()) as (server, client):
                limits = {"linger_s": 1000}
                kind = "application/json"
                async with producer_of(client, content_type=kind, limits=limits) as producer:
                    await producer.append_many([{"a": 1}, [1, 2], b'"raw"'])
                assert bodies(server) == [b'[{"a":1},[1,2],"raw"]']

        run(scenario())

    def test_of_a_framed_stream_are_joined(self):
        async def scenario():
            async with scripted(handler=ProducerServer(), clock=FakeClock()) as (server, client):
                async with producer_of(
                    client, framing="length-prefixed", limits={"linger_s": 1000}
                ) as producer:
                    await producer.append_many(["one", "", b"three"])
                assert bodies(server) == [frame_all([b"one", b"", b"three"])]

        run(scenario())

    def test_content_type_is_asked_for_once(self):
        async def scenario():
            server_side = ProducerServer()
            kind = answer(200, content_type="application/json")
            async with scripted(kind, handler=server_side, clock=FakeClock()) as (server, client):
                async with producer_of(client, content_type=None) as producer:
                    await producer.append_many([1, 2])
                assert [request.method for request in server.requests] == ["HEAD", "POST"]
                assert server_side.stored == [b"[1,2]"]

        run(scenario())

    @pytest.mark.parametrize("wrong", [{"batch_bytes": 0}, {"batch_messages": 0}, {"in_flight": 0}])
    def test_limits_that_make_no_sense_are_refused(self, wrong):
        with pytest.raises(InvalidRequestError):
            ProducerLimits(**wrong)


class TestInFlight:
    def test_first_goes_alone_and_then_at_most_so_many(self):
        async def scenario():
            gate = asyncio.Event()
            server_side = ProducerServer()
            under_way, most = 0, 0

            async def counted(request):
                nonlocal under_way, most
                under_way += 1
                most = max(most, under_way)
                await (rounds(30) if gate.is_set() else gate.wait())
                under_way -= 1
                return server_side(request)

            async with scripted(handler=counted, clock=HurriedClock()) as (server, client):
                async with producer_of(client, limits={"in_flight": 3}) as producer:
                    await producer.append_many(str(each) for each in range(30))
                    await server.until(1)
                    await rounds()
                    assert len(server.requests) == 1
                    gate.set()
                assert server_side.stored == [str(each).encode() for each in range(30)]
                assert 1 < most <= 3
                assert producer.acknowledged == 30

        run(scenario())

    def test_batch_that_overtakes_waits_and_is_sent_again(self):
        async def scenario():
            held = asyncio.Event()
            server_side = ProducerServer()
            refused = []

            async def late(request):
                if request.stamp == (0, 2) and request.stamp not in refused:
                    # The others overtake it, and are told that it is missing.
                    refused.append(request.stamp)
                    await held.wait()
                    await rounds(100)
                made = server_side(request)
                if b" 409 " in made.pieces[0]:
                    refused.append(request.stamp)
                    held.set()
                return made

            async with scripted(handler=late, clock=HurriedClock()) as (server, client):
                async with producer_of(client, limits={"in_flight": 4}) as producer:
                    await producer.append_many(str(each) for each in range(12))
                assert server_side.stored == [str(each).encode() for each in range(12)]
                assert len(refused) >= 2
                # Nobody asks again and again meanwhile.
                assert max(Counter(stamps(server)).values()) == 2
                again = [each for each in server.requests if each.stamp == refused[1]]
                assert len(again) == 2
                assert again[0].body == again[1].body

        run(scenario())

    def test_append_waits_while_too_much_is_pending(self):
        async def scenario():
            gate = asyncio.Event()
            server_side = ProducerServer()

            async def slow(request):
                await gate.wait()
                return server_side(request)

            async with scripted(handler=slow) as (_, client):
                async with producer_of(client, limits={"pending_bytes_max": 10}) as producer:
                    await producer.append("12345")
                    await producer.append("67890")
                    waiting = asyncio.create_task(producer.append("x"))
                    await rounds()
                    assert not waiting.done()
                    assert producer.pending_bytes == 11
                    gate.set()
                    await waiting
                    assert producer.pending_bytes <= 10
                assert server_side.stored == [b"12345", b"67890", b"x"]

        run(scenario())


class TestClosing:
    def test_stream_is_closed_behind_everything(self):
        async def scenario():
            server_side = ProducerServer()
            async with scripted(handler=server_side, clock=HurriedClock()) as (server, client):
                async with producer_of(client) as producer:
                    await producer.append_many(["a", "b"])
                    closed = await producer.close_stream()
                    assert closed.closed
                assert server_side.stored == [b"a", b"b"]
                assert server_side.closed
                assert server.requests[-1].body == b""
                assert server.sent("stream-closed") == [None, None, "true"]
                assert server.requests[-1].stamp == (0, 2)

        run(scenario())

    def test_stream_is_closed_with_a_last_message(self):
        async def scenario():
            server_side = ProducerServer()
            async with scripted(handler=server_side, clock=FakeClock()) as (server, client):
                async with producer_of(client, limits=JOINED) as producer:
                    await producer.append("a")
                    await producer.close_stream("b")
                assert bodies(server) == [b"ab"]
                assert server.sent("stream-closed") == ["true"]

        run(scenario())

    def test_last_message_of_a_byte_stream_is_its_own(self):
        async def scenario():
            server_side = ProducerServer()
            async with scripted(handler=server_side) as (server, client):
                async with producer_of(client) as producer:
                    await producer.append("a")
                    await producer.close_stream("b")
                assert server_side.stored == [b"a", b"b"]
                assert server.sent("stream-closed") == [None, "true"]

        run(scenario())

    def test_closed_producer_takes_no_more(self):
        async def scenario():
            async with scripted(handler=ProducerServer()) as (_, client):
                producer = producer_of(client)
                await producer.append("a")
                assert (await producer.close()).next_offset == "00000000000000000001"
                with pytest.raises(InvalidRequestError, match="closed"):
                    await producer.append("b")
                # Closing it again is nothing new.
                assert (await producer.close()).next_offset == "00000000000000000001"

        run(scenario())

    def test_error_in_the_block_sends_no_more(self):
        async def scenario():
            async with scripted(clock=FakeClock()) as (server, client):

                async def fail():
                    async with producer_of(client, limits=JOINED) as producer:
                        await producer.append("a")
                        raise ZeroDivisionError

                with pytest.raises(ZeroDivisionError):
                    await fail()
                await rounds()
                assert server.requests == []

        run(scenario())
