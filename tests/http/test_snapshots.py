"""Snapshots: published, read, replaced, and what they do to the stream behind them."""

import pytest

from tests.http.bucketed import (
    BucketStream,
    bucket_stream,
    new_bucket,
    new_stream_in,
    offset,
    parts,
)
from tests.http.streams import BINARY, JSON, TEXT, check_error
from tests.storage_stats import flush
from tests.thorough import for_each

MALFORMED_OFFSETS = {
    "start": "-1",
    "now": "now",
    "negative": "-5",
    "long": "0" * 21,
    "huge": "9" * 20,
    "letters": "x" * 20,
    "other digits": "%D9%A0" * 20,
    "sign": "+" + "0" * 19,
    "spaces": "%20" * 20,
    "slash": "0000000000%2F000000000",
}
# Three messages of each kind, and the offsets inside them.
MESSAGES = {
    TEXT: [b"12345", b"678", "9äö".encode()],
    BINARY: [b"\x00\x1e\xff", b"\r\n", b"\x1e" * 3],
    JSON: [b'{"a":1}', b"22", b'"a\xc3\xa4"'],
}


def three_messages(client, kind: str) -> tuple[BucketStream, list[int]]:
    """A stream of three messages, and where each ends."""
    stream = bucket_stream(client, *MESSAGES[kind], content_type=kind)
    extra = 1 if kind == JSON else 0
    ends, at = [], 0
    for message in MESSAGES[kind]:
        at += len(message) + extra
        ends.append(at)
    assert stream.tail() == offset(at)
    return stream, ends


@pytest.mark.spec("extensions 2.2-2", "extensions 2.5-1")
@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_published_snapshot_is_read_back(client, kind, number) -> None:
    stream, ends = three_messages(client, kind)
    at = offset(ends[number])
    published = stream.publish(at, b"\x00state\r\n", "application/x-state")
    assert published.status_code == 204
    assert published.content == b""
    assert published.headers["Stream-Snapshot-Offset"] == at
    assert published.headers["Stream-Next-Offset"] == offset(ends[-1])
    found = stream.snapshot(at)
    assert found.status_code == 200
    assert found.content == b"\x00state\r\n"
    assert found.headers["Content-Type"] == "application/x-state"
    assert found.headers["Stream-Snapshot-Offset"] == at
    assert found.headers["Stream-Next-Offset"] == at
    assert found.headers["Stream-Up-To-Date"] == ("true" if number == 2 else "false")
    assert "Stream-Closed" not in found.headers
    assert found.headers["Cache-Control"] == "no-store"


@pytest.mark.spec("extensions 2.2-1")
@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        (None, BINARY),
        ("", BINARY),
        ("text/plain; charset=utf-8", "text/plain; charset=utf-8"),
        ("Application/JSON", "Application/JSON"),
        ('a/b; c="d e"', 'a/b; c="d e"'),
    ],
)
def test_content_type_is_the_snapshots_own(client, sent, stored) -> None:
    stream = bucket_stream(client, b"[1]", content_type=JSON)
    at = stream.tail()
    assert stream.publish(at, b"x", sent).status_code == 204
    assert stream.snapshot(at).headers["Content-Type"] == stored
    assert parts(stream.bootstrap())[0] == (stored, b"x")
    assert stream.head().headers["Content-Type"] == JSON


@pytest.mark.parametrize("content_type", ["nonsense", "/", "text/", "a/b/c"])
def test_malformed_content_type_is_400(client, content_type) -> None:
    stream = bucket_stream(client, b"x")
    check_error(stream.publish(stream.tail(), b"x", content_type), 400)
    assert "Stream-Snapshot-Offset" not in stream.head().headers


@pytest.mark.spec("extensions 2.2-3")
@for_each("at", MALFORMED_OFFSETS.values())
@for_each("method", ["PUT", "GET", "DELETE"])
def test_malformed_offset_is_400(client, at, method) -> None:
    stream = bucket_stream(client, b"12345")
    assert stream.publish(offset(0)).status_code == 204
    answer = client.request(method, f"{stream.url}/snapshot/{at}", content=b"")
    check_error(answer, 400)
    assert stream.head().headers["Stream-Snapshot-Offset"] == offset(0)


