"""The contract every object store keeps, whoever keeps it; see `objects.store`."""

import asyncio
from functools import partial
from itertools import pairwise

import pytest
import uvloop

from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, ObjectMissingError, StoreError
from tests.storage.stores import contents, read_range
from tests.thorough import for_each

DATA = bytes(range(256)) * 40


class BoomError(Exception):
    """Nothing that a store knows of."""


class TestPut:
    @pytest.mark.parametrize("data", [b"", b"x", DATA], ids=["empty", "small", "larger"])
    def test_what_was_put_is_read(self, store, data):
        store.put("packs/a", data)
        assert store.read("packs/a") == data
        assert store.size("packs/a") == len(data)

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_any_bytes_can_be_put(self, store, kind):
        store.put("a", kind(DATA))
        assert store.read("a") == DATA

    def test_putting_again_replaces(self, store):
        store.put("a", b"longer than the next")
        store.put("a", b"next")
        assert contents(store) == {"a": b"next"}

    def test_putting_keeps_no_hold_of_the_buffer(self, store):
        buffer = bytearray(b"first")
        store.put("a", buffer)
        buffer[:] = b"other"
        assert store.read("a") == b"first"


class TestPutParts:
    @pytest.mark.parametrize(
        "parts", [[], [b""], [b"abc"], [b"a", b"", b"bc"], [DATA] * 3], ids=len
    )
    def test_parts_become_one_object(self, store, parts):
        store.put_parts("packs/a", iter(parts))
        assert contents(store) == {"packs/a": b"".join(parts)}

    def test_object_of_several_uploads(self, store):
        part = DATA * 100  # 1 MB, so that parts have to be gathered, and cut
        store.put_parts("packs/large", (part for _ in range(41)))
        assert store.size("packs/large") == 41 * len(part)
        for at in (0, 32 << 20, 41 * len(part) - 10):
            assert store.read("packs/large", at - at % 256, 256) == DATA[:256]
        assert store.read("packs/large", 41 * len(part) - 10) == DATA[-10:]

    @pytest.mark.parametrize("megabytes", [0, 1, 40])
    def test_nothing_appears_if_the_parts_raise(self, store, megabytes):
        def parts():
            for _ in range(megabytes):
                yield bytes(1 << 20)
            raise BoomError

        with pytest.raises(BoomError):
            store.put_parts("packs/a", parts())
        assert contents(store) == {}
        with pytest.raises(ObjectMissingError):
            store.read("packs/a")

    def test_old_object_stays_if_the_parts_raise(self, store):
        def parts():
            yield b"new"
            raise BoomError

        store.put("a", b"old")
        with pytest.raises(BoomError):
            store.put_parts("a", parts())
        assert contents(store) == {"a": b"old"}

    def test_our_own_errors_come_through(self, store):
        def parts():
            yield b"new"
            raise ObjectMissingError("another object")

        with pytest.raises(ObjectMissingError, match="another object"):
            store.put_parts("a", parts())


class TestCreate:
    def test_first_one_wins(self, store):
        assert store.create("a/marker", b"first")
        assert not store.create("a/marker", b"second")
        assert contents(store) == {"a/marker": b"first"}


class TestRead:
    @for_each("at", [0, 1, 255, len(DATA) - 1, len(DATA), len(DATA) + 1, 1 << 40])
    @for_each("size", [None, 0, 1, 300, len(DATA), len(DATA) + 1])
    def test_reads_are_slices(self, store, at, size):
        store.put("a", DATA)
        expected = DATA[at:] if size is None else DATA[at : at + size]
        assert store.read("a", at, size) == expected

    @pytest.mark.parametrize("size", [None, 0, 10])
    def test_empty_object_has_nothing_to_read(self, store, size):
        store.put("a", b"")
        assert store.read("a", 0, size) == b""

    @for_each("name", ["packs/none", "none", "packs", "packs/a/below"])
    @for_each("size", [None, 0, 10])
    def test_missing_object_is_named(self, store, name, size):
        store.put("packs/a", b"x")
        with pytest.raises(ObjectMissingError) as caught:
            store.read(name, 0, size)
        assert repr(name) in caught.value.message
        assert store.url in caught.value.message
        with pytest.raises(ObjectMissingError):
            store.size(name)


class TestReadRanges:
    @for_each(
        "ranges",
        [
            [],
            [(0, 1)],
            [(0, len(DATA))],
            [(0, 3), (3, 4), (7, 1)],
            [(10, 20), (5000, 1), (len(DATA) - 1, 1)],
            [(10, 20), (15, 20)],
        ],
    )
    def test_each_is_a_slice(self, store, ranges):
        store.put("packs/a", DATA)
        found = store.read_ranges("packs/a", ranges)
        assert [bytes(part) for part in found] == [DATA[at : at + size] for at, size in ranges]

    def test_ranges_far_apart(self, store):
        part = DATA * 100  # 1 MB
        store.put_parts("packs/large", (part for _ in range(8)))
        ranges = [(at * len(part), 256) for at in range(0, 8, 2)]
        found = store.read_ranges("packs/large", ranges)
        assert [bytes(each) for each in found] == [DATA[:256]] * 4

    @pytest.mark.parametrize("last", [(len(DATA) - 1, 2), (len(DATA), 1), (len(DATA) + 5, 1)])
    def test_object_that_ends_first_is_an_error(self, store, last):
        store.put("packs/a", DATA)
        for ranges in ([last], [(0, 1), last]):
            with pytest.raises(StoreError, match="'packs/a': it ends too early") as caught:
                store.read_ranges("packs/a", ranges)
            assert not isinstance(caught.value, ObjectMissingError)

    def test_missing_object_is_named(self, store):
        with pytest.raises(ObjectMissingError, match="'packs/b'"):
            store.read_ranges("packs/b", [(0, 1), (9, 1)])


