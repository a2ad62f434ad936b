"""How far a batch of limited size goes."""

from random import Random
from time import sleep, time

import pytest

from tests.http.bucketed import (
    BucketStream,
    bucket_stream,
    new_bucket,
    new_stream_in,
    offset,
    unused_bucket,
)
from tests.http.scanning import Scan
from tests.http.streams import BINARY, JSON, TEXT, Stream, check_error
from tests.storage_stats import flush
from tests.thorough import some_of


def end(client, bucket: str, **query: object) -> dict[str, object]:
    answer = client.get(f"/{bucket}/streams/scan/until", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def now_ms() -> int:
    return int(time() * 1000)


def cursor(client, bucket: str) -> str:
    return client.get(f"/{bucket}/streams/changes?after=now").json()["next_cursor"]


def test_whole_answer(client) -> None:
    stream = bucket_stream(client, b"12345", b"678", stream_id="a")
    latest = cursor(client, stream.bucket)
    found = end(client, stream.bucket)
    assert 0 <= now_ms() - found.pop("first_ms") < 60_000
    assert found == {
        "bucket_id": stream.bucket,
        "after": offset(0),
        "until": latest,
        "latest": latest,
        "bytes": 8,
        "messages": 2,
        "store_id": client.get(f"/{stream.bucket}/streams/scan").json()["store_id"],
    }
    flush(client)
    assert end(client, stream.bucket, bytes=8, messages=2)["until"] == latest


@pytest.mark.parametrize("flushed", [True, False])
def test_a_limit_by_time(client, flushed: bool) -> None:
    bucket = new_bucket(client)
    stream = new_stream_in(bucket, client, stream_id="a")
    # Times in packs are those of parts of a flush: what came before is in another.
    flush(client)
    times, cursors = [], []
    for _ in range(3):
        times.append(now_ms())
        stream.append(b"1")
        stream.append(b"2")
        cursors.append(cursor(client, bucket))
        if flushed:
            flush(client)
        sleep(0.05)
    found = end(client, bucket, ms=40)
    assert (found["messages"], found["bytes"]) == (2, 2)
    assert cursors[0] <= found["until"] < cursors[1]
    assert times[0] <= found["first_ms"] < times[1]
    rest = end(client, bucket, ms=40, after=found["until"])
    assert (rest["messages"], rest["first_ms"] >= times[1]) == (2, True)
    # The smaller limit counts, and without one everything does.
    assert end(client, bucket, ms=40, messages=1)["messages"] == 1
    assert end(client, bucket, ms=60_000)["messages"] == 6
    # What came before a time is skipped, and not counted.
    late = end(client, bucket, from_ms=times[1], messages=2)
    assert late["messages"] == 2
    assert late["until"] >= cursors[1]
    assert end(client, bucket, from_ms=now_ms() + 60_000)["first_ms"] is None


def test_nothing_left(client) -> None:
    bucket = new_bucket(client)
    latest = cursor(client, bucket)
    Stream(client, f"{unused_bucket()}/elsewhere").create(b"1")
    found = end(client, bucket, bytes=1)
    assert found["until"] == found["latest"] > latest
    assert (found["bytes"], found["messages"]) == (0, 0)
    assert end(client, bucket, bytes=1, after="now")["until"] == found["latest"]


def random_history(client, random: Random) -> str:
    """Streams of all kinds; some are deleted and some trimmed."""
    bucket = new_bucket(client)
    names = [f"{kind}-{number}" for kind in ("a", "b") for number in range(3)]
    kinds = dict(zip(names, 2 * [TEXT, BINARY, JSON], strict=True))
    streams = {
        name: BucketStream(client, bucket, name, content_type=kind) for name, kind in kinds.items()
    }
    for stream in streams.values():
        stream.create()
    for _ in range(40):
        name = random.choice(names)
        messages = [b"%d" % random.randrange(10**6) for _ in range(random.randint(1, 4))]
        body = b"[%b]" % b",".join(messages) if kinds[name] == JSON else b"".join(messages)
        assert streams[name].append(body).status_code == 204
    tail = int(streams["a-2"].head().headers["Stream-Next-Offset"])
    if tail:
        assert streams["a-2"].publish(offset(tail)).status_code == 204
    streams["b-1"].delete()
    return bucket


@pytest.mark.parametrize("seed", some_of([1, 2, 3], 1))
@pytest.mark.parametrize(
    "limits",
    [{"bytes": 1}, {"bytes": 60}, {"messages": 1}, {"messages": 5}, {"bytes": 40, "messages": 7}],
)
@pytest.mark.parametrize("prefix", ["", "a"])
def test_batches_keep_within_the_limits_and_have_everything(
    client, server, seed, limits, prefix
) -> None:
    bucket = random_history(client, Random(seed))
    latest = cursor(client, bucket)
    query = {"prefix": prefix} if prefix else {}
    expected = sorted(Scan(client, server, bucket, until=latest, **query).messages())
    after, found = offset(0), []
    while after < latest:
        told = end(client, bucket, after=after, **limits, **query)
        assert told["until"] > after
        batch = Scan(client, server, bucket, after=after, until=told["until"], **query).messages()
        size = sum(len(each.data) for each in batch)
        assert (told["bytes"], told["messages"]) == (size, len(batch))
        is_over = size > limits.get("bytes", size) or len(batch) > limits.get("messages", 10**9)
        # More than the limit only if one position alone is more.
        assert not is_over or len({each.position for each in batch}) == 1
        if told["until"] < latest and not is_over:
            further = offset(int(told["until"]) + 1)
            more = Scan(client, server, bucket, after=after, until=further, **query).messages()
            assert sum(len(each.data) for each in more) > limits.get("bytes", 10**9) or len(
                more
            ) > limits.get("messages", 10**9)
        found += batch
        after = told["until"]
    assert sorted(found) == expected


@pytest.mark.parametrize("flushes", [{9}, {4, 9}, {4}, {0, 3, 6}])
def test_in_packs_it_is_about_right(client, flushes) -> None:
    bucket = new_bucket(client)
    stream = new_stream_in(bucket, client, stream_id="a")
    start = cursor(client, bucket)
    for number in range(10):
        stream.append(b"x" * 100)
        if number in flushes:
            flush(client)
    after, sizes = start, []
    latest = cursor(client, bucket)
    while after < latest:
        told = end(client, bucket, after=after, bytes=250)
        assert told["until"] > after
        sizes.append(told["bytes"])
        after = told["until"]
    # Evenly appended, so the estimate is exact.
    assert sizes == [200] * 5
    assert end(client, bucket, after=start, messages=3)["messages"] == 3
    assert end(client, bucket, after=start, bytes=1)["bytes"] == 100


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("bytes=0", "The parameter 'bytes' takes a whole number from 1 to 999999999999999999."),
        ("bytes=x", "The parameter 'bytes' takes a whole number from 1 to 999999999999999999."),
        ("messages=-1", "The parameter 'messages' takes a whole number"),
        ("messages=1.5", "The parameter 'messages' takes a whole number"),
        ("after=-5", "Malformed cursor '-5'"),
        (f"after={'9' * 20}", "The cursor in 'after' is past the end of the log."),
    ],
)
def test_malformed_request_is_400(client, query, words) -> None:
    stream = bucket_stream(client, b"x")
    answer = client.get(f"/{stream.bucket}/streams/scan/until?{query}")
    check_error(answer, 400, "invalid_request")
    assert words in answer.json()["error"]["message"]


