"""Following responses of a proxy stream: in whatever pieces it comes, and however it ends."""

import asyncio
import gc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.client import Outcome, SseEvent, StartInfo
from holdfast.errors import (
    BadAnswerError,
    InvalidRequestError,
    ProxyStorageError,
    ProxyStreamClosedError,
    ProxyStreamNotFoundError,
    UpstreamError,
    UpstreamTimeoutError,
)
from holdfast.protocol.frames import ABORT, COMPLETE, DATA, ERROR, START, encode_frame
from holdfast.testing import HurriedClock
from tests.client.scripted.proxying import (
    HEADERS,
    ProxyServer,
    complete,
    data,
    failed,
    refusal,
    start,
)
from tests.client.scripted.server import at, run, scripted
from tests.thorough import examples

BODY = b"event: a\ndata: one\n\ndata: two\r\n\r\ndata: three\ndata: four\n\ndata: left\n"
EVENTS = [
    SseEvent("a", b"one", ""),
    SseEvent("message", b"two", ""),
    SseEvent("message", b"three\nfour", ""),
]
BAD_TEXT = b'{"status": 1, "headers": {"a": "\xff"}, "code": "\xff", "message": ""}'
FRAMES = [
    start(1),
    data(b"other", 1),
    start(2, 201),
    data(BODY[:11], 2),
    complete(1),
    data(BODY[11:50], 2),
    data(b"", 2),
    start(3),
    data(BODY[50:], 2),
    complete(2),
    data(b"more", 3),
]


def served(*frames, **options):
    """A proxy that has these frames."""
    return ProxyServer(*(frames or FRAMES), **options)


async def gathered(items, found=None):
    found = [] if found is None else found
    async for item in items:
        found.append(item)
    return found


def follow(server, client, response_id=2, **options):
    """Follow a response by the signed URL of the moment."""
    url = server.url + server.handler.url()
    return client.proxy.follow(url, response_id, **options)


class TestViews:
    @pytest.mark.spec("proxy 4.5-3", "proxy 5.3-4")
    @pytest.mark.parametrize("answer_bytes", [4, 1000])
    def test_of_a_response_among_others(self, answer_bytes):
        async def scenario():
            handler = served(answer_bytes=answer_bytes)
            async with scripted(handler=handler) as (server, client):
                reading = follow(server, client)
                assert await reading.start() == StartInfo(201, HEADERS)
                assert b"".join(await gathered(reading.bytes())) == BODY
                assert reading.outcome is Outcome.COMPLETE
                reading = follow(server, client)
                assert await gathered(reading.events()) == EVENTS
                assert reading.outcome is Outcome.COMPLETE
                assert await reading.start() == StartInfo(201, HEADERS)
                assert await follow(server, client).read() == BODY
                assert await follow(server, client, 1).read() == b"other"

        run(scenario())

    @settings(
        max_examples=examples(25),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        database=None,
    )
    @given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.booleans())
    def test_are_the_same_wherever_frames_are_cut_as_they_arrive(self, sizes, as_events):
        """Property: what is written in pieces, each read at once, is what was sent."""

        async def scenario():
            handler = ProxyServer(b"", answer_bytes=max(sizes))
            async with scripted(handler=handler) as (server, client):
                reading = follow(server, client, live="long-poll")
                view = reading.events() if as_events else reading.bytes()
                task = asyncio.create_task(gathered(view))
                stream, at_byte, number = b"".join(FRAMES), 0, 0
                while at_byte < len(stream):
                    size = sizes[number % len(sizes)]
                    await handler.write(stream[at_byte : at_byte + size])
                    at_byte, number = at_byte + size, number + 1
                found = await task
                assert found == EVENTS if as_events else b"".join(found) == BODY
                assert reading.outcome is Outcome.COMPLETE

        run(scenario())

    def test_of_one_that_is_being_written_come_as_it_is(self):
        async def scenario():
            handler = served(start(1))
            async with scripted(handler=handler) as (server, client):
                reading = follow(server, client, 1)
                pieces = reading.bytes()
                for piece in (b"a", b"b" * 100, b"c"):
                    await handler.write(data(piece))
                    assert await anext(pieces) == piece
                    assert reading.outcome is Outcome.OPEN
                await handler.write(complete())
                assert await gathered(pieces) == []
                assert reading.outcome is Outcome.COMPLETE

        run(scenario())

    def test_start_comes_before_any_data_and_the_data_behind_it(self):
        async def scenario():
            async with scripted(handler=served()) as (server, client):
                async with follow(server, client, 1) as reading:
                    assert await reading.start() == await reading.start() == StartInfo(200, HEADERS)
                    assert await reading.read() == b"other"

        run(scenario())

    def test_frames_of_one_response(self):
        async def scenario():
            async with scripted(handler=served(start(9), *FRAMES)) as (server, client):
                reading = follow(server, client)
                found = await gathered(reading.frames())
                own = [start(2, 201), data(BODY[:11], 2), data(BODY[11:50], 2), data(b"", 2)]
                own += [data(BODY[50:], 2), complete(2)]
                assert [encode_frame(*frame) for frame, _ in found] == own
                assert [offset for _, offset in found] == sorted({offset for _, offset in found})
                assert reading.outcome is Outcome.COMPLETE
                again = follow(server, client, state=reading.state)
                assert [frame.type for frame, _ in await gathered(again.frames())] == [COMPLETE]
                handler = served(start(), data(b"half"), failed())
                server.handler = handler
                reading, found = follow(server, client, 1), []
                with pytest.raises(UpstreamTimeoutError):
                    await gathered(reading.frames(), found)
                assert len(found) == 3

        run(scenario())

    @pytest.mark.parametrize("view", ["bytes", "events", "read", "frames"])
    def test_is_had_once(self, view):
        async def scenario():
            async with scripted(handler=served()) as (server, client):
                reading = follow(server, client)
                await reading.read()
                again = getattr(reading, view)()
                with pytest.raises(InvalidRequestError, match="once"):
                    await (again if view == "read" else gathered(again))

        run(scenario())

    def test_wrong_arguments_are_said_at_once(self):
        async def scenario():
            async with scripted(handler=served()) as (server, client):
                for options in ({"response_id": 0}, {"live": "tv"}, {"state": "{"}):
                    with pytest.raises(InvalidRequestError):
                        follow(server, client, **options)

        run(scenario())


