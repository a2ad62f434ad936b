"""ETags of writes, and writes that depend on them: `If-Match` and `If-None-Match`."""

from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import httpx
import pytest

from tests.http.bucketed import BucketStream, bucket_stream, new_bucket, offset
from tests.http.cold import IDLE, flush_and_forget
from tests.http.streams import JSON, TEXT, Stream, check_error, producer

STRANGE_TAGS = {
    "another": '"0:0"',
    "weak": "W/{tag}",
    "weak in lower case": "w/{tag}",
    "unquoted": "{bare}",
    "half quoted": '"{bare}',
    "quoted twice": '"{tag}"',
    "longer": '"{bare}0"',
    "shorter": '"{shorter}"',
    "with a start past its end": '"{bare}:9"',
    "as if closed": '"{bare}:c"',
    "empty tag": '""',
    "empty": "",
    "comma": ",",
    "several others": '"a", W/{tag}, "b"',
    "stars": "**",
    "quoted star": '"*"',
}


def strange(kind: str, tag: str) -> str:
    bare = tag.strip('"')
    return STRANGE_TAGS[kind].format(tag=tag, bare=bare, shorter=bare[:-1])


def etag(answer: httpx.Response) -> str:
    return answer.headers["ETag"]


def tags_of_now(stream: Stream) -> dict[str, str]:
    """Every tag that names the present state of an open stream."""
    return {
        "HEAD": etag(stream.head()),
        "GET": etag(stream.read("-1")),
        "GET from inside": etag(stream.read(offset(2))),
        "GET at the tail": etag(stream.read(stream.tail())),
        "long-poll": etag(stream.long_poll(offset(0))),
        "PUT": etag(stream.create()),
    }


def test_writes_answer_with_the_tag_of_head(client) -> None:
    stream = BucketStream(client, new_bucket(client), "tagged")
    created = stream.create(b"one")
    assert etag(created) == etag(stream.head())
    assert etag(stream.create()) == etag(created)
    appended = stream.append(b"two")
    assert etag(appended) == etag(stream.head()) != etag(created)
    produced = stream.append(b"three", **producer(0))
    assert etag(produced) == etag(stream.head())
    assert etag(stream.append(b"three", **producer(0))) == etag(produced)
    closed = stream.append(b"four", stream_closed="true")
    assert etag(closed) == etag(stream.head())
    assert etag(stream.close()) == etag(closed)
    assert etag(stream.create(stream_closed="true")) == etag(closed)


def test_closure_alone_changes_the_tag(client) -> None:
    stream = bucket_stream(client, b"x")
    before = etag(stream.head())
    assert etag(stream.close()) == etag(stream.head()) != before


@pytest.mark.parametrize("kind", [TEXT, JSON])
@pytest.mark.parametrize(
    "source",
    ["HEAD", "GET", "GET from inside", "GET at the tail", "long-poll", "PUT"],
)
def test_append_with_a_tag_of_now(client, kind, source) -> None:
    stream = bucket_stream(client, b"1", b"2", content_type=kind)
    tag = tags_of_now(stream)[source]
    appended = stream.append(b"3", if_match=tag)
    assert appended.status_code == 204
    tail = stream.tail()
    check_error(stream.append(b"4", if_match=tag), 412, "precondition_failed", about="If-Match")
    assert stream.tail() == tail
    assert stream.append(b"4", if_match=etag(appended)).status_code == 204


def test_tag_of_a_read_that_did_not_reach_the_tail_is_none(client) -> None:
    stream = bucket_stream(client, b"12", b"34")
    partial = stream.read("-1", max_bytes=2)
    assert partial.headers["Stream-Next-Offset"] == offset(2)
    check_error(stream.append(b"x", if_match=etag(partial)), 412, "precondition_failed")
    stream.append(b"56")
    check_error(stream.append(b"x", if_match=etag(stream.read("-1", max_bytes=4))), 412)


@pytest.mark.parametrize("kind", STRANGE_TAGS)
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_tag_of_anything_else_is_412(client, kind, method) -> None:
    """Weak ones too: `If-Match` compares strongly."""
    stream = bucket_stream(client, b"12345")
    given = strange(kind, etag(stream.head()))
    write = stream.create if method == "PUT" else lambda **fields: stream.append(b"6", **fields)
    check_error(write(if_match=given), 412, "precondition_failed")
    assert stream.read("-1").content == b"12345"


@pytest.mark.parametrize(
    "template", ["{tag}", '"a", {tag}', '{tag},"a"', 'W/"a" , {tag} , "b"', "*"]
)
def test_lists_and_stars(client, template) -> None:
    stream = bucket_stream(client, b"12345")
    given = template.format(tag=etag(stream.head()))
    assert stream.append(b"6", if_match=given).status_code == 204
    given = template.format(tag=etag(stream.head()))
    assert stream.create(if_match=given).status_code == 200


