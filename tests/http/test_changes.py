"""Changes: a bucket followed as one feed, in the order of the log, page by page and live."""

from typing import Any

import httpx
import pytest

from tests.http.bucketed import (
    BucketStream,
    bucket_stream,
    new_bucket,
    new_stream_in,
    offset,
    unused_bucket,
)
from tests.http.raw import RawConnection
from tests.http.streams import JSON, TEXT, EventStream, Stream, check_error, producer
from tests.storage_stats import flush, until

PAGE_ENTRIES = 2_000


def page(client: httpx.Client, bucket: str, after: str = "-1", **parameters: str) -> dict[str, Any]:
    answer = client.get(f"/{bucket}/streams/changes", params={"after": after, **parameters})
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Cache-Control"] == "no-store"
    found = answer.json()
    assert found["bucket_id"] == bucket
    return found


def changes(client: httpx.Client, bucket: str, after: str = "-1", **parameters: str) -> list[tuple]:
    """All changes, by as many pages as it takes."""
    found: list[tuple] = []
    while True:
        one = page(client, bucket, after, **parameters)
        found += [entry(each) for each in one["changes"]]
        if one["up_to_date"]:
            return found
        assert one["next_cursor"] > after
        after = one["next_cursor"]


def entry(change: dict[str, Any]) -> tuple:
    """Stream, offset, length, and whether it was created or deleted."""
    words = [word for word in ("created", "deleted") if change.pop(word, False)]
    found = (change.pop("stream_id"), change.pop("offset"), change.pop("length"), *words)
    assert not change
    return found


def now(client: httpx.Client, bucket: str) -> str:
    return page(client, bucket, "now")["next_cursor"]


def append_many(port: int, url: str, count: int, at_once: int = 32) -> None:
    """Append single bytes, pipelined."""
    request = (
        f"POST {url} HTTP/1.1\r\nHost: a\r\nContent-Type: {TEXT}\r\nContent-Length: 1\r\n\r\nx"
    ).encode()
    with RawConnection(port) as connection:
        for start in range(0, count, at_once):
            some = min(at_once, count - start)
            connection.send(request * some)
            for _ in range(some):
                assert connection.response().status == 204


def test_everything_in_order(client) -> None:
    bucket = new_bucket(client)
    a, b = BucketStream(client, bucket, "a"), BucketStream(client, bucket, "b", JSON)
    a.create(b"123")
    b.create()
    b.append(b"[1,22]")
    a.append(b"4")
    a.append(b"56", **producer(0))
    b.append(b"3", stream_closed="true")
    a.close()
    assert changes(client, bucket) == [
        ("a", 0, 3, "created"),
        ("b", 0, 0, "created"),
        ("b", 0, 5),
        ("a", 3, 1),
        ("a", 4, 2),
        ("b", 5, 2),
        ("a", 6, 0),
    ]


def test_what_changes_nothing_is_no_change(client) -> None:
    bucket = new_bucket(client)
    stream = new_stream_in(bucket, client, b"1", stream_id="a")
    stream.append(b"2", **producer(0))
    before = changes(client, bucket)
    stream.append(b"2", **producer(0))
    stream.append(b"2", **producer(7))
    stream.append(b"3", if_match='"stale"')
    stream.create()
    stream.read()
    stream.publish(offset(1), b"state")
    assert changes(client, bucket) == before == [("a", 0, 0, "created"), ("a", 0, 1), ("a", 1, 1)]


def test_flat_streams_are_there_too(client) -> None:
    bucket = unused_bucket()
    Stream(client, f"{bucket}/a/b").create(b"12")
    assert changes(client, bucket) == [("a/b", 0, 2, "created")]


