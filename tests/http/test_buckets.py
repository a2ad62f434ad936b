"""Buckets: created, looked at and deleted; those that are there only through flat streams."""

import time

import httpx
import pytest

from tests.cli.checked import check
from tests.http.bucketed import (
    BucketStream,
    ids,
    listing,
    new_bucket,
    new_stream_in,
    unused_bucket,
)
from tests.http.cold import IDLE
from tests.http.streams import BINARY, JSON, Stream, check_error, data_of, producer
from tests.storage_stats import flush, stats


def found(client: httpx.Client, bucket: str) -> dict:
    answer = client.get(f"/{bucket}")
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.spec("extensions 1.2-1", "extensions 1.2-3", "extensions 1.3-1")
def test_created_bucket_is_there_and_empty(client) -> None:
    bucket, before_ms = unused_bucket(), time.time_ns() // 1_000_000
    created = client.put(f"/{bucket}")
    assert created.status_code == 201
    assert created.headers["Location"] == f"{client.base_url}/{bucket}"
    assert created.content == b""
    answer = client.get(created.headers["Location"])
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Cache-Control"] == "no-store"
    body = answer.json()
    assert before_ms <= body.pop("created_at_ms") <= time.time_ns() // 1_000_000
    assert body == {"bucket_id": bucket, "streams": 0, "bytes": 0, "last_write_at_ms": None}
    assert listing(client, bucket) == {
        "bucket_id": bucket,
        "prefix": "",
        "stream_count": 0,
        "streams": [],
        "next_cursor": None,
        "has_more": False,
    }


@pytest.mark.spec("extensions 1.2-5")
def test_bucket_is_created_once(client) -> None:
    bucket = new_bucket(client)
    check_error(client.put(f"/{bucket}"), 409, "bucket_exists", about=bucket)
    new_stream_in(bucket, client)
    check_error(client.put(f"/{bucket}"), 409, "bucket_exists")


@pytest.mark.spec("extensions 1.3-3", "extensions 1.4-7", "extensions 1.5-4")
@pytest.mark.parametrize(
    ("method", "below"),
    [
        ("GET", ""),
        ("HEAD", ""),
        ("DELETE", ""),
        ("GET", "/streams"),
        ("GET", "/streams/changes"),
        ("GET", "/streams/scan"),
        ("GET", "/streams/scan/ranges"),
        ("GET", "/streams/scan/forks"),
        ("GET", "/streams/scan/inherited"),
        ("GET", "/streams/records"),
    ],
)
def test_missing_bucket_is_404(client, method, below) -> None:
    answer = client.request(method, f"/{unused_bucket()}{below}")
    assert answer.status_code == 404
    if method != "HEAD":
        check_error(answer, 404, "bucket_not_found")


@pytest.mark.spec("extensions 1.2-2", "extensions 1.6-2")
@pytest.mark.parametrize(
    ("method", "below"),
    [
        ("PUT", ""),
        ("POST", ""),
        ("GET", ""),
        ("GET", "?offset=-1&live=sse"),
        ("DELETE", ""),
        ("PUT", "/snapshot/00000000000000000000"),
        ("GET", "/snapshot"),
        ("GET", "/snapshot/00000000000000000000"),
        ("DELETE", "/snapshot/00000000000000000000"),
        ("GET", "/bootstrap"),
    ],
)
def test_stream_of_a_missing_bucket_is_404(client, method, below) -> None:
    bucket = unused_bucket()
    headers = {"Content-Type": "text/plain"}
    content = b"x" if method in {"PUT", "POST"} else None
    answer = client.request(method, f"/{bucket}/a{below}", headers=headers, content=content)
    check_error(answer, 404, "bucket_not_found", about=bucket)
    check_error(client.get(f"/{bucket}"), 404, "bucket_not_found")


