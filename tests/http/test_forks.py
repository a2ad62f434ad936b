"""Forks: across surfaces and buckets, of trimmed streams, and what becomes of their sources.

What forks are at all is shown by the upstream suite.
"""

import httpx
import pytest

from tests.http.bucketed import (
    BucketStream,
    bucket_stream,
    ids,
    new_bucket,
    new_stream_in,
    offset,
    parts,
    unused_bucket,
)
from tests.http.cold import IDLE
from tests.http.streams import BINARY, JSON, TEXT, Stream, check_error
from tests.storage_stats import flush, until

# Whatever can be merged or collected is, on demand, and snapshots are read from the store.
TIDY = IDLE | {"merge_packs": 2, "garbage_grace": 0, "snapshot_cache_bytes": 0}


def collect(client: httpx.Client) -> None:
    assert client.post("/cluster/collect-garbage").status_code == 204


def fork_of(source: Stream, bucket: str = "", **headers: str) -> BucketStream:
    """A new fork, in a bucket of its own unless it is given."""
    client = source.client
    fork = BucketStream(client, bucket or new_bucket(client), "fork", source.content_type)
    answer = fork.fork(source, **headers)
    assert answer.status_code == 201, answer.text
    return fork


SPELLINGS = {
    "path": "/{bucket}/{id}",
    "flat path": "/v1/stream/{bucket}/{id}",
    "URL": "{base}/{bucket}/{id}",
    "flat URL": "{base}/v1/stream/{bucket}/{id}",
    "URL of another name": "https://streams.example.com/{bucket}/{id}",
    "URL with a query": "{base}/{bucket}/{id}?offset=-1#x",
    "URL with an odd host": "http://[::1/{bucket}/{id}",
    "encoded": "/{bucket}/%{first:02X}{rest}",
    "flat, all encoded": "/v1/stream/{bucket}%2F%{first:02X}{rest}",
}


@pytest.mark.spec("forks 4.2-1", "forks 4.2-4")
@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS.keys())
@pytest.mark.parametrize("surface", ["bucketed", "flat"])
def test_source_is_named_by_path_or_url(client, spelling, surface) -> None:
    source = bucket_stream(client, b"12345", stream_id="source")
    path = spelling.format(
        bucket=source.bucket, id="source", base=client.base_url, first=ord("s"), rest="ource"
    )
    fork = BucketStream(client, source.bucket, "fork")
    url = fork.url if surface == "bucketed" else fork.flat.url
    answer = client.put(url, headers={"Stream-Forked-From": path})
    assert answer.status_code == 201
    assert fork.read("-1").content == fork.flat.read("-1").content == b"12345"


@pytest.mark.spec("forks 4.2-18")
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("", 400),
        ("/", 400),
        ("source", 400),
        ("https://\xff/", 400),
        ("http://[::1", 400),
        ("/ab/source", 400),
        ("/{bucket}/", 400),
        ("/{bucket}/a%2Fb", 400),
        ("/{bucket}/..", 400),
        ("/{bucket}/source/snapshot", 400),
        ("/{bucket}/streams", 400),
        ("/v1/stream/", 400),
        ("/v1/stream/a%00", 400),
        ("/{bucket}/missing", 404),
        ("/{bucket}x/source", 404),
        ("/v1/stream/missing", 404),
        ("/v1/stream/__ds/a", 404),
        ("/_proxy/a", 404),
    ],
)
def test_source_that_is_none(client, path, status) -> None:
    source = bucket_stream(client, b"12345", stream_id="source")
    fork = BucketStream(client, source.bucket, "fork")
    named = {"Stream-Forked-From": path.format(bucket=source.bucket).encode("latin-1")}
    check_error(client.put(fork.url, headers=named), status)
    assert ids(client, source.bucket) == ["source"]


def test_ids_with_slashes_can_be_forked_flat(client) -> None:
    bucket = unused_bucket()
    source = Stream(client, f"{bucket}/a/b c")
    source.create(b"12345")
    fork = Stream(client, f"{bucket}/d/e")
    assert client.put(fork.url, headers={"Stream-Forked-From": source.url}).status_code == 201
    assert fork.read().content == b"12345"


