"""The producer on its bad days: everything once, in order, or an error that says why not."""

import asyncio

import pytest

from holdfast.client import ProducerLimits, Retry
from holdfast.errors import (
    HoldfastError,
    OutboundError,
    PayloadTooLargeError,
    ProducerFencedError,
    ProducerGapError,
    StreamClosedError,
    UnavailableError,
)
from holdfast.testing import FakeClock, HurriedClock
from tests.client.scripted.producing import ProducerServer, once
from tests.client.scripted.server import answer, broken, rounds, run, scripted
from tests.client.scripted.test_producer import JOINED, bodies, producer_of, stamps

MESSAGES = [f"message {each}" for each in range(8)]
STORED = [message.encode() for message in MESSAGES]


class TestRepetition:
    FAULTS = (
        broken(),
        answer(500),
        answer(502),
        answer(503),
        answer(504),
        answer(408),
        answer(429),
    )

    @pytest.mark.parametrize("where", ["before", "after"])
    def test_nothing_is_lost_or_stored_twice(self, where):
        async def scenario():
            for fault in self.FAULTS:
                server_side = ProducerServer(**{where: once(None, fault, None, fault, fault)})
                async with scripted(handler=server_side, clock=HurriedClock()) as (server, client):
                    async with producer_of(client) as producer:
                        await producer.append_many(MESSAGES)
                    assert server_side.stored == STORED, fault
                    assert producer.acknowledged == len(MESSAGES)
                    assert producer.pending_bytes == 0
                    # A sequence number stands for the same bytes for ever.
                    sent = {(request.stamp, request.body) for request in server.requests}
                    assert len(sent) == len(MESSAGES)
                    assert len(server.requests) > len(MESSAGES)

        run(scenario())

    def test_batch_that_was_stored_unseen_is_a_duplicate(self):
        async def scenario():
            server_side = ProducerServer(after=once(broken()))
            async with scripted(handler=server_side, clock=HurriedClock()) as (server, client):
                async with producer_of(client) as producer:
                    await producer.append("a")
                    assert (await producer.flush()).duplicate
                    assert producer.acknowledged == 1
                assert server_side.stored == [b"a"]
                assert stamps(server) == [(0, 0), (0, 0)]

        run(scenario())

    def test_attempts_come_to_an_end(self):
        async def scenario():
            clock = HurriedClock()
            async with scripted(*[answer(503)] * 3, clock=clock, retry=Retry(attempts=3)) as (
                _,
                client,
            ):
                producer = producer_of(client)
                await producer.append("a")
                with pytest.raises(UnavailableError):
                    await producer.flush()
                assert producer.acknowledged == 0
                assert len(clock.delays_s) == 2

        run(scenario())

    def test_server_says_how_long_to_wait(self):
        async def scenario():
            clock = HurriedClock()
            server_side = ProducerServer(before=once(answer(429, retry_after="8")))
            async with scripted(handler=server_side, clock=clock) as (_, client):
                async with producer_of(client) as producer:
                    await producer.append("a")
                assert clock.delays_s == [8.0]

        run(scenario())


class TestFastForward:
    def test_batches_that_the_server_has_are_not_sent_again(self):
        async def scenario():
            server_side = ProducerServer(seq=4)
            async with scripted(handler=server_side, clock=HurriedClock()) as (server, client):
                async with producer_of(client) as producer:
                    await producer.append_many(MESSAGES)
                assert sorted(set(stamps(server))) == [(0, 0), (0, 5), (0, 6), (0, 7)]
                assert server_side.stored == STORED[5:]
                assert producer.acknowledged == len(MESSAGES)

        run(scenario())

    def test_close_is_sent_even_if_the_server_has_more(self):
        async def scenario():
            server_side = ProducerServer(seq=4)
            async with scripted(handler=server_side, clock=HurriedClock()) as (server, client):
                async with producer_of(client) as producer:
                    await producer.append("a")
                    await producer.close_stream()
                assert stamps(server) == [(0, 0), (0, 1)]
                assert server.sent("stream-closed") == [None, "true"]

        run(scenario())


