"""Streams that left memory: whatever is asked of them finds them as they were."""

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from tests.crash.wire import Wire
from tests.http.cold import IDLE, PASSING
from tests.http.conftest import DEADLINE_S, MakeStream, _create_stream
from tests.http.streams import JSON, TEXT, Stream, check_error, producer
from tests.server_process import ServerProcess
from tests.storage_stats import flush, metrics, stats, until


@pytest.fixture(scope="module")
def idle_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server that keeps one idle stream in memory."""
    with ServerProcess(tmp_path_factory.mktemp("idle") / "data", **IDLE) as server:
        with httpx.Client(base_url=server.url, timeout=DEADLINE_S) as client:
            yield client


@pytest.fixture
def new_idle_stream(idle_client: httpx.Client) -> MakeStream:
    return lambda *arguments, **headers: _create_stream(idle_client, *arguments, **headers)


def forget(stream: Stream) -> None:
    """Have the stream leave memory, for the sake of another one."""
    client = stream.client
    flush(client)

    def only_another_stays() -> bool:
        another = _create_stream(client)
        flush(client)
        before = metrics(client)
        assert another.head().status_code == 200
        # A stream renewed by reads stays until there is a record of that.
        return (
            before["holdfast_streams_in_memory"] == 1
            and metrics(client)["holdfast_rehydrations_total"]
            == before["holdfast_rehydrations_total"]
        )

    until(only_another_stays)


def headers_of(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in PASSING}


def test_metadata_comes_back(new_idle_stream) -> None:
    expires = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds")
    streams = [
        new_idle_stream("text/plain; charset=utf-8", b"x"),
        new_idle_stream(JSON, b"[1,2]"),
        new_idle_stream("image/png", b"\x89PNG", stream_ttl="3600"),
        new_idle_stream(TEXT, b"", stream_expires_at=expires),
        new_idle_stream(TEXT, b"all there is", stream_closed="true"),
        new_idle_stream(),
    ]
    before = [headers_of(stream.head()) for stream in streams]
    loads = metrics(streams[0].client)["holdfast_rehydrations_total"]
    for stream in streams:
        forget(stream)
    assert [headers_of(stream.head()) for stream in streams] == before
    assert metrics(streams[0].client)["holdfast_rehydrations_total"] >= loads + len(streams)
    assert metrics(streams[0].client)["holdfast_streams_in_memory"] <= 2


def test_creating_again_confirms_or_refuses(new_idle_stream) -> None:
    stream = new_idle_stream(JSON, b"[1]", stream_ttl="3600")
    forget(stream)
    assert stream.create(stream_ttl="3600").status_code == 200
    forget(stream)
    check_error(stream.create(stream_ttl="60"), 409, "stream_exists")
    forget(stream)
    stream.content_type = TEXT
    check_error(stream.create(stream_ttl="3600"), 409, "stream_exists")


def test_appends_go_on(new_idle_stream) -> None:
    stream = new_idle_stream(body=b"1")
    for number in range(2, 6):
        forget(stream)
        answer = stream.append(b"%d" % number)
        assert answer.status_code == 204
        assert answer.headers["Stream-Next-Offset"] == f"{number:020d}"
    forget(stream)
    check_error(stream.append(b"{}", content_type=JSON), 409, "content_type_mismatch")
    assert stream.read().content == b"12345"


def test_producers_and_sequences_come_back(new_idle_stream) -> None:
    stream = new_idle_stream()
    stream.append(b"0", stream_seq="5", **producer(0, epoch=3))
    stream.append(b"1", **producer(1, epoch=3))
    stream.append(b"other", **producer(0, name="other"))
    forget(stream)
    duplicate = stream.append(b"1", **producer(1, epoch=3))
    assert duplicate.status_code == 204
    assert duplicate.headers["Producer-Seq"] == "1"
    forget(stream)
    check_error(stream.append(b"x", **producer(0, epoch=2)), 403, "stale_producer_epoch")
    forget(stream)
    check_error(stream.append(b"x", **producer(3, epoch=3)), 409, "producer_sequence_gap")
    forget(stream)
    check_error(stream.append(b"x", stream_seq="5"), 409, "stream_seq_regression")
    assert stream.append(b"other", **producer(0, name="other")).status_code == 204
    forget(stream)
    assert stream.append(b"2", **producer(2, epoch=3)).status_code == 200
    assert stream.append(b"3", stream_seq="6").status_code == 204
    assert stream.read().content == b"01other23"


def test_closure_comes_back(new_idle_stream) -> None:
    stream = new_idle_stream(body=b"x")
    stream.append(b"end", stream_closed="true", **producer(0))
    forget(stream)
    refused = stream.append(b"more")
    check_error(refused, 409, "stream_closed")
    assert refused.headers["Stream-Next-Offset"] == f"{4:020d}"
    forget(stream)
    assert stream.append(b"end", stream_closed="true", **producer(0)).status_code == 204
    forget(stream)
    assert stream.close().status_code == 204
    assert stream.read().headers["Stream-Closed"] == "true"
    assert stream.long_poll(f"{4:020d}").headers["Stream-Closed"] == "true"


def test_deletion(new_idle_stream) -> None:
    stream = new_idle_stream(body=b"x")
    forget(stream)
    assert stream.delete().status_code == 204
    for answer in (stream.head(), stream.read(), stream.append(b"x"), stream.delete()):
        assert answer.status_code == 404
    forget(stream)
    assert stream.head().status_code == 404


@pytest.mark.parametrize("between", ["nothing", "a flush"])
def test_name_of_a_deleted_stream_is_taken_again(new_idle_stream, between: str) -> None:
    """Nothing of the one before shines through: bytes, producers, closure, ETags."""
    stream = new_idle_stream(body=b"the old content")
    stream.append(b"end", stream_closed="true", **producer(0))
    old = stream.read()
    forget(stream)
    assert stream.delete().status_code == 204
    if between == "a flush":
        forget(stream)
        assert stream.head().status_code == 404
    assert stream.create(b"new").status_code == 201
    for _ in range(2):
        found = stream.read()
        assert found.content == b"new"
        assert "Stream-Closed" not in found.headers
        assert found.headers["ETag"] != old.headers["ETag"]
        assert stream.get({}, if_none_match=old.headers["ETag"]).status_code == 200
        check_error(stream.read(f"{9:020d}"), 400, "invalid_offset", "past the tail")
        forget(stream)
    assert stream.append(b"er", **producer(0)).status_code == 200
    forget(stream)
    assert stream.append(b"er", **producer(0)).status_code == 204
    assert stream.read().content == b"newer"


def test_names_are_taken_and_given_up_while_flushes_go_on(start_server, client_of) -> None:
    """Every write is flushed behind the others' backs, so all orders of the two occur."""
    client = client_of(start_server(**IDLE | {"hot_bytes_soft": 1, "merge_packs": 2}))
    streams = [Stream(client, f"test/{index}") for index in range(3)]
    for round_ in range(25):
        for stream in streams:
            body = f"{stream.path} {round_}".encode()
            assert stream.create(body).status_code == 201
            assert stream.append(b"!").status_code == 204
            assert stream.read().content == body + b"!"
            assert stream.delete().status_code == 204
            assert stream.head().status_code == 404
    flush(client)
    found = stats(client)
    assert found["cold"]["streams"] == 0
    assert found["cold"]["bytes"] == 0
    assert metrics(client)["holdfast_streams"] == 0


