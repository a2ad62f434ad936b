"""Scans: the plan of a bucket, the packs that it names, and the messages that are in none yet."""

import json
import time

import pytest

from holdfast.format.packs import HEADER_BYTES, padded
from holdfast.objects.directory_objects import DirectoryObjects
from holdfast.objects.pack_reader import Pack
from tests.http.bucketed import (
    BucketStream,
    bucket_stream,
    new_bucket,
    new_stream_in,
    offset,
    unused_bucket,
)
from tests.http.cold import IDLE
from tests.http.scanning import Message, Scan
from tests.http.streams import BINARY, JSON, TEXT, Stream, check_error
from tests.storage_stats import flush, metrics, until
from tests.thorough import for_each


def texts(messages: list[Message]) -> list[tuple[str, int, bytes]]:
    """Stream, offset and bytes, in the order of streams and offsets."""
    return sorted((each.stream_id, each.offset, each.data) for each in messages)


def cursor(client, bucket: str) -> str:
    return client.get(f"/{bucket}/streams/changes?after=now").json()["next_cursor"]


def store_id(server) -> str:
    """The id in the marker of the store."""
    return json.loads((server.data_dir / "objects" / "holdfast-store.json").read_text())["id"]


def test_empty_bucket(client, server) -> None:
    bucket = new_bucket(client)
    scan = Scan(client, server, bucket)
    assert scan.plan["partitions"] == []
    assert scan.plan["prefix"] == ""
    assert scan.plan["after"] == offset(0)
    assert scan.plan["until"] == scan.next_cursor == cursor(client, bucket)
    assert scan.messages() == []


@pytest.mark.parametrize("kind", [TEXT, BINARY, JSON])
@pytest.mark.parametrize("flushes", [(), (0,), (1,), (0, 1), (0, 1, 2), (3,), (1, 3)])
def test_hot_and_cold_add_up(client, server, kind, flushes) -> None:
    bucket, bodies = new_bucket(client), [b"1", b"22", b"333", b"4"]
    one = new_stream_in(bucket, client, stream_id="one", content_type=kind)
    other = BucketStream(client, bucket, "other", kind)
    other.create(b"0")
    for number, body in enumerate(bodies):
        one.append(body)
        if number in flushes:
            flush(client)
    expected, at = [], 0
    extra = b"\x1e" if kind == JSON else b""
    for body in bodies:
        expected.append(("one", at, body + extra))
        at += len(body + extra)
    for by, divided in (("names", "partitions"), ("packs", "parts")):
        scan = Scan(client, server, bucket, by=by)
        assert texts(scan.messages()) == [*expected, ("other", 0, b"0" + extra)]
        assert (scan.plan["hot"] == []) == (3 in flushes)
        assert bool(scan.plan[divided]) == bool(flushes)


def test_plan(client, server) -> None:
    bucket = new_bucket(client)
    for name in ("c", "a", "b"):
        new_stream_in(bucket, client, b"12345", stream_id=name)
    flush(client)
    flushed = cursor(client, bucket)
    new_stream_in(bucket, client, b"678", stream_id="d")
    end = cursor(client, bucket)
    (partition,) = Scan(client, server, bucket).plan["partitions"]
    assert partition == {
        "shard": 0,
        "first_stream_id": "a",
        "last_stream_id": "c",
        "after": offset(0),
        "until": flushed,
        "bytes": 15,
        "ranges": 3,
    }
    plan = Scan(client, server, bucket).plan
    del plan["partitions"]
    assert plan == {
        "bucket_id": bucket,
        "prefix": "",
        "after": offset(0),
        "until": end,
        "flushed": flushed,
        "store": (server.data_dir / "objects").absolute().as_uri(),
        "store_id": store_id(server),
        "lost": [],
        "packs": [],
        "parts": [],
        "hot": [
            {
                "shard": 0,
                "first_stream_id": "d",
                "last_stream_id": "d",
                "after": flushed,
                "until": end,
                "bytes": 3,
            }
        ],
        "next_cursor": end,
    }


def test_messages_of_a_json_append(client, server) -> None:
    bucket = new_bucket(client)
    stream = new_stream_in(bucket, client, b"[1,[2],3]", content_type=JSON, stream_id="a")
    expected = [("a", 0, b"1\x1e"), ("a", 2, b"[2]\x1e"), ("a", 6, b"3\x1e")]
    hot = Scan(client, server, bucket).messages()
    assert texts(hot) == expected
    assert len({each.position for each in hot}) == 1
    flush(client)
    assert Scan(client, server, bucket).messages() == hot
    assert {each.stream for each in hot} == {
        int(stream.head().headers["ETag"][1:].split(":")[0], 16)
    }


