"""A producer that ends while others still use it tells each of them what became of its messages."""

import asyncio

import pytest

from holdfast.errors import InvalidRequestError
from tests.client.scripted.producing import ProducerServer
from tests.client.scripted.server import answer, rounds, run, scripted
from tests.client.scripted.test_producer import JOINED, producer_of

TOO_EARLY = "closed before everything was stored"


def never(_request):
    return answer(200).after(asyncio.Event())


async def leave_by_an_error(producer, waiting):
    """Leave the producer's block while this is under way, and return how that ends."""
    await producer.__aenter__()
    task = asyncio.create_task(waiting(producer))
    await rounds()
    assert not task.done()
    error = KeyError("in the block")
    await producer.__aexit__(KeyError, error, None)
    return await asyncio.gather(task, return_exceptions=True)


def test_who_waits_for_room_is_told():
    async def scenario():
        async with scripted(handler=never) as (_, client):
            producer = producer_of(client, limits={"pending_bytes_max": 1})
            [error] = await leave_by_an_error(producer, lambda it: it.append("message"))
            assert isinstance(error, InvalidRequestError)
            assert TOO_EARLY in str(error)

    run(scenario())


def test_flush_does_not_say_that_what_was_dropped_is_stored():
    async def append_and_flush(producer):
        await producer.append("message")
        return await producer.flush()

    async def scenario():
        async with scripted(handler=never) as (_, client):
            producer = producer_of(client)
            [error] = await leave_by_an_error(producer, append_and_flush)
            assert TOO_EARLY in str(error)
            for call in (producer.flush, producer.close, producer.close_stream):
                with pytest.raises(InvalidRequestError, match=TOO_EARLY):
                    await call()

    run(scenario())


def test_close_that_is_given_up_does_not_succeed_the_second_time():
    async def scenario():
        async with scripted(handler=never) as (_, client):
            producer = producer_of(client)
            await producer.append("message")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.close(), 0.05)
            with pytest.raises(InvalidRequestError, match=TOO_EARLY):
                await producer.close()

    run(scenario())


def test_nothing_is_taken_while_it_closes():
    async def scenario():
        go = asyncio.Event()
        server_side = ProducerServer()
        async with scripted(handler=lambda request: server_side(request).after(go)) as (_, client):
            producer = producer_of(client, limits=JOINED)
            await producer.append("first")
            closing = asyncio.create_task(producer.close())
            await rounds()
            with pytest.raises(InvalidRequestError, match="The producer is closed"):
                await producer.append("second")
            go.set()
            await closing
            assert server_side.stored == [b"first"]
            assert producer.acknowledged == 1

    run(scenario())


def test_flush_does_not_wait_for_what_others_append_meanwhile():
    async def scenario():
        server_side = ProducerServer()
        held = asyncio.Event()

        def serve(request):
            said = server_side(request)
            return said if request.body == b"mine" else said.after(held)

        async with scripted(handler=serve) as (_, client):
            producer = producer_of(client)
            await producer.append("mine")
            flushing = asyncio.create_task(producer.flush())
            await asyncio.sleep(0)
            await producer.append("another's")
            await flushing
            assert producer.acknowledged == 1
            held.set()
            await producer.close()
            assert server_side.stored == [b"mine", b"another's"]

    run(scenario())


def test_who_appends_without_a_pause_lets_others_go_on():
    async def scenario():
        async with scripted(handler=ProducerServer()) as (_, client):
            async with producer_of(client) as producer:
                for number in range(1000):
                    await producer.append(f"message {number}")
                assert producer.acknowledged > 0

    run(scenario())
