"""Following a stream live: SSE, what takes its place, and what ends it."""

import asyncio

import pytest

from holdfast.client import Message
from holdfast.errors import (
    BadAnswerError,
    GoneError,
    HoldfastError,
    InvalidRequestError,
    StreamNotFoundError,
)
from holdfast.protocol.content import store_form
from holdfast.protocol.sse import HEARTBEAT, control_event, data_event, with_lengths
from holdfast.testing import HurriedClock
from tests.client.scripted.server import Answer, answer, at, broken, events, page, run, scripted

TEXT = "text/plain"
TAIL = page(b"", 0, up_to_date=True, lengths="none")
LENGTHS = {"stream_message_lengths": "events"}


def control(position, *, cursor=9, up_to_date=True, closed=False):
    return control_event(b"%020d" % position, cursor, up_to_date=up_to_date, closed=closed)


def event(data, start, *, media=TEXT, closed=False):
    """A data event for one message, with the control event behind it."""
    end = start + len(data)
    return data_event(data, media) + with_lengths(control(end, closed=closed), start, [end])


END = control(9, closed=True)
LIVE = events(
    event(b"one", 0), HEARTBEAT, event(b"two", 3), event(b"end", 6, closed=True), **LENGTHS
)
MESSAGES = [
    Message(b"one", at(0), at(3)),
    Message(b"two", at(3), at(6)),
    Message(b"end", at(6), at(9)),
]


async def collect(reading, found):
    async for message in reading:
        found.append(message)


async def followed(client, live=True, **options):
    return [message async for message in client.stream("b/s").read(live=live, **options)]


class TestEvents:
    @pytest.mark.spec("base 5.8-16", "base 5.8-21")
    @pytest.mark.parametrize("live", [True, "sse"])
    def test_arrive_as_messages_until_the_stream_is_closed(self, live):
        async def scenario():
            async with scripted(TAIL, LIVE) as (server, client):
                reading = client.stream("b/s").read(live=live)
                assert [message async for message in reading] == MESSAGES
                assert reading.closed
                assert reading.offset == at(9)
                assert server.asked("live") == [None, "sse"]
                assert server.asked("offset") == ["-1", at(0)]
                assert server.sent("accept")[1] == "text/event-stream"

        run(scenario())

    def test_may_come_byte_by_byte(self):
        async def scenario():
            async with scripted(TAIL, LIVE.byte_by_byte()) as (_, client):
                assert await followed(client) == MESSAGES

        run(scenario())

    def test_are_handed_out_while_the_answer_goes_on(self):
        async def scenario():
            more = asyncio.Event()
            script = events(event(b"one", 0), more, event(b"two", 3, closed=True), **LENGTHS)
            async with scripted(TAIL, script) as (_, client):
                async with client.stream("b/s").read(live=True) as reading:
                    messages = aiter(reading)
                    assert (await anext(messages)).payload == b"one"
                    more.set()
                    assert (await anext(messages)).payload == b"two"
                    with pytest.raises(StopAsyncIteration):
                        await anext(messages)

        run(scenario())

    @pytest.mark.spec("base 5.8-20")
    def test_of_a_connection_that_ends_are_gone_on_from(self):
        async def scenario():
            clock = HurriedClock()
            async with scripted(
                TAIL,
                events(event(b"one", 0), **LENGTHS),
                events(event(b"two", 3), **LENGTHS),
                events(event(b"end", 6, closed=True), **LENGTHS),
                clock=clock,
            ) as (server, client):
                assert await followed(client) == MESSAGES
                assert server.asked("offset") == ["-1", at(0), at(3), at(6)]
                # Servers end connections now and then: that is no failure.
                assert clock.delays_s == []

        run(scenario())

    @pytest.mark.spec("base 8.1-13")
    def test_cursor_is_given_back(self):
        async def scenario():
            async with scripted(
                page(b"", 0, up_to_date=True, cursor="77"),
                events(control(0, cursor=78)),
                events(control(0, cursor=79), control(0, cursor=80)),
                events(END),
            ) as (server, client):
                await followed(client, cursor="5")
                assert server.asked("cursor") == [None, "77", "78", "80"]

        run(scenario())

    def test_of_json_and_base64(self):
        async def scenario():
            stored = store_form(b'[1, {"a": "b"}]')
            async with scripted(
                page(b"[]", 0, content_type="application/json", up_to_date=True),
                events(
                    data_event(stored, "application/json"),
                    control(len(stored), closed=True),
                    stream_message_lengths="json",
                ),
            ) as (_, client):
                assert [each.json for each in await followed(client)] == [1, {"a": "b"}]
            kind = "application/octet-stream"
            async with scripted(
                page(b"", 0, content_type=kind, up_to_date=True),
                events(event(b"\0\r\n\xff", 0, media=kind), END, stream_sse_data_encoding="base64"),
            ) as (_, client):
                assert [each.payload for each in await followed(client)] == [b"\0\r\n\xff"]

        run(scenario())

    def test_text_whose_line_ends_were_changed_is_read_plainly(self):
        async def scenario():
            async with scripted(
                TAIL,
                events(event(b"one", 0), event(b"a\r\nb", 3), **LENGTHS),
                page(b"a\r\nb", 7, lengths="4", up_to_date=True),
                page(b"", 7, status=204, closed=True),
            ) as (server, client):
                messages = await followed(client)
                assert [message.payload for message in messages] == [b"one", b"a\r\nb"]
                assert server.asked("live") == [None, "sse", None, "long-poll"]
                assert server.asked("offset") == ["-1", at(0), at(3), at(7)]

        run(scenario())


