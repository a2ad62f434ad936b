"""Buckets, snapshots, bootstraps and forks below a prefix, under real ASGI servers."""

import os

import pytest

from tests.asgi.test_hosts import authority, client, connect_to, host
from tests.http.bucketed import (
    BucketStream,
    bucket_stream,
    ids,
    new_bucket,
    new_stream_in,
    offset,
    parts,
)
from tests.http.streams import BINARY, TEXT, EventStream, check_error
from tests.storage_stats import flush

__all__ = ["authority", "client", "connect_to", "host"]


def test_locations_lead_below_the_prefix(client, host) -> None:
    bucket = new_bucket(client)
    answer = client.put(f"/{bucket}-2")
    assert answer.headers["Location"] == f"{host.streams_root}/{bucket}-2"
    stream = new_stream_in(bucket, client, b"12345", b"678", stream_id="ä b")
    stream.publish(offset(5), b"state", "a/b")
    found = stream.snapshot()
    assert found.status_code == 307
    assert found.headers["Location"] == f"{host.streams_root}{stream.url}/snapshot/{offset(5)}"
    assert client.get(found.headers["Location"]).content == b"state"
    assert ids(client, bucket) == ["ä b"]


@pytest.mark.parametrize("size", [0, 1000, 200_000, 9_000_000])
@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
def test_snapshots_of_any_size(client, size, chunked) -> None:
    """Larger than what an append may be, and than what is stored or read at once."""
    stream = bucket_stream(client, b"12345", b"678")
    body = os.urandom(size)
    pieces = (body[at : at + 50_000] for at in range(0, size, 50_000))
    assert stream.publish(offset(5), pieces if chunked else body).status_code == 204
    assert stream.snapshot(offset(5)).content == body
    assert parts(stream.bootstrap()) == [(BINARY, body), (TEXT, b"678")]
    head = client.head(f"{stream.url}/snapshot/{offset(5)}")
    assert (head.status_code, head.content) == (200, b"")


def test_large_bootstraps(client) -> None:
    bodies = [b"%d" % number * 90_000 for number in range(10)] * 3
    stream = bucket_stream(client, *bodies, content_type=BINARY)
    expected = [(BINARY, b""), *((BINARY, body) for body in bodies)]
    assert parts(stream.bootstrap()) == expected
    flush(client)
    assert parts(stream.bootstrap()) == expected
    assert client.head(f"{stream.url}/bootstrap").content == b""


@pytest.mark.parametrize("spelling", ["{url}", "{root}{url}", "{prefix}{url}"])
@pytest.mark.parametrize("surface", ["bucketed", "flat"])
def test_sources_of_forks(client, host, spelling, surface) -> None:
    """With the prefix and without it, as a path and as a URL."""
    source = bucket_stream(client, b"12345")
    url = source.url if surface == "bucketed" else source.flat.url
    prefix = host.streams_root.removeprefix(host.url)
    fork = BucketStream(client, source.bucket, "fork")
    named = spelling.format(url=url, root=host.streams_root, prefix=prefix)
    assert fork.fork(named).status_code == 201
    assert fork.read("-1").content == b"12345"


def test_bucket_as_a_feed(client) -> None:
    stream = bucket_stream(client, b"1", stream_id="a")
    path = f"/{stream.bucket}/streams/changes"
    assert len(client.get(path).json()["changes"]) == 2
    with client.stream("GET", f"{path}?after=now&live=sse") as answer:
        events = EventStream(answer)
        events.next()
        stream.append(b"2")
        (change,) = events.next().json["changes"]
        assert change == {"stream_id": "a", "offset": 1, "length": 1}
    assert len(client.get(f"/{stream.bucket}/streams/records").content.splitlines()) == 2


def test_conditional_writes(client) -> None:
    stream = bucket_stream(client, b"1")
    tag = stream.head().headers["ETag"]
    assert stream.append(b"2", if_match=tag).status_code == 204
    check_error(stream.append(b"3", if_match=tag), 412, "precondition_failed")
    known = {"If-None-Match": stream.head().headers["ETag"]}
    assert client.head(stream.url, headers=known).status_code == 304
