"""Servers that are not there, or slow: errors in one sentence, in the time that was given."""

import asyncio

import pytest

from holdfast.client import NO_RETRY, Retry, Timeouts
from holdfast.errors import HoldfastError, OutboundError, UnavailableError
from tests.client.conftest import OpenClient
from tests.client.restarting import free_port
from tests.client.targets import TEXT
from tests.http.loopback import answer, serving

pytestmark = pytest.mark.anyio
QUICK = Retry(attempts=3, first_s=0.001, max_s=0.002)


async def test_a_server_that_is_not_there(open_client: OpenClient) -> None:
    waits: list[float] = []

    def note(error: HoldfastError, wait_s: float) -> None:
        assert isinstance(error, OutboundError)
        waits.append(wait_s)

    url = f"http://127.0.0.1:{free_port()}"
    stream = open_client(url, retry=QUICK, on_retry=note).stream("a/b", content_type=TEXT)
    producer = stream.producer("writer")

    async def produce() -> None:
        await producer.append("x")
        await producer.flush()

    reads = [anext(aiter(stream.read(live=live))) for live in (False, True, "long-poll")]
    for attempt in (stream.create(), stream.append("x"), stream.head(), produce(), *reads):
        waits.clear()
        with pytest.raises(OutboundError) as raised:
            await attempt
        assert str(raised.value) == f"{url} cannot be connected to: Connection refused."
        assert not raised.value.sent
        assert len(waits) == 2
    with pytest.raises(OutboundError):
        await producer.append("y")


async def test_a_name_without_an_address(open_client: OpenClient) -> None:
    client = open_client("http://no-such-host.invalid:4437", retry=NO_RETRY)
    with pytest.raises(OutboundError) as raised:
        await client.stream("a").head()
    assert str(raised.value) == "The name no-such-host.invalid has no address."


async def never_answer(_head: bytes, _body: bytes, _writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def test_a_server_that_does_not_answer(open_client: OpenClient) -> None:
    async with serving(never_answer) as loopback:
        url = f"http://127.0.0.1:{loopback.port}"
        client = open_client(url, retry=QUICK, timeouts=Timeouts(request_s=0.05))
        stream = client.stream("a/b", content_type=TEXT)
        with pytest.raises(OutboundError) as raised:
            await stream.head()
        assert str(raised.value) == f"{url} did not respond within 0.05 s."
        assert len(loopback.heads) == 3
        with pytest.raises(OutboundError):
            await stream.append("not twice")
        assert len(loopback.heads) == 4
        producer = stream.producer("writer")
        await producer.append("as often as it takes")
        with pytest.raises(OutboundError):
            await producer.flush()
        assert len(loopback.heads) == 7


async def test_an_answer_that_breaks_off_or_falls_silent(open_client: OpenClient) -> None:
    async def half(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer("200 OK", b"0123456789", "Stream-Next-Offset: 1")[:-5])
        if ends:
            await writer.drain()
            writer.close()

    ends = False
    async with serving(half) as loopback:
        url = f"http://127.0.0.1:{loopback.port}"
        stream = open_client(url, retry=QUICK, timeouts=Timeouts(request_s=0.05)).stream("a")
        with pytest.raises(OutboundError, match="did not respond within"):
            await stream.read().read_bytes()
        ends = True
        with pytest.raises(OutboundError, match="did not respond in valid HTTP, or broke off"):
            await stream.read().read_bytes()


async def test_a_live_read_that_falls_silent_is_opened_again(open_client: OpenClient) -> None:
    """A dead connection does not say so: silence that is too long has to do."""

    async def one_event(head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        if b"live=sse" not in head:
            fields = (
                "Content-Type: text/plain",
                "Stream-Next-Offset: 0",
                "Stream-Up-To-Date: true",
            )
            writer.write(answer("200 OK", b"", *fields))
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        number = int(head.partition(b"offset=")[2].partition(b" ")[0].partition(b"&")[0])
        writer.write(b"event: data\ndata:%d\n\n" % number)
        writer.write(b'event: control\ndata:{"streamNextOffset":"%d"}\n\n' % (number + 1))
        await writer.drain()
        await asyncio.Event().wait()

    async with serving(one_event) as loopback:
        url = f"http://127.0.0.1:{loopback.port}"
        client = open_client(url, retry=QUICK, timeouts=Timeouts(live_s=0.05))
        seen: list[str] = []
        async with client.stream("a").read(live=True) as reading:
            async for message in reading:
                seen.append(message.text)
                if len(seen) == 4:
                    break
        assert seen == ["0", "1", "2", "3"]


async def test_a_server_that_is_busy_for_a_while(open_client: OpenClient) -> None:
    busy = 2

    async def recover(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal busy
        busy -= 1
        if busy >= 0:
            writer.write(answer("503 Service Unavailable", b"", "Retry-After: 0"))
        else:
            writer.write(answer("204 No Content", b"", "Stream-Next-Offset: 5"))

    async with serving(recover) as loopback:
        url = f"http://127.0.0.1:{loopback.port}"
        stream = open_client(url, retry=QUICK).stream("a", content_type=TEXT)
        assert (await stream.append("x")).next_offset == "5"
        busy = 100
        with pytest.raises(UnavailableError):
            await stream.append("x")
        assert busy == 97


async def test_a_long_pause_that_a_server_asks_for_is_an_error(open_client: OpenClient) -> None:
    async def refuse(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer("503 Service Unavailable", b"", "Retry-After: 3600"))

    async with serving(refuse) as loopback:
        client = open_client(f"http://127.0.0.1:{loopback.port}")
        with pytest.raises(UnavailableError) as raised:
            await client.stream("a").head()
        assert raised.value.retry_after_s == 3600
