"""Bootstrap, and following from it: through answers that break off and snapshots that move."""

import pytest

from holdfast.client import Message, Snapshot
from holdfast.errors import BadAnswerError, HoldfastError, OffsetGoneError, OutboundError
from holdfast.protocol.content import store_form
from holdfast.protocol.multipart import Multipart
from holdfast.protocol.sse import control_event
from holdfast.testing import HurriedClock
from tests.client.scripted.server import (
    Answer,
    answer,
    at,
    broken,
    chunk,
    events,
    head,
    page,
    run,
    scripted,
)

TEXT = "text/plain"
BOUNDARY = b"a-boundary"


def bootstrap(snapshot, messages, start, *, tells=True, closed=False, body=None, **more):
    """The answer to a bootstrap: a snapshot at an offset, and the messages since."""
    parts = Multipart(BOUNDARY, TEXT, TEXT)
    end = max(start, 0) + sum(map(len, messages))
    fields = {
        "stream_snapshot_offset": "-1" if start < 0 else at(start),
        "stream_next_offset": at(end),
        "stream_message_lengths": "bytes" if tells else None,
        "stream_closed": "true" if closed else None,
        "content_type": parts.content_type.decode(),
    }
    whole = parts.whole("application/cbor", snapshot, messages) if body is None else body
    return answer(200, whole, **fields | more)


WHOLE = bootstrap(b"state", [b"one", b"two"], 10)
ITEMS = [
    Snapshot(b"state", "application/cbor", at(10)),
    Message(b"one", at(10), at(13)),
    Message(b"two", at(13), at(16)),
]
NOTHING = page(b"", 16, up_to_date=True, lengths="none")
CLOSED = page(b"", 16, closed=True, lengths="none")


async def everything(client):
    async with client.stream("b/s").bootstrap() as answered:
        snapshot = await answered.snapshot()
        return [snapshot, *[message async for message in answered.messages()]]


async def followed(client, **options):
    return [item async for item in client.stream("b/s").bootstrap_and_follow(**options)]


