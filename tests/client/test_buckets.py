"""Buckets as a whole: listings, changes and scans."""

import asyncio
from contextlib import aclosing
from uuid import uuid4

import pytest

from holdfast.client import NOW, Bucket, Change, Client
from holdfast.errors import (
    BucketExistsError,
    BucketNotEmptyError,
    BucketNotFoundError,
    CursorGoneError,
    InvalidBucketError,
)
from tests.client.conftest import OpenClient
from tests.client.targets import JSON, TEXT, Target
from tests.http.loopback import answer, serving
from tests.server_process import ServerProcess

pytestmark = pytest.mark.anyio


@pytest.fixture
def target(ours: Target) -> Target:
    return ours


@pytest.fixture
async def bucket(client: Client) -> Bucket:
    bucket = client.bucket(f"bucket-{uuid4().hex[:12]}")
    assert await bucket.create()
    return bucket


async def test_a_bucket_from_its_creation_to_its_deletion(client: Client, bucket: Bucket) -> None:
    with pytest.raises(BucketExistsError):
        await bucket.create()
    assert not await bucket.create(exist_ok=True)
    stream = client.stream(f"{bucket.bucket_id}/a")
    await stream.create(TEXT, messages=["hello"])
    info = await bucket.info()
    assert (info.bucket_id, info.streams, info.bytes) == (bucket.bucket_id, 1, 5)
    with pytest.raises(BucketNotEmptyError):
        await bucket.delete()
    await stream.delete()
    await bucket.delete()
    with pytest.raises(BucketNotFoundError):
        await bucket.info()
    with pytest.raises(InvalidBucketError):
        await client.bucket("No Bucket!").create()


async def test_listings_over_pages(client: Client, bucket: Bucket) -> None:
    assert [stream async for stream in bucket.streams()] == []
    names = [f"{kind}-{number:02d}" for kind in ("ä", "a", "b") for number in range(8)]
    for name in names:
        await client.stream(f"{bucket.bucket_id}/{name}").create(JSON, messages=[1], closed=True)
    for page_size in (1, 5, 24, 1000):
        found = [stream async for stream in bucket.streams(page_size=page_size)]
        assert [stream.stream_id for stream in found] == sorted(names)
    assert {(stream.status, stream.content_type, stream.tail_offset) for stream in found} == {
        ("closed", JSON, 2)
    }
    some = bucket.streams(prefix="a-", after="a-03", page_size=3)
    assert [stream.stream_id async for stream in some] == ["a-04", "a-05", "a-06", "a-07"]
    async for stream in bucket.streams(page_size=2):
        assert stream.stream_id == "a-00"
        break


async def test_changes_up_to_now(client: Client, bucket: Bucket) -> None:
    stream = client.stream(f"{bucket.bucket_id}/a")
    await stream.create(TEXT, messages=["123"])
    await stream.append("45")
    pages = [page async for page in bucket.changes()]
    assert [change for page in pages for change in page.changes] == [
        Change("a", 0, 3, created=True),
        Change("a", 3, 2),
    ]
    assert pages[-1].up_to_date
    await stream.delete()
    later = [page async for page in bucket.changes(pages[-1].next_cursor)]
    assert [change for page in later for change in page.changes] == [
        Change("a", 5, 0, deleted=True)
    ]
    nothing = [page async for page in bucket.changes(NOW)]
    assert [change for page in nothing for change in page.changes] == []


@pytest.mark.parametrize("live", [True, "sse", "long-poll"])
async def test_changes_as_they_happen(client: Client, bucket: Bucket, live) -> None:
    seen: list[Change] = []
    watching = asyncio.Event()

    async def watch() -> None:
        async with aclosing(bucket.changes(prefix="a", live=live)) as pages:
            async for page in pages:
                watching.set()
                seen.extend(page.changes)
                if len(seen) >= 11:
                    return

    task = asyncio.create_task(watch())
    await watching.wait()
    for name in ("a", "b"):
        stream = client.stream(f"{bucket.bucket_id}/{name}")
        await stream.create(TEXT)
        for number in range(10):
            await stream.append(f"{number}")
    await task
    assert seen[0] == Change("a", 0, 0, created=True)
    assert seen[1:] == [Change("a", number, 1) for number in range(10)]


async def test_connections_without_events_are_not_opened_in_a_hurry(
    open_client: OpenClient,
) -> None:
    async def end_at_once(_head, _body, writer) -> None:
        writer.write(answer("200 OK", b"", "Content-Type: text/event-stream"))

    waits: list[float] = []
    async with serving(end_at_once) as loopback:
        client = open_client(
            f"http://127.0.0.1:{loopback.port}",
            on_retry=lambda _error, wait_s: waits.append(wait_s),
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(client.bucket("bucket").changes(live=True))
        assert 1 <= len(loopback.heads) <= 5
        assert waits


async def test_a_cursor_that_is_gone(tmp_path, open_client: OpenClient) -> None:
    with ServerProcess(tmp_path / "data") as server:
        client = open_client(server.url)
        await client.stream("bucket/a").create(TEXT, messages=["x"])
        await client.request("POST", "/cluster/flush")
    with ServerProcess(tmp_path / "data") as server:
        bucket = open_client(server.url).bucket("bucket")
        for live in (False, True, "long-poll"):
            with pytest.raises(CursorGoneError) as raised:
                await anext(bucket.changes(f"{0:020d}", live=live))
            assert raised.value.earliest_cursor.isdigit()
        plan = await bucket.scan()
        pages = [page async for page in bucket.changes(plan.next_cursor)]
        assert pages[-1].up_to_date


async def test_a_scan_finds_everything_once(client: Client, bucket: Bucket) -> None:
    names = ["a", "b", "c"]
    for name in names:
        await client.stream(f"{bucket.bucket_id}/{name}").create(TEXT, messages=[f"cold {name}"])
    await client.request("POST", "/cluster/flush")
    for name in names:
        await client.stream(f"{bucket.bucket_id}/{name}").append(f"hot {name} \x00ü")
    plan = await bucket.scan()
    assert plan.bucket_id == bucket.bucket_id
    ranges = [found for partition in plan.partitions async for found in bucket.ranges(partition)]
    assert [(found.stream_id, found.offset, found.length) for found in ranges] == [
        (name, 0, 6) for name in names
    ]
    [hot] = plan.hot
    records = [each async for each in bucket.records(after=hot.after, until=hot.until)]
    assert [(each.stream_id, each.offset, each.payload.decode()) for each in records] == [
        (name, 6, f"hot {name} \x00ü") for name in names
    ]
    only_b = [each async for each in bucket.records(after=hot.after, prefix="b")]
    assert [each.stream_id for each in only_b] == ["b"]
    await client.stream(f"{bucket.bucket_id}/d").create(TEXT, messages=["later"])
    after = await bucket.scan(after=plan.next_cursor)
    [hot] = after.hot
    later = [each async for each in bucket.records(after=hot.after, until=hot.until)]
    assert [each.payload for each in later] == [b"later"]


async def test_many_records(client: Client, bucket: Bucket) -> None:
    stream = client.stream(f"{bucket.bucket_id}/a")
    await stream.create(JSON, messages=["é" * 50 + str(number) for number in range(5_000)])
    plan = await bucket.scan()
    [hot] = plan.hot
    records = [each async for each in bucket.records(after=hot.after)]
    assert len(records) == 5_000
    assert len({each.offset for each in records}) == 5_000
    async with aclosing(bucket.records(after=hot.after)) as some:
        async for _ in some:
            break
