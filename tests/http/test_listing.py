"""Listing a bucket: pages in order, by prefix, whatever comes and goes between them."""

import time
from datetime import UTC, datetime, timedelta
from itertools import chain
from random import Random

import httpx
import pytest

from tests.http.bucketed import BucketStream, ids, listing, new_bucket, new_stream_in, unused_bucket
from tests.http.cold import IDLE
from tests.http.streams import BINARY, JSON, Stream, check_error
from tests.storage_stats import flush, stats, until
from tests.thorough import for_each

# In the order of their UTF-8, which is that of code points.
SORTED = [
    "!",
    "10",
    "9",
    "A",
    "Z",
    "a",
    "a b",
    "a-",
    "a/",
    "a/b",
    "aa",
    "b",
    "ä",
    "€",
    "\uffee",
    "😀",
]


def pages(client: httpx.Client, bucket: str, limit: int, **parameters: object) -> list[list[str]]:
    """All pages, by their cursors."""
    found, after = [], {}
    while True:
        page = listing(client, bucket, limit=limit, **parameters, **after)
        assert page["stream_count"] == len(page["streams"])
        found.append([each["stream_id"] for each in page["streams"]])
        if not page["has_more"]:
            return found
        assert page["next_cursor"] == found[-1][-1]
        after = {"after": page["next_cursor"]}


def make(client: httpx.Client, bucket: str, names: list[str]) -> None:
    """Create streams, also such as only the flat surface can name."""
    for name in names:
        assert Stream(client, f"{bucket}/{name}").create().status_code == 201


@pytest.fixture(scope="module", params=["hot", "cold", "mixed"])
def sorted_bucket(request, client) -> str:
    """A bucket with the streams above, in memory, in packs, or some here and some there."""
    bucket = new_bucket(client)
    shuffled = list(SORTED)
    Random(1).shuffle(shuffled)
    half = len(shuffled) // 2
    make(client, bucket, shuffled[:half])
    if request.param != "hot":
        flush(client)
    make(client, bucket, shuffled[half:])
    if request.param == "cold":
        flush(client)
    return bucket


@pytest.mark.spec("extensions 1.4-4")
def test_entry_says_what_the_stream_is(client) -> None:
    bucket, before_ms = new_bucket(client), time.time_ns() // 1_000_000
    stream = BucketStream(client, bucket, "doc", "Application/JSON; charset=utf-8")
    stream.create()
    stream.append(b"[1,2]")
    new_stream_in(bucket, client, content_type=BINARY, stream_id="empty").close()
    page = listing(client, bucket)
    after_ms = time.time_ns() // 1_000_000
    for entry in page["streams"]:
        written_ms, created_ms = entry.pop("last_write_at_ms"), entry.pop("created_at_ms")
        assert before_ms <= created_ms <= written_ms <= after_ms
    assert page == {
        "bucket_id": bucket,
        "prefix": "",
        "stream_count": 2,
        "streams": [
            {
                "stream_id": "doc",
                "status": "open",
                "content_type": stream.head().headers["Content-Type"],
                "tail_offset": int(stream.tail()),
            },
            {
                "stream_id": "empty",
                "status": "closed",
                "content_type": BINARY,
                "tail_offset": 0,
            },
        ],
        "next_cursor": "empty",
        "has_more": False,
    }


@pytest.mark.spec("extensions 1.4-4")
def test_last_write_moves_with_appends(client) -> None:
    stream = new_stream_in(new_bucket(client), client)
    (before,) = listing(client, stream.bucket)["streams"]
    # So that another millisecond has begun.
    time.sleep(0.002)
    stream.append(b"x")
    (after,) = listing(client, stream.bucket)["streams"]
    assert after["created_at_ms"] == before["created_at_ms"]
    assert after["last_write_at_ms"] > before["last_write_at_ms"]
    assert after["tail_offset"] == 1


@pytest.mark.spec("extensions 1.4-5")
def test_streams_are_sorted(client, sorted_bucket) -> None:
    assert ids(client, sorted_bucket) == SORTED


@pytest.mark.spec("extensions 1.4-2", "extensions 1.4-3")
@pytest.mark.parametrize("limit", [1, 2, 5, len(SORTED) - 1, len(SORTED), 1000])
def test_pages_add_up(client, sorted_bucket, limit) -> None:
    found = pages(client, sorted_bucket, limit)
    assert list(chain.from_iterable(found)) == SORTED
    assert all(len(page) == limit for page in found[:-1])


@pytest.mark.spec("extensions 1.4-1")
@for_each(
    "prefix", ["", "a", "a/", "a ", "A", "ä", "\xc3", "€", "😀", "\uffee", "zzz", "aaa", "1", "/"]
)
@for_each("limit", [1, 2, 1000])
def test_prefix_filters(client, sorted_bucket, prefix, limit) -> None:
    expected = [name for name in SORTED if name.startswith(prefix)]
    found = pages(client, sorted_bucket, limit, prefix=prefix)
    assert list(chain.from_iterable(found)) == expected
    assert listing(client, sorted_bucket, prefix=prefix)["prefix"] == prefix


@pytest.mark.spec("extensions 1.4-2")
@for_each("after", [*SORTED, "", "  ", "a0", "a/z", "zz", "\U0010ffff", "-1"])
@for_each("prefix", ["", "a", "b"])
def test_after_need_not_be_a_stream(client, sorted_bucket, after, prefix) -> None:
    expected = [name for name in SORTED if name > after and name.startswith(prefix)]
    assert ids(client, sorted_bucket, after=after, prefix=prefix) == expected


