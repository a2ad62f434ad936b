"""Ids of buckets and streams: what they may hold, and how paths spell them."""

import json
from urllib.parse import quote

import pytest

from tests.http.bucketed import BucketStream, ids, new_bucket, unused_bucket
from tests.http.raw import RawConnection
from tests.http.streams import Stream, check_error
from tests.thorough import for_each

BUCKET_BYTES_MAX = 64
NAME_BYTES_MAX = 122
INVALID_BUCKETS = {
    "short": "abc",
    "long": "a" * (BUCKET_BYTES_MAX + 1),
    "capitals": "ABCD",
    "point": "ab.d",
    "space": "ab%20d",
    "letters beyond ASCII": "%C3%A4bcd",
    "digits beyond ASCII": "%D9%A0%D9%A1%D9%A2%D9%A3",
    "newline": "abcd%0A",
    "slash": "abc%2Fd",
    "NUL": "abcd%00",
    "tilde": "~abcd",
    "not UTF-8": "abcd%FF",
}
RESERVED_BUCKETS = ("cluster", "healthz", "readyz", "metrics", "_default", "_proxy", "__ds")
GOOD_IDS = (
    "a",
    "ä ß",
    "😀",
    "a.b",
    ".hidden",
    "a.",
    "-1",
    "now",
    "snapshot",
    "bootstrap",
    "Streams",
    "streams2",
    "100%",
    "%41",
    "?offset=1",
    "#part",
    "a+b c",
    "a:b",
    "a;b,c=d&e",
    "\\",
    "~",
    "\x01\x7f",
    "\u202e",
)
BAD_IDS = {
    "empty": "",
    "slash": "a%2Fb",
    "slash in lower case": "a%2fb",
    "only a slash": "%2F",
    "NUL": "a%00b",
    "only NUL": "%00",
    "parent": "..",
    "encoded parent": "%2E%2e",
    "two points inside": "a..b",
    "two points, half encoded": "a.%2Eb",
    "two points at the end": "a..",
    "point": ".",
    "not UTF-8": "a%FF",
    "surrogate": "%ED%A0%80",
    "too long": "a" * NAME_BYTES_MAX,
}


def refusal(connection: RawConnection, method: str) -> tuple[int, str]:
    """The status and code of an error."""
    answer = connection.response(method)
    return answer.status, "" if method == "HEAD" else json.loads(answer.body)["error"]["code"]


@pytest.mark.spec("extensions 1.1-1")
@pytest.mark.parametrize("bucket", ["ab_d", "0123", "----", "____", "a-b_c9", "b" * 64])
def test_bucket_id_of_any_allowed_kind(client, bucket) -> None:
    assert client.put(f"/{bucket}").status_code == 201
    assert client.get(f"/{bucket}").json()["bucket_id"] == bucket
    assert client.delete(f"/{bucket}").status_code == 204


@pytest.mark.spec(
    "extensions 1.1-1",
    "extensions 1.2-4",
    "extensions 1.3-2",
    "extensions 1.4-6",
    "extensions 1.5-3",
)
@for_each("bucket", INVALID_BUCKETS.values())
@for_each(
    ("method", "below"),
    [
        ("PUT", ""),
        ("GET", ""),
        ("HEAD", ""),
        ("DELETE", ""),
        ("GET", "/streams"),
        ("GET", "/streams/scan"),
        ("GET", "/streams/changes"),
        ("PUT", "/stream"),
        ("GET", "/stream"),
        ("GET", "/stream/bootstrap"),
    ],
)
def test_invalid_bucket_id_is_400(connect, bucket, method, below) -> None:
    connection = connect()
    connection.request(method, f"/{bucket}{below}")
    status, code = refusal(connection, method)
    assert status == 400
    assert code in {"", "invalid_bucket_id", "invalid_stream_id", "invalid_request"}


@pytest.mark.spec("extensions 1.2-4")
@pytest.mark.parametrize("bucket", RESERVED_BUCKETS)
def test_reserved_bucket_cannot_be_created(client, bucket) -> None:
    check_error(client.put(f"/{bucket}"), 400, "invalid_bucket_id", about=bucket)
    encoded = f"/%{ord(bucket[0]):02x}{bucket[1:]}"
    check_error(client.put(encoded), 400, "invalid_bucket_id", about=bucket)


@pytest.mark.parametrize("bucket", ["cluster", "healthz", "readyz", "metrics"])
def test_routes_are_no_buckets(client, bucket) -> None:
    """Streams of such a bucket are on the flat surface only."""
    flat = Stream(client, f"{bucket}/stream-of-{bucket}")
    assert flat.create(b"x").status_code == 201
    assert flat.read().content == b"x"
    check_error(client.get(f"/{bucket}/stream-of-{bucket}"), 404, "not_found")
    check_error(client.get(f"/{bucket}/streams"), 404, "not_found")
    check_error(client.delete(f"/{bucket}/stream-of-{bucket}"), 404, "not_found")


