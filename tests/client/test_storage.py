"""The storage of a server: its packs, and orders."""

from uuid import uuid4

import pytest

from holdfast.client import Bucket, Client, ScanEnd, SyncClient
from holdfast.errors import NotFoundError, SwapRefusedError
from holdfast.format.packs import block_sums
from tests.client.targets import Target
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


async def test_packs_and_what_is_in_them(client: Client, bucket: Bucket) -> None:
    stream = client.stream(f"{bucket.bucket_id}/a")
    await stream.create("text/plain")
    await stream.append("hello")
    await client.storage.flush()
    plan = await bucket.scan()
    store = await client.storage.store()
    assert (store.store, store.store_id) == (plan.store, plan.store_id)
    assert store.flushed == plan.flushed
    (line,) = [each async for each in bucket.ranges(plan.partitions[0])]
    pack_name = line.pack
    packs = {each.name: each async for each in client.storage.packs()}
    salt = int(packs[pack_name].salt, 16)
    extents = [each async for each in client.storage.extents(pack_name)]
    (extent,) = (each for each in extents if each.name == stream.name)
    data = await client.storage.pack_data(pack_name, extent.data_at, extent.length)
    assert data == b"hello"
    assert block_sums(data, salt).tobytes().hex() == extent.sums
    (found,) = [each async for each in bucket.ranges(plan.partitions[0])]
    assert (found.data_at, found.message_at, found.sums) == (
        extent.data_at,
        extent.message_at,
        extent.sums,
    )
    assert [each async for each in bucket.ranges(first="a", last="a")] == [found]
    assert [each async for each in bucket.ranges(first="b")] == []
    assert plan.lost == []


async def test_orders(client: Client) -> None:
    storage = client.storage
    await storage.flush()
    await storage.pin_packs("a test", 1)
    await storage.pin_packs("a test", 0)
    await storage.collect_garbage()
    assert (await storage.stats())["flush"]["in_progress"] in {True, False}
    with pytest.raises(SwapRefusedError):
        await storage.swap_packs([], ["packs/none.pack"])
    with pytest.raises(NotFoundError):
        await storage.pack_data("packs/none.pack", 0, 1)
    with pytest.raises(NotFoundError):
        [each async for each in storage.extents("packs/none.pack")]


async def test_end_of_a_batch(client: Client, bucket: Bucket) -> None:
    stream = client.stream(f"{bucket.bucket_id}/a")
    await stream.create("text/plain")
    for text in ("1", "22", "333"):
        await stream.append(text)
    everything = await bucket.until()
    assert isinstance(everything, ScanEnd)
    assert (everything.until, everything.bytes) == (everything.latest, 6)
    some = await bucket.until(bytes=3)
    assert (some.bytes, some.messages) == (3, 2)
    rest = await bucket.until(some.until, messages=5)
    assert (rest.after, rest.until, rest.bytes) == (some.until, everything.latest, 3)
    assert (await bucket.until(prefix="b")).messages == 0
    found = [each async for each in bucket.records(after=some.until, first="a", last="a")]
    assert [each.payload for each in found] == [b"333"]
    assert [each async for each in bucket.records(after=some.until, first="b")] == []


async def test_partition_bytes(client: Client, bucket: Bucket) -> None:
    assert (await bucket.scan(partition_bytes=1 << 20)).partitions == []


def test_without_async(server: ServerProcess) -> None:
    with SyncClient(server.url) as client:
        client.storage.flush()
        assert client.storage.store().store.startswith("file:///")
        for pack in client.storage.packs():
            assert client.storage.pack_data(pack.name, 0, 6) == b"HFPACK"
            assert all(each.length for each in client.storage.extents(pack.name))