def test_line_of_a_hot_message(client) -> None:
    stream = bucket_stream(client, b"\x00\xff", content_type="image/png", stream_id="ä/b"[0])
    (line,) = client.get(f"/{stream.bucket}/streams/records").content.splitlines()
    found = json.loads(line)
    (entry,) = client.get(f"/{stream.bucket}/streams").json()["streams"]
    assert found.pop("timestamp_ms") == entry["last_write_at_ms"]
    assert found.pop("position") == int(cursor(client, stream.bucket))
    assert found == {
        "stream_id": "ä",
        "stream": int(stream.head().headers["ETag"][1:].split(":")[0], 16),
        "offset": 0,
        "next_offset": 2,
        "content_type": "image/png",
        "payload": "AP8=",
    }


@pytest.mark.parametrize("prefix", ["", "a", "a/", "b", "zz", "ä"])
def test_prefix(client, server, prefix) -> None:
    bucket = unused_bucket()
    names = ["a", "a/b", "ab", "b", "ä"]
    for number, name in enumerate(names):
        Stream(client, f"{bucket}/{name}").create(b"x")
        if number == 2:
            flush(client)
    expected = [(name, 0, b"x") for name in names if name.startswith(prefix)]
    scan = Scan(client, server, bucket, prefix=prefix)
    assert scan.plan["prefix"] == prefix
    assert texts(scan.messages()) == expected


def test_other_buckets_are_not_scanned(client, server) -> None:
    bucket = new_bucket(client)
    for other in (f"{bucket}x", bucket[:-1]):
        Stream(client, f"{other}/a").create(b"not this")
    new_stream_in(bucket, client, b"this", stream_id="a")
    assert texts(Scan(client, server, bucket).messages()) == [("a", 0, b"this")]
    flush(client)
    assert texts(Scan(client, server, bucket).messages()) == [("a", 0, b"this")]


@pytest.mark.parametrize("flushes", [(), (0,), (2,), (0, 2), (1, 3), (0, 1, 2, 3)])
def test_any_stretch_of_the_log(client, server, flushes) -> None:
    """`until` in the past, and `after` in the middle, wherever the flushes were."""
    bucket = new_bucket(client)
    stream = new_stream_in(bucket, client, stream_id="a")
    cursors = [cursor(client, bucket)]
    for number in range(5):
        stream.append(b"%d" % number)
        cursors.append(cursor(client, bucket))
        if number in flushes:
            flush(client)
    for first, after in enumerate(cursors):
        for last, end in enumerate(cursors[first:], first):
            expected = [("a", at, b"%d" % at) for at in range(first, last)]
            for by in ("names", "packs"):
                scan = Scan(client, server, bucket, after=after, until=end, by=by)
                assert scan.next_cursor == end
                assert texts(scan.messages()) == expected


@for_each(
    "query",
    [
        "after=+5",
        "until=-5",
        "after=x",
        "until=",
        f"until={'9' * 20}",
        f"after={'9' * 20}",
        f"after={offset(3)}&until={offset(2)}",
        "after=now&until=-1",
        "prefix=%FF",
        "after=-1&after=-1",
    ],
)
@for_each("below", ["scan", "scan/ranges", "records"])
def test_malformed_request_is_400(client, query, below) -> None:
    stream = bucket_stream(client, b"x")
    answer = client.get(f"/{stream.bucket}/streams/{below}?{query}")
    check_error(answer, 400, "invalid_request")


@pytest.mark.parametrize("below", ["scan", "scan/ranges", "scan/until", "records"])
def test_methods(client, below) -> None:
    stream = bucket_stream(client, b"x")
    flush(client)
    url = f"/{stream.bucket}/streams/{below}"
    head = client.head(url)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["Content-Type"] == client.get(url).headers["Content-Type"]
    refused = client.post(url)
    check_error(refused, 405, "method_not_allowed")
    assert refused.headers["Allow"] == "GET, HEAD, OPTIONS"


def test_deleted_stream_is_not_scanned(client, server) -> None:
    bucket = new_bucket(client)
    cold = new_stream_in(bucket, client, b"1", stream_id="cold")
    new_stream_in(bucket, client, b"kept", stream_id="kept")
    flush(client)
    hot = new_stream_in(bucket, client, b"2", stream_id="hot")
    cold.append(b"3")
    for stream in (cold, hot):
        stream.delete()
    for _ in range(2):
        # The packs hold it until they are merged, but nobody is given it.
        for by in ("names", "packs"):
            assert texts(Scan(client, server, bucket, by=by).messages()) == [("kept", 0, b"kept")]
        flush(client)
    new_stream_in(bucket, client, b"again", stream_id="cold")
    expected = [("cold", 0, b"again"), ("kept", 0, b"kept")]
    assert texts(Scan(client, server, bucket).messages()) == expected
    flush(client)
    assert texts(Scan(client, server, bucket).messages()) == expected