@pytest.mark.spec("extensions 1.5-1", "extensions 1.5-2")
def test_only_an_empty_bucket_is_deleted(client) -> None:
    bucket = new_bucket(client)
    stream = new_stream_in(bucket, client)
    check_error(client.delete(f"/{bucket}"), 409, "bucket_not_empty", about="1 stream")
    assert stream.head().status_code == 200
    assert stream.delete().status_code == 204
    assert found(client, bucket)["streams"] == 0
    deleted = client.delete(f"/{bucket}")
    assert deleted.status_code == 204
    assert deleted.content == b""
    check_error(client.delete(f"/{bucket}"), 404, "bucket_not_found")
    check_error(client.get(f"/{bucket}"), 404, "bucket_not_found")
    assert client.put(f"/{bucket}").status_code == 201


@pytest.mark.spec("extensions 1.3-1")
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_other_method_is_405(client, method) -> None:
    refused = client.request(method, f"/{new_bucket(client)}")
    check_error(refused, 405, "method_not_allowed")
    assert refused.headers["Allow"] == "DELETE, GET, HEAD, OPTIONS, PUT"


def test_head_is_get_without_a_body(client) -> None:
    bucket = new_bucket(client)
    head, get = client.head(f"/{bucket}"), client.get(f"/{bucket}")
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["Content-Length"] == get.headers["Content-Length"]


@pytest.mark.spec("extensions 1.3-1")
def test_bucket_counts_bytes_and_knows_the_last_write(client) -> None:
    bucket = new_bucket(client)
    text, other = new_stream_in(bucket, client, b"12345"), new_stream_in(bucket, client)
    json_stream = new_stream_in(bucket, client, b"[1,22]", content_type=JSON)
    assert found(client, bucket)["streams"] == 3
    # What offsets count: of JSON that is each message and what separates it from the next.
    size = 5 + int(json_stream.tail())
    assert found(client, bucket)["bytes"] == size
    before_ms = time.time_ns() // 1_000_000
    other.append(b"678")
    after_ms = time.time_ns() // 1_000_000
    now = found(client, bucket)
    assert now["bytes"] == size + 3
    assert before_ms <= now["last_write_at_ms"] <= after_ms
    assert now["created_at_ms"] <= before_ms
    # Neither a duplicate nor a refusal is a write.
    other.append(b"9", **producer(0))
    written = found(client, bucket)
    other.append(b"9", **producer(0))
    other.append(b"9", **producer(7))
    text.head()
    assert found(client, bucket) == written
    text.delete()
    assert found(client, bucket)["streams"] == 2
    assert found(client, bucket)["bytes"] == size + 4 - 5
    json_stream.delete()
    other.delete()
    assert found(client, bucket)["bytes"] == found(client, bucket)["streams"] == 0


def test_snapshot_frees_bytes_of_the_bucket(client) -> None:
    bucket = new_bucket(client)
    stream = new_stream_in(bucket, client, b"12345", b"678")
    assert stream.publish(f"{5:020d}", b"1").status_code == 204
    assert found(client, bucket)["bytes"] == 3 + 1
    stream.delete()
    assert found(client, bucket)["bytes"] == 0


def test_expired_streams_leave_the_bucket(client) -> None:
    bucket = new_bucket(client)
    stream = BucketStream(client, bucket, "short")
    stream.create(b"x", stream_expires_at="2020-01-01T00:00:00Z")
    deadline_s = time.monotonic() + 10
    while found(client, bucket)["streams"]:
        assert time.monotonic() < deadline_s, "the expired stream stays"
        time.sleep(0.02)
    assert found(client, bucket)["bytes"] == 0
    assert client.delete(f"/{bucket}").status_code == 204


@pytest.mark.spec("extensions 1-1", "extensions 1.6-1")
def test_every_operation_of_the_base_protocol(client) -> None:
    stream = BucketStream(client, new_bucket(client), "life")
    created = stream.create(b"first,")
    assert created.status_code == 201
    assert created.headers["Location"] == f"{client.base_url}{stream.url}"
    assert stream.create().status_code == 200
    assert stream.append(b"second,", **producer(0)).status_code == 200
    assert stream.append(b"second,", **producer(0)).status_code == 204
    assert stream.tail() == f"{13:020d}"
    assert stream.read("-1").content == b"first,second,"
    assert stream.long_poll(f"{6:020d}").content == b"second,"
    assert stream.long_poll("now").status_code == 204
    with stream.sse() as events:
        assert data_of(events.until_up_to_date()) == ["first,second,"]
        stream.append(b"third", stream_closed="true")
        assert data_of(list(events)) == ["third"]
    check_error(stream.append(b"more"), 409, "stream_closed")
    check_error(stream.client.patch(stream.url), 405, "method_not_allowed")
    assert client.options(stream.url).status_code == 204
    assert stream.delete().status_code == 204
    check_error(stream.read(), 404, "stream_not_found")


