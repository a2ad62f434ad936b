"""Reading to the tail, page by page, through answers that break off."""

import asyncio

import pytest

from holdfast.client import Message
from holdfast.errors import BadAnswerError, GoneError, InvalidRequestError, OutboundError
from holdfast.testing import HurriedClock
from tests.client.scripted.server import Answer, answer, at, broken, page, run, scripted

PAGES = (
    page(b"one", 3),
    page(b"two", 6),
    page(b"three", 11, up_to_date=True),
)
LENGTHS = (
    page(b"onetw", 5, lengths="3"),
    page(b"ot", 7, lengths="1"),
    page(b"hree", 11, lengths="4", up_to_date=True),
)


async def messages_of(reading):
    return [message async for message in reading]


class TestPages:
    @pytest.mark.spec("base 6-26", "extensions 2.1-1")
    def test_follow_one_another(self):
        async def scenario():
            async with scripted(*PAGES) as (server, client):
                reading = client.stream("b/s").read()
                batches = [batch async for batch in reading.batches()]
                assert [batch.data for batch in batches] == [b"one", b"two", b"three"]
                assert [batch.offset for batch in batches] == ["-1", at(3), at(6)]
                assert [batch.next_offset for batch in batches] == [at(3), at(6), at(11)]
                assert [batch.up_to_date for batch in batches] == [False, False, True]
                assert server.asked("offset") == ["-1", at(3), at(6)]
                assert server.asked("lengths") == [None] * 3
                assert (reading.offset, reading.up_to_date, reading.closed) == (at(11), True, False)

        run(scenario())

    def test_are_cut_into_messages_where_the_server_tells_lengths(self):
        async def scenario():
            async with scripted(*LENGTHS) as (server, client):
                assert await messages_of(client.stream("b/s").read()) == [
                    Message(b"one", at(0), at(3)),
                    Message(b"two", at(3), at(6)),
                    Message(b"three"[:1] + b"hree", at(6), at(11)),
                ]
                assert server.asked("lengths") == ["true"] * 3

        run(scenario())

    def test_offset_is_behind_the_last_message_handed_out(self):
        async def scenario():
            async with scripted(LENGTHS[0], LENGTHS[1]) as (_, client):
                async with client.stream("b/s").read() as reading:
                    offsets = []
                    async for _ in reading:
                        offsets.append(reading.offset)
                        if len(offsets) == 2:
                            break
                    # The beginning of `three` was read, but not handed out.
                    assert offsets == [at(3), at(6)]
                    assert reading.offset == at(6)

        run(scenario())

    def test_of_json_are_one_array(self):
        async def scenario():
            kind = {"content_type": "application/json"}
            for read, expected in (("read_json", [1, [2], 3]), ("read_bytes", b"[1, [2],3]")):
                async with scripted(
                    page(b"[1, [2]]", 5, **kind),
                    page(b"[3]", 7, **kind),
                    page(b"[]", 7, up_to_date=True, **kind),
                ) as (_, client):
                    assert await getattr(client.stream("b/s").read(), read)() == expected

        run(scenario())

    @pytest.mark.spec("base 5.6-3")
    def test_end_with_a_closed_stream(self):
        async def scenario():
            async with scripted(page(b"one", 3, closed=True)) as (_, client):
                reading = client.stream("b/s").read(live=True)
                assert await reading.read_text() == "one"
                assert reading.closed
                assert reading.up_to_date

        run(scenario())

    @pytest.mark.parametrize("kind", ["text/plain", "application/json"])
    def test_end_where_an_answer_leads_nowhere_even_if_it_does_not_say_so(self, kind):
        async def scenario():
            empty = b"[]" if kind == "application/json" else b""
            async with scripted(
                page(b"[1]", "a", content_type=kind), page(empty, "a", content_type=kind)
            ) as (server, client):
                assert await client.stream("b/s").read().read_bytes() == b"[1]"
                assert server.asked("offset") == ["-1", "a"]

        run(scenario())

    def test_may_be_empty_on_the_way(self):
        async def scenario():
            async with scripted(page(b"", "a"), page(b"x", "b", up_to_date=True)) as (_, client):
                batches = [batch async for batch in client.stream("b/s").read().batches()]
                assert [batch.data for batch in batches] == [b"x"]

        run(scenario())