@pytest.mark.spec("extensions 2.1-2", "extensions 2.2-3")
@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
@pytest.mark.parametrize("kind", MESSAGES)
def test_only_where_a_message_ends(client, kind, cold) -> None:
    stream, ends = three_messages(client, kind)
    if cold:
        flush(client)
    for at in range(1, ends[-1]):
        if at not in ends:
            check_error(stream.publish(offset(at)), 400, "invalid_offset", about=offset(at))
    assert stream.read("-1").status_code == 200
    for at in [0, *ends]:
        assert stream.publish(offset(at)).status_code == 204
        assert parts(stream.bootstrap())[1:] == [
            (kind, message) for message, end in zip(MESSAGES[kind], ends, strict=True) if end > at
        ]


@pytest.mark.spec("extensions 2.1-2")
def test_messages_of_one_json_append_are_several(client) -> None:
    stream = bucket_stream(client, b'[1, {"a" : [2]},"x"]', content_type=JSON)
    whole = parts(stream.bootstrap())[1:]
    at = 0
    for number, (_, message) in enumerate(whole):
        at += len(message) + 1
        assert stream.publish(offset(at)).status_code == 204
        assert parts(stream.bootstrap())[1:] == whole[number + 1 :]
    assert at == int(stream.tail())


@pytest.mark.spec("extensions 2.2-4")
def test_missing_stream_is_404(client) -> None:
    stream = BucketStream(client, new_bucket(client), "missing")
    check_error(stream.publish(offset(0)), 404, "stream_not_found")
    check_error(stream.snapshot(), 404, "stream_not_found")
    check_error(stream.snapshot(offset(0)), 404, "stream_not_found")
    check_error(client.delete(f"{stream.url}/snapshot/{offset(0)}"), 404, "stream_not_found")
    stream.create(b"x")
    stream.publish(offset(1))
    stream.delete()
    check_error(stream.publish(offset(1)), 404, "stream_not_found")
    check_error(stream.snapshot(offset(1)), 404, "stream_not_found")


@pytest.mark.spec("extensions 2.2-5")
@pytest.mark.parametrize("at", [6, 100, 2**62])
def test_offset_past_the_tail_is_409(client, at) -> None:
    stream = bucket_stream(client, b"12345")
    check_error(stream.publish(offset(at)), 409, "snapshot_conflict", about="tail")
    assert stream.read("-1").content == b"12345"


@pytest.mark.spec("extensions 2.2-6")
@pytest.mark.parametrize("at", [0, 3, 5])
def test_offset_before_the_snapshot_is_410(client, at) -> None:
    """Whether a message ended there or not: nobody knows any more."""
    stream = bucket_stream(client, b"12345", b"678")
    stream.publish(offset(8), b"latest")
    refused = stream.publish(offset(at), b"older")
    check_error(refused, 410, "offset_gone")
    assert refused.headers["Stream-Earliest-Offset"] == offset(8)
    assert stream.snapshot(offset(8)).content == b"latest"


@pytest.mark.spec("extensions 2.2-7")
def test_body_beyond_the_limit_is_413(start_server, client_of) -> None:
    client = client_of(start_server(snapshot_bytes_max=1000))
    stream = bucket_stream(client, b"12345")
    at = stream.tail()
    for body in (b"x" * 1001, iter([b"x" * 600, b"x" * 401]), b"x" * 2_000_000):
        check_error(stream.publish(at, body), 413, "payload_too_large", about="1000")
    assert "Stream-Snapshot-Offset" not in stream.head().headers
    assert stream.read("-1").status_code == 200
    for body in (b"x" * 1000, iter([b"x" * 600, b"x" * 400])):
        assert stream.publish(at, body).status_code == 204
        assert stream.snapshot(at).content == b"x" * 1000


