"""Bootstrap: the snapshot and all messages since, as one multipart answer."""

import re

import pytest

from tests.http.bucketed import (
    BucketStream,
    bucket_stream,
    new_bucket,
    new_stream_in,
    offset,
    parts,
)
from tests.http.streams import BINARY, JSON, TEXT, check_error, data_of
from tests.storage_stats import flush

EMPTY = (BINARY, b"")
# What could be taken for the end of a part, or for the start of another.
TRICKY = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"--",
    b"\r\n--",
    b"--holdfast",
    b"\r\n--holdfast-00000000000000000000000000000000\r\nContent-Type: a/b\r\n\r\nno part",
    b"\r\n--holdfast-00000000000000000000000000000000--\r\n",
    b"Content-Type: text/html\r\n\r\nno head",
    b" ",
    b"\x00",
    b"\x1e",
    b"\x1e\x1e",
    b"ends with a newline\r\n",
    b"\r\nstarts with one",
    bytes(range(256)),
    b"\xff\xfe\xfd",
]
JSON_TRICKY = [
    b'"\\r\\n--holdfast-00000000000000000000000000000000--\\r\\n"',
    b'{"a": [1,\r\n2],\r\n"b":\t""}',
    b'"\\u001e"',
    b"null",
    b"[]",
    '"ä€😀"'.encode(),
]


def bootstrap_parts(stream: BucketStream) -> list[tuple[str, bytes]]:
    """The parts, of an answer that says of itself what is right."""
    answer = stream.bootstrap()
    found = parts(answer)
    head = stream.head().headers
    assert answer.headers["Stream-Next-Offset"] == head["Stream-Next-Offset"]
    assert answer.headers["Stream-Snapshot-Offset"] == head.get("Stream-Snapshot-Offset", "-1")
    assert answer.headers["Stream-Up-To-Date"] == "true"
    assert answer.headers.get("Stream-Closed") == head.get("Stream-Closed")
    assert answer.headers["Cache-Control"] == "no-store"
    assert "ETag" not in answer.headers
    return found


@pytest.mark.spec("extensions 3.2-1", "extensions 3.2-2", "extensions 3.2-5")
def test_without_a_snapshot_the_first_part_is_empty(client) -> None:
    stream = bucket_stream(client, b"one", b"two")
    answer = stream.bootstrap()
    assert answer.headers["Stream-Snapshot-Offset"] == "-1"
    assert answer.headers["Stream-Next-Offset"] == offset(6)
    assert bootstrap_parts(stream) == [EMPTY, (TEXT, b"one"), (TEXT, b"two")]


@pytest.mark.spec("extensions 3.2-5")
@pytest.mark.parametrize("kind", [TEXT, JSON, BINARY])
def test_empty_stream(client, kind) -> None:
    assert bootstrap_parts(bucket_stream(client, content_type=kind)) == [EMPTY]


@pytest.mark.spec("extensions 3.2-2", "extensions 3.2-3", "extensions 3.2-4")
def test_snapshot_comes_first_and_messages_behind_it(client) -> None:
    stream = bucket_stream(client, b"one", b"two", b"three")
    stream.publish(offset(3), b"state", 'application/x-state; v="1 2"')
    assert bootstrap_parts(stream) == [
        ('application/x-state; v="1 2"', b"state"),
        (TEXT, b"two"),
        (TEXT, b"three"),
    ]


@pytest.mark.spec("extensions 3.2-1")
def test_bytes_of_the_answer(client) -> None:
    stream = bucket_stream(client, b"1", b"[2,3]", content_type=JSON)
    stream.publish(offset(2), b"state", TEXT)
    answer = stream.bootstrap()
    found = re.fullmatch(r"multipart/mixed; boundary=([\w-]{22})", answer.headers["Content-Type"])
    assert found
    boundary = found[1].encode()
    assert answer.content == (
        b"--%b\r\nContent-Type: text/plain\r\n\r\nstate"
        b"\r\n--%b\r\nContent-Type: application/json\r\n\r\n2"
        b"\r\n--%b\r\nContent-Type: application/json\r\n\r\n3"
        b"\r\n--%b--\r\n"
    ) % ((boundary,) * 4)


