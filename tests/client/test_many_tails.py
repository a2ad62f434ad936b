"""A thousand tails in one process, and what is left of them when they are over."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager

import pytest

from holdfast.client import Client, Reading, Stream
from tests.client.collecting import until_true
from tests.client.conftest import OpenClient
from tests.client.targets import JSON, TEXT
from tests.server_process import ServerProcess

pytestmark = pytest.mark.anyio
TAILS = 1000
# Creating and asking at once would only make requests wait for each other.
AT_ONCE = 50
# Readings that outlive their loops.
kept: list[Reading] = []


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for this file alone, so that its readers can be counted."""
    with ServerProcess(tmp_path_factory.mktemp("quick") / "data", durability="memory") as process:
        yield process


@pytest.fixture
async def observer(quick: ServerProcess, open_client: OpenClient) -> Client:
    """Asks how many readers there are."""
    return open_client(quick.url)


async def gauge(observer: Client, name: str) -> int:
    metrics = (await observer.request("GET", "/metrics")).body.decode()
    found = re.search(rf"^{name} (\d+)", metrics, re.MULTILINE)
    assert found is not None
    return int(found[1])


async def until_gauge(observer: Client, name: str, value: int) -> None:
    while await gauge(observer, name) != value:
        await asyncio.sleep(0.02)


async def in_turns(work) -> None:
    """Do all of it, not all at once."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def do(each) -> None:
        async with turns:
            await each

    await asyncio.gather(*(do(each) for each in work))


@asynccontextmanager
async def tails_of(
    readings: list[Reading], seen: list[list[str]], at_once: int = AT_ONCE
) -> AsyncIterator[asyncio.Future]:
    async def collect(reading: Reading, into: list[str]) -> None:
        async with reading:
            async for message in reading:
                into.append(message.text)

    pairs = list(zip(readings, seen, strict=True))
    tasks = []
    for start in range(0, len(pairs), at_once):
        group = pairs[start : start + at_once]
        tasks += [asyncio.create_task(collect(reading, into)) for reading, into in group]
        await until_true(lambda: all(reading.up_to_date for reading, _ in group))  # noqa: B023
    task = asyncio.gather(*tasks)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_stream_for_each(
    quick: ServerProcess, observer: Client, open_client: OpenClient
) -> None:
    reader, writer = open_client(quick.url), open_client(quick.url)
    names = [f"each/{number}" for number in range(TAILS)]
    streams = [writer.stream(name, content_type=TEXT) for name in names]
    await in_turns(stream.create() for stream in streams)
    seen: list[list[str]] = [[] for _ in names]
    readings = [reader.stream(name).read(live="sse") for name in names]
    async with tails_of(readings, seen) as all_tails:
        await until_gauge(observer, "holdfast_live_readers", TAILS)
        await in_turns(stream.append(f"{stream.name}!", close=True) for stream in streams)
        await all_tails
    assert seen == [[f"{name}!"] for name in names]
    await reader.aclose()
    await writer.aclose()
    await until_gauge(observer, "holdfast_live_readers", 0)
    await until_gauge(observer, "holdfast_http_connections", 1)


async def test_one_stream_for_all(
    quick: ServerProcess, observer: Client, open_client: OpenClient
) -> None:
    client = open_client(quick.url)
    stream = observer.stream("all/one", content_type=TEXT)
    await stream.create(messages=["first"])
    seen: list[list[str]] = [[] for _ in range(TAILS)]
    readings = [client.stream(stream.name).read(live="sse") for _ in range(TAILS)]
    async with tails_of(readings, seen, at_once=TAILS) as all_tails:
        await until_gauge(observer, "holdfast_live_readers", TAILS)
        for number in range(5):
            await stream.append(f"{number}")
        await stream.close()
        await all_tails
    assert all(each == ["first", "0", "1", "2", "3", "4"] for each in seen)
    await client.aclose()
    await until_gauge(observer, "holdfast_http_connections", 1)


async def test_cancelled_tails_leave_nothing_behind(
    quick: ServerProcess, observer: Client, open_client: OpenClient
) -> None:
    client = open_client(quick.url)
    stream = client.stream("all/cancelled", content_type=TEXT)
    await stream.create()
    readings = [stream.read(live="sse") for _ in range(100)]
    async with tails_of(readings, [[] for _ in readings]):
        await until_gauge(observer, "holdfast_live_readers", 100)
    await until_gauge(observer, "holdfast_live_readers", 0)
    # The client goes on.
    await stream.append("x")


async def leave_the_block(stream: Stream) -> None:
    async with stream.read(live="sse") as reading:
        async for message in reading:
            if message.json == 2:
                break


async def leave_the_loop(stream: Stream) -> None:
    async for message in stream.read(live="sse"):
        if message.json == 2:
            break


async def leave_the_loop_of_a_reading_that_is_kept(stream: Stream) -> None:
    reading = stream.read(live="sse")
    async for message in reading:
        if message.json == 2:
            break
    kept.append(reading)


async def leave_the_batches(stream: Stream) -> None:
    async with stream.read(live="sse") as reading:
        async for batch in reading.batches():
            if batch.data == b"[2]":
                break


async def leave_by_an_error(stream: Stream) -> None:
    async def fail() -> None:
        async with stream.read(live="sse") as reading:
            async for message in reading:
                assert message.json == 1

    with pytest.raises(AssertionError):
        await fail()


async def leave_the_follower(stream: Stream) -> None:
    async with aclosing(stream.bootstrap_and_follow()) as items:
        async for item in items:
            if item.bytes == b"2":
                break


@pytest.mark.parametrize(
    "leave",
    [
        leave_the_block,
        leave_the_loop,
        leave_the_loop_of_a_reading_that_is_kept,
        leave_the_batches,
        leave_by_an_error,
        leave_the_follower,
    ],
)
async def test_whoever_leaves_closes_the_connection(
    quick: ServerProcess, observer: Client, open_client: OpenClient, leave
) -> None:
    stream = open_client(quick.url).stream(f"left/{leave.__name__}", content_type=JSON)
    await stream.create(messages=[1])
    leaving = asyncio.create_task(leave(stream))
    await until_gauge(observer, "holdfast_live_readers", 1)
    await stream.append(2)
    await leaving
    await until_gauge(observer, "holdfast_live_readers", 0)