def test_unknown_bucket_is_404(client) -> None:
    answer = client.get(f"/{unused_bucket()}/streams/scan/until")
    check_error(answer, 404, "bucket_not_found")


def test_in_memory(start_server, client_of) -> None:
    client = client_of(start_server(durability="memory"))
    stream = bucket_stream(client, b"1", b"22", b"333", stream_id="a")
    assert end(client, stream.bucket, bytes=3)["bytes"] == 3
    assert end(client, stream.bucket, bytes=4)["messages"] == 2


def test_partition_bytes(client, server) -> None:
    bucket = new_bucket(client)
    for name in "abcd":
        new_stream_in(bucket, client, b"x" * 600_000, stream_id=name, content_type=BINARY)
    flush(client)
    (_,) = Scan(client, server, bucket).plan["partitions"]
    plan = Scan(client, server, bucket, partition_bytes=str(1024 * 1024)).plan
    assert [each["first_stream_id"] for each in plan["partitions"]] == ["a", "b", "c", "d"]
    for wrong in ("0", "1048575", "1073741825", "x", ""):
        answer = client.get(f"/{bucket}/streams/scan?partition_bytes={wrong}")
        check_error(answer, 400, "invalid_request")
        assert "whole number from 1048576 to 1073741824" in answer.text


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"first": "b"}, "bcd"),
        ({"last": "b"}, "ab"),
        ({"first": "b", "last": "c"}, "bc"),
        ({"first": "bb", "last": "bc"}, ""),
        ({"first": "b", "prefix": "c"}, "c"),
    ],
)
def test_records_from_one_stream_to_another(client, query, expected) -> None:
    bucket = new_bucket(client)
    for name in "dacb":
        new_stream_in(bucket, client, b"1", stream_id=name)
    lines = client.get(f"/{bucket}/streams/records", params=query)
    assert lines.status_code == 200
    found = [line.partition(b'"stream_id":"')[2][:1] for line in lines.content.splitlines()]
    assert b"".join(sorted(found)).decode() == expected