@pytest.mark.spec("extensions 3.2-1")
def test_boundary_is_another_every_time(client) -> None:
    stream = bucket_stream(client, b"x")
    assert len({stream.bootstrap().headers["Content-Type"] for _ in range(10)}) == 10


@pytest.mark.spec("extensions 3.2-4", "extensions 3.2-6", "extensions 3.2-7")
@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
@pytest.mark.parametrize("kind", [TEXT, BINARY, "image/png"])
def test_every_message_is_a_part_as_it_was_appended(client, kind, cold) -> None:
    bodies = [b"t"] if kind == TEXT else TRICKY
    stream = bucket_stream(client, *bodies, content_type=kind)
    if cold:
        flush(client)
    expected = [EMPTY, *((kind, body) for body in bodies)]
    assert bootstrap_parts(stream) == expected
    stream.publish(stream.tail(), b"\r\n--holdfast-", "a/b")
    assert bootstrap_parts(stream) == [("a/b", b"\r\n--holdfast-")]


@pytest.mark.spec("extensions 3.2-4", "extensions 3.2-7")
@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
def test_every_json_message_is_a_part(client, cold) -> None:
    stream = bucket_stream(client, b"[%b]" % b",".join(JSON_TRICKY), content_type=JSON)
    stream.append(b"[[4,5]]")
    if cold:
        flush(client)
    found = bootstrap_parts(stream)
    assert found[0] == EMPTY
    assert [kind for kind, _ in found[1:]] == [JSON] * 7
    messages = [body for _, body in found[1:]]
    assert b"[%b]" % b",".join(messages) == stream.read("-1").content
    at = 0
    # Each ends where a snapshot may be.
    for message in messages:
        at += len(message) + 1
        assert stream.publish(offset(at)).status_code == 204
    assert bootstrap_parts(stream) == [(BINARY, b"state")]


@pytest.mark.spec("extensions 3.2-8")
def test_missing_stream_is_404(client) -> None:
    stream = BucketStream(client, new_bucket(client), "missing")
    check_error(stream.bootstrap(), 404, "stream_not_found")
    assert client.head(f"{stream.url}/bootstrap").status_code == 404


@pytest.mark.spec("extensions 3.1-1")
@pytest.mark.parametrize("live", ["sse", "long-poll", "", "no"])
def test_live_is_400(client, live) -> None:
    stream = bucket_stream(client, b"x")
    check_error(stream.bootstrap(live=live), 400, "invalid_request", about="live")
    check_error(stream.bootstrap(live=live, offset="-1"), 400, "invalid_request")


def test_other_parameters_do_not_matter(client) -> None:
    stream = bucket_stream(client, b"x")
    assert parts(stream.bootstrap(offset="now", cursor="7")) == [EMPTY, (TEXT, b"x")]


@pytest.mark.spec("extensions 3.2-2")
@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
def test_closed_stream(client, cold) -> None:
    stream = bucket_stream(client, b"one", b"two")
    stream.publish(offset(3), b"state")
    stream.close()
    if cold:
        flush(client)
    assert stream.bootstrap().headers["Stream-Closed"] == "true"
    assert bootstrap_parts(stream) == [(BINARY, b"state"), (TEXT, b"two")]


@pytest.mark.spec("extensions 3.3-1")
@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_reads_go_on_where_it_ended(client, live) -> None:
    stream = bucket_stream(client, b"one", b"two")
    stream.publish(offset(3))
    at = stream.bootstrap().headers["Stream-Next-Offset"]
    stream.append(b"three")
    if live == "long-poll":
        assert stream.long_poll(at).content == b"three"
        return
    with stream.sse(at) as events:
        assert data_of(events.until_up_to_date()) == ["three"]
        stream.append(b"four")
        assert data_of(events.until_up_to_date()) == ["four"]