def test_fork_into_another_bucket(client) -> None:
    source = bucket_stream(client, b"12345")
    fork = fork_of(source)
    assert ids(client, fork.bucket) == ["fork"]
    found = client.get(f"/{fork.bucket}").json()
    # The bytes are its source's.
    assert (found["streams"], found["bytes"]) == (1, 0)
    fork.append(b"678")
    assert client.get(f"/{fork.bucket}").json()["bytes"] == 3
    assert client.get(f"/{source.bucket}").json()["bytes"] == 5
    fork.delete()
    assert client.get(f"/{fork.bucket}").json()["bytes"] == 0


def test_fork_into_a_missing_bucket(client) -> None:
    source = bucket_stream(client, b"12345")
    bucket = unused_bucket()
    fork = BucketStream(client, bucket, "fork")
    check_error(fork.fork(source), 404, "bucket_not_found")
    check_error(fork.fork(source, stream_fork_offset=offset(5)), 404, "bucket_not_found")
    flat = client.put(fork.flat.url, headers={"Stream-Forked-From": source.url})
    assert flat.status_code == 201


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
@pytest.mark.parametrize("at", [None, 5, 8, 9])
def test_fork_of_a_trimmed_stream_has_its_snapshot(client, at, cold) -> None:
    source = bucket_stream(client, b"12345", b"678", b"9")
    source.publish(offset(5), b"state", "a/b")
    if cold:
        flush(client)
    fork = fork_of(source, **({} if at is None else {"stream_fork_offset": offset(at)}))
    tail = 9 if at is None else at
    assert fork.tail() == offset(tail)
    head = fork.head().headers
    assert (head["Stream-Snapshot-Offset"], head["Stream-Earliest-Offset"]) == (offset(5),) * 2
    for below in ("-1", offset(0), offset(4)):
        gone = fork.read(below)
        check_error(gone, 410, "offset_gone")
        assert gone.headers["Stream-Earliest-Offset"] == offset(5)
    assert fork.read(offset(5)).content == b"6789"[: tail - 5]
    assert fork.snapshot(offset(5)).content == b"state"
    assert fork.snapshot().status_code == 307
    messages = [(TEXT, body) for body, end in ((b"678", 8), (b"9", 9)) if end <= tail]
    assert parts(fork.bootstrap()) == [("a/b", b"state"), *messages]


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
@pytest.mark.parametrize("at", ["-1", offset(0), offset(4), "0000000000000000_0000000000000000"])
def test_fork_offset_before_the_retained_one_is_410(client, at, cold) -> None:
    source = bucket_stream(client, b"12345", b"678")
    source.publish(offset(5))
    if cold:
        flush(client)
    fork = BucketStream(client, source.bucket, "fork")
    refused = fork.fork(source, stream_fork_offset=at)
    check_error(refused, 410, "offset_gone")
    assert refused.headers["Stream-Earliest-Offset"] == offset(5)
    assert fork.head().status_code == 404
    # And nothing holds the source.
    source.delete()
    assert source.head().status_code == 404


def read_whole(fork: BucketStream, expected: bytes) -> None:
    answer = fork.read("-1")
    assert answer.status_code == 200, answer.text
    assert answer.content == expected
    assert parts(fork.bootstrap())[0] == (BINARY, b"")


@pytest.mark.spec("forks 4.2-3", "forks 4.2-34")
@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
@pytest.mark.parametrize("event", ["trim", "delete", "close", "append", "trim and delete"])
def test_what_becomes_of_the_source_does_not_matter(client, event, cold) -> None:
    source = bucket_stream(client, b"12345", b"678")
    if cold:
        flush(client)
    fork = fork_of(source, stream_fork_offset=offset(5))
    fork.append(b"abc")
    if "trim" in event:
        assert source.publish(offset(8), b"state").status_code == 204
        check_error(source.read("-1"), 410, "offset_gone")
    if "delete" in event:
        assert source.delete().status_code == 204
    if event == "close":
        source.close()
    if event == "append":
        source.append(b"xyz")
    read_whole(fork, b"12345abc")
    if cold:
        flush(client)
        collect(client)
    read_whole(fork, b"12345abc")
    assert "Stream-Snapshot-Offset" not in fork.head().headers
    assert "Stream-Closed" not in fork.head().headers
    assert fork.append(b"d").status_code == 204
    read_whole(fork, b"12345abcd")


