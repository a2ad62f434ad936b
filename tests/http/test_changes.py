"""Changes: a bucket followed as one feed, in the order of the log, page by page and live."""

import json
import socket
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
from tests.http.test_snapshot_uploads import MEBIBYTE, resident_bytes
from tests.storage_stats import flush, until

PAGE_ENTRIES = 5_000


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
        "after=5",
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


class TestLongPoll:
    def test_what_is_there_is_answered_at_once(self, patient_client) -> None:
        stream = bucket_stream(patient_client, b"1", stream_id="a")
        found = page(patient_client, stream.bucket, "-1", live="long-poll")
        assert len(found["changes"]) == 2

    def test_time_is_up(self, client) -> None:
        bucket = new_bucket(client)
        cursor = now(client, bucket)
        found = page(client, bucket, "now", live="long-poll")
        assert found["changes"] == []
        assert found["up_to_date"] is True
        assert found["next_cursor"] >= cursor

    @pytest.mark.parametrize("prefix", ["", "a"])
    def test_next_change_that_concerns_it(self, patient_client, patient_server, prefix) -> None:
        bucket = new_bucket(patient_client)
        stream = new_stream_in(bucket, patient_client, stream_id="a")
        other = new_stream_in(bucket, patient_client, stream_id="b")
        with RawConnection(patient_server.port) as waiting:
            target = f"/{bucket}/streams/changes?after=now&live=long-poll&prefix={prefix}"
            waiting.request("GET", target)
            # Answered later on the same loop, so that the one above waits by now.
            stream.head()
            bucket_stream(patient_client, b"of another bucket")
            if prefix:
                other.append(b"of another stream")
            stream.append(b"1")
            stream.append(b"2")
            found = json.loads(waiting.response().body)
        assert [entry(each) for each in found["changes"]] == [("a", 0, 1)]
        rest = changes(patient_client, bucket, found["next_cursor"])
        assert rest == [("a", 1, 1)]

    def test_cursor_moves_past_what_concerned_others(self, client, connect) -> None:
        """Else who waits in a quiet bucket of a busy server would be told that it missed much."""
        bucket, waiting = new_bucket(client), connect()
        cursor = now(client, bucket)
        waiting.request("GET", f"/{bucket}/streams/changes?after={cursor}&live=long-poll")
        client.head(f"/{bucket}")
        bucket_stream(client, b"1", b"2")
        found = json.loads(waiting.response().body)
        assert (found["changes"], found["up_to_date"]) == ([], True)
        assert found["next_cursor"] > cursor

    def test_server_that_stops_answers(self, start_server, client_of) -> None:
        server = start_server(long_poll_timeout=600)
        bucket = new_bucket(client_of(server))
        with RawConnection(server.port) as waiting:
            waiting.request("GET", f"/{bucket}/streams/changes?after=now&live=long-poll")
            client_of(server).head(f"/{bucket}")
            assert server.stop() == 0
            answer = waiting.response()
        assert answer.status == 200
        assert json.loads(answer.body)["changes"] == []