@pytest.mark.spec("extensions 2.2-7")
def test_limits_of_appends_and_snapshots_differ(start_server, client_of) -> None:
    client = client_of(start_server(body_bytes_max=10, snapshot_bytes_max=100))
    stream = bucket_stream(client, b"12345", stream_id="snapshot")
    assert stream.publish(stream.tail(), b"x" * 100).status_code == 204
    check_error(stream.append(b"x" * 11), 413, "payload_too_large")
    # On the flat surface these are ids like any other.
    url = f"/v1/stream/{stream.bucket}/snapshot/{offset(5)}"
    check_error(client.put(url, content=b"x" * 11), 413, "payload_too_large")
    assert client.put(url, content=b"x" * 10).status_code == 201


@pytest.mark.spec("extensions 2.2-2")
def test_snapshot_may_be_empty_or_at_the_start(client) -> None:
    stream = bucket_stream(client, b"12345")
    assert stream.publish(offset(0), b"").status_code == 204
    found = stream.snapshot(offset(0))
    assert found.content == b""
    assert found.headers["Content-Length"] == "0"
    # Nothing is folded into it, so nothing is gone.
    assert stream.read("-1").content == b"12345"
    assert parts(stream.bootstrap()) == [(BINARY, b""), (TEXT, b"12345")]


def test_stream_may_be_empty(client) -> None:
    stream = bucket_stream(client)
    assert stream.publish(offset(0), b"initial").status_code == 204
    assert stream.snapshot(offset(0)).headers["Stream-Up-To-Date"] == "true"
    assert parts(stream.bootstrap()) == [(BINARY, b"initial")]


@pytest.mark.spec("extensions 2.3-1", "extensions 2.4-1", "extensions 2.4-3")
def test_latest_snapshot_is_a_redirect(client) -> None:
    stream = bucket_stream(client, b"12345", b"678", stream_id="ä b")
    stream.publish(offset(5), b"state", "text/plain")
    found = stream.snapshot()
    assert found.status_code == 307
    assert found.headers["Location"] == f"{client.base_url}{stream.url}/snapshot/{offset(5)}"
    assert found.headers["Stream-Snapshot-Offset"] == offset(5)
    assert found.headers["Stream-Next-Offset"] == offset(5)
    assert found.headers["Stream-Up-To-Date"] == "false"
    assert found.headers["Cache-Control"] == "no-store"
    assert client.get(found.headers["Location"]).content == b"state"
    assert client.get(f"{stream.url}/snapshot", follow_redirects=True).content == b"state"
    assert stream.head().headers["Stream-Snapshot-Offset"] == offset(5)
    head = client.head(f"{stream.url}/snapshot")
    assert (head.status_code, head.headers["Location"]) == (307, found.headers["Location"])


@pytest.mark.spec("extensions 2.3-2", "extensions 2.4-2", "extensions 2.5-2", "extensions 2.6-1")
def test_without_a_snapshot_there_is_none(client) -> None:
    stream = bucket_stream(client, b"12345")
    check_error(stream.snapshot(), 404, "snapshot_not_found")
    check_error(stream.snapshot(offset(5)), 404, "snapshot_not_found")
    check_error(client.delete(f"{stream.url}/snapshot/{offset(5)}"), 404, "snapshot_not_found")
    head = stream.head()
    assert "Stream-Snapshot-Offset" not in head.headers
    assert "Stream-Earliest-Offset" not in head.headers