@pytest.mark.spec("forks 4.2-13")
def test_source_that_expires_stays_for_its_fork(client) -> None:
    source = BucketStream(client, new_bucket(client), "source")
    source.create(b"12345", stream_ttl="1")
    fork = BucketStream(client, source.bucket, "fork")
    assert fork.fork(source, stream_ttl="3600").status_code == 201
    until(lambda: source.head().status_code == 410)
    read_whole(fork, b"12345")
    check_error(source.create(), 409)
    assert ids(client, source.bucket) == ["fork"]


def test_trimming_a_fork_does_not_change_its_source(client) -> None:
    source = bucket_stream(client, b"12345", b"678")
    fork, other = fork_of(source), fork_of(source)
    fork.append(b"9")
    assert fork.publish(offset(5), b"of the fork").status_code == 204
    read_whole(source, b"12345678")
    read_whole(other, b"12345678")
    assert parts(fork.bootstrap()) == [(BINARY, b"of the fork"), (TEXT, b"678"), (TEXT, b"9")]
    check_error(fork.read("-1"), 410, "offset_gone")
    check_error(source.snapshot(), 404, "snapshot_not_found")


@pytest.mark.parametrize("kind", [TEXT, JSON])
def test_snapshots_of_a_fork_are_where_messages_end(client, kind) -> None:
    source = bucket_stream(client, b"11", b"22", content_type=kind)
    fork = fork_of(source)
    fork.append(b"33")
    size = int(fork.tail()) // 3
    for at in range(1, 3 * size):
        if at % size:
            check_error(fork.publish(offset(at)), 400, "invalid_offset")
    for at in range(0, 3 * size + 1, size):
        assert fork.publish(offset(at)).status_code == 204


@pytest.mark.spec("forks 4.2-24", "forks 4.2-32", "forks 4.2-33", "forks 4.2-35")
@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
def test_name_of_a_deleted_source(client, cold) -> None:
    source = bucket_stream(client, b"12345")
    if cold:
        flush(client)
    fork = fork_of(source, source.bucket)
    assert source.delete().status_code == 204
    if cold:
        flush(client)
    for each in (source, source.flat):
        check_error(each.read("-1"), 410, "stream_deleted")
        check_error(each.long_poll("now"), 410, "stream_deleted")
        check_error(each.append(b"x"), 410, "stream_deleted")
        check_error(each.close(), 410, "stream_deleted")
        check_error(each.delete(), 410, "stream_deleted")
        check_error(each.create(), 409, "stream_exists")
        assert each.head().status_code == 410
    check_error(source.publish(offset(5)), 410, "stream_deleted")
    check_error(source.snapshot(), 410, "stream_deleted")
    check_error(source.bootstrap(), 410, "stream_deleted")
    another = BucketStream(client, source.bucket, "another")
    for headers in ({}, {"stream_fork_offset": offset(5)}):
        check_error(another.fork(source, **headers), 409, "fork_source_deleted")
    assert ids(client, source.bucket) == ["fork"]
    # A fork of the fork is something else.
    assert another.fork(fork).status_code == 201
    fork.delete()
    assert source.head().status_code == fork.head().status_code == 410
    another.delete()
    for each in (source, fork, another):
        assert each.head().status_code == 404
    assert source.create(b"new").status_code == 201
    assert source.read("-1").content == b"new"


@pytest.mark.spec("forks 4.2-2", "forks 4.2-34", "forks 4.2-37", "forks 8-1")
@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
def test_chain_of_forks(client, cold) -> None:
    streams = [bucket_stream(client, b"0")]
    for number in range(1, 6):
        streams.append(fork_of(streams[-1]))
        streams[-1].append(b"%d" % number)
        if cold:
            flush(client)
    last = streams[-1]
    for stream in streams[:-1]:
        stream.append(b"not for the others")
    read_whole(last, b"012345")
    for stream in (streams[2], streams[0], streams[4], streams[1], streams[3]):
        stream.delete()
        read_whole(last, b"012345")
    assert [stream.head().status_code for stream in streams] == [410] * 5 + [200]
    # From inside what is inherited, and from where a level begins.
    for at in range(6):
        assert last.read(offset(at)).content == b"012345"[at:]
    middle = fork_of(last, stream_fork_offset=offset(2))
    middle.append(b"x")
    read_whole(middle, b"01x")
    last.delete()
    read_whole(middle, b"01x")
    middle.delete()
    assert [stream.head().status_code for stream in (*streams, middle)] == [404] * 7


