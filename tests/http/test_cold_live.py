"""Live reads that start in packs, or are overtaken by a flush, and go on as if nothing were."""

import asyncio
import base64
import json
from collections.abc import Iterator

import httpx
import pytest

from tests.http.cold import IDLE, KINDS, large_bodies, small_bodies, write
from tests.http.conftest import DEADLINE_S, MakeStream, _create_stream
from tests.http.raw import RawConnection
from tests.http.streams import BINARY, JSON, Event, Stream, check_error, data_of
from tests.lifecycle.live import EventConnection
from tests.server_process import ServerProcess
from tests.storage_stats import flush, metrics, stats, until

ROUNDS = 30


@pytest.fixture(scope="module")
def cold_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that is flushed on demand, and whose long-polls outlast every deadline here."""
    data_dir = tmp_path_factory.mktemp("cold") / "data"
    with ServerProcess(data_dir, long_poll_timeout=600, **IDLE) as server:
        yield server


@pytest.fixture(scope="module")
def cold_client(cold_server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cold_server.url, timeout=DEADLINE_S) as client:
        yield client


@pytest.fixture
def new_cold_stream(cold_client: httpx.Client) -> MakeStream:
    return lambda *arguments, **headers: _create_stream(cold_client, *arguments, **headers)


def without_cursor(events: list[Event]) -> list[tuple[str, object]]:
    """Events to compare: the cursor depends on the time."""
    found: list[tuple[str, object]] = []
    for event in events:
        data: object = event.data
        if event.type == "control":
            data = {key: value for key, value in event.json.items() if key != "streamCursor"}
        found.append((event.type, data))
    return found


def stored(kind: str, events: list[Event]) -> object:
    """What the data events carry: all bytes, or all messages."""
    if kind == JSON:
        return [message for data in data_of(events) for message in json.loads(data)]
    if kind == BINARY:
        return b"".join(base64.b64decode(data) for data in data_of(events))
    return "".join(data_of(events)).encode()


def content(kind: str, stream: Stream) -> object:
    answer = stream.read()
    return answer.json() if kind == JSON else answer.content


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [5, 1000, None])
def test_events_are_the_same_and_go_on_live(new_cold_stream, kind: str, size: int | None) -> None:
    # Two streams, because events that were read from memory may be sent again after a flush.
    stream, twin = new_cold_stream(kind), new_cold_stream(kind)
    first, *others = small_bodies(kind)
    write(stream, others)
    write(twin, others)
    parameters = {} if size is None else {"max_bytes": size}
    with twin.sse(**parameters) as events:
        hot = events.until_up_to_date()
    flush(stream.client)
    reads_before = metrics(stream.client)["holdfast_cold_reads_total"]
    with stream.sse(**parameters) as events:
        found = events.until_up_to_date()
        assert without_cursor(found) == without_cursor(hot)
        assert metrics(stream.client)["holdfast_cold_reads_total"] > reads_before
        write(stream, [first])
        found += events.until_up_to_date()
        flush(stream.client)
        stream.append(others[0], stream_closed="true")
        found += list(events)
    assert found[-1].json["streamClosed"] is True
    assert stored(kind, found) == content(kind, stream)


@pytest.mark.parametrize("kind", KINDS)
def test_events_of_many_blocks(new_cold_stream, kind: str) -> None:
    stream = new_cold_stream(kind)
    write(stream, large_bodies(kind))
    expected = content(kind, stream)
    flush(stream.client)
    with stream.sse() as events:
        assert stored(kind, events.until_up_to_date()) == expected


def test_reader_stays_while_its_stream_is_flushed_again_and_again(new_cold_stream) -> None:
    stream, other = new_cold_stream(), new_cold_stream()
    with stream.sse() as events:
        events.until_up_to_date()
        for number in range(ROUNDS):
            write(stream, [b"%d," % number])
            # The other one would have it leave memory, if nobody were reading it.
            write(other, [b"x"])
            flush(stream.client)
            (event, control) = events.until_up_to_date()
            assert event.data == f"{number},"
            assert control.json["upToDate"] is True
    assert len(stream.read().content.split(b",")) == ROUNDS + 1


def test_slow_reader_is_overtaken_by_a_flush(cold_server, new_cold_stream) -> None:
    """What it has not been sent is not kept in memory for it; it comes from packs."""
    stream = new_cold_stream()
    pieces = [b"%d" % (number % 10) * 1_000_000 for number in range(12)]

    async def scenario() -> bytes:
        target = f"{stream.url}?offset=-1&live=sse"
        async with await EventConnection.open(
            cold_server.port, target, receive_bytes=4096
        ) as reader:
            for piece in pieces:
                await asyncio.to_thread(stream.append, piece)
            await asyncio.to_thread(flush, stream.client)
            hot = await asyncio.to_thread(stats, stream.client)
            assert hot["hot"]["bytes"] == 0
            await asyncio.to_thread(write, stream, [b"the end"])
            await reader.read_until(len(b"".join(pieces)) + len(b"the end"))
            return reader.data

    reads_before = metrics(stream.client)["holdfast_cold_reads_total"]
    assert asyncio.run(scenario()) == b"".join(pieces) + b"the end"
    assert metrics(stream.client)["holdfast_cold_reads_total"] > reads_before


@pytest.mark.parametrize("kind", KINDS)
def test_long_poll_behind_the_tail_is_answered_at_once(new_cold_stream, kind: str) -> None:
    stream = new_cold_stream(kind)
    tails = write(stream, small_bodies(kind))
    for offset in ("-1", f"{tails[1]:020d}"):
        hot = stream.read(offset)
        flush(stream.client)
        cold = stream.long_poll(offset)
        assert cold.status_code == 200
        assert cold.content == hot.content
        assert cold.headers["ETag"] == hot.headers["ETag"]
        assert cold.headers["Stream-Next-Offset"] == hot.headers["Stream-Next-Offset"]
        assert cold.headers["Stream-Cursor"].isdigit()


def test_long_poll_on_a_stream_that_had_left_memory(cold_server, new_cold_stream) -> None:
    stream, other = new_cold_stream(body=b"old"), new_cold_stream(body=b"x")
    flush(stream.client)
    other.read()
    tail = f"{len(b'old'):020d}"
    with RawConnection(cold_server.port) as waiting:
        waiting.request("GET", f"{stream.url}?offset={tail}&live=long-poll")
        until(lambda: metrics(stream.client)["holdfast_live_readers"] == 1)
        # It must not leave again while somebody waits for it.
        write(other, [b"y"])
        flush(stream.client)
        other.read()
        write(stream, [b"new"])
        answer = waiting.response()
    assert (answer.status, answer.body) == (200, b"new")


def test_reader_of_a_cold_stream_that_is_deleted(cold_server, new_cold_stream) -> None:
    stream = new_cold_stream(body=b"old")
    flush(stream.client)
    with stream.sse() as events:
        assert data_of(events.until_up_to_date()) == ["old"]
        assert stream.delete().status_code == 204
        assert list(events) == []
    check_error(stream.long_poll("-1"), 404)


def test_sse_offset_inside_a_cold_json_message_is_refused(new_cold_stream) -> None:
    """As it is while the stream is hot: nobody would come to an end of trying again."""
    stream = new_cold_stream(JSON, b'["first","second"]')
    hot = stream.get({"offset": f"{3:020d}", "live": "sse"})
    check_error(hot, 400, "invalid_offset")
    flush(stream.client)
    cold = stream.get({"offset": f"{3:020d}", "live": "sse"})
    check_error(cold, 400, "invalid_offset")