def test_times_limit_a_scan_to_parts_of_the_log(client, server) -> None:
    """Whole flushes are left out, and messages that are not in packs one by one."""
    bucket = new_bucket(client)
    times = []
    for name in ("a", "b", "c"):
        new_stream_in(bucket, client, name.encode(), stream_id=name)
        times.append(
            json.loads(client.get(f"/{bucket}/streams/records?first={name}").content)[
                "timestamp_ms"
            ]
        )
        time.sleep(0.005)
        if name != "c":
            flush(client)

    def found(by: str, **limits: int) -> list[str]:
        query = {name: str(at) for name, at in limits.items()}
        scan = Scan(client, server, bucket, by=by, **query)
        return [each.stream_id for each in scan.messages()]

    for by in ("names", "packs"):
        assert found(by) == ["a", "b", "c"]
        assert found(by, from_ms=times[1]) == ["b", "c"]
        assert found(by, to_ms=times[1]) == ["a", "b"]
        assert found(by, from_ms=times[1], to_ms=times[1]) == ["b"]
        assert found(by, from_ms=times[2] + 1) == []


def test_line_of_a_range(client, server) -> None:
    stream = bucket_stream(client, b"12345", b"678", content_type="image/png", stream_id="a")
    stream.publish(offset(5))
    flush(client)
    scan = Scan(client, server, stream.bucket)
    (partition,) = scan.plan["partitions"]
    (line,) = scan.ranges(partition)
    pack = Pack(DirectoryObjects(server.data_dir / "objects"), line.pop("pack"))
    (extent,) = (each for each in pack.directory() if each.stream == line["stream"])
    assert line.pop("index_sum") == extent.index_sum.to_bytes(8, "little").hex()
    assert line.pop("sums") == extent.sums.hex()
    assert line.pop("salt") == f"{pack.footer.salt:016x}"
    footer = pack.footer
    assert padded(HEADER_BYTES + line.pop("pack_data_bytes")) == footer.lengths_at
    assert line.pop("pack_messages") == footer.messages
    assert 0 < line.pop("first_position") < line.pop("last_position") <= int(scan.next_cursor)
    assert line.pop("hidden_at") == int(scan.next_cursor)
    assert line == {
        "stream_id": "a",
        "stream": int(stream.head().headers["ETag"][1:].split(":")[0], 16),
        "offset": 0,
        "length": 8,
        "earliest": 5,
        "content_type": "image/png",
        "data_at": extent.data_at,
        "message_at": extent.message_at,
        "messages": 2,
    }


def test_trimmed_stream(client, server) -> None:
    """What a snapshot has taken the place of is not given."""
    bucket = new_bucket(client)
    stream = new_stream_in(bucket, client, b"12345", b"678", stream_id="a")
    stream.publish(offset(5))
    stream.append(b"9")
    kept = [("a", 5, b"678"), ("a", 8, b"9")]
    assert texts(Scan(client, server, bucket).messages()) == kept
    flush(client)
    for by in ("names", "packs"):
        assert texts(Scan(client, server, bucket, by=by).messages()) == kept
    stream.publish(offset(9))
    for _ in range(2):
        for by in ("names", "packs"):
            assert Scan(client, server, bucket, by=by).messages() == []
        flush(client)


def test_forks_have_what_was_appended_to_them(client, server) -> None:
    bucket = new_bucket(client)
    source = new_stream_in(bucket, client, b"12345", stream_id="source")
    fork = BucketStream(client, bucket, "fork")
    fork.fork(source)
    fork.append(b"678")
    expected = [("fork", 5, b"678"), ("source", 0, b"12345")]
    assert texts(Scan(client, server, bucket).messages()) == expected
    flush(client)
    assert texts(Scan(client, server, bucket).messages()) == expected


def test_flush_between_plan_and_reading(client, server) -> None:
    bucket = new_bucket(client)
    stream = new_stream_in(bucket, client, b"1", stream_id="a")
    flush(client)
    stream.append(b"2")
    scan = Scan(client, server, bucket)

    def meanwhile() -> None:
        flush(client)
        stream.append(b"3")
        flush(client)

    expected = [("a", 0, b"1"), ("a", 1, b"2")]
    assert texts(scan.messages(meanwhile)) == expected
    # Again, with all ranges as they are now.
    assert texts(scan.messages()) == expected
    following = Scan(client, server, bucket, after=scan.next_cursor)
    assert texts(following.messages()) == [("a", 2, b"3")]