def test_expiry_without_anybody_asking(start_server, stream_on) -> None:
    """Streams that are in no memory end at their time, all of them, and leave no trace."""
    server = start_server(**IDLE)
    kept = stream_on(server, body=b"kept", stream_ttl="3600")
    client = kept.client
    soon = (datetime.now(UTC) + timedelta(seconds=2)).isoformat(timespec="milliseconds")
    for number in range(20):
        lifetime = {"stream_ttl": "2"} if number % 2 else {"stream_expires_at": soon}
        _create_stream(client, body=b"x", **lifetime)
    flush(client)
    assert metrics(client)["holdfast_streams"] == 21
    assert metrics(client)["holdfast_streams_in_memory"] <= 1
    until(lambda: metrics(client)["holdfast_streams_expired_total"] == 20)
    until(lambda: metrics(client)["holdfast_streams"] == 1)
    flush(client)
    found = stats(client)
    assert found["cold"]["streams"] == 1
    assert found["cold"]["bytes"] == len(b"kept")
    assert kept.read().content == b"kept"


def test_expiry_is_seen_at_once(new_idle_stream) -> None:
    stream = new_idle_stream(body=b"x", stream_ttl="1")
    created_s = time.monotonic()
    forget(stream)
    until(lambda: stream.head().status_code == 404)
    assert time.monotonic() - created_s > 0.9
    check_error(stream.read(), 404, "stream_not_found")
    assert stream.create(b"again").status_code == 201
    assert stream.read().content == b"again"