class TestEnds:
    def test_aborted_ends_with_what_had_arrived(self):
        async def scenario():
            handler = served(start(), data(b"half"), encode_frame(ABORT, 1))
            async with scripted(handler=handler) as (server, client):
                reading = follow(server, client, 1)
                assert await reading.read() == b"half"
                assert reading.outcome is Outcome.ABORTED

        run(scenario())

    @pytest.mark.parametrize(
        ("code", "error"),
        [
            ("UPSTREAM_TIMEOUT", UpstreamTimeoutError),
            ("UPSTREAM_ERROR", UpstreamError),
            ("STORAGE_ERROR", ProxyStorageError),
            ("SOMETHING_NEW", UpstreamError),
        ],
    )
    @pytest.mark.parametrize("view", ["bytes", "events"])
    def test_failed_raises_behind_what_had_arrived(self, view, code, error):
        async def scenario():
            handler = served(start(), data(b"data: half\n\n"), failed(code))
            async with scripted(handler=handler) as (server, client):
                reading, found = follow(server, client, 1), []
                with pytest.raises(error, match="It took too long"):
                    await gathered(getattr(reading, view)(), found)
                assert len(found) == 1
                assert reading.outcome is Outcome.FAILED

        run(scenario())

    @pytest.mark.parametrize("live", [True, False])
    @pytest.mark.parametrize("response_id", [3, 4])
    def test_closed_stream_without_an_end_is_an_error(self, live, response_id):
        async def scenario():
            async with scripted(handler=served(closed=True)) as (server, client):
                reading, found = follow(server, client, response_id, live=live), []
                with pytest.raises(
                    ProxyStreamClosedError, match=f"the end of response {response_id}"
                ):
                    await gathered(reading.bytes(), found)
                assert found == ([b"more"] if response_id == 3 else [])
                assert reading.outcome is Outcome.OPEN
                assert await follow(server, client, 2, live=live).read() == BODY

        run(scenario())

    def test_closed_stream_that_ends_within_a_frame_is_an_error(self):
        async def scenario():
            handler = served(start(), data(b"half")[:-1], closed=True)
            async with scripted(handler=handler) as (server, client):
                with pytest.raises(BadAnswerError, match="middle of a frame"):
                    await follow(server, client, 1).read()

        run(scenario())

    def test_deleted_stream_is_an_error(self):
        async def scenario():
            handler = served(start(), data(b"half"))
            async with scripted(handler=handler) as (server, client):
                pieces = follow(server, client, 1).bytes()
                assert await anext(pieces) == b"half"
                handler.deleted = True
                await handler.write(b"")
                with pytest.raises(ProxyStreamNotFoundError):
                    await anext(pieces)

        run(scenario())

    def test_without_live_it_ends_at_the_tail(self):
        async def scenario():
            async with scripted(handler=served()) as (server, client):
                reading = follow(server, client, 3, live=False)
                assert await reading.read() == b"more"
                assert reading.outcome is Outcome.OPEN
                with pytest.raises(InvalidRequestError, match="has not begun"):
                    await follow(server, client, 4, live=False).start()

        run(scenario())

    @pytest.mark.parametrize("kind", [START, ERROR])
    @pytest.mark.parametrize("payload", [b"{}", b"\xff", BAD_TEXT])
    def test_damaged_frame(self, kind, payload):
        async def scenario():
            frames = (start(), encode_frame(kind, 1, payload))[kind == START :]
            async with scripted(handler=served(*frames)) as (server, client):
                with pytest.raises(BadAnswerError, match="frame does not hold"):
                    await follow(server, client, 1).read()

        run(scenario())

    def test_not_a_proxy_stream(self):
        async def scenario():
            async with scripted(handler=served(b"just some text")) as (server, client):
                with pytest.raises(BadAnswerError, match="begins no frame"):
                    await follow(server, client).read()

        run(scenario())