def test_deletions_are_told(client) -> None:
    """What was before may be missing, since nobody can read it any more."""
    bucket = new_bucket(client)
    new_stream_in(bucket, client, stream_id="kept")
    gone = new_stream_in(bucket, client, b"12", stream_id="gone")
    after = now(client, bucket)
    gone.delete()
    assert changes(client, bucket, after) == [("gone", 2, 0, "deleted")]
    again = new_stream_in(bucket, client, b"3", stream_id="gone")
    expected = [("gone", 2, 0, "deleted"), ("gone", 0, 0, "created"), ("gone", 0, 1)]
    assert changes(client, bucket, after) == expected
    again.delete()
    assert changes(client, bucket, after)[-1] == ("gone", 1, 0, "deleted")
    found = changes(client, bucket)
    assert ("kept", 0, 0, "created") in found
    assert [each for each in found if "deleted" in each] == [
        ("gone", 2, 0, "deleted"),
        ("gone", 1, 0, "deleted"),
    ]


def test_expiry_is_told(client) -> None:
    bucket = new_bucket(client)
    BucketStream(client, bucket, "short").create(b"1", stream_expires_at="2020-01-01T00:00:00Z")
    until(lambda: ("short", 1, 0, "deleted") in changes(client, bucket))


def test_forks_are_created_where_they_start(client) -> None:
    bucket = new_bucket(client)
    source = new_stream_in(bucket, client, b"123", stream_id="source")
    after = now(client, bucket)
    fork = BucketStream(client, bucket, "fork")
    fork.fork(source)
    fork.append(b"45")
    source.delete()
    assert changes(client, bucket, after) == [
        ("fork", 3, 0, "created"),
        ("fork", 3, 2),
        ("source", 3, 0, "deleted"),
    ]


def test_other_buckets_are_invisible(client) -> None:
    bucket = new_bucket(client)
    others = [f"{bucket}x", bucket[:-1], unused_bucket()]
    for other in others:
        Stream(client, f"{other}/a").create(b"1")
    stream = new_stream_in(bucket, client, stream_id="b")
    for other in others:
        Stream(client, f"{other}/a").append(b"2")
    stream.append(b"3")
    assert changes(client, bucket) == [("b", 0, 0, "created"), ("b", 0, 1)]
    assert changes(client, others[0]) == [("a", 0, 1, "created"), ("a", 1, 1)]


@pytest.mark.parametrize("prefix", ["", "a", "a/", "ä", "b", "zz"])
def test_prefix(client, prefix) -> None:
    bucket = unused_bucket()
    names = ["a", "a/b", "ab", "ä", "b", "/", "zz"]
    for name in names:
        Stream(client, f"{bucket}/{name}").create(b"1")
    found = changes(client, bucket, prefix=prefix)
    assert [each[0] for each in found] == [name for name in names if name.startswith(prefix)]


def test_cursor_goes_on_where_the_page_ended(client) -> None:
    bucket = new_bucket(client)
    stream = new_stream_in(bucket, client, stream_id="a")
    cursors = ["-1", now(client, bucket)]
    for _ in range(5):
        stream.append(b"x")
        cursors.append(now(client, bucket))
    assert sorted(set(cursors)) == cursors
    for number, cursor in enumerate(cursors):
        assert len(changes(client, bucket, cursor)) == len(cursors) - 1 - number
    assert changes(client, bucket, "now") == []
    assert client.get(f"/{bucket}/streams/changes").json() == page(client, bucket, "-1")
    assert page(client, bucket, cursors[1])["next_cursor"] == cursors[-1]


def test_cursor_moves_past_what_concerns_others(client) -> None:
    bucket = new_bucket(client)
    before = now(client, bucket)
    bucket_stream(client, b"1", b"2", b"3")
    quiet = page(client, bucket, before)
    assert quiet["changes"] == []
    assert quiet["up_to_date"] is True
    assert quiet["next_cursor"] > before


@pytest.mark.parametrize(
    "query",
    [
        "after=+5",
        "after=5.0",
        "after=",
        "after=-2",
        "after=x",
        f"after={'0' * 21}",
        f"after={'9' * 20}",
        f"after={'%D9%A0' * 20}",
        "after=NOW",
        "after=now&after=now",
        "live=websocket",
        "live=",
        "live=true",
        "prefix=%FF",
    ],
)
def test_malformed_request_is_400(client, query) -> None:
    answer = client.get(f"/{new_bucket(client)}/streams/changes?{query}")
    check_error(answer, 400, "invalid_request")