def test_repeated_field_is_a_list(client) -> None:
    stream = bucket_stream(client, b"12345")
    fields = [("If-Match", '"a"'), ("If-Match", etag(stream.head())), ("Content-Type", TEXT)]
    assert client.post(stream.url, content=b"6", headers=fields).status_code == 204


def test_tag_of_a_former_life_is_412(client) -> None:
    stream = bucket_stream(client, b"12345")
    tag = etag(stream.head())
    stream.delete()
    stream.create(b"12345")
    check_error(stream.append(b"6", if_match=tag), 412, "precondition_failed")


def test_tag_of_another_stream_is_412(client) -> None:
    one, other = bucket_stream(client, b"12345"), bucket_stream(client, b"12345")
    check_error(one.append(b"6", if_match=etag(other.head())), 412, "precondition_failed")


def test_close_with_a_tag(client) -> None:
    stream = bucket_stream(client, b"1")
    stale = etag(stream.head())
    stream.append(b"2")
    check_error(stream.close(if_match=stale), 412, "precondition_failed")
    assert "Stream-Closed" not in stream.head().headers
    assert stream.close(if_match=etag(stream.head())).status_code == 204
    assert stream.head().headers["Stream-Closed"] == "true"


class TestOrderOfChecks:
    """Exists, closed, content type, producer, `If-Match`, `Stream-Seq`."""

    STALE = '"0:0"'

    @pytest.fixture
    def stream(self, client) -> BucketStream:
        stream = bucket_stream(client, b"1")
        stream.append(b"2", stream_seq="5", **producer(0))
        return stream

    def test_missing_stream_comes_first(self, client) -> None:
        stream = BucketStream(client, new_bucket(client), "missing")
        for given in (self.STALE, "*"):
            check_error(stream.append(b"x", if_match=given), 404, "stream_not_found")

    def test_closed_comes_before_everything(self, stream) -> None:
        stream.close()
        stale = {"if_match": self.STALE}
        check_error(stream.append(b"x", **stale), 409, "stream_closed")
        check_error(stream.append(b"x", content_type=JSON, **stale), 409, "stream_closed")
        check_error(stream.append(b"x", if_match=etag(stream.head())), 409, "stream_closed")
        # Who closes what is closed is told so, whatever it expects.
        assert stream.close(**stale).status_code == 204

    def test_append_that_closed_is_confirmed(self, client) -> None:
        stream = bucket_stream(client, b"1")
        tag = etag(stream.head())
        fields = {"stream_closed": "true", "if_match": tag, **producer(0)}
        assert stream.append(b"2", **fields).status_code == 200
        assert stream.append(b"2", **fields).status_code == 204

    def test_content_type_comes_before_the_tag(self, stream) -> None:
        refused = stream.append(b"x", content_type=JSON, if_match=self.STALE)
        check_error(refused, 409, "content_type_mismatch")

    def test_duplicate_comes_before_the_tag(self, client) -> None:
        """So that a conditional append can be sent again."""
        stream = bucket_stream(client, b"1")
        tag = etag(stream.head())
        first = stream.append(b"2", if_match=tag, **producer(0))
        again = stream.append(b"2", if_match=tag, **producer(0))
        assert (first.status_code, again.status_code) == (200, 204)
        assert etag(again) == etag(first)
        assert stream.read("-1").content == b"12"

    @pytest.mark.parametrize(
        ("fields", "status", "code"),
        [
            (producer(5), 409, "producer_sequence_gap"),
            (producer(1, epoch=1), 400, "invalid_request"),
        ],
    )
    def test_producer_comes_before_the_tag(self, stream, fields, status, code) -> None:
        check_error(stream.append(b"x", if_match=self.STALE, **fields), status, code)

    def test_fenced_producer_comes_before_the_tag(self, stream) -> None:
        stream.append(b"3", **producer(0, epoch=1))
        refused = stream.append(b"x", if_match=self.STALE, **producer(1))
        check_error(refused, 403, "stale_producer_epoch")

    def test_tag_comes_before_the_sequence(self, stream) -> None:
        stale = stream.append(b"x", if_match=self.STALE, stream_seq="1")
        check_error(stale, 412, "precondition_failed")
        fresh = stream.append(b"x", if_match=etag(stream.head()), stream_seq="1")
        check_error(fresh, 409, "stream_seq_regression")

    def test_tag_comes_before_the_body(self, client) -> None:
        stream = bucket_stream(client, b"1", content_type=JSON)
        check_error(stream.append(b"{", if_match=self.STALE), 412, "precondition_failed")
        check_error(stream.append(b"{", if_match="*"), 400, "invalid_json")

    def test_refused_append_leaves_the_producer_alone(self, stream) -> None:
        check_error(stream.append(b"x", if_match=self.STALE, **producer(1)), 412)
        assert stream.append(b"3", **producer(1)).status_code == 200


