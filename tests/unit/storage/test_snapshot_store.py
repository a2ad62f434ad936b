"""Bodies of snapshots on their way to the store: how many at once, and what becomes of the rest."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from xxhash import xxh3_64_intdigest

from holdfast.errors import InvalidRequestError, OverloadedError, StoreError
from holdfast.objects.directory_objects import UNFINISHED, DirectoryObjects
from holdfast.objects.store import MemoryObjects, PostedRanges
from holdfast.storage import snapshot_store
from holdfast.storage.snapshot_store import GroupedPuts, SnapshotStore
from holdfast.testing import FakeClock, FaultyObjects

SMALL_MAX, LARGE_MAX = 3, 2
SMALL = b"small"
# The first piece of it does not fit a small body.
LARGE = bytes(snapshot_store.SMALL_BYTES_MAX + 1)
pytestmark = pytest.mark.anyio
COUNT = 200


class Body:
    """A body whose next piece, or end, comes when the test wants it."""

    def __init__(self, *pieces):
        self._pieces = asyncio.Queue()
        for piece in pieces:
            self.send(piece)

    def send(self, piece):
        self._pieces.put_nowait(piece)

    def end(self):
        self.send(StopAsyncIteration())

    def fail(self):
        self.send(InvalidRequestError("The body ended before its end."))

    def __aiter__(self):
        return self

    async def __anext__(self):
        piece = await self._pieces.get()
        if isinstance(piece, bytes):
            return piece
        # Whoever asks again hears the same again.
        self.send(piece)
        raise piece


class Uploads:
    """A store, and the uploads that a test has begun."""

    def __init__(self):
        clock = FakeClock()
        self.memory = MemoryObjects(clock)
        self.objects = FaultyObjects(self.memory)
        ranges = PostedRanges(self.memory, clock.call_soon)
        self.store = SnapshotStore(self.objects, ranges, clock, 1 << 20)
        self.complaints = []

    def begin(self, *pieces, stream=7):
        """An upload whose body is not complete."""
        body = Body(*pieces)
        return body, asyncio.create_task(self.store.put(stream, 5, body))

    async def put(self, *pieces, stream=7):
        body, upload = self.begin(*pieces, stream=stream)
        body.end()
        return await upload

    async def large(self):
        """One whose thread is at work, and waits for more of the body."""
        calls = self.objects.calls["put_parts"]
        begun = self.begin(LARGE)
        await until(lambda: self.objects.calls["put_parts"] > calls)
        return begun


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


@pytest.fixture
def run(monkeypatch):
    """Run a test's steps on an event loop that must have nothing to complain about."""
    monkeypatch.setattr(snapshot_store, "SMALL_AT_ONCE_MAX", SMALL_MAX)
    monkeypatch.setattr(snapshot_store, "LARGE_AT_ONCE_MAX", LARGE_MAX)
    monkeypatch.setattr(snapshot_store, "PART_BYTES", 10)

    async def steps(test):
        uploads = Uploads()
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: uploads.complaints.append(context)
        )
        await test(uploads)
        uploads.store.close()
        assert uploads.complaints == []

    def run(test):
        asyncio.run(steps(test))

    return run


