"""Changes as they happen: long-polls and Server-Sent Events, and readers that do not read."""

import json
import socket

import pytest

from tests.http.bucketed import (
    bucket_stream,
    new_bucket,
    new_stream_in,
    unused_bucket,
)
from tests.http.raw import RawConnection
from tests.http.streams import EventStream, Stream, check_error
from tests.http.test_changes import append_many, changes, entry, now, page
from tests.http.test_snapshot_uploads import MEBIBYTE, resident_bytes
from tests.storage_stats import until


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
            # Kept: without it the connection would be closed.
            events = EventStream(answer)
            events.next()
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


@pytest.mark.slow
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