def test_bucket_with_nothing_but_a_deleted_source(client) -> None:
    """It is empty and can be deleted; the fork elsewhere does not mind."""
    source = bucket_stream(client, b"12345")
    fork = fork_of(source)
    check_error(client.delete(f"/{source.bucket}"), 409, "bucket_not_empty")
    source.delete()
    found = client.get(f"/{source.bucket}").json()
    assert (found["streams"], found["bytes"]) == (0, 5)
    assert client.delete(f"/{source.bucket}").status_code == 204
    check_error(client.get(f"/{source.bucket}"), 404, "bucket_not_found")
    check_error(source.read(), 404, "bucket_not_found")
    check_error(source.flat.read(), 410, "stream_deleted")
    check_error(source.flat.create(), 409, "stream_exists")
    read_whole(fork, b"12345")
    # A bucket of that name knows the name as taken.
    assert client.put(f"/{source.bucket}").status_code == 201
    check_error(source.create(), 409, "stream_exists")
    new_stream_in(source.bucket, client, stream_id="new")
    assert ids(client, source.bucket) == ["new"]
    assert client.get(f"/{source.bucket}").json()["bytes"] == 5
    fork.delete()
    assert client.get(f"/{source.bucket}").json()["bytes"] == 0
    assert source.create().status_code == 201


def test_bucket_of_flat_streams_goes_with_a_deleted_source(client) -> None:
    bucket = unused_bucket()
    source = Stream(client, f"{bucket}/source")
    source.create(b"12345")
    fork = fork_of(source)
    source.delete()
    check_error(client.get(f"/{bucket}"), 404, "bucket_not_found")
    read_whole(fork, b"12345")
    fork.delete()
    assert source.create(b"again").status_code == 201
    assert client.get(f"/{bucket}").json()["bytes"] == 5


@pytest.mark.spec("forks 4.2-23", "forks 4.2-25", "forks 4.2-26")
def test_creating_the_same_fork_again(client) -> None:
    source = bucket_stream(client, b"12345", b"678")
    fork = fork_of(source, stream_fork_offset=offset(5))
    assert fork.fork(source, stream_fork_offset=offset(5)).status_code == 200
    source.append(b"9")
    fork.append(b"x")
    assert fork.fork(source, stream_fork_offset=offset(5)).status_code == 200
    assert fork.fork(source).status_code == 200
    check_error(fork.fork(source, stream_fork_offset=offset(8)), 409, "stream_exists")
    check_error(fork.create(), 409, "stream_exists")
    check_error(source.fork(fork), 409, "stream_exists")
    other = bucket_stream(client, b"12345")
    check_error(fork.fork(other, stream_fork_offset=offset(5)), 409, "stream_exists")


def test_stream_cannot_be_its_own_source(client) -> None:
    stream = BucketStream(client, new_bucket(client), "self")
    check_error(stream.fork(stream), 404, "stream_not_found")
    stream.create()
    check_error(stream.fork(stream), 409, "stream_exists")


@pytest.mark.spec("forks 4.2-3", "forks 4.2-29")
def test_source_and_fork_close_and_count_on_their_own(client) -> None:
    source = bucket_stream(client, b"1")
    source.append(b"2", stream_seq="5")
    fork = fork_of(source)
    assert fork.append(b"3", stream_seq="1").status_code == 204
    fork.close()
    assert source.append(b"3", stream_seq="6").status_code == 204
    assert fork.head().headers["ETag"] != source.head().headers["ETag"]
    assert fork.read("-1").content == source.read("-1").content == b"123"


@pytest.mark.spec("forks 5.8-2")
def test_readers_of_a_fork_see_its_appends_alone(client) -> None:
    source = bucket_stream(client, b"1")
    fork = fork_of(source)
    with fork.sse() as events:
        events.until_up_to_date()
        source.append(b"not for the fork")
        fork.append(b"2")
        found = events.until_up_to_date()
    assert [event.data for event in found if event.type == "data"] == ["2"]