class TestBootstrap:
    @pytest.mark.spec("extensions 3.4-4")
    def test_is_the_snapshot_and_the_messages_since(self):
        async def scenario():
            async with scripted(WHOLE) as (server, client):
                assert await everything(client) == ITEMS
                assert server.requests[0].path == "/b/s/bootstrap"

        run(scenario())

    def test_may_come_byte_by_byte(self):
        async def scenario():
            async with scripted(WHOLE.byte_by_byte()) as (_, client):
                assert await everything(client) == ITEMS

        run(scenario())

    def test_without_a_snapshot_starts_at_the_beginning(self):
        async def scenario():
            async with scripted(bootstrap(b"", [b"one"], -1)) as (_, client):
                snapshot, message = await everything(client)
                assert not snapshot.exists
                assert message == Message(b"one", at(0), at(3))

        run(scenario())

    def test_of_json_counts_separators(self):
        async def scenario():
            kind = "application/json"
            parts = Multipart(BOUNDARY, kind, kind)
            stored = store_form(b'[1, "two"]')
            body = b"".join(
                [parts.first(kind), b"{}", *parts.messages(stored, 5, []), parts.last()]
            )
            whole = bootstrap(b"", [], 5, body=body, stream_message_lengths="json")
            async with scripted(whole) as (_, client):
                snapshot, one, two = await everything(client)
                assert snapshot.json == {}
                assert (one.json, one.offset, one.next_offset) == (1, at(5), at(7))
                assert (two.json, two.offset, two.next_offset) == ("two", at(7), at(13))

        run(scenario())

    def test_of_a_server_that_does_not_count_can_be_gone_on_from_at_its_end(self):
        async def scenario():
            whole = bootstrap(b"state", [b"one", b"two"], 10, tells=False)
            async with scripted(whole) as (_, client):
                assert (await everything(client))[1:] == [
                    Message(b"one", at(10), at(10)),
                    Message(b"two", at(10), at(16)),
                ]

        run(scenario())

    def test_snapshot_may_be_passed_over(self):
        async def scenario():
            async with scripted(WHOLE) as (_, client):
                async with client.stream("b/s").bootstrap() as answered:
                    assert [message async for message in answered.messages()] == ITEMS[1:]

        run(scenario())

    def test_large_snapshot_comes_in_pieces(self):
        async def scenario():
            state = b"0123456789" * 50_000
            async with scripted(bootstrap(state, [b"one"], 0)) as (_, client):
                async with client.stream("b/s").bootstrap() as answered:
                    pieces = [piece.data async for piece in answered.snapshot_pieces()]
                    assert len(pieces) > 1
                    assert b"".join(pieces) == state
                    assert [message.payload async for message in answered.messages()] == [b"one"]

        run(scenario())

    def test_that_breaks_off_anywhere_is_an_error(self):
        async def scenario():
            async with scripted(WHOLE) as (_, client):
                await everything(client)
            for size in range(0, WHOLE.size, 7):
                async with scripted(WHOLE.cut(size)) as (_, client):
                    with pytest.raises(OutboundError, match="broke"):
                        await everything(client)

        run(scenario())

    def test_that_ends_too_early_is_an_error(self):
        async def scenario():
            body = Multipart(BOUNDARY, TEXT, TEXT).whole(TEXT, b"state", [b"one", b"two"])
            for size in range(len(body) - 2):
                short = bootstrap(b"", [], 10, body=body[:size])
                async with scripted(short) as (_, client):
                    with pytest.raises(BadAnswerError):
                        await everything(client)

        run(scenario())

    @pytest.mark.parametrize("wrong", [{"content_type": "text/html"}, {"stream_next_offset": None}])
    def test_that_is_none_is_an_error(self, wrong):
        async def scenario():
            async with scripted(bootstrap(b"", [], 0, **wrong)) as (_, client):
                with pytest.raises(BadAnswerError):
                    await everything(client)

        run(scenario())

    def test_block_that_is_left_early_closes_the_connection(self):
        async def scenario():
            async with scripted(WHOLE) as (_, client):
                async with client.stream("b/s").bootstrap() as answered:
                    await answered.snapshot()
                    async for _ in answered.messages():
                        break
                assert client._outbound._calls == 0

        run(scenario())


class TestFollowing:
    @pytest.mark.spec("extensions 2.1-1", "extensions 3.3-2")
    def test_goes_on_where_the_bootstrap_ends(self):
        async def scenario():
            end = control_event(b"%020d" % 16, 1, up_to_date=True, closed=True)
            async with scripted(WHOLE, NOTHING, events(end)) as (server, client):
                assert await followed(client) == ITEMS
                assert server.asked("offset") == [None, at(16), at(16)]
                assert server.asked("live") == [None, None, "sse"]

        run(scenario())

    def test_of_a_closed_stream_ends_with_the_bootstrap(self):
        async def scenario():
            async with scripted(bootstrap(b"state", [b"one", b"two"], 10, closed=True)) as (
                _,
                client,
            ):
                assert await followed(client) == ITEMS
            async with scripted(WHOLE) as (_, client):
                assert await followed(client, live=False) == ITEMS

        run(scenario())

    def test_starts_anew_from_the_snapshot_after_an_answer_that_broke_off(self):
        async def scenario():
            clock = HurriedClock()
            cut = WHOLE.size - 5
            async with scripted(
                broken(), answer(503), WHOLE.cut(cut), WHOLE, CLOSED, clock=clock
            ) as (_, client):
                # Whoever gets a snapshot forgets what was before it.
                assert (await followed(client))[-3:] == ITEMS
                assert len(clock.delays_s) == 3

        run(scenario())

    def test_starts_anew_wherever_the_answer_broke_off(self):
        async def scenario():
            for size in range(0, WHOLE.size, 3):
                script = (WHOLE.cut(size), WHOLE, CLOSED)
                async with scripted(*script, clock=HurriedClock()) as (_, client):
                    items = await followed(client)
                    assert items[-3:] == ITEMS
                    assert items[:-3] == ITEMS[: len(items) - 3]

        run(scenario())

    @pytest.mark.spec("extensions 2.2-11", "extensions 3.4-2")
    def test_starts_anew_from_a_newer_snapshot_after_a_410(self):
        async def scenario():
            newer = bootstrap(b"newer", [b"three"], 20)
            gone = answer(410, stream_earliest_offset=at(20))
            end = page(b"", 25, closed=True, lengths="none")
            async with scripted(WHOLE, gone, newer, end) as (server, client):
                assert await followed(client, live="long-poll") == [
                    *ITEMS,
                    Snapshot(b"newer", "application/cbor", at(20)),
                    Message(b"three", at(20), at(25)),
                ]
                assert server.asked("offset") == [None, at(16), None, at(25)]

        run(scenario())

    def test_attempts_come_to_an_end(self):
        async def scenario():
            async with scripted(*[broken()] * 4, clock=HurriedClock()) as (_, client):
                with pytest.raises(OutboundError):
                    await followed(client)

        run(scenario())

    @pytest.mark.parametrize("status", [404, 401, 501])
    def test_error_that_nothing_mends_is_raised(self, status):
        async def scenario():
            async with scripted(answer(status)) as (_, client):
                with pytest.raises(HoldfastError):
                    await followed(client)
            async with scripted(WHOLE, answer(status)) as (_, client):
                with pytest.raises(HoldfastError):
                    await followed(client)

        run(scenario())

    def test_whoever_stops_leaves_nothing_open(self):
        async def scenario():
            for count in (1, 2, 3):
                async with scripted(WHOLE) as (_, client):
                    items = client.stream("b/s").bootstrap_and_follow()
                    for expected in ITEMS[:count]:
                        assert await anext(items) == expected
                    await items.aclose()
                    assert client._outbound._calls == 0

        run(scenario())