class TestList:
    NAMES = ("Z", "a-b", "a/b/c", "a/b0", "a/z", "a0", "b", "packs/1", "packs/10", "packs/2", "ü")

    def test_empty_store_lists_nothing(self, store):
        assert list(store.list()) == []
        assert list(store.list("packs/")) == []

    def test_names_come_in_order(self, store):
        for name in reversed(self.NAMES):
            store.put(name, name.encode())
        assert [info.name for info in store.list()] == list(self.NAMES)
        assert contents(store) == {name: name.encode() for name in self.NAMES}

    @pytest.mark.parametrize("prefix", ["a/", "a/b/", "packs/", "none/"])
    def test_prefix_is_a_folder(self, store, prefix):
        for name in self.NAMES:
            store.put(name, b"x")
        expected = [name for name in self.NAMES if name.startswith(prefix)]
        assert [info.name for info in store.list(prefix)] == expected

    def test_size_and_time_are_told(self, store):
        clock = SystemClock()
        store.put("a", DATA)
        (info,) = store.list()
        assert info.size_bytes == len(DATA)
        assert abs(info.modified_ms - clock.now_ms()) < 60_000

    def test_more_than_one_page(self, store):
        names = [f"packs/{number:05}" for number in range(1200)]
        for name in names:
            store.put(name, b"")
        listed = [info.name for info in store.list("packs/")]
        assert all(one < other for one, other in pairwise(listed))
        assert listed == names

    def test_listing_survives_removals(self, store):
        for name in self.NAMES:
            store.put(name, b"x")
        seen = []
        for info in store.list():
            seen.append(info.name)
            store.remove(info.name)
        assert seen == list(self.NAMES)
        assert contents(store) == {}


class TestRemove:
    def test_removed_object_is_gone(self, store):
        store.put("packs/a", b"x")
        store.put("packs/b", b"y")
        store.remove("packs/a")
        assert contents(store) == {"packs/b": b"y"}

    def test_removing_what_is_not_there_is_harmless(self, store):
        store.remove("packs/a")
        store.put("packs/a", b"x")
        store.remove("packs/a")
        store.remove("packs/a")
        assert contents(store) == {}

    def test_nothing_is_left_unfinished(self, store):
        store.put("a", b"x")
        store.put_parts("b", [b"y"])
        store.create("c", b"z")
        store.create("c", b"z")
        assert store.remove_unfinished(SystemClock().now_ms() + 60_000) == 0
        assert sorted(contents(store)) == ["a", "b", "c"]


def on_loop(backend, scenario):
    """Run it with a range reader, on the loop that the server uses."""

    async def main():
        reader = backend.ranges()
        try:
            return await scenario(reader)
        finally:
            reader.close()

    return uvloop.run(main())


class TestRangeReader:
    @for_each("at", [0, 300, len(DATA), len(DATA) + 1])
    @for_each("size", [0, 1, 300, len(DATA) + 1])
    def test_reads_are_slices(self, backend, at, size):
        backend.store.put("packs/a", DATA)
        found = on_loop(backend, lambda reader: read_range(reader, "packs/a", at, size))
        assert type(found) is bytes
        assert found == DATA[at : at + size]

    @for_each("size", [0, 10])
    def test_missing_object_is_named(self, backend, size):
        backend.store.put("packs/a", DATA)
        with pytest.raises(ObjectMissingError, match="packs/none"):
            on_loop(backend, lambda reader: read_range(reader, "packs/none", 0, size))

    def test_store_that_was_never_written_to_has_nothing(self, backend):
        with pytest.raises(ObjectMissingError):
            on_loop(backend, lambda reader: read_range(reader, "packs/a", 0, 10))

    def test_many_reads_at_once(self, backend):
        backend.store.put("packs/a", DATA)

        async def scenario(reader):
            places = range(0, 10_000, 100)
            return await asyncio.gather(*(read_range(reader, "packs/a", at, 7) for at in places))

        assert on_loop(backend, scenario) == [DATA[at : at + 7] for at in range(0, 10_000, 100)]

    def test_answers_come_later_and_once(self, backend):
        backend.store.put("packs/a", DATA)

        async def scenario(reader):
            answers = []
            for name in ("packs/a", "packs/none"):
                reader.read(name, 0, 5, partial(lambda name, _: answers.append(name), name))
            assert answers == []
            while len(answers) < 2:
                await asyncio.sleep(0.001)
            await read_range(reader, "packs/a", 0, 5)
            return answers

        assert sorted(on_loop(backend, scenario)) == ["packs/a", "packs/none"]

    def test_closing_answers_what_is_under_way_and_what_comes_later(self, backend):
        backend.store.put("packs/a", DATA)

        async def scenario(reader):
            under_way = asyncio.gather(
                *(read_range(reader, "packs/a", 0, 5) for _ in range(20)), return_exceptions=True
            )
            await asyncio.sleep(0)
            reader.close()
            with pytest.raises(StoreError, match="closed"):
                await read_range(reader, "packs/a", 0, 5)
            reader.close()
            return await under_way

        for answer in on_loop(backend, scenario):
            # A read may have been faster than the closing, but every one is answered.
            assert answer == DATA[:5] or isinstance(answer, HoldfastError)
