"""What the specifications ask of clients, where no other test of the client shows it."""

from base64 import b64encode

import msgspec
import pytest

from holdfast.client import ProducerLimits
from holdfast.errors import ConflictError, StreamClosedError
from tests.client.scripted.producing import ProducerServer
from tests.client.scripted.server import answer, events, page, run, scripted

TEXT = "text/plain"
BINARY = "application/octet-stream"
# Offsets of a server that does not count in bytes, and some that would not survive in a URL.
OFFSETS = ('700 +%20"#<;', "70", "7", "1+1~")


def event(data, next_offset, *, closed=False):
    said = {"streamNextOffset": next_offset, "upToDate": True, "streamClosed": closed}
    return b"event: data\ndata: %b\n\nevent: control\ndata: %b\n\n" % (
        data,
        msgspec.json.encode(said),
    )


@pytest.mark.spec(
    "base 5.8-20", "base 6-1", "base 6-7", "base 6-26", "extensions 2.1-1", "forks 8-4"
)
def test_offsets_are_given_back_as_they_are():
    first, second, third, last = OFFSETS

    async def scenario():
        caught_up = page(b"one", first), page(b"two", second, up_to_date=True)
        scripts = {
            "sse": (events(event(b"3", third)), events(event(b"4", last, closed=True))),
            "long-poll": (page(b"3", third), page(b"4", last, closed=True)),
        }
        for live, script in scripts.items():
            async with scripted(*caught_up, *script) as (server, client):
                reading = client.stream("b/s").read(live=live)
                messages = [message async for message in reading]
                assert [message.payload for message in messages] == [b"one", b"two", b"3", b"4"]
                assert [message.next_offset for message in messages] == list(OFFSETS)
                assert server.asked("offset") == ["-1", first, second, third]
                assert reading.offset == last

    run(scenario())


@pytest.mark.spec("base 5.8-4")
@pytest.mark.parametrize("content_type", [TEXT, BINARY])
def test_the_header_says_whether_events_are_base64(content_type):
    async def scenario():
        encoded = b64encode(b"some bytes")
        for encoding, arrives in (("base64", b"some bytes"), (None, encoded)):
            headers = {} if encoding is None else {"stream_sse_data_encoding": encoding}
            tail = page(b"", "a", content_type=content_type, up_to_date=True)
            live = events(event(encoded, "b", closed=True), **headers)
            async with scripted(tail, live) as (_, client):
                assert await client.stream("b/s").read(live="sse").read_bytes() == arrives

    run(scenario())


@pytest.mark.spec("base 5.2-15")
@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"Sequence conflict", b'{"error":{"code":"theirs","message":"Conflict"}}'],
)
def test_closure_is_told_by_the_header_and_not_by_the_body(body):
    async def scenario():
        refusal = answer(409, body, stream_closed="true", stream_next_offset="9")
        said_only = answer(409, b'{"error":"Stream is closed","message":"Stream is closed"}')
        async with scripted(refusal, said_only) as (_, client):
            stream = client.stream("b/s", content_type=TEXT)
            with pytest.raises(StreamClosedError):
                await stream.append("x")
            with pytest.raises(ConflictError) as caught:
                await stream.append("x")
            assert not isinstance(caught.value, StreamClosedError)

    run(scenario())


@pytest.mark.spec("base 5.6-8")
def test_head_tells_of_closure_before_the_end_is_read():
    async def scenario():
        told = answer(200, content_type=TEXT, stream_next_offset="b", stream_closed="true")
        async with scripted(told, page(b"one", "a"), page(b"two", "b", closed=True)) as pair:
            server, client = pair
            stream = client.stream("b/s")
            assert (await stream.head()).closed
            assert [batch.closed async for batch in stream.read().batches()] == [False, True]
            assert [request.method for request in server.requests] == ["HEAD", "GET", "GET"]

    run(scenario())


@pytest.mark.spec("forks 8-3", "forks 8-4")
def test_forks_start_at_an_offset_that_the_server_returned():
    async def scenario():
        for offset in OFFSETS:
            stored = answer(204, stream_next_offset=offset)
            created = answer(201, content_type=TEXT)
            async with scripted(stored, created, created) as (server, client):
                source = client.stream("b/source", content_type=TEXT)
                appended = await source.append("x")
                await client.stream("b/one").fork(source, offset=appended.next_offset)
                # Where none is given it is for the server to say where its tail is.
                await client.stream("b/two").fork(source)
                assert server.sent("stream-fork-offset") == [None, offset, None]

    run(scenario())


@pytest.mark.spec("forks 4.2-30")
def test_producers_start_anew_on_a_fork():
    sides = {name: ProducerServer() for name in ("source", "fork")}

    def judge(request):
        if request.method == "PUT":
            return answer(201, content_type=TEXT)
        return sides[request.path.rpartition("/")[2]](request)

    async def write(stream, *messages):
        limits = ProducerLimits(batch_messages=1)
        async with stream.producer("me", epoch=0, limits=limits) as producer:
            for message in messages:
                await producer.append(message)

    async def scenario():
        async with scripted(handler=judge) as (server, client):
            source = client.stream("b/source", content_type=TEXT)
            fork = client.stream("b/fork", content_type=TEXT)
            await write(source, "one", "two")
            await fork.fork(source)
            await write(fork, "three", "four")
            stamps = [request.stamp for request in server.requests if request.method == "POST"]
            assert stamps == [(0, 0), (0, 1)] * 2
        assert sides["fork"].stored == [b"three", b"four"]

    run(scenario())
