"""What a scan since a cursor says is missing: deleted, expired and trimmed streams."""

import time

import pytest

from tests.http.bucketed import BucketStream, new_bucket, new_stream_in, offset
from tests.http.streams import JSON
from tests.storage_stats import flush


def cursor(client, bucket: str) -> str:
    return client.get(f"/{bucket}/streams/changes?after=now").json()["next_cursor"]


def lost(client, bucket: str, **query: str) -> list[str]:
    answer = client.get(f"/{bucket}/streams/scan", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()["lost"]


@pytest.fixture
def bucket(client) -> str:
    """A bucket with a stream that nothing happens to."""
    bucket = new_bucket(client)
    new_stream_in(bucket, client, b"1", stream_id="quiet")
    return bucket


FLUSHES = pytest.mark.parametrize("flushes", [(), (0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])


def maybe_flush(client, flushes, number: int) -> None:
    if number in flushes:
        flush(client)


@FLUSHES
def test_deleted_stream(client, bucket, flushes) -> None:
    after = cursor(client, bucket)
    stream = new_stream_in(bucket, client, b"1", stream_id="a")
    kept = new_stream_in(bucket, client, b"1", stream_id="kept")
    maybe_flush(client, flushes, 0)
    kept.append(b"2")
    between = cursor(client, bucket)
    stream.append(b"2")
    maybe_flush(client, flushes, 1)
    stream.delete()
    maybe_flush(client, flushes, 2)
    assert lost(client, bucket, after=after) == ["a"]
    assert lost(client, bucket, after=after, until=between) == ["a"]
    assert lost(client, bucket, after=after, prefix="k") == []
    assert lost(client, bucket, after=cursor(client, bucket)) == []
    # From the start there is nothing to miss.
    assert lost(client, bucket) == []


def test_stream_that_gained_nothing_in_between(client, bucket) -> None:
    stream = new_stream_in(bucket, client, b"1", stream_id="a")
    after = cursor(client, bucket)
    empty = BucketStream(client, bucket, "empty")
    empty.create()
    empty.delete()
    stream.delete()
    assert lost(client, bucket, after=after) == []


def test_appended_past_the_end_of_the_scan(client, bucket) -> None:
    stream = new_stream_in(bucket, client, stream_id="a")
    after = cursor(client, bucket)
    new_stream_in(bucket, client, b"1", stream_id="b")
    until = cursor(client, bucket)
    stream.append(b"1")
    stream.publish(offset(1))
    stream.delete()
    assert lost(client, bucket, after=after, until=until) == []


def test_expired_stream(client, bucket) -> None:
    after = cursor(client, bucket)
    BucketStream(client, bucket, "brief").create(b"1", **{"Stream-TTL": "1"})
    deadline = time.monotonic() + 10
    while not lost(client, bucket, after=after) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert lost(client, bucket, after=after) == ["brief"]


@FLUSHES
def test_trimmed_stream(client, bucket, flushes) -> None:
    stream = new_stream_in(bucket, client, b"1", stream_id="a")
    maybe_flush(client, flushes, 0)
    after = cursor(client, bucket)
    stream.append(b"2")
    stream.append(b"3")
    stream.publish(offset(1))
    maybe_flush(client, flushes, 1)
    # What came before the scan is not missed.
    assert lost(client, bucket, after=after) == []
    before = cursor(client, bucket)
    stream.publish(offset(2))
    maybe_flush(client, flushes, 2)
    assert lost(client, bucket, after=after) == ["a"]
    # A job that began since knows that this was gone.
    assert lost(client, bucket, after=after, since=before) == ["a"]
    assert lost(client, bucket, after=after, since=cursor(client, bucket)) == []


@FLUSHES
def test_new_stream_that_was_trimmed(client, bucket, flushes) -> None:
    after = cursor(client, bucket)
    stream = new_stream_in(bucket, client, b"[1,22]", stream_id="a", content_type=JSON)
    maybe_flush(client, flushes, 0)
    stream.publish(offset(2))
    maybe_flush(client, flushes, 1)
    assert lost(client, bucket, after=after) == ["a"]
    stream.publish(offset(5))
    maybe_flush(client, flushes, 2)
    assert lost(client, bucket, after=after) == ["a"]


def test_after_a_restart(start_server, client_of) -> None:
    """The journal is gone; the catalog still knows of trimmed streams, and of sources of forks."""
    server = start_server()
    client = client_of(server)
    bucket = new_bucket(client)
    new_stream_in(bucket, client, b"1", stream_id="quiet")
    old = new_stream_in(bucket, client, b"1", stream_id="old")
    after = cursor(client, bucket)
    old.append(b"2")
    trimmed = new_stream_in(bucket, client, b"1", b"2", stream_id="trimmed")
    source = new_stream_in(bucket, client, b"1", stream_id="source")
    BucketStream(client, bucket, "fork").fork(source)
    whole = new_stream_in(bucket, client, b"1", stream_id="whole")
    trimmed.publish(offset(2))
    whole.publish(offset(0))
    source.delete()
    flush(client)
    old.delete()
    server.stop()
    client = client_of(start_server())
    # The deletion of `old` is in the log, what it gained is in the catalog.
    assert lost(client, bucket, after=after) == ["old", "source", "trimmed"]


def test_fork_of_a_trimmed_stream_has_lost_nothing(client, bucket) -> None:
    source = new_stream_in(bucket, client, b"123", stream_id="source")
    source.publish(offset(2))
    after = cursor(client, bucket)
    fork = BucketStream(client, bucket, "fork")
    fork.fork(source)
    fork.append(b"4")
    assert lost(client, bucket, after=after) == []
    flush(client)
    assert lost(client, bucket, after=after) == []
    fork.publish(offset(4))
    assert lost(client, bucket, after=after) == ["fork"]
    flush(client)
    assert lost(client, bucket, after=after) == ["fork"]


def test_at_most_a_hundred(client, bucket) -> None:
    after = cursor(client, bucket)
    for number in range(110):
        new_stream_in(bucket, client, b"1", stream_id=f"{number:03d}").delete()
    for _ in range(2):
        assert lost(client, bucket, after=after) == [f"{number:03d}" for number in range(100)]
        assert lost(client, bucket, after=after, first="099\0", lost=3) == ["100", "101", "102"]
        flush(client)


def test_in_memory(start_server, client_of) -> None:
    client = client_of(start_server(durability="memory"))
    bucket = new_bucket(client)
    new_stream_in(bucket, client, b"1", stream_id="quiet")
    after = cursor(client, bucket)
    new_stream_in(bucket, client, b"1", stream_id="a").delete()
    new_stream_in(bucket, client, b"1", stream_id="b").publish(offset(1))
    assert lost(client, bucket, after=after) == ["a", "b"]