@pytest.mark.spec("extensions 4-1", "extensions 4-2")
def test_events_of_a_binary_stream_are_base64(client) -> None:
    stream = new_stream_in(new_bucket(client), client, b"\x00\xff", content_type=BINARY)
    for each in (stream, stream.flat):
        with each.sse() as events:
            assert events.response.headers["Stream-SSE-Data-Encoding"] == "base64"
            assert data_of(events.until_up_to_date()) == ["AP8="]


@pytest.mark.spec("extensions 1.6-1")
def test_both_surfaces_name_the_same_streams(client) -> None:
    bucket = new_bucket(client)
    stream = BucketStream(client, bucket, "shared")
    assert stream.create(b"one,").status_code == 201
    flat = Stream(client, f"{bucket}/shared")
    assert flat.create().status_code == 200
    assert flat.append(b"two,").status_code == 204
    assert stream.append(b"three", stream_seq="1").status_code == 204
    check_error(flat.append(b"x", stream_seq="1"), 409, "stream_seq_regression")
    assert flat.read().content == stream.read().content == b"one,two,three"
    for name in ("ETag", "Stream-Next-Offset", "Content-Type"):
        assert flat.head().headers[name] == stream.head().headers[name]
    assert stream.close().status_code == 204
    check_error(flat.append(b"x"), 409, "stream_closed")
    assert flat.delete().status_code == 204
    check_error(stream.read(), 404, "stream_not_found")
    made = Stream(client, f"{bucket}/made/flat")
    assert made.create(b"x").status_code == 201
    assert ids(client, bucket) == ["made/flat"]
    check_error(client.get(f"/{bucket}/made%2Fflat"), 400, "invalid_stream_id")
    assert found(client, bucket)["streams"] == 1


def test_flat_streams_make_a_bucket_that_goes_with_the_last(client) -> None:
    bucket = unused_bucket()
    first, second = Stream(client, f"{bucket}/a"), Stream(client, f"{bucket}/b/c")
    first.create(b"12")
    second.create(b"345")
    assert found(client, bucket)["streams"] == 2
    assert found(client, bucket)["bytes"] == 5
    assert ids(client, bucket) == ["a", "b/c"]
    # All that a created bucket can do, this one can do.
    new_stream_in(bucket, client, stream_id="d").delete()
    assert BucketStream(client, bucket, "a").publish(f"{2:020d}").status_code == 204
    check_error(client.delete(f"/{bucket}"), 409, "bucket_not_empty")
    assert first.delete().status_code == 204
    assert ids(client, bucket) == ["b/c"]
    assert second.delete().status_code == 204
    check_error(client.get(f"/{bucket}"), 404, "bucket_not_found")
    check_error(client.get(f"/{bucket}/streams"), 404, "bucket_not_found")
    check_error(client.delete(f"/{bucket}"), 404, "bucket_not_found")
    check_error(client.put(f"/{bucket}/a"), 404, "bucket_not_found")


def test_bucket_of_flat_streams_can_be_created(client) -> None:
    """Then it stays when they go."""
    bucket = unused_bucket()
    stream = Stream(client, f"{bucket}/a")
    stream.create(b"12")
    assert client.put(f"/{bucket}").status_code == 201
    check_error(client.put(f"/{bucket}"), 409, "bucket_exists")
    assert found(client, bucket)["bytes"] == 2
    assert stream.read().content == b"12"
    stream.delete()
    assert found(client, bucket)["streams"] == 0
    assert client.delete(f"/{bucket}").status_code == 204
    check_error(client.get(f"/{bucket}"), 404, "bucket_not_found")


def test_streams_without_a_bucket_are_in_the_default_one(client) -> None:
    Stream(client, "of-default").create(b"x")
    stream = BucketStream(client, "_default", "of-default")
    assert stream.read().content == b"x"
    assert "of-default" in ids(client, "_default", prefix="of-def")
    check_error(client.delete("/_default"), 409, "bucket_not_empty")
    stream.delete()


