"""A published snapshot is never collected, whatever the clocks of server and store say."""

import os
import time
from pathlib import Path

import httpx
import pytest

from tests.http.bucketed import BucketStream, bucket_stream, offset
from tests.moto_server import MotoServer
from tests.storage_stats import flush

# No body is in memory, and nothing waits to be removed.
SETTINGS = {"snapshot_cache_bytes": 0, "garbage_grace": 0}
DAYS_S = 10 * 24 * 3600
STATE = b"the only copy"


def collect(client: httpx.Client) -> None:
    assert client.post("/cluster/collect-garbage").status_code == 204


def turn_back(directory: Path, seconds: float) -> list[Path]:
    """Give all snapshots of a store in a directory the times of a clock that is behind."""
    found = [path for path in (directory / "objects" / "snapshots").rglob("*") if path.is_file()]
    at_s = time.time() - seconds
    for path in found:
        os.utime(path, (at_s, at_s))
    return found


def publish_after_a_flush(client: httpx.Client) -> BucketStream:
    stream = bucket_stream(client, b"12345", b"678")
    flush(client)
    assert stream.publish(offset(5), STATE).status_code == 204
    return stream


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(DAYS_S, id="server ahead"),
        pytest.param(-DAYS_S, id="store ahead", marks=pytest.mark.slow),
    ],
)
def test_published_and_not_flushed(start_server, client_of, seconds) -> None:
    server = start_server(**SETTINGS)
    stream = publish_after_a_flush(client_of(server))
    assert len(turn_back(server.data_dir, seconds)) == 1
    collect(stream.client)
    assert stream.snapshot(offset(5)).content == STATE
    server.kill()
    # What the log publishes is known before anything is collected.
    stream.client = client_of(start_server(**SETTINGS))
    collect(stream.client)
    assert stream.snapshot(offset(5)).content == STATE
    flush(stream.client)
    collect(stream.client)
    assert stream.snapshot(offset(5)).content == STATE


@pytest.mark.slow
def test_store_whose_clock_is_behind(start_server, client_of) -> None:
    with MotoServer() as moto:
        moto.set_clock_behind(DAYS_S)
        server = start_server(**SETTINGS, **moto.settings(moto.new_bucket()))
        stream = publish_after_a_flush(client_of(server))
        collect(stream.client)
        assert stream.snapshot(offset(5)).content == STATE
