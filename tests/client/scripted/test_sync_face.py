"""The blocking face of the client: the same as behind it, for any thread."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from holdfast.client import Retry, Snapshot, SyncClient
from holdfast.client.loop_thread import LoopThread
from holdfast.errors import InvalidRequestError, PayloadTooLargeError, StreamNotFoundError
from holdfast.testing import HurriedClock
from tests.client.scripted.producing import ProducerServer
from tests.client.scripted.server import (
    TLS,
    ScriptedServer,
    answer,
    at,
    events,
    page,
    run,
    scripted,
)
from tests.client.scripted.test_bootstrap import ITEMS, WHOLE
from tests.client.scripted.test_catching_up import LENGTHS
from tests.client.scripted.test_following import LIVE, MESSAGES, TAIL


@contextmanager
def scripted_sync(*script, handler=None, **options):
    """A server in a thread of its own, with a blocking client to it."""
    thread = LoopThread()

    async def make():
        return ScriptedServer(*script, handler=handler)

    server = thread.call(make())
    thread.call(server.__aenter__())
    server.wait_for = lambda count: thread.call(server.until(count))
    options = {"retry": Retry(attempts=4), "tls": TLS, "clock": HurriedClock()} | options
    try:
        with SyncClient(server.url, **options) as client:
            yield server, client
        thread.call(server.__aexit__(None, None, None))
    finally:
        thread.stop()


class TestIterators:
    """What a caller gives is gone through in its own thread: it may wait for the same client."""

    @pytest.mark.parametrize("how", ["create", "append_many", "producer"])
    def test_may_be_a_read_of_the_same_client(self, how):
        stored = []

        def serve(request):
            if request.method == "GET":
                return page(b"[1,2]", 4, content_type="application/json", closed=True)
            stored.append(request.body)
            return answer(200, content_type="application/json", producer_seq=len(stored) - 1)

        with scripted_sync(handler=serve) as (_, client):
            target = client.stream("b/t", content_type="application/json")
            messages = (message.json for message in client.stream("b/s").read())
            if how == "create":
                target.create(messages=messages)
            elif how == "append_many":
                target.append_many(messages)
            else:
                with target.producer("me") as producer:
                    producer.append_many(messages)
            assert b"".join(stored).replace(b"][", b",") == b"[1,2]"

    def test_that_take_their_time_hold_nothing_up(self):
        server_side = ProducerServer()
        with scripted_sync(handler=server_side, clock=None) as (server, client):
            stream = client.stream("b/s", content_type="text/plain")

            def messages():
                yield "first"
                # Sent, while the second one is still waited for.
                server.wait_for(1)
                yield "second"

            with stream.producer("me", epoch=0) as producer:
                producer.append_many(messages())
            assert server_side.stored == [b"first", b"second"]


class TestSameResults:
    def test_messages(self):
        with scripted_sync(*LENGTHS) as (_, client):
            ours = list(client.stream("b/s").read())

        async def scenario():
            async with scripted(*LENGTHS) as (_, client):
                assert [message async for message in client.stream("b/s").read()] == ours

        run(scenario())
        assert [message.payload for message in ours] == [b"one", b"two", b"three"]

    def test_batches_and_bytes(self):
        with scripted_sync(*LENGTHS, *LENGTHS, *LENGTHS) as (_, client):
            stream = client.stream("b/s")
            reading = stream.read()
            batches = list(reading.batches())
            assert [batch.data for batch in batches] == [b"onetw", b"ot", b"hree"]
            assert (reading.offset, reading.up_to_date, reading.closed) == (at(11), True, False)
            assert stream.read().read_bytes() == b"onetwothree"
            assert stream.read().read_text() == "onetwothree"

    def test_live(self):
        with scripted_sync(TAIL, answer(503), LIVE.byte_by_byte()) as (_, client):
            with client.stream("b/s").read(live=True) as reading:
                assert list(reading) == MESSAGES
                assert reading.closed

    def test_offset_is_behind_the_last_message_handed_out(self):
        with scripted_sync(page(b"onetwo", 6, lengths="3,3", up_to_date=True)) as (_, client):
            with client.stream("b/s").read() as reading:
                for message in reading:
                    assert reading.offset == message.next_offset
                    if message.payload == b"one":
                        break
                assert reading.offset == at(3)

    def test_producer(self):
        server_side = ProducerServer()
        with scripted_sync(handler=server_side) as (_, client):
            with client.stream("b/s", content_type="text/plain").producer("me") as producer:
                producer.append("a")
                producer.append_many(["b", "c"])
                assert producer.flush().next_offset == at(3)
                assert producer.acknowledged == 3
                assert producer.last.next_offset == at(3)
                assert producer.close_stream("d").closed
        assert server_side.stored == [b"a", b"b", b"c", b"d"]

    def test_bootstrap(self):
        with scripted_sync(WHOLE, WHOLE) as (_, client):
            stream = client.stream("b/s")
            with stream.bootstrap() as answered:
                assert answered.snapshot_offset == at(10)
                assert answered.next_offset == at(16)
                assert not answered.closed
                assert answered.snapshot() == ITEMS[0]
                assert list(answered.messages()) == ITEMS[1:]
            assert list(stream.bootstrap_and_follow(live=False)) == ITEMS

    def test_everything_else(self):
        told = answer(200, b"state", content_type="text/plain", stream_snapshot_offset=at(5))
        created = answer(201, stream_next_offset=at(0), content_type="text/plain")
        listing = answer(200, b'{"streams": []}')
        with scripted_sync(
            created, created, answer(204), told, listing, answer(200, b"ok"), answer(204)
        ) as (server, client):
            stream = client.stream("b/s")
            assert stream.create("text/plain").created
            assert client.stream("b/t").fork(stream, offset=at(0)).created
            stream.snapshots.publish(at(5), b"state")
            assert stream.snapshots.get() == Snapshot(b"state", "text/plain", at(5))
            assert list(client.bucket("b").streams()) == []
            assert client.request("GET", "/metrics").body == b"ok"
            stream.delete()
            assert server.sent("stream-forked-from")[1] == "/v1/stream/b/s"


class TestErrors:
    def test_pass_through_calls(self):
        with scripted_sync(answer(404), answer(404)) as (_, client):
            with pytest.raises(StreamNotFoundError):
                client.stream("b/s").head()
            with pytest.raises(StreamNotFoundError):
                list(client.stream("b/s").read())

    def test_pass_through_blocks(self):
        with scripted_sync(answer(413)) as (_, client):
            stream = client.stream("b/s", content_type="text/plain")
            with pytest.raises(PayloadTooLargeError):
                with stream.producer("me") as producer:
                    producer.append("a")

    def test_of_the_block_itself_send_nothing(self):
        with scripted_sync() as (server, client):
            stream = client.stream("b/s", content_type="application/json")
            producer = stream.producer("me")
            with pytest.raises(ZeroDivisionError), producer:
                raise ZeroDivisionError
            assert server.requests == []


class TestThreads:
    def test_share_a_client(self):
        def echo(request):
            return page(request.path.encode(), 3, up_to_date=True)

        with scripted_sync(handler=echo) as (_, client):
            with ThreadPoolExecutor(8) as pool:
                names = [f"b/{each}" for each in range(40)]
                found = pool.map(lambda name: client.stream(name).read().read_text(), names)
                assert list(found) == [f"/v1/stream/{name}" for name in names]

    def test_share_a_producer(self):
        server_side = ProducerServer()
        with scripted_sync(handler=server_side) as (_, client):
            with client.stream("b/s", content_type="text/plain").producer("me") as producer:
                with ThreadPoolExecutor(8) as pool:
                    list(pool.map(producer.append, [f"{each:02d}" for each in range(40)]))
        assert sorted(server_side.stored) == [b"%02d" % each for each in range(40)]

    def test_one_that_reads_does_not_keep_others_waiting(self):
        stored = answer(204, stream_next_offset=at(5))

        def serve(request):
            if request.method == "POST":
                more.set()
                return stored
            if "live" not in request.query:
                return TAIL
            return events(more, LIVE.pieces[1], stream_message_lengths="events")

        more = asyncio.Event()
        with scripted_sync(handler=serve) as (_, client):
            stream = client.stream("b/s", content_type="text/plain")
            with stream.read(live="sse") as reading, ThreadPoolExecutor(1) as pool:
                first = pool.submit(lambda: next(iter(reading)))
                assert stream.append("hello").next_offset == at(5)
                assert first.result(20).payload


def test_closing_the_client_ends_those_that_wait():
    never = asyncio.Event()
    with scripted_sync(TAIL, events(never)) as (server, client):
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda: list(client.stream("b/s").read(live="sse")))
            server.wait_for(2)
            client.close()
            with pytest.raises((RuntimeError, InvalidRequestError), match="The client is closed"):
                waiting.result(20)
