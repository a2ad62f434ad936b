"""Connections that break anywhere, while one side writes and the other reads."""

import asyncio

import pytest

from holdfast.client import Client, ProducerLimits, Retry
from holdfast.errors import OutboundError, ProducerFencedError
from tests.client.collecting import payloads, tailing
from tests.client.conftest import MakeStream, OpenClient
from tests.client.cutting_proxy import CuttingProxy, random_budget
from tests.client.targets import BINARY, JSON, TEXT, Target, new_name
from tests.server_process import ServerProcess

pytestmark = pytest.mark.anyio
PATIENT = Retry(attempts=10_000, first_s=0.001, max_s=0.01)
SEEDS = [1, 2]


@pytest.fixture
def target(ours: Target) -> Target:
    return ours


@pytest.mark.parametrize(("seed", "content_type"), [(1, TEXT), (2, TEXT), (3, JSON), (4, BINARY)])
async def test_a_writer_and_a_reader_on_a_bad_line(
    server: ServerProcess, open_client: OpenClient, seed: int, content_type: str
) -> None:
    count = 120
    async with CuttingProxy(server.port, random_budget(seed, 3_000)) as proxy:
        client = open_client(proxy.url, retry=PATIENT)
        stream = client.stream(new_name())
        await stream.create(content_type)
        limits = ProducerLimits(
            batch_messages=5, linger_s=0.001, lists_lengths=content_type == BINARY
        )
        async with tailing(stream) as tail, tailing(stream, live="long-poll") as polling:
            async with stream.producer("writer", limits=limits) as producer:
                for number in range(count):
                    await producer.append(f"{number};\r\n")
                    if number % 20 == 0:
                        await producer.flush()
                await producer.close_stream("end")
            await tail.end()
            await polling.end()
        assert proxy.cuts > 20
        sent = [*(f"{number};\r\n" for number in range(count)), "end"]
        for messages in (
            tail.messages,
            polling.messages,
            [message async for message in stream.read(max_bytes=500)],
        ):
            of = [each.json if content_type == JSON else each.text for each in messages]
            assert of == sent


@pytest.mark.parametrize("seed", SEEDS)
async def test_large_messages_on_a_bad_line(
    server: ServerProcess, open_client: OpenClient, new_stream: MakeStream, seed: int
) -> None:
    stream = await new_stream(BINARY)
    sent = [bytes([number]) * 30_000 for number in range(10)]
    for each in sent:
        await stream.append(each)
    await stream.close()
    async with CuttingProxy(server.port, random_budget(seed, 60_000)) as proxy:
        seen = open_client(proxy.url, retry=PATIENT).stream(stream.name)
        assert await payloads(seen, max_bytes=25_000) == sent
        async with tailing(seen, max_bytes=25_000) as tail:
            assert await tail.end() == sent
        assert proxy.cuts


async def test_an_append_whose_answer_is_lost_is_not_sent_again(
    server: ServerProcess, open_client: OpenClient
) -> None:
    async with CuttingProxy(server.port, lambda: None) as proxy:
        stream = open_client(proxy.url, retry=PATIENT).stream(new_name(), content_type=TEXT)
        await stream.create()
        proxy.swallows = lambda request: request.startswith(b"POST ")
        with pytest.raises(OutboundError) as raised:
            await stream.append("once")
        assert raised.value.sent
        assert proxy.cuts == 1
        # Nobody but the reader can tell: it was stored.
        assert await payloads(stream) == [b"once"]


async def test_a_lost_answer_to_what_comes_before_the_close(
    server: ServerProcess, open_client: OpenClient
) -> None:
    """A closed stream refuses even what it has: so nothing may be open when it is closed."""
    lost: list[bytes] = []

    def swallow_once(request: bytes) -> bool:
        if b"Producer-Seq: 1\r\n" not in request or lost:
            return False
        lost.append(request)
        return True

    async with CuttingProxy(server.port, lambda: None) as proxy:
        proxy.swallows = swallow_once
        stream = open_client(proxy.url, retry=PATIENT).stream(new_name())
        await stream.create(TEXT)
        async with stream.producer("writer") as producer:
            await producer.append("0")
            await producer.flush()
            await producer.append("1")
            await producer.close_stream("2")
        assert lost
        assert await payloads(stream) == [b"0", b"1", b"2"]


async def test_an_epoch_that_may_have_been_stored_is_not_claimed_again(
    server: ServerProcess, open_client: OpenClient, client: Client
) -> None:
    """The answer is lost, and meanwhile somebody else has taken over: nobody could tell."""
    name = new_name()
    async with CuttingProxy(server.port, lambda: None) as proxy:
        stream = open_client(proxy.url, retry=PATIENT).stream(name)
        other = client.stream(name)
        await stream.create(TEXT)
        seen = asyncio.Event()

        def swallow(request: bytes) -> bool:
            lost = b"\r\n\r\nin doubt" in request
            if lost:
                seen.set()
            return lost

        proxy.swallows = swallow
        producer = stream.producer("writer", auto_claim=True, epoch=0)
        await producer.append("in doubt")
        await seen.wait()
        async with other.producer("writer", epoch=1) as successor:
            await successor.append("new")
        proxy.swallows = lambda _request: False
        with pytest.raises(ProducerFencedError):
            await producer.close()
        assert await payloads(other) in ([b"in doubt", b"new"], [b"new"])


async def test_two_writers_with_one_id_in_a_race(new_stream: MakeStream) -> None:
    stream = await new_stream(JSON)
    limits = ProducerLimits(batch_messages=3, linger_s=0.0005)
    outcomes: dict[str, object] = {}

    async def write(name: str, epoch: int) -> None:
        try:
            async with stream.producer("writer", epoch=epoch, limits=limits) as producer:
                for number in range(200):
                    await producer.append([name, number])
                    await asyncio.sleep(0)
                    if name == "old" and number == 50:
                        await producer.flush()
                        started.set()
        except ProducerFencedError as error:
            outcomes[name] = error.epoch

    started = asyncio.Event()
    old = asyncio.create_task(write("old", 0))
    await started.wait()
    await asyncio.gather(old, write("new", 1))
    found = await stream.read().read_json()
    of_old = [number for name, number in found if name == "old"]
    of_new = [number for name, number in found if name == "new"]
    assert of_new == list(range(200))
    assert of_old == list(range(len(of_old)))
    # Fenced, unless it was through before the other came.
    assert outcomes == ({"old": 1} if len(of_old) < 200 else {})