def test_cursor_of_the_future_is_400(client) -> None:
    bucket = new_bucket(client)
    ahead = f"{int(now(client, bucket)) + 1000:020d}"
    for live in ({}, {"live": "sse"}, {"live": "long-poll"}):
        answer = client.get(f"/{bucket}/streams/changes", params={"after": ahead, **live})
        check_error(answer, 400, "invalid_request")


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "HEAD"])
def test_other_method_is_405(client, method) -> None:
    refused = client.request(method, f"/{new_bucket(client)}/streams/changes")
    assert refused.status_code == 405
    assert refused.headers["Allow"] == "GET, OPTIONS"


def test_pages(client, server) -> None:
    """A page is about so many entries; it ends with a batch, of which none is cut."""
    stream = bucket_stream(client)
    start = now(client, stream.bucket)
    count = PAGE_ENTRIES + 500
    append_many(server.port, stream.url, count)
    first = page(client, stream.bucket, start)
    assert PAGE_ENTRIES <= len(first["changes"]) < PAGE_ENTRIES + 500
    assert first["up_to_date"] is False
    second = page(client, stream.bucket, first["next_cursor"])
    assert second["up_to_date"] is True
    found = [entry(each) for each in first["changes"] + second["changes"]]
    name = stream.stream_id
    assert found == [(name, at, 1) for at in range(count)]
    path = f"/{stream.bucket}/streams/changes?live=sse&after={start}"
    with client.stream("GET", path) as answer:
        events = EventStream(answer)
        live = events.next().json
        assert live["up_to_date"] is False
        assert live["next_cursor"] == first["next_cursor"]
        assert events.next().json["up_to_date"] is True


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_cursor_outlives_a_restart(start_server, client_of, ending) -> None:
    server = start_server()
    client = client_of(server)
    stream = bucket_stream(client, b"1", b"2", stream_id="a")
    gone = new_stream_in(stream.bucket, client, stream_id="gone")
    cursor = now(client, stream.bucket)
    stream.append(b"3")
    gone.delete()
    expected = changes(client, stream.bucket, cursor)
    assert expected == [("a", 2, 1), ("gone", 0, 0, "deleted")]
    server.stop() if ending == "stop" else server.kill()
    stream.client = client = client_of(start_server())
    assert changes(client, stream.bucket, cursor) == expected
    stream.append(b"4")
    assert changes(client, stream.bucket, cursor) == [*expected, ("a", 3, 1)]


def test_flush_keeps_what_was_written_last(client) -> None:
    stream = bucket_stream(client, b"1", stream_id="a")
    cursor = now(client, stream.bucket)
    flush(client)
    stream.append(b"2")
    flush(client)
    assert changes(client, stream.bucket, cursor) == [("a", 1, 1)]


@pytest.mark.parametrize("live", [None, "sse", "long-poll"])
def test_cursor_that_is_gone_is_410(start_server, client_of, live) -> None:
    """After a restart there is only what was not in packs."""
    server = start_server()
    client = client_of(server)
    stream = bucket_stream(client, b"1", stream_id="a")
    before = now(client, stream.bucket)
    stream.append(b"2")
    flush(client)
    flushed = now(client, stream.bucket)
    stream.append(b"3")
    server.stop()
    client = client_of(start_server())
    path, mode = f"/{stream.bucket}/streams/changes", {} if live is None else {"live": live}
    for after in ("-1", None, before):
        given = mode if after is None else {"after": after, **mode}
        gone = client.get(path, params=given)
        check_error(gone, 410, "cursor_gone", about="scan")
        assert gone.headers["Changes-Earliest-Cursor"] == flushed
    assert changes(client, stream.bucket, flushed) == [("a", 2, 1)]
    # The scan gives what is missing, and where to go on.
    plan = client.get(f"/{stream.bucket}/streams/scan").json()
    assert changes(client, stream.bucket, plan["next_cursor"]) == []
