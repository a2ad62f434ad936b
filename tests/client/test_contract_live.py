"""Following a stream with SSE, long-polls or whichever works, with every server of the protocol."""

import asyncio

import pytest

from holdfast.client import NOW
from tests.client.collecting import tailing, until_true
from tests.client.conftest import MakeStream
from tests.client.targets import BINARY, JSON, TEXT

pytestmark = pytest.mark.anyio
MODES = [True, "sse", "long-poll"]


@pytest.mark.parametrize("live", MODES)
@pytest.mark.parametrize("content_type", [TEXT, JSON, BINARY])
async def test_a_tail_sees_everything_and_ends_with_the_stream(
    new_stream: MakeStream, live, content_type: str
) -> None:
    stream = await new_stream(content_type)
    await stream.append("before")
    sent = [f"message {number} ü😀" for number in range(10)]
    async with tailing(stream, live=live) as tail:
        await tail.until(1)
        for number, each in enumerate(sent):
            await stream.append(each)
            await tail.until(number + 2)
        await stream.close()
        received = await tail.end()
    if content_type == JSON:
        assert [message.json for message in tail.messages] == ["before", *sent]
    else:
        assert [each.decode() for each in received] == ["before", *sent]
    assert tail.reading.closed
    assert tail.messages[-1].next_offset == (await stream.head()).next_offset


@pytest.mark.parametrize("live", MODES)
async def test_a_tail_from_now_on(new_stream: MakeStream, live) -> None:
    stream = await new_stream(JSON, messages=["old"])
    async with tailing(stream, NOW, live=live) as tail:
        await until_true(lambda: tail.reading.up_to_date)
        await stream.append_many([1, [2], 3])
        await stream.append("last", close=True)
        await tail.end()
    assert [message.json for message in tail.messages] == [1, [2], 3, "last"]


@pytest.mark.parametrize("live", MODES)
async def test_a_closed_stream_ends_at_once(new_stream: MakeStream, live) -> None:
    stream = await new_stream(TEXT, messages=["all"], closed=True)
    async with tailing(stream, live=live) as tail:
        assert await tail.end() == [b"all"]
    empty = await new_stream(TEXT, closed=True)
    async with tailing(empty, live=live) as tail:
        assert await tail.end() == []


@pytest.mark.parametrize("live", MODES)
async def test_all_bytes_get_through(new_stream: MakeStream, live) -> None:
    stream = await new_stream(BINARY)
    async with tailing(stream, live=live) as tail:
        await until_true(lambda: tail.reading.up_to_date)
        await stream.append(bytes(range(256)))
        await stream.append(b"\r\n\x00\r" * 1000, close=True)
        received = await tail.end()
    assert b"".join(received) == bytes(range(256)) + b"\r\n\x00\r" * 1000


@pytest.mark.parametrize("live", MODES)
async def test_a_quiet_stream_is_followed_across_answers(new_stream: MakeStream, live) -> None:
    """Long-polls end after half a second here."""
    stream = await new_stream(TEXT)
    async with tailing(stream, live=live) as tail:
        await asyncio.sleep(0.7)
        await stream.append("late")
        await tail.until(1)
    assert tail.payloads == [b"late"]


async def test_live_batches(new_stream: MakeStream) -> None:
    stream = await new_stream(JSON, messages=[1, 2])
    batches = []
    async with stream.read(live=True) as reading:
        async for batch in reading.batches():
            batches.append(batch)
            if batch.data and batch.json == [1, 2]:
                await stream.append(3, close=True)
    values = [value for batch in batches if batch.data for value in batch.json]
    assert values == [1, 2, 3]
    assert batches[-1].closed
    assert reading.offset == batches[-1].next_offset


async def test_framed_messages_live(new_stream: MakeStream) -> None:
    stream = await new_stream(BINARY, framing="length-prefixed")
    async with tailing(stream) as tail:
        for number in range(20):
            await stream.append_many([b"%d" % number, b"", b"\x00" * number])
        await stream.close()
        received = await tail.end()
    expected = [(b"%d" % number, b"", b"\x00" * number) for number in range(20)]
    assert received == [each for three in expected for each in three]