class TestCutAnywhere:
    """The connection breaks at every byte of the answer: nothing is lost, nothing comes twice."""

    @pytest.mark.spec("base 5.8-20")
    def test_messages(self):
        async def scenario():
            first = events(
                event(b"one", 0), HEARTBEAT, event(b"two", 3), event(b"end", 6), **LENGTHS
            )

            def rest(request):
                start = int(request.query["offset"])
                pieces = [event(b"one", 0), event(b"two", 3), event(b"end", 6)][start // 3 :]
                return events(*pieces, control(9, closed=True), **LENGTHS)

            for size in range(first.size):
                async with scripted(TAIL, first.cut(size), rest, clock=HurriedClock()) as pair:
                    assert await followed(pair[1], "sse") == MESSAGES, size

        run(scenario())

    def test_batches(self):
        async def scenario():
            pieces = (data_event(b"one", TEXT), control(3), data_event(b"end", TEXT), control(6))
            first = events(*pieces)

            def rest(request):
                start = int(request.query["offset"])
                return events(*pieces[start // 3 * 2 :], control(6, closed=True))

            for size in range(first.size):
                async with scripted(TAIL, first.cut(size), rest, clock=HurriedClock()) as pair:
                    reading = pair[1].stream("b/s").read(live="sse")
                    assert await reading.read_bytes() == b"oneend", size
                    assert reading.offset == at(6)

        run(scenario())


class TestFallback:
    POLLED = (page(b"one", 3, lengths="3"), page(b"", 3, status=204, closed=True))

    @pytest.mark.spec("extensions 3.3-2")
    @pytest.mark.parametrize("status", [400, 404, 405, 406, 415, 501])
    def test_server_without_sse_is_polled(self, status):
        async def scenario():
            async with scripted(TAIL, answer(status), *self.POLLED) as (server, client):
                assert await followed(client) == MESSAGES[:1]
                assert server.asked("live") == [None, "sse", "long-poll", "long-poll"]
                assert server.asked("offset") == ["-1", at(0), at(0), at(3)]

        run(scenario())

    def test_answer_that_is_no_event_stream_leads_to_polls(self):
        async def scenario():
            plain = page(b"one", 3, up_to_date=True)
            async with scripted(TAIL, plain, *self.POLLED) as (server, client):
                assert await followed(client) == MESSAGES[:1]
                assert server.asked("live") == [None, "sse", "long-poll", "long-poll"]

        run(scenario())

    def test_three_connections_without_an_event_lead_to_polls(self):
        async def scenario():
            clock = HurriedClock()
            empty = [events(), events(HEARTBEAT), events(b"event: data\ndata: unfinished\n\n")]
            async with scripted(TAIL, *empty, *self.POLLED, clock=clock) as (server, client):
                assert await followed(client) == MESSAGES[:1]
                assert server.asked("live") == [None, *["sse"] * 3, *["long-poll"] * 2]
                assert len(clock.delays_s) == 2

        run(scenario())

    def test_three_connections_that_break_off_without_an_event_lead_to_polls(self):
        async def scenario():
            cut = [events(HEARTBEAT, ends=False, breaks=True)] * 3
            async with scripted(TAIL, *cut, *self.POLLED, clock=HurriedClock()) as (server, client):
                assert await followed(client) == MESSAGES[:1]
                assert server.asked("live") == [None, *["sse"] * 3, *["long-poll"] * 2]

        run(scenario())

    def test_connections_that_never_are_do_not_count(self):
        async def scenario():
            failures = [broken(), answer(503), broken(), answer(502), broken(), answer(429)]
            async with scripted(TAIL, *failures, LIVE, clock=HurriedClock()) as (server, client):
                assert await followed(client) == MESSAGES
                assert server.asked("live") == [None, *["sse"] * 7]

        run(scenario())

    def test_an_event_in_between_starts_the_count_anew(self):
        async def scenario():
            script = [events(), events(), events(control(0)), events(), events(), LIVE]
            async with scripted(TAIL, *script, clock=HurriedClock()) as (server, client):
                assert await followed(client) == MESSAGES
                assert set(server.asked("live")[1:]) == {"sse"}

        run(scenario())

    @pytest.mark.parametrize(
        ("script", "error"),
        [
            ([answer(405)], HoldfastError),
            ([page(b"one", 3)], BadAnswerError),
            ([events(), events(), events()], BadAnswerError),
        ],
        ids=["405", "content type", "empty"],
    )
    def test_who_wants_sse_gets_sse_or_an_error(self, script, error):
        async def scenario():
            async with scripted(TAIL, *script, clock=HurriedClock()) as (server, client):
                with pytest.raises(error):
                    await followed(client, "sse")
                assert "long-poll" not in server.asked("live")

        run(scenario())

    def test_who_wants_sse_waits_for_a_server_that_breaks_off(self):
        async def scenario():
            cut = [events(HEARTBEAT, ends=False, breaks=True)] * 5
            async with scripted(TAIL, *cut, LIVE, clock=HurriedClock()) as (_, client):
                assert await followed(client, "sse") == MESSAGES

        run(scenario())


class TestLongPolls:
    @pytest.mark.spec("base 5.7-6", "base 6-26", "base 8.1-9", "base 8.1-13")
    def test_follow_one_another_and_give_the_cursor_back(self):
        async def scenario():
            async with scripted(
                page(b"", 0, up_to_date=True, cursor="1"),
                page(b"", 0, status=204, up_to_date=True, cursor="2"),
                page(b"one", 3, lengths="3", up_to_date=True, cursor="3"),
                page(b"two", 6, lengths="3"),
                page(b"end", 9, lengths="3", closed=True),
            ) as (server, client):
                assert await followed(client, "long-poll") == MESSAGES
                assert server.asked("live") == [None, *["long-poll"] * 4]
                assert server.asked("offset") == ["-1", at(0), at(0), at(3), at(6)]
                assert server.asked("cursor") == [None, "1", "2", "3", "3"]

        run(scenario())

    def test_that_fail_are_repeated_for_ever(self):
        async def scenario():
            clock = HurriedClock()
            failures = [answer(503), broken(), page(b"one", 3, length=10), answer(500)] * 5
            script = (TAIL, *failures, page(b"one", 3, lengths="3", closed=True))
            async with scripted(*script, clock=clock) as (server, client):
                assert await followed(client, "long-poll") == MESSAGES[:1]
                assert set(server.asked("offset")[1:]) == {at(0)}
                assert len(clock.delays_s) == 20

        run(scenario())


class TestEnd:
    @pytest.mark.parametrize("live", [True, "sse", "long-poll"])
    @pytest.mark.parametrize(("status", "error"), [(404, StreamNotFoundError), (410, GoneError)])
    def test_stream_that_is_deleted_meanwhile(self, live, status, error):
        async def scenario():
            first = LIVE.cut(0) if live == "long-poll" else events(event(b"one", 0), **LENGTHS)
            if live == "long-poll":
                first = page(b"one", 3, lengths="3")
            # With SSE a 404 may also mean that there is none: then a poll is asked, too.
            again = [answer(status)] * (2 if live is True and status == 404 else 1)
            async with scripted(TAIL, first, *again) as (_, client):
                reading, found = client.stream("b/s").read(live=live), []
                with pytest.raises(error):
                    await collect(reading, found)
                assert found == MESSAGES[:1]
                assert reading.offset == at(3)

        run(scenario())

    @pytest.mark.parametrize("live", [True, "sse"])
    @pytest.mark.parametrize(
        "said",
        [
            b"event: control\ndata: {}\n\n",
            b"event: control\ndata: nonsense\n\n",
            b"event: error\ndata: out of order\n\n",
            b'event: control\ndata: {"streamNextOffset":"\xff"}\n\n',
        ],
    )
    def test_malformed_event_is_raised_at_once(self, live, said):
        async def scenario():
            async with scripted(TAIL, events(event(b"one", 0), said, **LENGTHS)) as (_, client):
                found = []
                with pytest.raises(BadAnswerError):
                    await collect(client.stream("b/s").read(live=live), found)
                assert found == MESSAGES[:1]

        run(scenario())

    def test_malformed_base64_is_raised_at_once(self):
        async def scenario():
            bad = events(b"event: data\ndata: ####\n\n", END, stream_sse_data_encoding="base64")
            async with scripted(TAIL, bad) as (_, client):
                with pytest.raises(BadAnswerError, match="base64"):
                    await followed(client)

        run(scenario())

    def test_poll_without_next_offset_is_raised_at_once(self):
        async def scenario():
            async with scripted(TAIL, answer(204)) as (_, client):
                with pytest.raises(BadAnswerError, match="Stream-Next-Offset"):
                    await followed(client, "long-poll")

        run(scenario())

    @pytest.mark.parametrize("live", [True, "long-poll"])
    def test_reader_that_stops_closes_its_connection(self, live):
        async def scenario():
            never = asyncio.Event()
            answers = {
                True: events(event(b"one", 0), never, **LENGTHS),
                "long-poll": page(b"one", 3, lengths="3"),
            }
            async with scripted(TAIL, answers[live]) as (_, client):
                async with client.stream("b/s").read(live=live) as reading:
                    async for message in reading:
                        assert message == MESSAGES[0]
                        break
                assert client._outbound._calls == 0

        run(scenario())

    @pytest.mark.parametrize("live", [True, "sse", "long-poll"])
    def test_client_that_is_closed_ends_its_reads(self, live):
        async def scenario():
            never = asyncio.Event()
            silent = page(b"", 0, status=204).after(never)
            if live != "long-poll":
                silent = events(event(b"one", 0), never, **LENGTHS)
            async with scripted(TAIL, silent, clock=HurriedClock()) as (server, client):
                waiting = asyncio.create_task(followed(client, live))
                await server.until(2)
                await client.aclose()
                with pytest.raises(InvalidRequestError, match="The client is closed"):
                    await waiting
                assert client._outbound._calls == 0

        run(scenario())


class TestFailures:
    def test_pauses_grow_with_failures_in_a_row_and_start_anew_after_an_event(self):
        async def scenario():
            clock = HurriedClock()
            failed = [answer(500)] * 6
            script = (TAIL, *failed, events(event(b"one", 0), **LENGTHS), answer(500), END_LIVE)
            async with scripted(*script, clock=clock) as (_, client):
                assert await followed(client) == [MESSAGES[0], Message(b"end!!!", at(3), at(9))]
            first = clock.delays_s[:6]
            assert first == sorted(first)
            assert first[5] >= 1.6
            assert clock.delays_s[6] <= 0.1

        run(scenario())

    def test_server_says_how_long_to_wait(self):
        async def scenario():
            clock = HurriedClock()
            wait = answer(503, retry_after="20")
            async with scripted(TAIL, wait, wait, LIVE, clock=clock) as (_, client):
                assert await followed(client) == MESSAGES
            assert clock.delays_s == [20.0, 20.0]

        run(scenario())

    def test_each_is_told(self):
        async def scenario():
            told = []
            async with scripted(
                TAIL,
                answer(503),
                Answer((b"",), breaks=True),
                LIVE,
                clock=HurriedClock(),
                on_retry=lambda error, _: told.append(error.status),
            ) as (_, client):
                await followed(client)
            assert told == [503, 502]

        run(scenario())


END_LIVE = events(event(b"end!!!", 3, closed=True), **LENGTHS)
