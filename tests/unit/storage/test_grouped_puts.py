"""Objects that arrive together are stored together, each as if it were alone."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from holdfast.errors import StoreError
from holdfast.objects.directory_objects import UNFINISHED, DirectoryObjects
from holdfast.storage.snapshot_store import GroupedPuts

pytestmark = pytest.mark.anyio
COUNT = 200


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield pool


class Watched(DirectoryObjects):
    """A directory that tells how objects came, and waits with storing them."""

    def __init__(self, root):
        super().__init__(root)
        self.groups = []
        self.may_go_on = Event()

    def put_many(self, objects):
        self.groups.append(len(objects))
        assert self.may_go_on.wait(10)
        super().put_many(objects)


def name(number):
    return f"snapshots/{number % 7:02x}/{number}"


async def test_those_that_come_meanwhile_go_together(tmp_path, threads):
    store = Watched(tmp_path)
    puts = GroupedPuts(store, threads)
    under_way = [asyncio.ensure_future(puts.put(name(n), b"%d" % n)) for n in range(COUNT)]
    while len(store.groups) < 2:
        await asyncio.sleep(0)
    store.may_go_on.set()
    await asyncio.gather(*under_way)
    assert sum(store.groups) == COUNT
    assert store.groups[:2] == [1, 1]
    assert len(store.groups) == 2 + -(-(COUNT - 2) // 64)
    assert [store.read(name(n)) for n in range(COUNT)] == [b"%d" % n for n in range(COUNT)]
    assert list((tmp_path / UNFINISHED).iterdir()) == []


async def test_what_fails_fails_for_those_of_its_group_alone(tmp_path, threads):
    store = Watched(tmp_path)
    store.may_go_on.set()
    puts = GroupedPuts(store, threads)
    (tmp_path / "snapshots").write_text("in the way")
    found = await asyncio.gather(
        *(puts.put(name(n), b"x") for n in range(9)), return_exceptions=True
    )
    assert all(isinstance(each, StoreError) for each in found)
    (tmp_path / "snapshots").unlink()
    await puts.put(name(1), b"x")
    assert store.read(name(1)) == b"x"


async def test_who_gives_up_before_its_turn_has_nothing_stored(tmp_path, threads):
    store = Watched(tmp_path)
    puts = GroupedPuts(store, threads)
    under_way = [asyncio.ensure_future(puts.put(name(n), b"x")) for n in range(5)]
    while len(store.groups) < 2:
        await asyncio.sleep(0)
    under_way[4].cancel()
    store.may_go_on.set()
    await asyncio.gather(*under_way[:4])
    assert sum(store.groups) == 4
    assert sorted(info.name for info in store.list("snapshots/")) == sorted(map(name, range(4)))