class TestGoingOn:
    """`state` is exactly behind the last thing handed out."""

    @pytest.mark.spec("proxy 4.5-5", "proxy 5.4-1")
    @pytest.mark.parametrize("answer_bytes", [9, 40, 1000])
    @pytest.mark.parametrize("view", ["bytes", "events"])
    def test_from_every_place_nothing_is_lost_and_nothing_comes_twice(self, view, answer_bytes):
        async def scenario():
            handler = served(answer_bytes=answer_bytes)
            async with scripted(handler=handler) as (server, client):
                first = follow(server, client)
                states, found = [first.state], []
                async for each in getattr(first, view)():
                    found.append(each)
                    states.append(first.state)
                for number, state in enumerate(states):
                    reading = follow(server, client, state=state)
                    rest = await gathered(getattr(reading, view)())
                    if view == "events":
                        assert found[:number] + rest == EVENTS
                    else:
                        assert b"".join(found[:number] + rest) == BODY
                    assert reading.outcome is Outcome.COMPLETE

        run(scenario())

    def test_twice_within_the_same_piece(self):
        async def scenario():
            body = b"".join(b"data: %d\n\n" % number for number in range(9)) + b"data: x"
            handler = served(start(), data(body), data(b"y\n\n"), complete())
            async with scripted(handler=handler) as (server, client):
                state, seen = None, []
                for _ in range(5):
                    async with follow(server, client, 1, state=state) as reading:
                        # Stopping before the next event loses nothing, either.
                        await reading.start()
                    async with follow(server, client, 1, state=reading.state) as reading:
                        events = reading.events()
                        seen += [(await anext(events)).data, (await anext(events)).data]
                        state = reading.state
                assert seen == [*(b"%d" % number for number in range(9)), b"xy"]
                reading = follow(server, client, 1, state=state)
                assert await gathered(reading.events()) == []

        run(scenario())

    def test_what_had_ended_ends_again(self):
        async def scenario():
            handler = served(start(), data(b"half"), failed())
            async with scripted(handler=handler) as (server, client):
                first = follow(server, client, 1)
                with pytest.raises(UpstreamTimeoutError):
                    await first.read()
                again = follow(server, client, 1, state=first.state)
                assert await again.start() == StartInfo(200, HEADERS)
                with pytest.raises(UpstreamTimeoutError):
                    await again.read()
                assert again.outcome is Outcome.FAILED

        run(scenario())

    def test_state_of_all_frames_does_as_well(self):
        async def scenario():
            async with scripted(handler=served(answer_bytes=30)) as (server, client):
                frames = client.proxy.frames(server.url + server.handler.url(), live=False)
                async for frame, _ in frames:
                    if frame.response_id == 2 and frame.type == DATA:
                        break
                rest = await follow(server, client, 2, state=frames.state).read()
                assert frame.payload + rest == BODY

        run(scenario())

    def test_behind_the_beginning_there_is_no_start(self):
        async def scenario():
            offset = at(sum(map(len, FRAMES[:3])))
            async with scripted(handler=served()) as (server, client):
                reading = follow(server, client, offset=offset)
                with pytest.raises(InvalidRequestError, match="after the response's beginning"):
                    await reading.start()
                assert await reading.read() == BODY

        run(scenario())

    def test_cut_connections_and_failures_lose_nothing(self):
        async def scenario():
            handler, trouble = served(answer_bytes=20), iter(range(100))

            async def troubled(request):
                made = await handler(request)
                number = next(trouble)
                if number % 3 == 1:
                    return made.cut(made.size - 5)
                return refusal(503, "unavailable") if number % 3 == 2 else made

            async with scripted(handler=troubled, clock=HurriedClock()) as (server, client):
                url = server.url + handler.url()
                assert await client.proxy.follow(url, 2).read() == BODY

        run(scenario())