def test_deletion_after_deletion_makes_room_for_another_life(client) -> None:
    bucket = new_bucket(client)
    first = new_stream_in(bucket, client, b"old", stream_id="a")
    etag = first.head().headers["ETag"]
    first.delete()
    assert client.delete(f"/{bucket}").status_code == 204
    assert client.put(f"/{bucket}").status_code == 201
    assert ids(client, bucket) == []
    second = new_stream_in(bucket, client, b"new", stream_id="a")
    assert second.read().content == b"new"
    assert second.head().headers["ETag"] != etag


def buckets_as_found(client: httpx.Client, buckets: list[str]) -> list[tuple]:
    return [(client.get(f"/{each}").json(), listing(client, each)) for each in buckets]


@pytest.mark.parametrize("flushed", [False, True], ids=["hot", "cold"])
def test_buckets_survive_a_restart(start_server, client_of, flushed) -> None:
    server = start_server(**IDLE)
    client = client_of(server)
    empty, full, gone = (new_bucket(client) for _ in range(3))
    flat, flat_gone = unused_bucket(), unused_bucket()
    for number in range(3):
        new_stream_in(full, client, b"x" * number or b"y", stream_id=f"s-{number}")
        if flushed and number == 1:
            flush(client)
    new_stream_in(full, client, stream_id="deleted").delete()
    Stream(client, f"{flat}/a/b").create(b"12")
    Stream(client, f"{flat_gone}/a").create(b"12")
    if flushed:
        flush(client)
    Stream(client, f"{flat_gone}/a").delete()
    client.delete(f"/{gone}")
    expected = buckets_as_found(client, [empty, full, flat])
    if flushed:
        flush(client)
        assert stats(client)["hot"]["bytes"] == 0
        assert buckets_as_found(client, [empty, full, flat]) == expected
    server.stop()
    client = client_of(start_server(**IDLE))
    assert buckets_as_found(client, [empty, full, flat]) == expected
    for bucket in (gone, flat_gone):
        check_error(client.get(f"/{bucket}"), 404, "bucket_not_found")
    check_error(client.put(f"/{empty}"), 409, "bucket_exists")
    check_error(client.delete(f"/{full}"), 409, "bucket_not_empty")
    assert client.delete(f"/{empty}").status_code == 204
    assert client.put(f"/{flat}").status_code == 201


def test_quota_counts_snapshots_and_what_deleted_streams_keep(start_server, client_of) -> None:
    server = start_server(bucket_bytes_max=1000)
    client = client_of(server)
    bucket, other = new_bucket(client), new_bucket(client)
    stream = new_stream_in(bucket, client, b"12345")
    large = bytes(1000)
    check_error(stream.publish(f"{5:020d}", large[1:] + b"xx"), 403, "quota_exceeded", about="1000")
    assert stream.publish(f"{5:020d}", large).status_code == 204
    assert found(client, bucket)["bytes"] == 1000
    check_error(stream.append(b"x"), 403, "quota_exceeded")
    chunked = stream.publish(f"{5:020d}", (piece for piece in (large, b"x")))
    check_error(chunked, 403, "quota_exceeded")
    assert stream.snapshot(f"{5:020d}").content == large
    assert stream.publish(f"{5:020d}", b"small").status_code == 204
    assert stream.append(b"678").status_code == 204
    fork = BucketStream(client, other, "fork")
    assert fork.fork(stream).status_code == 201
    stream.delete()
    assert found(client, bucket)["streams"] == 0
    assert (found(client, bucket)["bytes"], found(client, other)["bytes"]) == (3 + 5, 5)
    flush(client)
    server.stop()
    assert check(server.data_dir).returncode == 0
    client = client_of(start_server(bucket_bytes_max=1000))
    assert (found(client, bucket)["bytes"], found(client, other)["bytes"]) == (3 + 5, 5)
    client.delete(f"/{other}/fork")
    assert (found(client, bucket)["bytes"], found(client, other)["bytes"]) == (0, 0)