class TestSnapshots:
    def test_are_published_whole_or_in_pieces(self):
        async def pieces():
            yield b"one"
            yield b"two"

        async def scenario():
            async with scripted(
                answer(204), answer(503), answer(204), clock=HurriedClock()
            ) as pair:
                server, client = pair
                snapshots = client.stream("b/s").snapshots
                await snapshots.publish(at(5), pieces(), content_type=TEXT)
                await snapshots.publish(at(5), b"whole")
                assert [request.body for request in server.requests] == [
                    b"onetwo",
                    b"whole",
                    b"whole",
                ]
                assert {request.path for request in server.requests} == {f"/b/s/snapshot/{at(5)}"}
                assert server.sent("content-type")[:1] == [TEXT]

        run(scenario())

    def test_pieces_are_sent_only_once(self):
        async def pieces():
            yield b"one"

        async def scenario():
            async with scripted(answer(503), clock=HurriedClock()) as (_, client):
                with pytest.raises(HoldfastError):
                    await client.stream("b/s").snapshots.publish(at(5), pieces())

        run(scenario())

    def test_are_read(self):
        async def scenario():
            told = answer(200, b"state", content_type=TEXT, stream_snapshot_offset=at(5))
            gone = answer(410, b'{"code":"offset_gone"}', stream_earliest_offset=at(7))
            async with scripted(told, gone) as (_, client):
                snapshots = client.stream("b/s").snapshots
                assert await snapshots.get() == Snapshot(b"state", TEXT, at(5))
                with pytest.raises(OffsetGoneError) as caught:
                    await snapshots.get(at(3))
                assert caught.value.earliest_offset == at(7)

        run(scenario())


def test_answers_without_a_length_that_end_too_early_are_an_error():
    async def scenario():
        whole = Multipart(BOUNDARY, TEXT, TEXT).whole(TEXT, b"state", [b"one"])
        fields = {
            "content-type": "multipart/mixed; boundary=a-boundary",
            "stream-next-offset": at(3),
        }
        unlimited = Answer((head(200, fields), whole[:-10]), breaks=True)
        chunked = head(200, fields | {"transfer-encoding": "chunked"}), chunk(whole[:-10])
        async with scripted(unlimited, Answer(chunked, breaks=True)) as (_, client):
            for error in (BadAnswerError, OutboundError):
                with pytest.raises(error):
                    await everything(client)

    run(scenario())