class TestFrames:
    def test_come_with_an_offset_each(self):
        async def scenario():
            async with scripted(handler=served(closed=True)) as (server, client):
                frames = client.proxy.frames(server.url + server.handler.url())
                found = await gathered(frames)
                sizes = [sum(map(len, FRAMES[:count])) for count in range(1, len(FRAMES) + 1)]
                assert [offset for _, offset in found] == [at(size) for size in sizes]
                assert [encode_frame(*frame) for frame, _ in found] == FRAMES
                assert frames.closed
                assert frames.offset == at(sizes[-1])
                with pytest.raises(InvalidRequestError, match="once"):
                    await gathered(frames)

        run(scenario())

    def test_go_on_from_an_offset_or_a_state(self):
        async def scenario():
            async with scripted(handler=served()) as (server, client):
                url = server.url + server.handler.url()
                async with client.proxy.frames(url, live=False) as frames:
                    async for frame, _ in frames:
                        if frame.payload == BODY[:11]:
                            break
                for options in ({"offset": frames.offset}, {"state": frames.state}):
                    rest = client.proxy.frames(url, live=False, **options)
                    found = [encode_frame(*frame) async for frame, _ in rest]
                    assert found == FRAMES[4:]

        run(scenario())


class TestStopping:
    @pytest.mark.parametrize("way", ["block", "aclose", "collected"])
    def test_closes_the_connection(self, way):
        async def scenario():
            handler = served(start(), data(b"half"))
            async with scripted(handler=handler) as (server, client):
                if way == "block":
                    async with follow(server, client, 1) as reading:
                        async for _ in reading.bytes():
                            break
                elif way == "aclose":
                    reading = follow(server, client, 1)
                    async for _ in reading.bytes():
                        break
                    await reading.aclose()
                else:
                    async for _ in follow(server, client, 1).bytes():
                        break
                    gc.collect()
                while client._outbound._calls:
                    await asyncio.sleep(0)

        run(scenario())

    @pytest.mark.parametrize("kind", ["bytes", "frames"])
    def test_from_another_task_ends_the_wait(self, kind):
        async def scenario():
            handler = served(start(), data(b"half"))
            async with scripted(handler=handler) as (server, client):
                url = server.url + handler.url()
                if kind == "bytes":
                    reading = client.proxy.follow(url, live="long-poll")
                    task = asyncio.create_task(gathered(reading.bytes()))
                else:
                    reading = client.proxy.frames(url, live="long-poll")
                    task = asyncio.create_task(gathered(reading))
                await server.until(2)
                await reading.aclose()
                assert len(await task) == (1 if kind == "bytes" else 2)

        run(scenario())