class TestCreate:
    def test_of_a_missing_stream_is_412(self, client) -> None:
        stream = BucketStream(client, new_bucket(client), "missing")
        for given in ("*", '"0:0"'):
            check_error(stream.create(if_match=given), 412, "precondition_failed")
        assert stream.head().status_code == 404

    def test_of_a_stream_in_that_state_is_200(self, client) -> None:
        stream = bucket_stream(client, b"1")
        assert stream.create(if_match=etag(stream.head())).status_code == 200

    def test_tag_comes_before_the_configuration(self, client) -> None:
        stream = bucket_stream(client, b"1")
        tag = etag(stream.head())
        stream.append(b"2")
        check_error(stream.create(if_match=tag, content_type=JSON), 412)
        fresh = etag(stream.head())
        check_error(stream.create(if_match=fresh, content_type=JSON), 409, "stream_exists")

    def test_of_a_deleted_stream_is_412(self, client) -> None:
        stream = bucket_stream(client, b"1")
        tag = etag(stream.head())
        stream.delete()
        check_error(stream.create(if_match=tag), 412, "precondition_failed")
        assert stream.head().status_code == 404

    def test_missing_bucket_is_404(self, client) -> None:
        check_error(BucketStream(client, "no-such-bucket", "a").create(if_match="*"), 404)


class TestSnapshots:
    @pytest.fixture
    def stream(self, client) -> BucketStream:
        return bucket_stream(client, b"12345", b"678")

    @pytest.mark.parametrize(
        "source", ["HEAD", "GET", "GET from inside", "GET at the tail", "long-poll", "PUT"]
    )
    def test_of_the_state_of_now(self, stream, source) -> None:
        tag = tags_of_now(stream)[source]
        for given in (tag, f'"a", {tag}', "*"):
            assert stream.publish(offset(5), if_match=given).status_code == 204
        # A snapshot is not a state of its own.
        assert stream.append(b"9", if_match=tag).status_code == 204

    @pytest.mark.parametrize("kind", STRANGE_TAGS)
    def test_of_anything_else_is_412(self, stream, kind) -> None:
        given = strange(kind, etag(stream.head()))
        refused = stream.publish(offset(5), if_match=given)
        check_error(refused, 412, "precondition_failed", about="If-Match")
        assert "Stream-Snapshot-Offset" not in stream.head().headers

    def test_of_an_earlier_state_and_of_a_former_life(self, stream) -> None:
        tag = etag(stream.head())
        stream.append(b"9")
        check_error(stream.publish(offset(5), if_match=tag), 412, "precondition_failed")
        tag = etag(stream.head())
        stream.delete()
        check_error(stream.publish(offset(5), if_match="*"), 404, "stream_not_found")
        stream.create(b"123456789")
        check_error(stream.publish(offset(9), if_match=tag), 412, "precondition_failed")
        assert stream.publish(offset(9), if_match=etag(stream.head())).status_code == 204

    def test_tag_comes_before_the_offset(self, stream) -> None:
        stale, fresh = '"0:0"', etag(stream.head())
        for at, status in ((4, 400), (9, 409)):
            check_error(stream.publish(offset(at), if_match=stale), 412)
            check_error(stream.publish(offset(at), if_match=fresh), status)

    def test_refusal_comes_before_the_body(self, stream, connect) -> None:
        connection = connect()
        headers = ("Content-Length: 100", 'If-Match: "0:0"')
        connection.request("PUT", f"{stream.url}/snapshot/{offset(5)}", *headers)
        assert connection.response().status == 412

    @pytest.mark.parametrize("change", ["append", "close", "replace", "nothing"])
    def test_state_that_changes_while_the_body_arrives(self, stream, connect, change) -> None:
        connection = connect()
        headers = ("Content-Length: 10", f"If-Match: {etag(stream.head())}")
        connection.request("PUT", f"{stream.url}/snapshot/{offset(5)}", *headers)
        connection.send(b"12345")
        # It was looked at once a later request is answered.
        stream.head()
        if change == "append":
            stream.append(b"9")
        elif change == "close":
            stream.close()
        elif change == "replace":
            stream.delete()
            stream.create(b"12345678")
        connection.send(b"67890")
        assert connection.response().status == (204 if change == "nothing" else 412)
        assert ("Stream-Snapshot-Offset" in stream.head().headers) == (change == "nothing")