def test_merge_between_plan_and_reading(start_server, client_of) -> None:
    """The packs of the plan are gone; the ranges are asked for again."""
    server = start_server(**IDLE | {"merge_packs": 2, "garbage_grace": 0})
    client = client_of(server)
    bucket = new_bucket(client)
    one = new_stream_in(bucket, client, b"1", stream_id="one")
    other = new_stream_in(bucket, client, b"1", stream_id="other", content_type=JSON)
    flush(client)
    scans = [Scan(client, server, bucket, by=by) for by in ("names", "packs")]
    pack = scans[1].plan["packs"][0]["name"]
    early = scans[0].next_cursor

    def merge() -> None:
        for stream in (one, other):
            stream.append(b"2")
        flush(client)
        until(lambda: metrics(client)["holdfast_merges_total"] >= 1)
        client.post("/cluster/collect-garbage")
        until(lambda: not (server.data_dir / "objects" / pack).exists())

    expected = [("one", 0, b"1"), ("other", 0, b"1\x1e")]
    assert texts(scans[0].messages(merge)) == expected
    assert texts(scans[1].messages()) == expected
    # In the merged pack a range holds more than the plan asks for.
    assert texts(Scan(client, server, bucket, until=early).messages()) == expected
    later = Scan(client, server, bucket, after=early).messages()
    assert texts(later) == [("one", 1, b"2"), ("other", 2, b"2\x1e")]


def test_cursor_of_hot_messages_that_are_gone_is_410(start_server, client_of) -> None:
    server = start_server()
    client = client_of(server)
    stream = bucket_stream(client, b"1", stream_id="a")
    scan = Scan(client, server, stream.bucket)
    flush(client)
    flushed = cursor(client, stream.bucket)
    server.stop()
    server = start_server()
    client = client_of(server)
    hot = {name: scan.plan["hot"][0][name] for name in ("after", "until")}
    gone = client.get(f"/{stream.bucket}/streams/records", params=hot)
    check_error(gone, 410, "cursor_gone")
    assert gone.headers["Changes-Earliest-Cursor"] == flushed
    # The same stretch of the log, by another plan.
    again = Scan(client, server, stream.bucket, until=scan.next_cursor)
    assert texts(again.messages()) == [("a", 0, b"1")]


@pytest.mark.slow
def test_many_ranges(client, server) -> None:
    bucket = unused_bucket()
    names = [f"{number:04d}" for number in range(2500)]
    for name in names:
        assert Stream(client, f"{bucket}/{name}").create(b"x").status_code == 201
    flush(client)
    scan = Scan(client, server, bucket)
    (partition,) = scan.plan["partitions"]
    assert partition["ranges"] == 2500
    lines = scan.ranges(partition)
    assert [line["stream_id"] for line in lines] == names
    few = scan.ranges({**partition, "first_stream_id": "0100", "last_stream_id": "0102"})
    assert [line["stream_id"] for line in few] == ["0100", "0101", "0102"]


def test_large_hot_messages(start_server, client_of) -> None:
    server = start_server(read_bytes_max=1000)
    client = client_of(server)
    bodies = [b"x" * 5000, b"y" * 3_000_000, b"z"]
    stream = bucket_stream(client, *bodies, content_type=BINARY, stream_id="a")
    expected = [("a", 0, bodies[0]), ("a", 5000, bodies[1]), ("a", 3_005_000, bodies[2])]
    scan = Scan(client, server, stream.bucket)
    assert texts(scan.messages()) == expected
    flush(client)
    assert texts(scan.messages()) == expected


def test_server_in_memory_has_hot_messages_only(start_server, client_of) -> None:
    server = start_server(durability="memory")
    client = client_of(server)
    stream = bucket_stream(client, b"1", b"2", stream_id="a")
    scan = Scan(client, server, stream.bucket)
    assert scan.plan["partitions"] == []
    assert (scan.plan["store"], scan.plan["store_id"]) == ("", "")
    assert texts(scan.messages()) == [("a", 0, b"1"), ("a", 1, b"2")]
    check_error(client.get(f"/{stream.bucket}/streams/scan/ranges"), 404, "not_found")


@pytest.mark.parametrize("flushes", [(), (0,), (1,), (0, 1)])
def test_source_that_is_there_for_its_fork_only(client, server, flushes) -> None:
    """Nobody can read it, so it is not given: neither by records nor from packs."""
    bucket = new_bucket(client)
    source = new_stream_in(bucket, client, b"12345", stream_id="source")
    fork = BucketStream(client, bucket, "fork")
    fork.fork(source)
    fork.append(b"678")
    if 0 in flushes:
        flush(client)
    source.delete()
    if 1 in flushes:
        flush(client)
    for by in ("names", "packs"):
        found = texts(Scan(client, server, bucket, by=by).messages())
        assert found == [("fork", 5, b"678")]


def test_what_a_trimmed_source_keeps_for_its_fork(client, server) -> None:
    bucket = new_bucket(client)
    source = new_stream_in(bucket, client, b"12345", stream_id="source")
    flush(client)
    source.append(b"678")
    BucketStream(client, bucket, "fork").fork(source)
    source.publish(offset(5))
    expected = [("source", 5, b"678")]
    flush(client)
    assert texts(Scan(client, server, bucket).messages()) == expected
