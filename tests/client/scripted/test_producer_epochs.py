"""Under which epoch a producer writes, and what that means for a program that is run again."""

import pytest

from holdfast.errors import InvalidRequestError, ProducerFencedError
from holdfast.testing import HurriedClock
from tests.client.scripted.producing import ProducerServer, once
from tests.client.scripted.server import answer, broken, run, scripted

JSON = "application/json"


async def written(client, *messages, content_type="text/plain", **options):
    stream = client.stream("b/s", content_type=content_type)
    async with stream.producer("me", **options) as producer:
        await producer.append_many(messages)
    return producer


def test_a_program_that_is_run_again_writes_again():
    async def scenario():
        server_side = ProducerServer()
        clock = HurriedClock()
        async with scripted(handler=server_side, clock=clock) as (_, client):
            first = await written(client, {"a": 1}, content_type=JSON)
            clock.advance(0.001)
            second = await written(client, {"b": 2}, {"c": 3}, content_type=JSON)
            assert server_side.stored == [b'[{"a":1}]', b'[{"b":2},{"c":3}]']
            assert 0 < first.epoch < second.epoch < 2**53

    run(scenario())


def test_one_that_goes_on_with_an_epoch_stores_the_same_messages_once():
    async def scenario():
        server_side = ProducerServer()
        async with scripted(handler=server_side, clock=HurriedClock()) as (server, client):
            await written(client, 1, 2, content_type=JSON, epoch=0)
            await written(client, 1, 2, 3, 4, content_type=JSON, epoch=0)
            assert server_side.stored == [b"[1]", b"[2]", b"[3]", b"[4]"]
            # The first answer says how many are there: they are passed over.
            assert [request.stamp[1] for request in server.requests] == [0, 1, 0, 2, 3]

    run(scenario())


def test_older_writers_of_the_same_id_are_fenced_off():
    async def scenario():
        clock = HurriedClock()
        async with scripted(handler=ProducerServer(), clock=clock) as (_, client):
            stream = client.stream("b/s", content_type="text/plain")
            older = stream.producer("me")
            await older.append("one")
            await older.flush()
            clock.advance(1)
            await written(client, "two")
            await older.append("three")
            with pytest.raises(ProducerFencedError):
                await older.flush()
            with pytest.raises(ProducerFencedError):
                await older.append("four")

    run(scenario())


def test_a_clock_that_went_back_does_not_keep_a_new_writer_out():
    async def scenario():
        server_side = ProducerServer(epoch=2**50, seq=7)
        async with scripted(handler=server_side, clock=HurriedClock()) as (_, client):
            producer = await written(client, "one", "two")
            assert producer.epoch == 2**50 + 1
            assert server_side.stored == [b"one", b"two"]

    run(scenario())


def test_what_may_be_stored_is_not_sent_under_yet_another_epoch():
    async def scenario():
        faults = once(broken(), answer(403, producer_epoch=2**52))
        server_side = ProducerServer(before=faults)
        async with scripted(handler=server_side, clock=HurriedClock()) as (_, client):
            with pytest.raises(ProducerFencedError):
                await written(client, "one")
            assert server_side.stored == []

    run(scenario())


def test_an_empty_message_is_refused_and_does_no_harm():
    async def scenario():
        server_side = ProducerServer()
        async with scripted(handler=server_side, clock=HurriedClock()) as (_, client):
            stream = client.stream("b/s", content_type="text/plain")
            async with stream.producer("me") as producer:
                with pytest.raises(InvalidRequestError):
                    await producer.append("")
                await producer.append("one")
            assert server_side.stored == [b"one"]

    run(scenario())


def test_a_defect_is_raised_rather_than_waited_for():
    async def scenario():
        async with scripted(handler=ProducerServer(), clock=HurriedClock()) as (_, client):
            stream = client.stream("b/s", content_type="text/plain")

            async def broken_post(*_arguments, **_named):
                raise ZeroDivisionError

            stream.post = broken_post
            producer = stream.producer("me")
            await producer.append("one")
            with pytest.raises(ZeroDivisionError):
                await producer.flush()

    run(scenario())