@pytest.mark.spec("subscriptions 6-1", "subscriptions 6-2")
@pytest.mark.parametrize("bucket", ["_proxy", "__ds"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_internal_buckets_are_not_there(client, bucket, method) -> None:
    for path in (f"/{bucket}", f"/{bucket}/stream", f"/v1/stream/{bucket}/stream"):
        check_error(client.request(method, path), 404)
    check_error(client.put(f"/{bucket}/stream"), 404)


@pytest.mark.spec("extensions 1.1-4", "extensions 1.6-1")
@for_each("stream_id", GOOD_IDS)
def test_any_text_is_an_id(client, stream_id) -> None:
    bucket = new_bucket(client)
    stream = BucketStream(client, bucket, stream_id)
    created = stream.create(b"first,")
    assert created.status_code == 201
    assert stream.append(b"second").status_code == 204
    assert client.get(created.headers["Location"]).content == b"first,second"
    assert stream.flat.read().content == b"first,second"
    assert ids(client, bucket) == [stream_id]
    assert stream.delete().status_code == 204


@pytest.mark.spec("extensions 1.1-3")
@for_each("stream_id", BAD_IDS.values())
@for_each("method", ["PUT", "POST", "GET", "HEAD", "DELETE"])
def test_bad_id_is_400(client, connect, stream_id, method) -> None:
    connection = connect()
    connection.request(method, f"/{new_bucket(client)}/{stream_id}", "Content-Type: text/plain")
    status, code = refusal(connection, method)
    assert status == 400
    assert code in {"", "invalid_stream_id", "invalid_request"}


@pytest.mark.spec("extensions 1.1-3")
@pytest.mark.parametrize("stream_id", ["a%2Fb", "%2F", "a..b", "x" * NAME_BYTES_MAX])
def test_code_names_the_id(client, stream_id) -> None:
    answer = client.put(f"/{new_bucket(client)}/{stream_id}")
    check_error(answer, 400, "invalid_stream_id")


@pytest.mark.spec("extensions 1.1-2")
@pytest.mark.parametrize("letter", ["a", "ä", "€", "😀"])
@pytest.mark.parametrize("bucket_bytes", [4, 19, BUCKET_BYTES_MAX])
def test_combined_name_is_122_bytes_at_most(client, letter, bucket_bytes) -> None:
    bucket = unused_bucket().ljust(bucket_bytes, "x")[-bucket_bytes:]
    assert client.put(f"/{bucket}").status_code == 201
    room = NAME_BYTES_MAX - 1 - bucket_bytes
    fits = letter * (room // len(letter.encode()))
    fits += "x" * (room - len(fits.encode()))
    stream = BucketStream(client, bucket, fits)
    assert stream.create(b"x").status_code == 201
    assert stream.read().content == b"x"
    longer = BucketStream(client, bucket, fits + "x")
    check_error(longer.create(), 400, "invalid_stream_id", about="122 bytes")
    # The flat surface has no such limit, and the stream is listed all the same.
    assert longer.flat.create(b"long").status_code == 201
    assert sorted(ids(client, bucket)) == sorted([fits, fits + "x"])


@pytest.mark.spec("extensions 1.1-5")
@pytest.mark.parametrize("spelling", ["streams", "%73treams", "stream%73"])
def test_streams_is_reserved(client, spelling) -> None:
    bucket = new_bucket(client)
    url = f"/{bucket}/{spelling}"
    check_error(client.put(url), 400, "invalid_stream_id", about="streams")
    assert client.get(url).json()["streams"] == []
    for method in ("POST", "DELETE", "PATCH"):
        refused = client.request(method, url)
        check_error(refused, 405, "method_not_allowed")
        assert refused.headers["Allow"] == "GET, HEAD, OPTIONS"
    # It is a name like any other on the flat surface, and listed.
    assert Stream(client, f"{bucket}/streams").create(b"x").status_code == 201
    assert ids(client, bucket) == ["streams"]


def test_percent_encoding_does_not_matter(client) -> None:
    bucket = new_bucket(client)
    BucketStream(client, bucket, "a-b").create(b"found")
    encoded = "".join(f"%{letter:02X}" for letter in b"a-b")
    assert client.get(f"/{bucket}/{encoded}").content == b"found"
    assert client.get(f"/%{ord('b'):02x}{bucket[1:]}/a-b").content == b"found"
    assert client.get(f"/v1/stream/{bucket}%2F{quote('a-b')}").content == b"found"


@pytest.mark.parametrize(
    "below",
    ["/", "/nothing", "/snapshots", "/bootstrap/", "/bootstrap/1", "/streams", "/snapshot/1/2"],
)
def test_nothing_else_is_below_a_stream(client, below) -> None:
    stream = BucketStream(client, new_bucket(client), "a")
    stream.create()
    assert client.get(stream.url + below).status_code in {400, 404}


@pytest.mark.parametrize(
    "below", ["/nothing", "/scan/", "/scan/nothing", "/changes/1", "/a/snapshot"]
)
def test_nothing_else_is_below_the_listing(client, below) -> None:
    answer = client.get(f"/{new_bucket(client)}/streams{below}")
    check_error(answer, 404, "not_found")
