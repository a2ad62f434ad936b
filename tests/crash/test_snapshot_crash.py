"""kill -9 while snapshots are published, streams are forked, and buckets come and go.

A snapshot is there wholly or not at all, those that were acknowledged are there, and a stream never
starts behind what its bootstrap covers.
"""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random

import httpx
import pytest

from holdfast import failpoints
from tests.crash.conftest import MakeServer
from tests.crash.publishers import make_publishers
from tests.crash.storage_kills import TINY, check_data, check_promises, write_while
from tests.crash.test_storage_kills import kill_somebody, until_flushed
from tests.http.bucketed import (
    BucketStream,
    bucket_stream,
    new_bucket,
    new_stream_in,
    offset,
    parts,
)
from tests.http.raw import RawConnection
from tests.http.streams import BINARY, TEXT, check_error
from tests.http.test_snapshot_batches import framed, publish_all
from tests.http.test_snapshot_uploads import objects
from tests.moto_server import MotoServer
from tests.server_process import ServerProcess
from tests.storage_stats import flush

SEEDS = (1, 2)
KILLS = 6
SMALL, LARGE = 1000, 20_000_000


@pytest.fixture
def client_of() -> Iterator:
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(httpx.Client(base_url=server.url, timeout=30))


def restarted(server: ServerProcess, stream: BucketStream, client_of) -> None:
    server.start()
    stream.client = client_of(server)


def check_stream(stream: BucketStream, at: int, state: bytes) -> None:
    """The stream starts at this snapshot, and goes on behind it."""
    head = stream.head().headers
    assert head["Stream-Snapshot-Offset"] == head["Stream-Earliest-Offset"] == offset(at)
    assert stream.snapshot(offset(at)).content == state
    check_error(stream.read("-1"), 410, "offset_gone")
    rest = [body for body, end in ((b"678", 8), (b"9", 9)) if end > at]
    assert stream.read(offset(at)).content == b"".join(rest)
    expected = [(BINARY, state), *((TEXT, body) for body in rest)]
    assert parts(stream.bootstrap()) == expected


@pytest.mark.slow
@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    ("point", "visible"), [("snapshot.uploaded", 5), ("snapshot.published", 8)]
)
def test_kill_between_the_steps(
    make_server: MakeServer, client_of, monkeypatch, point, visible, size, cold
) -> None:
    """Before the record nothing has happened; behind it everything has, whoever knows of it."""
    monkeypatch.setenv(failpoints.VARIABLE, f"{point}=kill@2")
    server = make_server(streams_cached_max=1, snapshot_cache_bytes=0)
    server.start()
    stream = bucket_stream(client_of(server), b"12345", b"678", b"9")
    assert stream.publish(offset(5), b"first").status_code == 204
    if cold:
        flush(stream.client)
    with pytest.raises(httpx.TransportError):
        stream.publish(offset(8), b"x" * size)
    assert server.wait() == -signal.SIGKILL
    monkeypatch.delenv(failpoints.VARIABLE)
    restarted(server, stream, client_of)
    check_stream(stream, visible, b"first" if visible == 5 else b"x" * size)
    flush(stream.client)
    check_stream(stream, visible, b"first" if visible == 5 else b"x" * size)
    # Whoever got no answer sends it again.
    assert stream.publish(offset(8), b"again").status_code == 204
    check_stream(stream, 8, b"again")
    assert server.stop() == 0
    check_data(server)
    restarted(server, stream, client_of)
    check_stream(stream, 8, b"again")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "visible"), [("snapshot.uploaded", 5), ("snapshot.published", 8)]
)
def test_kill_between_the_steps_of_many(
    make_server: MakeServer, client_of, monkeypatch, point, visible
) -> None:
    """All snapshots of a request are there, or none."""
    monkeypatch.setenv(failpoints.VARIABLE, f"{point}=kill@2")
    server = make_server(streams_cached_max=1, snapshot_cache_bytes=0, garbage_grace=0)
    server.start()
    client = client_of(server)
    bucket = new_bucket(client)
    streams = [
        new_stream_in(bucket, client, b"12345", b"678", b"9", stream_id=f"s{at}")
        for at in range(10)
    ]
    first, second = ([framed(f"s{at}", end, b"%d" % end) for at in range(10)] for end in (5, 8))
    assert publish_all(client, bucket, *first).status_code == 200
    flush(client)
    with pytest.raises(httpx.TransportError):
        publish_all(client, bucket, *second)
    assert server.wait() == -signal.SIGKILL
    monkeypatch.delenv(failpoints.VARIABLE)
    server.start()
    client = client_of(server)
    for collected in (False, True):
        if collected:
            flush(client)
            assert client.post("/cluster/collect-garbage").status_code == 204
            assert len(objects(server, "snapshots")) == 1
        for stream in streams:
            stream.client = client
            check_stream(stream, visible, b"%d" % visible)
    assert server.stop() == 0
    check_data(server)