class TestHead:
    @pytest.mark.parametrize("template", ["{tag}", "W/{tag}", "*", '"a", {tag}', 'W/"a",W/{tag}'])
    def test_unchanged_is_304(self, client, template) -> None:
        stream = bucket_stream(client, b"1")
        tag = etag(stream.head())
        known = {"If-None-Match": template.format(tag=tag)}
        answer = client.head(stream.url, headers=known)
        assert answer.status_code == 304
        assert answer.content == b""
        assert etag(answer) == tag
        assert answer.headers["Cache-Control"] == "no-store"
        stream.append(b"2")
        changed = client.head(stream.url, headers={"If-None-Match": tag})
        assert changed.status_code == 200
        assert etag(changed) != tag

    @pytest.mark.parametrize("given", ['"0:0"', "", "nonsense", '"a","b"'])
    def test_another_tag_is_200(self, client, given) -> None:
        stream = bucket_stream(client, b"1")
        assert client.head(stream.url, headers={"If-None-Match": given}).status_code == 200

    def test_closure_is_a_change(self, client) -> None:
        stream = bucket_stream(client, b"1")
        known = {"If-None-Match": etag(stream.head())}
        stream.close()
        assert client.head(stream.url, headers=known).status_code == 200
        known = {"If-None-Match": etag(stream.head())}
        assert client.head(stream.url, headers=known).status_code == 304

    def test_missing_stream_is_404(self, client) -> None:
        url = f"/{new_bucket(client)}/missing"
        assert client.head(url, headers={"If-None-Match": "*"}).status_code == 404


def test_one_of_several_that_expect_the_same_wins(client, connect) -> None:
    """Even if they arrive together, before any of them is durable."""
    stream, connection = bucket_stream(client, b"0"), connect()
    tag = etag(stream.head())
    for number in range(5):
        body = b"%d" % number
        connection.request(
            "POST", stream.url, f"Content-Type: {TEXT}", f"If-Match: {tag}", body=body
        )
    statuses = [connection.response().status for _ in range(5)]
    assert statuses == [204, 412, 412, 412, 412]
    assert stream.read("-1").content == b"00"


def test_appends_that_follow_each_other(client, connect) -> None:
    """Each expects what the one before it will have done; the tags can be told in advance."""
    stream, connection = bucket_stream(client, b"0"), connect()
    number, _, tail = etag(stream.head()).strip('"').partition(":")
    assert tail == "1"
    for at in range(1, 6):
        tag = f'If-Match: "{number}:{at}"'
        connection.request("POST", stream.url, f"Content-Type: {TEXT}", tag, body=b"x")
    assert [connection.response().status for _ in range(5)] == [204] * 5


def test_counters_lose_no_update(client, server) -> None:
    """Several writers read the last value and append the next one, if nobody was faster."""
    stream = bucket_stream(client, b"0,")
    url, writers, rounds = stream.url, 4, 10

    def count_up(_: int) -> None:
        with httpx.Client(base_url=server.url, timeout=10) as own:
            mine = BucketStream(own, stream.bucket, stream.stream_id)
            for _ in range(rounds):
                while True:
                    found = mine.read("-1")
                    value = int(found.content.split(b",")[-2]) + 1
                    answer = mine.append(b"%d," % value, if_match=etag(found))
                    if answer.status_code == 204:
                        break
                    check_error(answer, 412, "precondition_failed")

    with ThreadPoolExecutor(writers) as threads:
        list(threads.map(count_up, range(writers)))
    values = [int(each) for each in client.get(url).content.split(b",")[:-1]]
    assert values == list(range(writers * rounds + 1))


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
def test_tags_outlive_a_restart(start_server, client_of, cold) -> None:
    server = start_server(**IDLE)
    stream = bucket_stream(client_of(server), b"1", b"2")
    closed = bucket_stream(stream.client, b"1")
    closed.close()
    tag, closed_tag = etag(stream.head()), etag(closed.head())
    if cold:
        flush_and_forget(stream)
        assert etag(stream.head()) == tag
    server.stop()
    stream.client = closed.client = client_of(start_server(**IDLE))
    assert etag(closed.head()) == closed_tag
    assert etag(stream.head()) == tag
    check_error(stream.append(b"3", if_match='"0:0"'), 412)
    assert stream.append(b"3", if_match=tag).status_code == 204


def test_flat_surface_does_the_same(client) -> None:
    stream = bucket_stream(client, b"1")
    tag = etag(stream.flat.head())
    assert tag == etag(stream.head())
    assert stream.flat.append(b"2", if_match=tag).status_code == 204
    check_error(stream.append(b"3", if_match=tag), 412)
    assert client.head(f"/v1/stream/{quote(stream.path)}").status_code == 200


def test_preflight_allows_the_fields(client) -> None:
    allowed = client.options(f"/{new_bucket(client)}/a").headers["Access-Control-Allow-Headers"]
    assert {"If-Match", "If-None-Match"} <= {each.strip() for each in allowed.split(",")}