@pytest.mark.spec("extensions 3.4-3")
@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
def test_who_gets_410_gets_everything_here(client, cold) -> None:
    stream = bucket_stream(client, b"one", b"two", b"three")
    for at, state in ((3, b"one"), (6, b"onetwo"), (11, b"onetwothree")):
        stream.publish(offset(at), state)
        if cold:
            flush(client)
        check_error(stream.read("-1"), 410, "offset_gone")
        assert b"".join(body for _, body in bootstrap_parts(stream)) == b"onetwothree"


@pytest.mark.parametrize("size", [10, 3_000_000], ids=["at once", "in pieces"])
def test_head_is_get_without_a_body(client, connect, size) -> None:
    stream = bucket_stream(client, b"x" * size)
    connection = connect()
    connection.request("HEAD", f"{stream.url}/bootstrap")
    head = connection.response("HEAD")
    assert head.status == 200
    assert head.headers["stream-next-offset"] == offset(size)
    assert head.headers["content-type"].startswith("multipart/mixed; boundary=")
    # Nothing of a body came behind the head.
    connection.request("HEAD", stream.url)
    assert connection.response("HEAD").status == 200


def test_bootstrap_renews_a_ttl(client) -> None:
    stream = BucketStream(client, new_bucket(client), "ttl")
    stream.create(b"x", stream_ttl="3600")
    assert parts(stream.bootstrap()) == [EMPTY, (TEXT, b"x")]
    assert stream.head().headers["Stream-TTL"] == "3600"


def test_every_stream_has_its_own(client) -> None:
    bucket = new_bucket(client)
    one, other = new_stream_in(bucket, client, b"1"), new_stream_in(bucket, client, b"2")
    assert bootstrap_parts(one)[1:] == [(TEXT, b"1")]
    assert bootstrap_parts(other)[1:] == [(TEXT, b"2")]


class TestForks:
    """A fork's messages are its source's up to where it starts, and its own behind that."""

    @pytest.mark.parametrize("store", ["hot", "cold"])
    @pytest.mark.parametrize("kind", [TEXT, JSON])
    def test_messages_of_source_and_fork(self, client, kind, store) -> None:
        bodies = [b"11", b"22", b"33"]
        source = bucket_stream(client, *bodies, content_type=kind)
        if store == "cold":
            flush(client)
        at = int(source.tail()) * 2 // 3
        fork = BucketStream(client, source.bucket, "fork", kind)
        assert fork.fork(source, stream_fork_offset=offset(at)).status_code == 201
        fork.append(b"44")
        source.append(b"55")
        if store == "cold":
            flush(client)
        assert bootstrap_parts(fork) == [EMPTY, *((kind, body) for body in (b"11", b"22", b"44"))]
        assert bootstrap_parts(source) == [EMPTY, *((kind, body) for body in (*bodies, b"55"))]

    @pytest.mark.parametrize("store", ["hot", "cold"])
    def test_fork_inside_a_message_ends_it_there(self, client, store) -> None:
        source = bucket_stream(client, b"12345", b"678")
        if store == "cold":
            flush(client)
        fork = BucketStream(client, source.bucket, "fork")
        forked = fork.fork(source, stream_fork_offset=offset(5), stream_fork_sub_offset="2")
        assert forked.status_code == 201
        fork.append(b"abc")
        if store == "cold":
            flush(client)
        expected = [EMPTY, (TEXT, b"12345"), (TEXT, b"67"), (TEXT, b"abc")]
        assert bootstrap_parts(fork) == expected
        for at in (7, 10):
            assert fork.publish(offset(at)).status_code == 204

    def test_fork_of_a_fork_with_the_snapshot_of_the_first(self, client) -> None:
        first = bucket_stream(client, b"12345", b"678")
        first.publish(offset(5), b"state", "a/b")
        second = BucketStream(client, first.bucket, "second")
        second.fork(first)
        second.append(b"9")
        third = BucketStream(client, first.bucket, "third")
        third.fork(second)
        third.append(b"0")
        first.delete()
        assert bootstrap_parts(third) == [
            ("a/b", b"state"),
            (TEXT, b"678"),
            (TEXT, b"9"),
            (TEXT, b"0"),
        ]