class TestEnd:
    @pytest.mark.parametrize(
        ("refusal", "error"),
        [
            (answer(413), PayloadTooLargeError),
            (answer(409, stream_closed="true"), StreamClosedError),
            (answer(403, producer_epoch="5"), ProducerFencedError),
            (answer(404), HoldfastError),
            (answer(409, producer_expected_seq="7", producer_received_seq="0"), ProducerGapError),
        ],
    )
    def test_refusal_is_raised_wherever_one_looks(self, refusal, error):
        async def scenario():
            async with scripted(refusal) as (server, client):
                producer = producer_of(client)
                await producer.append("a")
                for work in (producer.flush, producer.flush, producer.close, producer.close_stream):
                    with pytest.raises(error):
                        await work()
                with pytest.raises(error):
                    await producer.append("b")
                assert producer.acknowledged == 0
                await rounds()
                assert len(server.requests) == 1

        run(scenario())

    def test_leaving_the_block_raises_it(self):
        async def scenario():
            async with scripted(answer(413)) as (_, client):
                with pytest.raises(PayloadTooLargeError):
                    async with producer_of(client) as producer:
                        await producer.append("a")

        run(scenario())

    def test_what_was_waiting_for_company_is_not_sent_any_more(self):
        async def scenario():
            clock = FakeClock()
            async with scripted(answer(413), clock=clock) as (server, client):
                producer = producer_of(client, limits=JOINED | {"batch_messages": 2})
                await producer.append_many(["a", "b", "c"])
                await server.until(1)
                while not producer._closed:
                    await asyncio.sleep(0)
                for work in (producer.flush, producer.flush):
                    with pytest.raises(PayloadTooLargeError):
                        await work()
                clock.advance(2000)
                await rounds()
                assert bodies(server) == [b"ab"]

        run(scenario())

    def test_who_waits_for_room_learns_of_it(self):
        async def scenario():
            gate = asyncio.Event()
            async with scripted(answer(413).after(gate)) as (server, client):
                producer = producer_of(client, limits={"pending_bytes_max": 1})
                waiting = asyncio.create_task(producer.append("too much"))
                await server.until(1)
                gate.set()
                with pytest.raises(PayloadTooLargeError):
                    await waiting

        run(scenario())

    def test_batches_behind_the_refused_one_are_given_up(self):
        async def scenario():
            server_side = ProducerServer()

            def judge(request):
                if request.stamp[1] == 3:
                    return answer(413)
                return server_side(request)

            async with scripted(handler=judge, clock=HurriedClock()) as (_, client):
                producer = producer_of(client)
                await producer.append_many(MESSAGES)
                with pytest.raises(PayloadTooLargeError):
                    await producer.flush()
                assert server_side.stored == STORED[:3]
                assert client._outbound._calls == 0

        run(scenario())


class TestClaims:
    def test_next_epoch_is_taken_and_batches_are_numbered_anew(self):
        async def scenario():
            server_side = ProducerServer(epoch=6, seq=20)
            async with scripted(handler=server_side, clock=HurriedClock()) as (server, client):
                async with producer_of(client, auto_claim=True) as producer:
                    await producer.append_many(MESSAGES)
                assert server_side.stored == STORED
                assert producer.epoch == 7
                assert stamps(server)[:2] == [(0, 0), (7, 0)]
                assert {epoch for epoch, _ in stamps(server)[1:]} == {7}
                assert server_side.seq == len(MESSAGES) - 1

        run(scenario())

    def test_several_that_were_under_way_stay_in_order(self):
        async def scenario():
            server_side = ProducerServer()

            def stolen(request):
                if request.stamp == (0, 3):
                    server_side.epoch, server_side.seq = 1, 0
                return server_side(request)

            async with scripted(handler=stolen, clock=HurriedClock()) as (server, client):
                limits = {"in_flight": 4}
                async with producer_of(client, auto_claim=True, limits=limits) as producer:
                    await producer.append_many(MESSAGES)
                assert server_side.stored == STORED
                assert producer.epoch == 2
                # The first under the new epoch goes alone as well.
                first = stamps(server).index((2, 0))
                assert stamps(server)[first + 1] == (2, 1)

        run(scenario())

    @pytest.mark.parametrize("fault", [broken(), answer(502), answer(504), answer(408)])
    def test_batch_in_doubt_is_not_sent_under_another_epoch(self, fault):
        async def scenario():
            script = (fault, answer(403, producer_epoch="6"))
            async with scripted(*script, clock=HurriedClock()) as (server, client):
                producer = producer_of(client, auto_claim=True)
                await producer.append("a")
                with pytest.raises(ProducerFencedError) as caught:
                    await producer.flush()
                assert caught.value.epoch == 6
                assert stamps(server) == [(0, 0), (0, 0)]

        run(scenario())

    @pytest.mark.parametrize("fault", [answer(429), answer(503)])
    def test_batch_that_surely_was_not_stored_is(self, fault):
        async def scenario():
            server_side = ProducerServer(epoch=6, before=once(fault))
            async with scripted(handler=server_side, clock=HurriedClock()) as (server, client):
                async with producer_of(client, auto_claim=True) as producer:
                    await producer.append("a")
                assert stamps(server) == [(0, 0), (0, 0), (7, 0)]

        run(scenario())

    def test_without_it_a_stale_epoch_is_an_error(self):
        async def scenario():
            async with scripted(handler=ProducerServer(epoch=6)) as (_, client):
                with pytest.raises(ProducerFencedError, match="403"):
                    async with producer_of(client) as producer:
                        await producer.append("a")

        run(scenario())

    def test_epoch_that_is_not_told_is_the_next_one(self):
        async def scenario():
            fenced = answer(403, b'{"code":"stale_producer_epoch"}')
            server_side = ProducerServer(epoch=4, before=once(fenced, fenced))
            async with scripted(handler=server_side, clock=HurriedClock()) as (server, client):
                async with producer_of(client, epoch=3, auto_claim=True) as producer:
                    await producer.append("a")
                assert stamps(server) == [(3, 0), (4, 0), (5, 0)]

        run(scenario())


def test_client_that_is_closed_ends_the_producer():
    async def scenario():
        never = asyncio.Event()
        async with scripted(answer(200).after(never), retry=Retry(attempts=1)) as (server, client):
            producer = producer_of(client, limits=None)
            await producer.append("a")
            await server.until(1)
            await client.aclose()
            with pytest.raises(OutboundError):
                await producer.flush()

    run(scenario())


def test_limits_are_those_that_are_given():
    assert ProducerLimits(in_flight=7).in_flight == 7
