"""Snapshots, bootstrap, and following a stream through newer snapshots."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import aclosing
from random import Random

import pytest

from holdfast.client import Client, Message, Snapshot, Stream
from holdfast.errors import (
    InvalidOffsetError,
    OffsetGoneError,
    PreconditionFailedError,
    SnapshotConflictError,
    SnapshotNotFoundError,
    StreamNotFoundError,
)
from tests.client.collecting import payloads
from tests.client.conftest import MakeStream
from tests.client.targets import BINARY, JSON, TEXT, Target, new_name

pytestmark = pytest.mark.anyio


@pytest.fixture
def target(ours: Target) -> Target:
    return ours


@pytest.fixture
async def filled(new_stream: MakeStream) -> tuple[Stream, list[str]]:
    """A stream of five messages, and where each of them ends."""
    stream = await new_stream(TEXT)
    return stream, [(await stream.append(f"{number};")).next_offset for number in range(5)]


async def test_publishing_and_getting(filled) -> None:
    stream, ends = filled
    with pytest.raises(SnapshotNotFoundError):
        await stream.snapshots.get()
    with pytest.raises(PreconditionFailedError):
        await stream.snapshots.publish(ends[1], b"stale", if_match='"0:0"')
    etag = (await stream.head()).etag
    await stream.snapshots.publish(ends[1], b'{"sum": 1}', content_type=JSON, if_match=etag)
    for found in (await stream.snapshots.get(), await stream.snapshots.get(ends[1])):
        assert found == Snapshot(b'{"sum": 1}', JSON, ends[1])
        assert found.exists
        assert found.json == {"sum": 1}
    with pytest.raises(SnapshotNotFoundError):
        await stream.snapshots.get(ends[0])
    with pytest.raises(SnapshotConflictError):
        await stream.snapshots.delete(ends[1])
    head = await stream.head()
    assert head.snapshot_offset == head.earliest_offset == ends[1]


async def test_reading_what_a_snapshot_stands_for(filled) -> None:
    stream, ends = filled
    await stream.snapshots.publish(ends[2], b"state")
    with pytest.raises(OffsetGoneError) as raised:
        await payloads(stream)
    assert raised.value.earliest_offset == ends[2]
    assert await payloads(stream, raised.value.earliest_offset) == [b"3;", b"4;"]
    with pytest.raises(OffsetGoneError):
        await stream.snapshots.publish(ends[0], b"older")
    with pytest.raises(InvalidOffsetError):
        await stream.snapshots.publish(f"{int(ends[3]) - 1:020d}", b"in a message")


async def test_a_large_snapshot_in_pieces(filled) -> None:
    stream, ends = filled
    piece = Random(3).randbytes(500_000)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield piece

    await stream.snapshots.publish(ends[4], pieces())
    assert (await stream.snapshots.get()).bytes == piece * 10
    async with stream.bootstrap() as bootstrap:
        received = [each.data async for each in bootstrap.snapshot_pieces()]
        assert len(received) > 1
        assert b"".join(received) == piece * 10
        assert [message async for message in bootstrap.messages()] == []


async def test_bootstrap_without_a_snapshot(filled) -> None:
    stream, ends = filled
    async with stream.bootstrap() as bootstrap:
        snapshot = await bootstrap.snapshot()
        assert not snapshot.exists
        assert snapshot.bytes == b""
        messages = [message async for message in bootstrap.messages()]
    assert messages == [message async for message in stream.read()]
    assert [message.next_offset for message in messages] == ends
    assert bootstrap.next_offset == ends[-1]
    assert bootstrap.up_to_date
    assert not bootstrap.closed


@pytest.mark.spec("extensions 3.4-4")
@pytest.mark.parametrize("content_type", [TEXT, JSON, BINARY])
async def test_messages_of_a_bootstrap_have_offsets(
    new_stream: MakeStream, content_type: str
) -> None:
    stream = await new_stream(content_type)
    ends = [(await stream.append(f"--{number}\r\n--")).next_offset for number in range(50)]
    await stream.snapshots.publish(ends[9], b"\r\n--state", content_type="text/x-state")
    await stream.close()
    async with stream.bootstrap() as bootstrap:
        assert await bootstrap.snapshot() == Snapshot(b"\r\n--state", "text/x-state", ends[9])
        messages = [message async for message in bootstrap.messages()]
        assert bootstrap.content_type == content_type
    assert bootstrap.closed
    assert messages == [message async for message in stream.read(ends[9])]
    for message in messages[::7]:
        rest = messages[messages.index(message) + 1 :]
        assert [each async for each in stream.read(message.next_offset)] == rest


async def test_a_snapshot_may_be_passed_over(filled) -> None:
    stream, ends = filled
    await stream.snapshots.publish(ends[3], b"state" * 100_000)
    async with stream.bootstrap() as bootstrap:
        assert [message.text async for message in bootstrap.messages()] == ["4;"]


async def test_a_large_bootstrap(new_stream: MakeStream) -> None:
    stream = await new_stream(JSON)
    state = Random(4).randbytes(3_000_000)
    at = await stream.append("before")
    await stream.snapshots.publish(at.next_offset, state)
    for start in range(0, 20_000, 5_000):
        await stream.append_many([{"number": start + number} for number in range(5_000)])
    async with stream.bootstrap() as bootstrap:
        assert (await bootstrap.snapshot()).bytes == state
        messages = [message async for message in bootstrap.messages()]
    assert [message.json["number"] for message in messages] == list(range(20_000))
    assert messages[-1].next_offset == bootstrap.next_offset
    for before, after in itertools.pairwise(messages):
        assert before.next_offset == after.offset


async def test_leaving_a_bootstrap_early(filled) -> None:
    stream, ends = filled
    await stream.snapshots.publish(ends[0], b"x" * 2_000_000)
    async with stream.bootstrap() as bootstrap:
        async for _ in bootstrap.snapshot_pieces():
            break
    assert (await stream.snapshots.get()).offset == ends[0]


async def test_bootstrap_of_no_stream(client: Client) -> None:
    with pytest.raises(StreamNotFoundError):
        async with client.stream(new_name()).bootstrap():
            pytest.fail("there is nothing")


def what(item: Snapshot | Message) -> str:
    return f"={item.text}" if isinstance(item, Snapshot) else item.text


async def test_following_from_a_snapshot_on(filled) -> None:
    stream, ends = filled
    await stream.snapshots.publish(ends[2], b"012")
    seen = []
    async with aclosing(stream.bootstrap_and_follow()) as items:
        async for item in items:
            seen.append(what(item))
            if len(seen) == 3:
                await stream.append("5;")
                await stream.append("6;", close=True)
    assert seen == ["=012", "3;", "4;", "5;", "6;"]


async def test_following_to_the_tail_only(filled) -> None:
    stream, _ = filled
    seen = [what(item) async for item in stream.bootstrap_and_follow(live=False)]
    assert seen == ["=", "0;", "1;", "2;", "3;", "4;"]


@pytest.mark.spec("extensions 2.2-11", "extensions 3.4-2")
@pytest.mark.parametrize("live", [True, "sse", "long-poll"])
async def test_a_follower_that_is_overtaken_starts_from_the_newer_snapshot(filled, live) -> None:
    stream, _ = filled
    seen = []
    async with aclosing(stream.bootstrap_and_follow(live=live)) as items:
        async for item in items:
            seen.append(what(item))
            if seen[-1] == "4;":
                # It has not asked for what comes next yet, and that will be gone.
                for number in range(5, 9):
                    end = (await stream.append(f"{number};")).next_offset
                await stream.snapshots.publish(end, b"0 to 8")
                await stream.append("9;", close=True)
    assert seen == ["=", "0;", "1;", "2;", "3;", "4;", "=0 to 8", "9;"]


async def test_snapshots_published_while_a_follower_follows(filled) -> None:
    """State folded from snapshots and messages is the same, whichever way it came about."""
    stream, _ = filled
    state: list[str] = []

    async def follow() -> None:
        async for item in stream.bootstrap_and_follow():
            if isinstance(item, Snapshot):
                state[:] = item.json if item.exists else []
            else:
                state.append(item.text)

    following = asyncio.create_task(follow())
    published = [f"{number};" for number in range(5)]
    for number in range(5, 60):
        end = (await stream.append(f"{number};")).next_offset
        published.append(f"{number};")
        if number % 7 == 0:
            body = b"[%b]" % b",".join(b'"%b"' % each.encode() for each in published)
            await stream.snapshots.publish(end, body)
    await stream.close()
    await following
    assert state == published
