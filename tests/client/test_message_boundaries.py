"""Messages as they were appended, each with offsets of its own: what our server tells."""

import itertools
from random import Random

import pytest

from holdfast.client import Client
from holdfast.errors import InvalidRequestError, PreconditionFailedError
from tests.client.collecting import payloads, tailing, until_true
from tests.client.conftest import MakeStream, OpenClient
from tests.client.targets import BINARY, JSON, TEXT, Target, new_name
from tests.http.raw import RawConnection
from tests.server_process import ServerProcess

pytestmark = pytest.mark.anyio
MODES = [True, "sse", "long-poll"]
LINE_ENDS = [
    b"unix\n",
    b"dos\r\n",
    b"mac\r",
    b"\r\n",
    b"\n\n",
    b"\r",
    b"plain",
    b"\n\r\n\r",
    b"end",
]


@pytest.fixture
def target(ours: Target) -> Target:
    return ours


def random_messages(seed: int, count: int) -> list[bytes]:
    random = Random(seed)
    return [random.randbytes(random.choice([1, 2, 30, 700])) for _ in range(count)]


@pytest.mark.parametrize("max_bytes", [1, 50, 1000, None])
async def test_boundaries_survive_every_cut(new_stream: MakeStream, max_bytes: int | None) -> None:
    stream = await new_stream(BINARY)
    sent = random_messages(1, 40)
    ends = [(await stream.append(each)).next_offset for each in sent]
    messages = [message async for message in stream.read(max_bytes=max_bytes)]
    assert [message.bytes for message in messages] == sent
    assert [message.next_offset for message in messages] == ends
    for before, after in itertools.pairwise(messages):
        assert before.next_offset == after.offset


async def test_thousands_of_small_messages(server: ServerProcess, new_stream: MakeStream) -> None:
    """The list of lengths has a limit, behind which answers are cut."""
    stream = await new_stream(TEXT)
    with RawConnection(server.port) as connection:
        for start in range(0, 2500, 50):
            for number in range(start, start + 50):
                body = b"%d" % number
                connection.request("POST", stream.path, f"Content-Type: {TEXT}", body=body)
            for _ in range(50):
                assert connection.response().status == 204
    messages = [message async for message in stream.read()]
    assert [message.text for message in messages] == [str(number) for number in range(2500)]
    assert await payloads(stream, messages[1234].next_offset) == [
        message.bytes for message in messages[1235:]
    ]


async def test_a_message_larger_than_an_answer(new_stream: MakeStream) -> None:
    stream = await new_stream(BINARY)
    large = Random(2).randbytes(3_000_001)
    await stream.append(b"before")
    await stream.append(large)
    await stream.append(b"after")
    assert await payloads(stream) == [b"before", large, b"after"]
    reading = stream.read()
    async with reading:
        async for message in reading:
            if message.bytes == b"before":
                break
    assert await payloads(stream, reading.offset) == [large, b"after"]
    async with tailing(stream, live="sse") as tail:
        await tail.until(3)
        await stream.append(large, close=True)
        assert await tail.end() == [b"before", large, b"after", large]


@pytest.mark.parametrize("live", MODES)
@pytest.mark.parametrize("content_type", [TEXT, "text/csv; charset=utf-8"])
async def test_line_ends_stay_as_they_are(new_stream: MakeStream, live, content_type: str) -> None:
    """SSE has only one kind of them; the client sees that, and asks for the plain bytes."""
    stream = await new_stream(content_type)
    async with tailing(stream, live=live) as tail:
        await until_true(lambda: tail.reading.up_to_date)
        for number, each in enumerate(LINE_ENDS):
            await stream.append(each)
            await tail.until(number + 1)
        await stream.close()
        assert await tail.end() == LINE_ENDS
    assert tail.messages[-1].next_offset == (await stream.head()).next_offset


@pytest.mark.parametrize("live", MODES)
async def test_line_ends_as_long_as_others_survive(new_stream: MakeStream, live) -> None:
    """No byte is missing where CR became LF: the server has to tell."""
    stream = await new_stream(TEXT)
    sent = [b"10%\r", b"20%\r", b"done\n"]
    async with tailing(stream, live=live) as tail:
        await until_true(lambda: tail.reading.up_to_date)
        for each in sent:
            await stream.append(each)
        await stream.close()
        assert await tail.end() == sent


async def test_json_keeps_its_text(new_stream: MakeStream) -> None:
    stream = await new_stream(JSON)
    texts = [b'{"a" : 1.0}', b"1e999", b'"\\u00fc"', b'{"line":\r\n "end"}', b"[ 1 ,\r 2 ]", b"0"]
    async with tailing(stream) as tail:
        await until_true(lambda: tail.reading.up_to_date)
        for each in texts:
            await stream.append(each)
        await stream.close()
        await tail.end()
    assert await payloads(stream) == texts
    assert [message.json for message in tail.messages if message.bytes != b"1e999"] == [
        message.json async for message in stream.read() if message.bytes != b"1e999"
    ]
    ends = [message.next_offset async for message in stream.read()]
    for index, end in enumerate(ends):
        assert await payloads(stream, end) == texts[index + 1 :]


async def test_a_tail_resumes_behind_every_message(new_stream: MakeStream) -> None:
    stream = await new_stream(TEXT)
    sent = [b"%d;" % number for number in range(30)]
    for each in sent:
        await stream.append(each)
    await stream.close()
    seen: list[bytes] = []
    offset = "-1"
    while len(seen) < len(sent):
        async with stream.read(offset, live="sse") as reading:
            async for message in reading:
                seen.append(message.bytes)
                if len(seen) % 3 == 0:
                    break
        offset = reading.offset
    assert seen == sent


@pytest.mark.parametrize("content_type", [TEXT, JSON])
async def test_the_last_messages(new_stream: MakeStream, content_type: str) -> None:
    stream = await new_stream(content_type)
    for number in range(20):
        await stream.append(f"{number:02d}")
    everything = await payloads(stream)
    for last in (1, 3, 20, 100):
        assert await payloads(stream, last=last) == everything[-last:]
    async with tailing(stream, last=2) as tail:
        await tail.until(2)
        await stream.append("new", close=True)
        received = await tail.end()
    assert received[:2] == everything[-2:]
    assert len(received) == 3
    assert [batch.data async for batch in stream.read(last=1, max_bytes=100).batches()] == [
        b'["new"]' if content_type == JSON else b"new"
    ]


async def test_the_last_messages_of_another_server(node: Target, open_client: OpenClient) -> None:
    stream = open_client(node.url).stream(new_name())
    await stream.create(JSON, messages=[1, [2], 3])
    assert await payloads(stream, last=2) == [b"[2]", b"3"]
    with pytest.raises(InvalidRequestError, match="cannot start a read at the last messages"):
        await stream.read(last=1).read_bytes()


async def test_conditional_writes(client: Client, new_stream: MakeStream) -> None:
    stream = await new_stream(JSON)
    first = (await stream.head()).etag
    assert first is not None
    second = (await stream.append(1, if_match=first)).etag
    for refused in (stream.append(2, if_match=first), stream.close(if_match=first)):
        with pytest.raises(PreconditionFailedError) as raised:
            await refused
        assert raised.value.status == 412
    with pytest.raises(PreconditionFailedError):
        await client.stream(new_name()).create(JSON, if_match="*")
    assert (await stream.create(JSON, if_match=second)).etag == second
    assert (await stream.append(2, if_match="*", close=True)).closed
    assert await stream.read().read_json() == [1, 2]