class TestSse:
    def test_what_was_and_what_comes(self, client) -> None:
        bucket = new_bucket(client)
        start = now(client, bucket)
        stream = new_stream_in(bucket, client, b"1", stream_id="a")
        cursor = now(client, bucket)
        with client.stream("GET", f"/{bucket}/streams/changes?after={start}&live=sse") as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"
            assert answer.headers["Cache-Control"] == "no-cache"
            events = EventStream(answer)
            first = events.next()
            assert first.type == "changes"
            assert len(first.json["changes"]) == 2
            assert (first.json["next_cursor"], first.json["up_to_date"]) == (cursor, True)
            for number in range(3):
                stream.append(b"x")
                event = events.next().json
                assert [entry(each) for each in event["changes"]] == [("a", 1 + number, 1)]
                assert event["up_to_date"] is True
                assert event["next_cursor"] == now(client, bucket)
            stream.delete()
            (gone,) = events.next().json["changes"]
            assert entry(gone) == ("a", 4, 0, "deleted")

    def test_first_event_comes_even_if_nothing_happened(self, client) -> None:
        bucket = new_bucket(client)
        with client.stream("GET", f"/{bucket}/streams/changes?after=now&live=sse") as answer:
            event = EventStream(answer).next()
            assert event.json["changes"] == []
            assert event.json["up_to_date"] is True

    def test_first_event_comes_even_if_all_concerned_others(self, client) -> None:
        bucket = new_bucket(client)
        start = now(client, bucket)
        bucket_stream(client, b"of another bucket")
        with client.stream("GET", f"/{bucket}/streams/changes?after={start}&live=sse") as answer:
            event = EventStream(answer).next().json
        assert (event["changes"], event["up_to_date"]) == ([], True)
        assert event["next_cursor"] > start

    def test_only_what_concerns_it(self, client) -> None:
        bucket = new_bucket(client)
        a = new_stream_in(bucket, client, stream_id="a")
        b = new_stream_in(bucket, client, stream_id="b")
        path = f"/{bucket}/streams/changes?after=now&live=sse&prefix=b"
        with client.stream("GET", path) as answer:
            events = EventStream(answer)
            events.next()
            a.append(b"1")
            bucket_stream(client, b"2")
            b.append(b"3")
            assert [entry(each) for each in events.next().json["changes"]] == [("b", 0, 1)]

    def test_id_of_the_event_is_its_cursor(self, client) -> None:
        stream = bucket_stream(client)
        start = now(client, stream.bucket)
        stream.append(b"1")
        path = f"/{stream.bucket}/streams/changes?after={start}&live=sse"
        with client.stream("GET", path) as answer:
            lines = answer.iter_lines()
            head = [next(lines) for _ in range(3)]
        event, name, data = head
        assert event == "event: changes"
        assert name == f"id: {json.loads(data.removeprefix('data:'))['next_cursor']}"

    def test_browser_that_comes_back_says_where_it_stands(self, client) -> None:
        """`Last-Event-ID` counts more than the URL, which is that of its first request."""
        stream = bucket_stream(client, b"1", stream_id="a")
        cursor = now(client, stream.bucket)
        stream.append(b"2")
        path, fields = f"/{stream.bucket}/streams/changes?live=sse", {"Last-Event-ID": cursor}
        with client.stream("GET", path, headers=fields) as answer:
            first = EventStream(answer).next().json
        assert [entry(each) for each in first["changes"]] == [("a", 1, 1)]
        for given in ("", "nonsense", "9" * 20):
            check_error(client.get(path, headers={"Last-Event-ID": given}), 400)

    def test_server_that_stops_says_where_to_go_on(self, start_server, client_of) -> None:
        server = start_server()
        client = client_of(server)
        stream = bucket_stream(client, b"1")
        with client.stream("GET", f"/{stream.bucket}/streams/changes?live=sse") as answer:
            events = EventStream(answer)
            first = events.next().json
            assert server.stop() == 0
            last = events.next().json
            assert list(events) == []
        assert last["changes"] == []
        assert last["next_cursor"] == first["next_cursor"]

    def test_last_event_moves_past_what_concerned_others(self, start_server, client_of) -> None:
        client = client_of(start_server(sse_lifetime=1))
        bucket = new_bucket(client)
        with client.stream("GET", f"/{bucket}/streams/changes?after=now&live=sse") as answer:
            events = EventStream(answer)
            first = events.next().json
            other = bucket_stream(client, b"1", b"2")
            (last,) = [each.json for each in events]
        assert (last["changes"], last["up_to_date"]) == ([], True)
        assert last["next_cursor"] == now(client, other.bucket) > first["next_cursor"]

    def test_change_behind_those_of_others_is_told(self, client) -> None:
        bucket = new_bucket(client)
        stream = new_stream_in(bucket, client, stream_id="a")
        other = bucket_stream(client)
        with client.stream("GET", f"/{bucket}/streams/changes?after=now&live=sse") as answer:
            events = EventStream(answer)
            events.next()
            for number in range(5):
                other.append(b"x")
                stream.append(b"y")
                event = events.next().json
                assert [entry(each) for each in event["changes"]] == [("a", number, 1)]
                other.append(b"x")

    def test_too_many_readers_are_503(self, start_server, client_of) -> None:
        client = client_of(start_server(live_readers_max=1))
        path = f"/{new_bucket(client)}/streams/changes?after=now&live="
        with client.stream("GET", path + "sse") as answer:
            EventStream(answer).next()
            check_error(client.get(path + "sse"), 503, "overloaded")
            check_error(client.get(path + "long-poll"), 503, "overloaded")
        until(lambda: client.get(path + "long-poll").status_code == 200)

    def test_bucket_that_vanishes_leaves_the_reader_waiting(self, client) -> None:
        bucket = unused_bucket()
        stream = Stream(client, f"{bucket}/a")
        stream.create()
        with client.stream("GET", f"/{bucket}/streams/changes?after=now&live=sse") as answer:
            events = EventStream(answer)
            events.next()
            stream.delete()
            assert entry(events.next().json["changes"][0]) == ("a", 0, 0, "deleted")
            stream.create(b"1")
            assert entry(events.next().json["changes"][0]) == ("a", 0, 1, "created")


def test_reader_that_does_not_read_catches_up(start_server, client_of) -> None:
    """It is not buffered without bound, and loses nothing."""
    server = start_server()
    client = client_of(server)
    stream = bucket_stream(client, stream_id="a" * 90)
    path = f"/{stream.bucket}/streams/changes?after=now&live=sse"
    with socket.socket() as slow:
        # So that little is in flight.
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(30)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        stream.head()
        before, count = resident_bytes(server), 40_000
        append_many(server.port, stream.url, count)
        # The bytes are kept, and the journal of the appends; the events are not.
        assert resident_bytes(server) - before < 40 * MEBIBYTE
        seen: list[int] = []
        rest = b""
        while len(seen) < count:
            *lines, rest = (rest + slow.recv(1 << 20)).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    seen += [each["offset"] for each in json.loads(line[5:])["changes"]]
    assert seen == list(range(count))