@pytest.mark.spec("extensions 1.4-6", "extensions 1.4-3")
@for_each(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=",
        "limit=x",
        "limit=1.5",
        "limit=%2B5",
        "limit=%20",
        "limit=%D9%A1",
        "limit=99999999999999999999",
        "limit=1&limit=1",
        "prefix=%FF",
        "after=%FF",
        "prefix=a&prefix=b",
    ],
)
def test_invalid_parameter_is_400(client, sorted_bucket, query) -> None:
    check_error(client.get(f"/{sorted_bucket}/streams?{query}"), 400, "invalid_request")


@pytest.mark.slow
@pytest.mark.spec("extensions 1.4-3")
def test_a_page_is_1000_streams_without_a_limit(client) -> None:
    bucket = unused_bucket()
    names = [f"{number:04d}" for number in range(1001)]
    make(client, bucket, names)
    page = listing(client, bucket)
    assert [each["stream_id"] for each in page["streams"]] == names[:1000]
    assert page["has_more"] is True
    assert page["next_cursor"] == "0999"
    last = listing(client, bucket, after="0999", limit=1000)
    assert [each["stream_id"] for each in last["streams"]] == ["1000"]
    assert last["has_more"] is False


def test_other_buckets_are_not_listed(client) -> None:
    bucket = new_bucket(client)
    for other in (bucket[:-1], f"{bucket}x", f"{bucket}-"):
        make(client, other, ["a"])
    make(client, bucket, ["b"])
    assert ids(client, bucket) == ["b"]
    assert ids(client, bucket, after="") == ["b"]


def test_head_is_get_without_a_body(client, sorted_bucket) -> None:
    head = client.head(f"/{sorted_bucket}/streams")
    assert head.status_code == 200
    assert head.content == b""


@pytest.mark.parametrize("store", ["hot", "cold", "mixed"])
@pytest.mark.parametrize("limit", [1, 3, 10])
def test_paging_while_streams_come_and_go(client, store, limit) -> None:
    """What is there all the time is listed once; nothing is listed twice, or after it is gone."""
    random = Random(limit)
    bucket = new_bucket(client)
    names = [f"{number:03d}" for number in range(0, 60, 2)]
    make(client, bucket, names)
    if store != "hot":
        flush(client)
    gone: set[str] = set()
    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = listing(client, bucket, limit=limit, **after)
        found = [each["stream_id"] for each in page["streams"]]
        assert not gone & set(found)
        seen += found
        if not page["has_more"]:
            break
        after = {"after": page["next_cursor"]}
        # The stream at the cursor, one before it and one behind it.
        for name in {page["next_cursor"], random.choice(names), random.choice(names)} - gone:
            assert Stream(client, f"{bucket}/{name}").delete().status_code == 204
            gone.add(name)
        new = f"{random.randrange(1, 60, 2):03d}-{len(seen)}"
        make(client, bucket, [new])
        if store == "mixed" and random.random() < 0.3:
            flush(client)
    assert seen == sorted(set(seen))
    assert set(names) - gone <= set(seen)


def test_deletions_and_lives_after_them(client) -> None:
    """In packs there is still what was before."""
    bucket = new_bucket(client)
    make(client, bucket, ["a", "b", "c", "d"])
    flush(client)
    for name in ("b", "d"):
        Stream(client, f"{bucket}/{name}").delete()
    assert ids(client, bucket) == ["a", "c"]
    again = Stream(client, f"{bucket}/b", JSON)
    again.create(b"[1]")
    assert ids(client, bucket) == ["a", "b", "c"]
    assert listing(client, bucket)["streams"][1]["content_type"] == JSON
    flush(client)
    assert ids(client, bucket) == ["a", "b", "c"]
    assert pages(client, bucket, 1) == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
def test_expired_streams_are_not_listed(client, cold) -> None:
    """From the moment on, not only once somebody has cleared them away."""
    bucket = new_bucket(client)
    for name in ("a", "c"):
        BucketStream(client, bucket, name).create()
    soon = f"{datetime.now(UTC) + timedelta(seconds=0.3):%Y-%m-%dT%H:%M:%S.%fZ}"
    gone = BucketStream(client, bucket, "b")
    gone.create(stream_expires_at=soon)
    if cold:
        flush(client)
    assert ids(client, bucket) == ["a", "b", "c"] or gone.head().status_code == 404
    until(lambda: gone.head().status_code == 404)
    assert ids(client, bucket) == ["a", "c"]
    assert pages(client, bucket, 1) == [["a"], ["c"]]


def test_listing_does_not_bring_streams_into_memory(start_server, client_of) -> None:
    client = client_of(start_server(**IDLE))
    bucket = new_bucket(client)
    make(client, bucket, [f"{number:03d}" for number in range(50)])
    flush(client)
    in_memory = stats(client)["hot"]["streams_in_memory"]
    assert len(ids(client, bucket)) == 50
    assert stats(client)["hot"]["streams_in_memory"] == in_memory <= 1


@pytest.mark.parametrize("flushed", [False, True], ids=["hot", "cold"])
def test_cursor_outlives_a_restart(start_server, client_of, flushed) -> None:
    server = start_server(**IDLE)
    client = client_of(server)
    bucket = new_bucket(client)
    make(client, bucket, SORTED)
    if flushed:
        flush(client)
        make(client, bucket, ["later"])
    names = sorted([*SORTED, "later"]) if flushed else SORTED
    first = listing(client, bucket, limit=5)
    server.stop()
    client = client_of(start_server(**IDLE))
    assert listing(client, bucket, limit=5) == first
    assert ids(client, bucket, after=first["next_cursor"]) == names[5:]
