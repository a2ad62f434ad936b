"""No server is asked a thousand times a second, and no answer is news twice."""

import pytest

from holdfast.client import Client, Message, Snapshot
from holdfast.errors import NotFoundError, OffsetGoneError, OutboundError
from holdfast.protocol.content import frame
from holdfast.testing import HurriedClock
from tests.client.scripted.server import answer, at, events, page, run, scripted
from tests.client.scripted.test_bootstrap import bootstrap

TAIL = page(b"", 0, up_to_date=True, lengths="none")
NOTHING = answer(204, stream_next_offset=at(0), stream_up_to_date="true")
END = answer(204, stream_next_offset=at(0), stream_closed="true")
GONE = answer(410, b'{"error":{"code":"offset_gone","message":"x"}}')


def test_long_polls_that_do_not_wait_are_waited_for():
    async def scenario():
        clock = HurriedClock()
        async with scripted(TAIL, *[NOTHING] * 6, END, clock=clock) as (_, client):
            assert [each async for each in client.stream("b/s").read(live="long-poll")] == []
            assert clock.delays_s == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]

    run(scenario())


UP_TO_DATE = (
    b'event: control\ndata: {"streamNextOffset":"%b","streamCursor":"1","upToDate":true}\n\n'
    % at(0).encode()
)


def test_sse_connections_that_end_at_once_are_waited_for_and_then_given_up():
    async def scenario():
        clock = HurriedClock()
        hasty = events(UP_TO_DATE)
        async with scripted(TAIL, *[hasty] * 3, END, clock=clock) as (server, client):
            assert [each async for each in client.stream("b/s").read(live=True)] == []
            assert clock.delays_s == [0.1, 0.2, 0.4]
            assert server.asked("live") == [None, *["sse"] * 3, "long-poll"]

    run(scenario())


def test_who_wants_sse_only_goes_on_waiting_for_it():
    async def scenario():
        clock = HurriedClock()
        end = events(UP_TO_DATE.replace(b"upToDate", b"streamClosed"))
        async with scripted(TAIL, *[events(UP_TO_DATE)] * 5, end, clock=clock) as (_, client):
            assert [each async for each in client.stream("b/s").read(live="sse")] == []
            assert clock.delays_s == [0.1, 0.2, 0.4, 0.8, 1.6]

    run(scenario())


CHANGES = b'{"changes":[],"next_cursor":"1","up_to_date":true}'


@pytest.mark.parametrize("live", [True, "long-poll"])
def test_changes_that_do_not_wait_are_waited_for(live):
    async def scenario():
        clock = HurriedClock()
        said = answer(200, CHANGES)
        if live is True:
            said = events(b"event: changes\ndata: %b\n\n" % CHANGES)
        async with scripted(*[said] * 4, answer(404), clock=clock) as (_, client):
            with pytest.raises(NotFoundError):
                await collect(client.bucket("bucket").changes(live=live), [])
            assert clock.delays_s == [0.1, 0.2, 0.4, 0.8]

    run(scenario())


def test_batches_without_data_come_only_where_they_say_something_new():
    async def scenario():
        async with scripted(TAIL, *[NOTHING] * 3, END, clock=HurriedClock()) as (_, client):
            reading = client.stream("b/s").read(live="long-poll")
            batches = [batch async for batch in reading.batches()]
            assert [(batch.up_to_date, batch.closed) for batch in batches] == [
                (True, False),
                (True, True),
            ]

    run(scenario())


async def collect(found, items):
    async for item in found:
        items.append(item)


def test_bootstraps_that_are_out_of_date_at_once_are_paused():
    async def scenario():
        clock = HurriedClock()
        whole = bootstrap(b"state", [], 0)
        async with scripted(*[whole, GONE] * 4, clock=clock) as (_, client):
            items = []
            with pytest.raises(OffsetGoneError):
                await collect(client.stream("b/s").bootstrap_and_follow(), items)
            assert items == [Snapshot(b"state", "application/cbor", at(0))] * 4
            # The first time at once, then after pauses, until all attempts are used up.
            assert len(clock.delays_s) == 2

    run(scenario())


def test_bootstrap_of_a_framed_stream_gives_its_messages():
    async def scenario():
        cut = frame(b"three")
        appends = [frame(b"one") + frame(b"two"), cut[:6]]
        whole = bootstrap(b"state", appends, 100)
        rest = page(cut, 123, closed=True, lengths="9")
        async with scripted(whole, rest) as (server, client):
            stream = client.stream("b/s", framing="length-prefixed")
            items = [item async for item in stream.bootstrap_and_follow()]
            assert items[1:] == [
                Message(b"one", at(100), at(107)),
                Message(b"two", at(107), at(114)),
                Message(b"three", at(114), at(123)),
            ]
            # What was there of the third message is read again with its end.
            assert server.asked("offset") == [None, at(114)]

    run(scenario())


def test_bootstrap_that_ends_within_its_first_message_is_gone_on_from_the_snapshot():
    async def scenario():
        whole = bootstrap(b"state", [frame(b"one")[:6]], 100)
        rest = page(frame(b"one"), 107, closed=True, lengths="7")
        async with scripted(whole, rest) as (server, client):
            stream = client.stream("b/s", framing="length-prefixed")
            items = [item async for item in stream.bootstrap_and_follow()]
            assert items[1:] == [Message(b"one", at(100), at(107))]
            assert server.asked("offset") == [None, at(100)]

    run(scenario())


def test_bootstrap_of_a_framed_stream_on_a_server_that_does_not_count():
    async def scenario():
        appends = [frame(b"one") + frame(b"two"), frame(b"three")]
        whole = bootstrap(b"state", appends, 3, tells=False, closed=True)
        async with scripted(whole) as (_, client):
            stream = client.stream("b/s", framing="length-prefixed")
            items = [item async for item in stream.bootstrap_and_follow()]
            assert items[1:] == [
                Message(b"one", at(3), at(3)),
                Message(b"two", at(3), at(3)),
                Message(b"three", at(3), at(26)),
            ]

    run(scenario())


def test_an_answer_that_is_too_large_is_not_asked_for_again():
    async def scenario():
        large = page(bytes(2000), 2000)
        async with scripted(large, answer_bytes_max=1000) as (server, client):
            with pytest.raises(OutboundError, match="exceeds"):
                await client.stream("b/s").read().read_bytes()
            assert len(server.requests) == 1

    run(scenario())


def test_a_stream_elsewhere_does_not_get_the_credentials_of_the_client():
    async def scenario():
        async with scripted(TAIL) as (server, _):
            url = f"{server.url}/v1/stream/b/s"
            options = {"headers": {"X-Mine": "secret"}, "params": {"key": "secret"}}
            async with Client("http://user:secret@localhost:1", **options) as client:
                assert await client.stream(url).read().read_bytes() == b""
            (request,) = server.requests
            assert "authorization" not in request.headers
            assert "x-mine" not in request.headers
            assert server.asked("key") == [None]

    run(scenario())


def test_bytes_in_batches_are_not_cut_for_the_sake_of_lengths():
    async def scenario():
        event = b'event: control\ndata:{"streamNextOffset":"%020d","streamClosed":true}\n\n' % 0
        async with scripted(TAIL, events(event)) as (server, client):
            reading = client.stream("b/s").read(live="sse")
            assert [batch.closed async for batch in reading.batches()] == [False, True]
            # Only SSE can change line ends, and only the lengths tell.
            assert server.asked("lengths") == [None, "true"]

    run(scenario())
