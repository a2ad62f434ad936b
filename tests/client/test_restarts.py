"""Servers that die and come back while clients read and write: nothing lost, nothing twice."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from holdfast.client import Client, ProducerLimits, Retry
from tests.client.collecting import payloads, tailing, until_true
from tests.client.conftest import OpenClient
from tests.client.restarting import RestartingServer
from tests.client.targets import BINARY, JSON, TEXT

pytestmark = pytest.mark.anyio
PATIENT = Retry(attempts=1000, first_s=0.01, max_s=0.1)


@pytest.fixture
def restarting(tmp_path: Path) -> Iterator[RestartingServer]:
    with RestartingServer(tmp_path / "data") as server:
        yield server


@pytest.fixture
async def patient(restarting: RestartingServer, open_client: OpenClient) -> Client:
    return open_client(restarting.url, retry=PATIENT)


@pytest.mark.parametrize(("live", "content_type"), [("sse", TEXT), ("long-poll", JSON)])
async def test_kills_in_the_middle_of_a_tail(
    restarting: RestartingServer, patient: Client, live, content_type: str
) -> None:
    stream = patient.stream("demo/a")
    await stream.create(content_type)
    sent: list[str] = []
    async with tailing(stream, live=live) as tail:
        for _ in range(2):
            for _ in range(5):
                sent.append(f"message {len(sent)}")
                await stream.append(sent[-1])
            await tail.until(len(sent) - 2)
            await restarting.crash()
        await stream.append("last", close=True)
        await tail.end()
    sent.append("last")
    of = [each.json if content_type == JSON else each.text for each in tail.messages]
    assert of == sent


async def test_a_graceful_restart_in_the_middle_of_a_tail(
    restarting: RestartingServer, patient: Client
) -> None:
    stream = patient.stream("demo/a")
    await stream.create(TEXT, messages=["0"])
    async with tailing(stream) as tail, tailing(stream, live="long-poll") as polling:
        for number in (1, 2):
            await tail.until(number)
            await restarting.restart()
            await stream.append(str(number))
        await stream.close()
        assert await tail.end() == await polling.end() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("content_type", [TEXT, JSON])
async def test_kills_in_the_middle_of_a_producer(
    restarting: RestartingServer, patient: Client, content_type: str
) -> None:
    """Byte by byte what was written, with a reader at the tail all the while."""
    random = Random(5)
    stream = patient.stream("demo/a")
    await stream.create(content_type)
    sent: list[str] = []

    async def write() -> None:
        limits = ProducerLimits(batch_messages=7, linger_s=0.001, pending_bytes_max=5_000)
        async with stream.producer("writer", limits=limits) as producer:
            while not stopping.is_set() or len(sent) < 50:
                sent.append(f"{len(sent)}:" + "x" * random.randrange(200))
                await producer.append(sent[-1])
                await asyncio.sleep(0.001)
            await producer.close_stream("the end")
            assert producer.acknowledged == len(sent) + 1

    stopping = asyncio.Event()
    async with tailing(stream) as tail:
        writing = asyncio.create_task(write())
        for _ in range(2):
            await tail.until(len(tail.messages) + 20)
            await asyncio.sleep(random.uniform(0, 0.05))
            await restarting.crash()
        stopping.set()
        await writing
        await tail.end()
    sent.append("the end")
    if content_type == JSON:
        assert [message.json for message in tail.messages] == sent
        assert await stream.read().read_json() == sent
    else:
        assert [message.text for message in tail.messages] == sent
        assert [message.text async for message in stream.read()] == sent
        assert await stream.read().read_text() == "".join(sent)


async def test_kills_in_the_middle_of_catching_up(
    restarting: RestartingServer, patient: Client
) -> None:
    stream = patient.stream("demo/a")
    await stream.create(BINARY)
    random = Random(6)
    sent = [random.randbytes(20_000) for _ in range(60)]
    for each in sent:
        await stream.append(each)
    seen: list[bytes] = []
    async for message in stream.read(max_bytes=9_000):
        seen.append(message.bytes)
        if len(seen) in {10, 35}:
            await restarting.crash()
    assert seen == sent
    assert await payloads(stream) == sent


async def test_changes_and_followers_go_on(restarting: RestartingServer, patient: Client) -> None:
    stream = patient.stream("bucket/a")
    await stream.create(TEXT, messages=["0"])
    lengths: list[int] = []
    texts: list[str] = []

    async def watch() -> None:
        async for page in patient.bucket("bucket").changes(live=True):
            lengths.extend(change.length for change in page.changes)

    async def follow() -> None:
        texts.extend([item.text async for item in stream.bootstrap_and_follow()])

    watching, following = asyncio.create_task(watch()), asyncio.create_task(follow())
    await until_true(lambda: lengths == [1])
    await restarting.crash()
    await stream.append("11")
    await stream.append("222", close=True)
    await following
    await until_true(lambda: len(lengths) == 3)
    watching.cancel()
    assert lengths == [1, 2, 3]
    assert texts == ["", "0", "11", "222"]