class TestStored:
    @pytest.mark.parametrize(
        "pieces",
        [[], [SMALL], [b"a", b"b"], [LARGE[:-1]], [LARGE], [LARGE, b"x"], [LARGE, b"y" * 95, b"z"]],
        ids=["empty", "small", "pieces", "just small", "just large", "large", "parts"],
    )
    def test_what_was_sent(self, run, pieces):
        async def test(uploads):
            whole = b"".join(pieces)
            uploaded = await uploads.put(*pieces)
            assert uploads.memory.read(uploaded.name) == whole
            assert uploaded[1:] == (len(whole), xxh3_64_intdigest(whole))
            way = "put" if len(whole) < len(LARGE) else "put_parts"
            assert uploads.objects.calls == {way: 1}

        run(test)

    @pytest.mark.parametrize("piece", [SMALL, LARGE], ids=["small", "large"])
    def test_name_is_known_until_the_snapshot_is_published(self, run, piece):
        async def test(uploads):
            unpublished = uploads.store.unpublished
            uploaded = await uploads.put(piece)
            assert unpublished == {uploaded.name}
            for cancels in (False, True):
                body, upload = uploads.begin(piece)
                await until(lambda: len(unpublished) == 2)
                if cancels:
                    upload.cancel()
                    await asyncio.wait([upload])
                body.fail()
                with pytest.raises(asyncio.CancelledError if cancels else InvalidRequestError):
                    await upload
                assert unpublished == {uploaded.name}
            await until(lambda: uploads.store._uploading == 0)

        run(test)

    def test_names_are_spread_over_shelves(self, run):
        """A directory would not hold one for each stream."""

        async def test(uploads):
            names = [
                (await uploads.put(SMALL, stream=(position << 20) + index)).name
                for position in range(1, 300)
                for index in (0, 1)
            ]
            assert len(set(names)) == len(names)
            for name in names:
                assert re.fullmatch(r"snapshots/[0-9a-f]{2}/[0-9a-f]{16}-\d{20}-[0-9a-f]{16}", name)
            assert len({name.split("/")[1] for name in names}) == 256

        run(test)

    def test_same_offset_twice_is_two_objects_on_one_shelf(self, run):
        async def test(uploads):
            one, other = await uploads.put(SMALL), await uploads.put(SMALL)
            assert one.name != other.name
            assert one.name.split("/")[1] == other.name.split("/")[1]

        run(test)

    @pytest.mark.parametrize("pieces", [[SMALL], [LARGE], [LARGE, b"x" * 20]])
    def test_body_that_ends_before_its_end(self, run, pieces):
        async def test(uploads):
            body, upload = uploads.begin(*pieces)
            body.fail()
            with pytest.raises(InvalidRequestError):
                await upload
            assert uploads.memory.objects == {}

        run(test)

    @pytest.mark.parametrize("piece", [SMALL, LARGE])
    def test_store_that_fails(self, run, piece):
        async def test(uploads):
            uploads.objects.fail("put" if piece is SMALL else "put_parts")
            with pytest.raises(StoreError):
                await uploads.put(piece)
            # Its place is free again.
            for _ in range(2 * SMALL_MAX):
                await uploads.put(piece)

        run(test)


class TestAtOnce:
    def test_so_many_bodies_are_gathered(self, run):
        async def test(uploads):
            begun = [uploads.begin(SMALL) for _ in range(SMALL_MAX)]
            await asyncio.sleep(0)
            with pytest.raises(OverloadedError):
                await uploads.put(SMALL)
            body, upload = begun[0]
            body.end()
            await upload
            await uploads.put(SMALL)
            for body, upload in begun[1:]:
                body.end()
                await upload

        run(test)

    @pytest.mark.parametrize("how", ["fails", "cancelled"])
    def test_place_of_a_body_that_never_comes(self, run, how):
        async def test(uploads):
            begun = [uploads.begin(SMALL) for _ in range(SMALL_MAX)]
            await asyncio.sleep(0)
            for body, upload in begun:
                if how == "fails":
                    body.fail()
                else:
                    upload.cancel()
            await asyncio.gather(*(upload for _, upload in begun), return_exceptions=True)
            for _ in range(2 * SMALL_MAX):
                await uploads.put(SMALL)

        run(test)

    def test_so_many_large_ones_are_uploaded(self, run):
        async def test(uploads):
            begun = [await uploads.large() for _ in range(LARGE_MAX)]
            body, refused = uploads.begin(LARGE)
            with pytest.raises(OverloadedError) as caught:
                await refused
            assert (caught.value.status, caught.value.code) == (503, "overloaded")
            for body, upload in begun:
                body.end()
                await upload
            await uploads.put(LARGE)

        run(test)

    def test_large_ones_do_not_hold_up_small_ones(self, run):
        async def test(uploads):
            begun = [await uploads.large() for _ in range(LARGE_MAX)]
            for _ in range(3 * SMALL_MAX):
                await uploads.put(SMALL)
            assert not any(upload.done() for _, upload in begun)
            for body, upload in begun:
                body.end()
                await upload

        run(test)

    def test_large_one_that_is_cancelled_keeps_its_place_until_its_thread_ends(self, run):
        async def test(uploads):
            (body, upload), *others = [await uploads.large() for _ in range(LARGE_MAX)]
            upload.cancel()
            with pytest.raises(asyncio.CancelledError):
                await upload
            # The thread still waits for the body.
            with pytest.raises(OverloadedError):
                await uploads.put(LARGE)
            body.fail()
            await until(lambda: uploads.store._uploading < LARGE_MAX)
            await uploads.put(LARGE)
            for body, upload in others:
                body.end()
                await upload
            assert uploads.store._uploading == 0
            assert len(uploads.memory.objects) == 1 + len(others)

        run(test)

    def test_none_waits_for_another(self, run):
        async def test(uploads):
            begun = [await uploads.large() for _ in range(LARGE_MAX)]
            for body, upload in reversed(begun):
                body.send(b"x" * 50)
                body.end()
                assert (await upload).size_bytes == len(LARGE) + 50

        run(test)


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
