"""Reading from anywhere, and going on from there: the same with every server of the protocol."""

import itertools

import pytest

from holdfast.client import NOW, Client, ProducerLimits
from tests.client.collecting import payloads
from tests.client.conftest import MakeStream
from tests.client.targets import BINARY, JSON, TEXT, Target

pytestmark = pytest.mark.anyio
MANY = 10_000


async def test_start_now_and_offsets(new_stream: MakeStream) -> None:
    stream = await new_stream(JSON)
    offsets = [(await stream.append(number)).next_offset for number in range(5)]
    assert await stream.read().read_json() == [0, 1, 2, 3, 4]
    assert await stream.read(NOW).read_json() == []
    for number, offset in enumerate(offsets):
        assert await stream.read(offset).read_json() == list(range(number + 1, 5))


async def test_an_empty_stream(new_stream: MakeStream) -> None:
    for content_type, empty in ((TEXT, b""), (BINARY, b""), (JSON, b"[]")):
        stream = await new_stream(content_type)
        reading = stream.read()
        assert await reading.read_bytes() == empty
        assert reading.up_to_date
        assert not reading.closed
        assert await payloads(stream) == []
        await stream.append("1")
        # From where the empty read has ended nothing is missed.
        assert b"1" in await stream.read(reading.offset).read_bytes()


@pytest.mark.parametrize("content_type", [TEXT, JSON, BINARY])
async def test_every_message_is_a_place_to_resume(
    new_stream: MakeStream, target: Target, content_type: str
) -> None:
    stream = await new_stream(content_type)
    for number in range(12):
        await stream.append(f"message {number}" if number % 3 else f"é{number}")
    messages = [message async for message in stream.read()]
    everything = [message.bytes for message in messages]
    for index, message in enumerate(messages):
        rest = await payloads(stream, message.next_offset)
        expected = everything[index + 1 :]
        if target.tells_boundaries:
            assert len(messages) == 12
            assert rest == expected
        else:
            # Behind the last of an answer nothing is seen twice, elsewhere nothing is missed.
            assert rest[len(rest) - len(expected) :] == expected
            assert rest == expected or index < len(messages) - 1


async def test_readings_stop_and_go_on(new_stream: MakeStream, target: Target) -> None:
    stream = await new_stream(JSON, messages=list(range(20)))
    seen: list[int] = []
    reading = stream.read()
    async with reading:
        async for message in reading:
            seen.append(message.json)
            if len(seen) == 7:
                break
    rest = await stream.read(reading.offset).read_json()
    if target.tells_boundaries:
        assert seen + rest == list(range(20))
    else:
        assert rest == list(range(20))


async def test_batches_follow_each_other(new_stream: MakeStream, target: Target) -> None:
    stream = await new_stream(TEXT)
    for number in range(50):
        await stream.append(f"{number:04d} " * 20)
    batches = [batch async for batch in stream.read(max_bytes=700).batches()]
    assert "".join(batch.text for batch in batches) == await stream.read().read_text()
    for before, after in itertools.pairwise(batches):
        assert before.next_offset == after.offset
        assert not before.up_to_date
    assert batches[-1].up_to_date
    if target.tells_boundaries:
        assert len(batches) >= 5


async def test_many_messages_over_many_pages(new_stream: MakeStream, target: Target) -> None:
    stream = await new_stream(JSON)
    async with stream.producer("writer", limits=ProducerLimits(batch_messages=500)) as producer:
        for number in range(MANY):
            await producer.append({"number": number})
    assert producer.acknowledged == MANY
    reading = stream.read(max_bytes=20_000)
    messages = [message async for message in reading]
    assert [message.json["number"] for message in messages] == list(range(MANY))
    if target.tells_boundaries:
        for before, after in itertools.pairwise(messages):
            assert before.next_offset == after.offset
    assert reading.offset == (await stream.head()).next_offset
    assert len(await stream.read(max_bytes=50_000).read_json()) == MANY


async def test_framed_messages(new_stream: MakeStream, client: Client, target: Target) -> None:
    stream = await new_stream(BINARY, framing="length-prefixed")
    sent = [b"", b"a", bytes(range(256)) * 40, *(b"%d" % number for number in range(2000))]
    await stream.append(sent[0])
    await stream.append_many(sent[1:4])
    async with stream.producer("writer") as producer:
        await producer.append_many(sent[4:])
    messages = [message async for message in stream.read(max_bytes=1500)]
    assert [message.bytes for message in messages] == sent
    if target.tells_boundaries:
        for index in (0, 1, 2, 3, 500, 2001):
            rest = await payloads(stream, messages[index].next_offset)
            assert rest == sent[index + 1 :]
    # Without the framing it is a stream of bytes.
    plain = client.stream(stream.name)
    assert len(await plain.read().read_bytes()) == sum(map(len, sent)) + 4 * len(sent)