class TestTruncated:
    def test_answer_is_read_again_and_nothing_twice(self):
        async def scenario():
            clock = HurriedClock()
            short = page(b"one", 3, length=1000)
            async with scripted(
                short, broken(), LENGTHS[0], LENGTHS[1].cut(40), *LENGTHS[1:], clock=clock
            ) as (server, client):
                messages = await messages_of(client.stream("b/s").read())
                assert [message.payload for message in messages] == [b"one", b"two", b"three"]
                assert server.asked("offset") == ["-1"] * 3 + [at(5)] * 2 + [at(7)]
                assert len(clock.delays_s) == 3

        run(scenario())

    def test_answer_is_read_again_wherever_it_was_cut(self):
        whole = LENGTHS[1]

        async def scenario():
            for size in range(whole.size):
                clock = HurriedClock()
                async with scripted(LENGTHS[0], whole.cut(size), *LENGTHS[1:], clock=clock) as pair:
                    messages = await messages_of(pair[1].stream("b/s").read())
                    assert [each.payload for each in messages] == [b"one", b"two", b"three"], size
                    assert len(clock.delays_s) == 1, size

        run(scenario())

    def test_chunked_answer_is_read_again(self):
        async def scenario():
            head = (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/plain\r\n"
                b"Stream-Next-Offset: x\r\nStream-Up-To-Date: true\r\n\r\n"
            )
            whole = Answer((head, b"3\r\none\r\n", b"3\r\ntwo\r\n", b"0\r\n\r\n"))
            for size in (len(head), len(head) + 4, len(head) + 8, whole.size - 5, whole.size - 2):
                async with scripted(whole.cut(size), whole, clock=HurriedClock()) as (_, client):
                    assert await client.stream("b/s").read().read_bytes() == b"onetwo"

        run(scenario())

    def test_attempts_of_a_first_answer_come_to_an_end(self):
        async def scenario():
            short = page(b"one", 3, length=1000)
            async with scripted(*[short] * 4, clock=HurriedClock()) as (_, client):
                with pytest.raises(OutboundError, match="broke"):
                    await client.stream("b/s").read(live=True).read_bytes()

        run(scenario())


class TestRefused:
    @pytest.mark.parametrize("live", [False, True, "sse", "long-poll"])
    def test_answer_without_next_offset(self, live):
        async def scenario():
            async with scripted(answer(200, b"<html>", content_type="text/html")) as (_, client):
                with pytest.raises(BadAnswerError, match="Stream-Next-Offset"):
                    await client.stream("b/s").read(live=live).read_bytes()

        run(scenario())

    def test_lengths_that_cannot_be(self):
        async def scenario():
            async with scripted(page(b"one", 3, lengths="4")) as (_, client):
                with pytest.raises(BadAnswerError, match="lengths"):
                    await messages_of(client.stream("b/s").read())

        run(scenario())

    def test_what_is_gone(self):
        async def scenario():
            async with scripted(PAGES[0], answer(410)) as (_, client):
                reading = client.stream("b/s").read()
                with pytest.raises(GoneError):
                    await messages_of(reading)
                assert reading.offset == at(3)

        run(scenario())

    def test_unknown_modes(self):
        async def scenario():
            async with scripted() as (_, client):
                with pytest.raises(InvalidRequestError, match="live mode"):
                    client.stream("b/s").read(live="websocket")

        run(scenario())


class TestLast:
    def test_starts_where_the_server_says(self):
        async def scenario():
            async with scripted(
                page(b"three", 11, lengths="5", stream_start_offset=at(6)),
                page(b"", 11, lengths="none", up_to_date=True),
            ) as (server, client):
                messages = await messages_of(client.stream("b/s").read(last=1))
                assert messages == [Message(b"three", at(6), at(11))]
                assert server.asked("last") == ["1", None]
                assert server.asked("offset") == [None, at(11)]

        run(scenario())

    def test_server_that_cannot_is_read_from_the_start(self):
        async def scenario():
            async with scripted(*LENGTHS) as (_, client):
                messages = await messages_of(client.stream("b/s").read(last=2))
                assert [message.payload for message in messages] == [b"two", b"three"]

        run(scenario())


def test_reading_given_up_in_the_middle_leaves_nothing_open():
    async def scenario():
        never = asyncio.Event()
        async with scripted(PAGES[0], page(b"x", 6).after(never)) as (server, client):
            async with client.stream("b/s").read() as reading:
                waiting = asyncio.create_task(messages_of(reading))
                await server.until(2)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            assert client._outbound._calls == 0

    run(scenario())