@pytest.mark.parametrize("point", ["snapshot.uploaded", "snapshot.published"])
def test_kill_at_the_first_snapshot(make_server: MakeServer, client_of, monkeypatch, point) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, f"{point}=kill")
    server = make_server()
    server.start()
    stream = bucket_stream(client_of(server), b"12345", b"678", b"9")
    with pytest.raises(httpx.TransportError):
        stream.publish(offset(5), b"first")
    assert server.wait() == -signal.SIGKILL
    monkeypatch.delenv(failpoints.VARIABLE)
    restarted(server, stream, client_of)
    if point == "snapshot.uploaded":
        check_error(stream.snapshot(), 404, "snapshot_not_found")
        assert stream.read("-1").content == b"123456789"
        assert parts(stream.bootstrap())[0] == (BINARY, b"")
    else:
        check_stream(stream, 5, b"first")
    assert server.stop() == 0
    check_data(server)


@pytest.mark.slow
@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
def test_kill_in_the_middle_of_a_body(make_server: MakeServer, client_of, size) -> None:
    server = make_server()
    server.start()
    stream = bucket_stream(client_of(server), b"12345", b"678", b"9")
    stream.publish(offset(5), b"first")
    with RawConnection(server.port) as connection:
        target = f"{stream.url}/snapshot/{offset(8)}"
        connection.request("PUT", target, f"Content-Length: {size}")
        connection.send(b"x" * (size - 1))
        stream.head()
        server.kill()
    restarted(server, stream, client_of)
    check_stream(stream, 5, b"first")
    assert server.stop() == 0
    check_data(server)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_kills_at_any_moment(make_server: MakeServer, seed: int) -> None:
    kill_again_and_again(make_server(**TINY), seed)


@pytest.mark.slow
def test_kills_without_flushes(make_server: MakeServer) -> None:
    """Everything comes back from the log alone."""
    kill_again_and_again(make_server(log_level="warning"), 3, somebody=False)


@pytest.fixture(scope="module")
def moto() -> Iterator[MotoServer]:
    with MotoServer() as server:
        yield server


@pytest.mark.slow
def test_kills_with_snapshots_in_s3(make_server: MakeServer, moto: MotoServer) -> None:
    kill_again_and_again(make_server(**TINY, **moto.settings(moto.new_bucket())), 4)


def kill_again_and_again(server: ServerProcess, seed: int, *, somebody: bool = True) -> None:
    writers, random = make_publishers(seed), Random(seed)

    async def kill() -> None:
        if somebody:
            await kill_somebody(server, random)
        else:
            # The moment is the point of the test.
            await asyncio.sleep(random.uniform(0.02, 0.4))
            server.kill()

    async def scenario() -> None:
        server.start()
        for _ in range(KILLS):
            await write_while(server, writers, kill)
            if not server.running:
                assert server.wait() == -signal.SIGKILL
                server.start()
            await check_promises(server, writers)
        with httpx.Client(base_url=server.url, timeout=30) as client:
            await until_flushed(client)
        await check_promises(server, writers)

    asyncio.run(scenario())
    assert all(writer.promises for writer in writers), "somebody was never answered"
    assert server.stop() == 0
    check_data(server)