def test_renewal_by_reads_is_not_forgotten(new_idle_stream) -> None:
    """A read moves the end of a sliding TTL, and leaving memory does not move it back."""
    stream = new_idle_stream(body=b"x", stream_ttl="1")
    ends_s = time.monotonic() + 2.0
    while time.monotonic() < ends_s:
        assert stream.read().content == b"x"
        forget(stream)


def test_restart_with_everything_cold(start_server, stream_on, client_of) -> None:
    server = start_server(**IDLE)
    streams = [stream_on(server, body=b"%d" % number) for number in range(20)]
    streams[3].append(b"end", stream_closed="true", **producer(0))
    streams[4].delete()
    flush(streams[0].client)
    before = [(stream.read().content, headers_of(stream.read())) for stream in streams]
    server.kill()
    server = start_server(**IDLE)
    assert "recovered 0 batches" in server.stderr()
    assert "19 streams in all" in server.stderr()
    client = client_of(server)
    assert metrics(client)["holdfast_streams_in_memory"] == 0
    for stream in streams:
        stream.client = client
    after = [(stream.read().content, headers_of(stream.read())) for stream in streams]
    assert after == before
    assert streams[3].append(b"end", stream_closed="true", **producer(0)).status_code == 204
    assert streams[0].append(b"!").status_code == 204
    assert streams[0].read().content == b"0!"
    assert streams[4].create(b"new").status_code == 201


@pytest.mark.slow
def test_many_streams_leave_while_some_are_written_to(start_server, client_of) -> None:
    """Letting go of what is flushed takes several rounds, between which writes go on."""
    streams, cached = 1500, 100
    server = start_server(**IDLE | {"streams_cached_max": cached})

    async def write_all(round_: int) -> None:
        async with await Wire.open(server.port) as wire:
            method = "POST" if round_ else "PUT"
            for first in range(0, streams, 50):
                for number in range(first, first + 50):
                    body = b"%d.%d;" % (number, round_)
                    wire.send(method, f"/v1/stream/many/{number}", body, content_type=TEXT)
                for _ in range(50):
                    assert (await wire.answer()).status in {201, 204}

    async def scenario() -> None:
        await write_all(0)
        async with await Wire.open(server.port) as flushing:
            for round_ in (1, 2):
                flushing.send("POST", "/cluster/flush")
                await write_all(round_)
                assert (await flushing.answer()).status == 204

    asyncio.run(scenario())
    client = client_of(server)
    flush(client)
    assert metrics(client)["holdfast_streams"] == streams
    assert metrics(client)["holdfast_streams_in_memory"] <= cached
    for number in range(0, streams, 7):
        expected = b"".join(b"%d.%d;" % (number, round_) for round_ in range(3))
        assert Stream(client, f"many/{number}").read().content == expected


def test_flush_by_age(start_server, stream_on) -> None:
    stream = stream_on(start_server(flush_age=0.1), body=b"x")
    until(lambda: stats(stream.client)["hot"]["bytes"] == 0)
    assert stats(stream.client)["cold"]["bytes"] == 1
    assert stream.read().content == b"x"
