"""What a reading says of itself on the way, and how it ends, whoever ends it."""

import asyncio

import pytest

from holdfast.client import Message
from holdfast.errors import InvalidRequestError
from holdfast.protocol.content import frame_all
from tests.client.scripted.server import answer, at, events, page, rounds, run, scripted
from tests.client.scripted.test_sync_face import scripted_sync

THREE = page(b"[1,2,3]", 6, content_type="application/json", closed=True, lengths="json")
TAIL = page(b"", 0, up_to_date=True, lengths="none")


class TestOnTheWay:
    """One batch of three messages, which is the end of the stream."""

    SAID = ((at(2), False, False), (at(4), False, False), (at(6), True, True))

    def test_the_end_is_reached_with_the_last_message(self):
        async def scenario():
            async with scripted(THREE) as (_, client):
                reading = client.stream("b/s").read(live=True)
                said = [(reading.offset, reading.up_to_date, reading.closed) async for _ in reading]
                assert said == list(self.SAID)

        run(scenario())

    def test_without_async(self):
        with scripted_sync(THREE) as (_, client):
            reading = client.stream("b/s").read(live=True)
            said = [(reading.offset, reading.up_to_date, reading.closed) for _ in reading]
            assert said == list(self.SAID)

    def test_who_stops_earlier_is_not_at_the_end(self):
        async def scenario():
            async with scripted(THREE) as (_, client):
                reading = client.stream("b/s").read()
                async for _ in reading:
                    break
                assert (reading.offset, reading.up_to_date, reading.closed) == self.SAID[0]

        run(scenario())


def test_second_iteration_is_refused_rather_than_lose_what_was_not_handed_out():
    async def scenario():
        async with scripted(THREE) as (_, client):
            reading = client.stream("b/s").read()
            async for _ in reading:
                break
            for again in (reading.__aiter__, reading.batches, reading.message_lists):
                with pytest.raises(InvalidRequestError, match="only once"):
                    again()
            with pytest.raises(InvalidRequestError, match="only once"):
                await reading.read_json()
            assert reading.offset == at(2)

    run(scenario())


class TestEndedByAnother:
    """A task, or a thread, that waits for messages while another one closes the reading."""

    @pytest.mark.parametrize("live", ["sse", "long-poll"])
    def test_task(self, live):
        async def scenario():
            async with scripted(TAIL, lambda _: self.silence(live)) as (server, client):
                reading = client.stream("b/s").read(live=live)
                reader = asyncio.create_task(collect(reading))
                await server.until(2)
                await reading.aclose()
                assert await reader == []
                assert not reader.cancelled()
                assert reader.cancelling() == 0
                assert (reading.offset, reading.closed) == (at(0), False)

        run(scenario())

    def test_thread(self):
        with scripted_sync(TAIL, lambda _: self.silence("sse")) as (server, client):
            reading = client.stream("b/s").read(live=True)
            closing = asyncio.to_thread(self.close_later, server, reading)

            async def both():
                return await asyncio.gather(asyncio.to_thread(list, reading), closing)

            assert run(both()) == [[], None]

    def test_task_that_is_cancelled_as_well_is_cancelled(self):
        async def scenario():
            async with scripted(TAIL, lambda _: self.silence("sse")) as (server, client):
                reading = client.stream("b/s").read(live=True)
                reader = asyncio.create_task(collect(reading))
                await server.until(2)
                reader.cancel()
                await reading.aclose()
                with pytest.raises(asyncio.CancelledError):
                    await reader

        run(scenario())

    def test_task_that_does_something_else_meanwhile(self):
        async def scenario():
            async with scripted(THREE) as (_, client):
                reading = client.stream("b/s").read()
                messages = aiter(reading)
                assert (await anext(messages)).json == 1
                await asyncio.create_task(reading.aclose())
                assert [message async for message in messages] == []

        run(scenario())

    @staticmethod
    def silence(live):
        never = asyncio.Event()
        return events(never) if live == "sse" else answer(204).after(never)

    @staticmethod
    def close_later(server, reading):
        server.wait_for(2)
        reading.close()


async def collect(reading):
    found = [message async for message in reading]
    await rounds()
    return found


class TestLast:
    def test_of_a_framed_stream_counts_its_messages_and_not_its_appends(self):
        async def scenario():
            # What the last append holds.
            body = frame_all([b"one", b"two", b"three"])
            said = page(body, 123, closed=True, lengths="23", stream_start_offset=at(100))
            async with scripted(said) as (server, client):
                stream = client.stream("b/s", framing="length-prefixed")
                assert [message async for message in stream.read(last=2)] == [
                    Message(b"two", at(107), at(114)),
                    Message(b"three", at(114), at(123)),
                ]
                assert server.asked("last") == ["2"]

        run(scenario())

    def test_none_is_refused(self):
        async def scenario():
            async with scripted() as (_, client):
                with pytest.raises(InvalidRequestError, match="last is 0"):
                    client.stream("b/s").read(last=0)

        run(scenario())
