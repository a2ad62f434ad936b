"""Snapshots of many streams in one request: all rules of single ones, and one object for all."""

import json

import pytest

from tests.crash.storage_kills import check_data
from tests.http.bucketed import BucketStream, new_bucket, new_stream_in, offset, parts
from tests.http.streams import BINARY, check_error
from tests.http.test_snapshot_uploads import objects
from tests.storage_stats import flush


def framed(stream_id: str, at: int, body: bytes, **more: object) -> bytes:
    line = {"stream_id": stream_id, "offset": offset(at), "length": len(body), **more}
    return json.dumps(line).encode() + b"\n" + body


def publish_all(client, bucket: str, *snapshots: bytes, **parameters: str):
    return client.post(
        f"/{bucket}/streams/snapshots", content=b"".join(snapshots), params=parameters
    )


def results(answer) -> dict[str, tuple[int, str]]:
    """The status of each stream, and the code of its error."""
    assert answer.status_code == 200, answer.text
    return {
        each["stream_id"]: (each["status"], each.get("error", {}).get("code", ""))
        for each in answer.json()["snapshots"]
    }


def streams_of(client, count: int, *bodies: bytes) -> list[BucketStream]:
    bucket = new_bucket(client)
    given = bodies or (b"12345", b"678")
    return [new_stream_in(bucket, client, *given, stream_id=f"s{at}") for at in range(count)]


def test_each_stream_has_its_own_and_the_store_one_object(start_server, client_of) -> None:
    server = start_server(garbage_grace=0)
    client = client_of(server)
    streams = streams_of(client, 40)
    bucket = streams[0].bucket
    bodies = [b"\n{state %d}\n" % at * (at % 3) for at in range(40)]
    given = [framed(f"s{at}", 5, body, content_type="text/x") for at, body in enumerate(bodies)]
    answer = publish_all(client, bucket, *given)
    assert results(answer) == {f"s{at}": (204, "") for at in range(40)}
    assert len(objects(server)) == 1
    flush(client)
    for restarted in (False, True):
        if restarted:
            server.stop()
            check_data(server)
            server.start()
            client = client_of(server)
        for at, body in enumerate(bodies):
            stream = BucketStream(client, bucket, f"s{at}")
            assert stream.snapshot(offset(5)).content == body
            assert stream.head().headers["Stream-Earliest-Offset"] == offset(5)
            found = parts(stream.bootstrap())
            assert found == [("text/x", body), ("text/plain", b"678")]
    # The object stays as long as one of them needs it.
    for at in range(40):
        assert BucketStream(client, bucket, f"s{at}").publish(offset(8), b"new").status_code == 204
        if at in {38, 39}:
            flush(client)
            client.post("/cluster/collect-garbage")
            assert len(objects(server)) == at + 1 + (at == 38)
    # This one is in the log only.
    answer = publish_all(client, bucket, framed("s0", 8, b"last"), framed("s1", 8, b"last"))
    assert results(answer) == {"s0": (204, ""), "s1": (204, "")}
    server.stop()
    check_data(server)


def test_each_is_refused_for_itself(client) -> None:
    streams = streams_of(client, 6)
    bucket, etag = streams[0].bucket, streams[5].head().headers["ETag"]
    streams[2].publish(offset(8), b"later")
    given = [
        framed("s0", 5, b"fine"),
        framed("s1", 9, b"past the tail"),
        framed("s2", 5, b"before the snapshot"),
        framed("s3", 4, b"inside a message"),
        framed("s4", 5, b"in another state", if_match='"0:0"'),
        framed("s5", 8, b"in this state", if_match=etag),
        framed("none", 0, b"no stream"),
        framed("a/b", 0, b"no URL"),
    ]
    assert results(publish_all(client, bucket, *given)) == {
        "s0": (204, ""),
        "s1": (409, "snapshot_conflict"),
        "s2": (410, "offset_gone"),
        "s3": (400, "invalid_offset"),
        "s4": (412, "precondition_failed"),
        "s5": (204, ""),
        "none": (404, "stream_not_found"),
        "a/b": (400, "invalid_stream_id"),
    }
    assert streams[0].snapshot(offset(5)).content == b"fine"
    assert streams[5].snapshot(offset(8)).headers["Content-Type"] == BINARY
    assert results(publish_all(client, bucket, given[0], given[5], prefix="s5")) == {
        "s0": (400, "invalid_request"),
        "s5": (204, ""),
    }


def test_a_stream_created_after_the_cursor_is_another_one(client) -> None:
    first, second = streams_of(client, 2)
    url = f"/{first.bucket}/streams/scan"
    cursor = client.get(url).json()["next_cursor"]
    second.delete()
    new_stream_in(first.bucket, client, b"12345", stream_id="s1")
    given = framed("s0", 5, b"old"), framed("s1", 5, b"old")
    assert results(publish_all(client, first.bucket, *given, created_until=cursor)) == {
        "s0": (204, ""),
        "s1": (409, "snapshot_conflict"),
    }
    single = f"{second.url}/snapshot/{offset(5)}"
    refused = client.put(single, params={"created_until": cursor}, content=b"old")
    check_error(refused, 409, "snapshot_conflict", about="created again")
    assert client.put(single, content=b"new").status_code == 204


def test_quota_counts_all_of_them(start_server, client_of) -> None:
    client = client_of(start_server(bucket_bytes_max=200))
    streams = streams_of(client, 3, b"12345")
    given = [framed(f"s{at}", 5, b"x" * 80) for at in range(3)]
    assert results(publish_all(client, streams[0].bucket, *given)) == {
        "s0": (204, ""),
        "s1": (204, ""),
        "s2": (403, "quota_exceeded"),
    }


@pytest.mark.parametrize(
    ("body", "about"),
    [
        (b"", "no snapshots"),
        (b"{}", "no line"),
        (b"{}\n", "not what it should be"),
        (framed("a", 0, b"body")[:-1], "ends within"),
        (framed("a", 0, b"") * 2, "more than one"),
        (b"".join(framed(f"s{at}", 0, b"") for at in range(501)), "up to 500"),
    ],
    ids=["empty", "no line", "no field", "cut", "twice", "too many"],
)
def test_malformed_body_is_400(client, body, about) -> None:
    check_error(publish_all(client, new_bucket(client), body), 400, about=about)
