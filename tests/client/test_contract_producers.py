"""Producers and forks: the same with every server of the protocol."""

import asyncio

import pytest

from holdfast.client import Client, ProducerLimits, Stream
from holdfast.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    ProducerFencedError,
    StreamClosedError,
)
from tests.client.collecting import payloads
from tests.client.conftest import MakeStream
from tests.client.targets import BINARY, JSON, TEXT, Target, new_name

pytestmark = pytest.mark.anyio
# One message in each batch: a second run makes the same ones.
ONE_BY_ONE = ProducerLimits(batch_messages=1)


async def write(stream: Stream, numbers: range, **options) -> int:
    async with stream.producer("writer", **options) as producer:
        for number in numbers:
            await producer.append(f"{number},")
    return producer.acknowledged


@pytest.mark.parametrize("content_type", [TEXT, JSON, BINARY])
async def test_everything_is_stored_in_order(
    new_stream: MakeStream, target: Target, content_type: str
) -> None:
    stream = await new_stream(content_type)
    assert await write(stream, range(300)) == 300
    if content_type == JSON:
        assert await stream.read().read_json() == [f"{number}," for number in range(300)]
        return
    assert await stream.read().read_text() == "".join(f"{number}," for number in range(300))
    if target.tells_boundaries:
        assert await payloads(stream) == [b"%d," % number for number in range(300)]


@pytest.mark.parametrize("content_type", [TEXT, JSON])
async def test_running_again_stores_only_what_is_new(
    new_stream: MakeStream, content_type: str
) -> None:
    stream = await new_stream(content_type)
    for until in (40, 40, 70):
        assert await write(stream, range(until), epoch=0) == until
    expected = [f"{number}," for number in range(70)]
    if content_type == JSON:
        assert await stream.read().read_json() == expected
    else:
        assert await stream.read().read_text() == "".join(expected)


async def test_joined_messages(new_stream: MakeStream) -> None:
    stream = await new_stream(TEXT)
    await write(stream, range(2000), limits=ProducerLimits(joins=True, batch_bytes=1000))
    assert await stream.read().read_text() == "".join(f"{number}," for number in range(2000))


async def test_flush_tells_where_the_stream_is(new_stream: MakeStream) -> None:
    stream = await new_stream(JSON)
    async with stream.producer("writer") as producer:
        assert await producer.flush() is None
        await producer.append([1])
        flushed = await producer.flush()
        assert flushed is not None
        assert flushed.next_offset == (await stream.head()).next_offset
        assert (producer.acknowledged, producer.pending_bytes) == (1, 0)


async def test_closing_with_a_last_message(new_stream: MakeStream) -> None:
    stream = await new_stream(TEXT)
    async with stream.producer("writer") as producer:
        await producer.append("a")
        closed = await producer.close_stream("z")
        assert closed is not None
        assert closed.closed
    assert await stream.read().read_text() == "az"
    assert (await stream.head()).closed
    with pytest.raises(InvalidRequestError):
        await producer.append("more")
    with pytest.raises(StreamClosedError):
        await write(stream, range(1), epoch=1)


async def test_a_second_run_finds_the_stream_closed(new_stream: MakeStream) -> None:
    stream = await new_stream(TEXT)
    async with stream.producer("writer") as producer:
        await producer.append("a")
        await producer.close_stream("z")
    # Only the append that closed it is recognised; what came before is refused like any other.
    with pytest.raises(StreamClosedError):
        await write(stream, range(1))
    assert await stream.read().read_text() == "az"


async def test_a_stale_epoch_is_fenced(new_stream: MakeStream) -> None:
    stream = await new_stream(TEXT)
    await write(stream, range(2), epoch=3)
    with pytest.raises(ProducerFencedError) as raised:
        await write(stream, range(5), epoch=2)
    assert raised.value.epoch == 3
    assert await stream.read().read_text() == "0,1,"


async def test_claiming_the_next_epoch(new_stream: MakeStream) -> None:
    stream = await new_stream(TEXT)
    await write(stream, range(2), epoch=3)
    async with stream.producer("writer", auto_claim=True, epoch=0) as producer:
        for number in range(2, 50):
            await producer.append(f"{number},")
        await producer.flush()
        assert producer.epoch == 4
    assert await stream.read().read_text() == "".join(f"{number}," for number in range(50))


async def test_two_producers_with_one_id_fence_each_other(new_stream: MakeStream) -> None:
    stream = await new_stream(JSON)
    async with (
        stream.producer("writer", epoch=0) as zombie,
        stream.producer("writer", auto_claim=True, epoch=1) as successor,
    ):
        await zombie.append("old 0")
        await zombie.flush()
        await successor.append("new 0")
        await successor.flush()
        await zombie.append("old 1")
        with pytest.raises(ProducerFencedError):
            await zombie.flush()
        with pytest.raises(ProducerFencedError):
            await zombie.append("old 2")
        await successor.append("new 1")
        await successor.flush()
        zombie._error = None  # it has said what it had to say
    assert await stream.read().read_json() == ["old 0", "new 0", "new 1"]


async def test_producers_with_other_ids_do_not_meet(new_stream: MakeStream) -> None:
    stream = await new_stream(JSON)

    async def run(name: str) -> None:
        async with stream.producer(name, limits=ONE_BY_ONE) as producer:
            for number in range(50):
                await producer.append([name, number])

    await asyncio.gather(*(run(name) for name in "abc"))
    found = await stream.read().read_json()
    assert len(found) == 150
    for name in "abc":
        assert [number for by, number in found if by == name] == list(range(50))


async def test_forks(client: Client, new_stream: MakeStream) -> None:
    source = await new_stream(JSON)
    offsets = [(await source.append(number)).next_offset for number in range(4)]
    at_two, at_tail = client.stream(new_name()), client.stream(new_name())
    created = await at_two.fork(source, offset=offsets[1])
    assert created.created
    assert (await at_tail.fork(source, content_type=JSON)).created
    await at_two.append("other")
    await source.append("later")
    await at_tail.append("mine")
    assert await at_two.read().read_json() == [0, 1, "other"]
    assert await at_tail.read().read_json() == [0, 1, 2, 3, "mine"]
    assert await source.read().read_json() == [0, 1, 2, 3, "later"]
    # The rest of the source's offsets hold in the fork.
    assert await at_two.read(offsets[0]).read_json() == [1, "other"]


async def test_a_fork_inside_a_batch(client: Client, new_stream: MakeStream) -> None:
    source = await new_stream(JSON)
    first = await source.append("first")
    await source.append_many(["second", "third", "fourth"])
    fork = client.stream(new_name())
    await fork.fork(source, offset=first.next_offset, sub_offset=2)
    assert await fork.read().read_json() == ["first", "second", "third"]


async def test_forks_that_are_refused(client: Client, new_stream: MakeStream) -> None:
    source = await new_stream(JSON, messages=[1])
    with pytest.raises(NotFoundError):
        await client.stream(new_name()).fork(client.stream(new_name()))
    with pytest.raises(ConflictError):
        await client.stream(new_name()).fork(source, content_type=TEXT)