@pytest.mark.spec("extensions 2.6-1", "extensions 2.6-2")
def test_snapshots_are_not_deleted(client) -> None:
    stream = bucket_stream(client, b"12345", b"678")
    stream.publish(offset(5), b"first")
    stream.publish(offset(8), b"second")
    refused = client.delete(f"{stream.url}/snapshot/{offset(8)}")
    check_error(refused, 409, "snapshot_conflict", about="/bootstrap")
    for at in (0, 5, 100):
        gone = client.delete(f"{stream.url}/snapshot/{offset(at)}")
        check_error(gone, 404, "snapshot_not_found")
    assert stream.snapshot(offset(8)).content == b"second"


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_other_method_is_405(client, method) -> None:
    stream = bucket_stream(client, b"12345")
    for below, allowed in (
        (f"/snapshot/{offset(5)}", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("/snapshot", "GET, HEAD, OPTIONS"),
        ("/bootstrap", "GET, HEAD, OPTIONS"),
    ):
        refused = client.request(method, stream.url + below)
        check_error(refused, 405, "method_not_allowed")
        assert refused.headers["Allow"] == allowed


@pytest.mark.spec("extensions 5-1")
def test_offset_is_percent_decoded(client) -> None:
    stream = bucket_stream(client, b"12345")
    encoded = "".join(f"%{ord(digit):02X}" for digit in offset(5))
    assert stream.publish(encoded, b"state").status_code == 204
    assert stream.snapshot(offset(5)).content == b"state"
    assert stream.snapshot(encoded).content == b"state"
    assert client.delete(f"{stream.url}/snapshot/{encoded}").status_code == 409


@pytest.mark.spec("extensions 2.5-1")
def test_closed_stream_says_so(client) -> None:
    stream = bucket_stream(client, b"12345", b"678")
    stream.publish(offset(5), b"state")
    stream.close()
    assert stream.snapshot(offset(5)).headers["Stream-Closed"] == "true"
    assert stream.snapshot().headers["Stream-Closed"] == "true"
    # A closed stream takes snapshots all the same.
    assert stream.publish(offset(8), b"final").status_code == 204
    found = stream.snapshot(offset(8))
    assert found.headers["Stream-Up-To-Date"] == "true"
    assert found.content == b"final"
    assert stream.read(offset(8)).headers["Stream-Closed"] == "true"


@pytest.mark.parametrize("size", [0, 1, 100_000, 1_048_576, 1_048_577, 9_000_000])
def test_any_size(client, size) -> None:
    """In one piece or several, from memory or from the store."""
    stream = bucket_stream(client, b"12345")
    body = bytes(range(251)) * (size // 251 + 1)
    body = body[:size]
    assert stream.publish(offset(5), body).status_code == 204
    assert stream.snapshot(offset(5)).content == body
    assert parts(stream.bootstrap()) == [(BINARY, body)]
    head = client.head(f"{stream.url}/snapshot/{offset(5)}")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["Stream-Snapshot-Offset"] == offset(5)
    assert head.headers.get("Content-Length", str(size)) == str(size)
    assert stream.read(offset(5)).status_code == 200


@pytest.mark.parametrize("size", [1000, 9_000_000])
def test_chunked_body(client, size) -> None:
    stream = bucket_stream(client, b"12345")
    piece = b"x" * 997
    count = size // len(piece) + 1
    assert stream.publish(offset(5), iter([piece] * count)).status_code == 204
    assert stream.snapshot(offset(5)).content == piece * count


def test_damaged_snapshot_is_not_given_out(start_server, client_of) -> None:
    server = start_server(snapshot_cache_bytes=0)
    client = client_of(server)
    stream = bucket_stream(client, b"12345")
    stream.publish(offset(5), b"state")
    (path,) = (server.data_dir / "objects/snapshots").rglob("*-*")
    path.write_bytes(b"stale")
    check_error(stream.snapshot(offset(5)), 500, "pack_corrupt", about="snapshot")
    path.write_bytes(b"stat")
    check_error(stream.snapshot(offset(5)), 500, "pack_corrupt")
    path.unlink()
    check_error(stream.snapshot(offset(5)), 500, "object_missing")
    # The stream itself is well.
    assert stream.append(b"6").status_code == 204
    assert stream.publish(offset(6), b"again").status_code == 204
    assert stream.snapshot(offset(6)).content == b"again"


def test_server_in_memory_keeps_snapshots(start_server, client_of) -> None:
    client = client_of(start_server(durability="memory"))
    stream = bucket_stream(client, b"12345", b"678")
    stream.publish(offset(5), b"state")
    assert stream.snapshot(offset(5)).content == b"state"
    assert parts(stream.bootstrap()) == [(BINARY, b"state"), (TEXT, b"678")]
    large = bytes(9_000_000)
    assert stream.publish(offset(8), large).status_code == 204
    assert stream.snapshot(offset(8)).content == large


def test_two_streams_have_snapshots_of_their_own(client) -> None:
    bucket = new_bucket(client)
    one, other = (new_stream_in(bucket, client, b"12345") for _ in range(2))
    one.publish(offset(5), b"one")
    other.publish(offset(5), b"other")
    assert one.snapshot(offset(5)).content == b"one"
    assert other.snapshot(offset(5)).content == b"other"
