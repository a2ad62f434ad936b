"""Merging as a job elsewhere does it: with packs, and without a catalog."""

import heapq

import pytest

from holdfast import failpoints
from holdfast.errors import ObjectMissingError, PackCorruptError
from holdfast.format import pack_builder, packs
from holdfast.format.pack_builder import pack_name
from holdfast.format.packs import PackMeta
from holdfast.format.records import INDEX_BITS, StreamMeta
from holdfast.format.rows import StreamRow, encode_row
from holdfast.objects import pack_merge, pack_reader
from holdfast.objects.pack_merge import LiveExtent, MergeBuffers, MergePlan, merge_packs
from holdfast.objects.pack_reader import Pack
from holdfast.objects.store import MemoryObjects
from holdfast.testing import FakeClock, FaultyObjects
from tests.unit.format.test_packs import build

# Streams that were made in the first pack's range, and in the second's.
OLD, KEPT, YOUNG = 1 << INDEX_BITS, 2 << INDEX_BITS, 11 << INDEX_BITS
FIRST = {OLD: (0, [(b"one", 10, 1), (b"two!", 11, 2)]), KEPT: (0, [(b"kept", 12, 3)])}
SECOND = {OLD: (7, [(b"three", 13, 12)]), YOUNG: (0, [(b"young", 14, 11)])}


def row(number, tail):
    return encode_row(StreamRow(number, StreamMeta("b/s", "text/plain"), 1, 1, tail))


class Job:
    """Two neighbouring packs in a store, and all of their extents."""

    def __init__(self):
        self.clock = FakeClock()
        self.store = FaultyObjects(MemoryObjects(self.clock))
        first = PackMeta(1, has_delta=True, documents={"a": b"1", "b": b"1"}, last_ms=5)
        second = PackMeta(
            2, has_delta=True, removed=[KEPT, YOUNG], documents={"a": b"2", "b": None}, last_ms=7
        )
        self.sources = [
            self.put(
                0,
                9,
                build(FIRST, {OLD: row(OLD, 7), KEPT: row(KEPT, 4)}, first, after=0, through=9),
            ),
            self.put(9, 20, build(SECOND, {OLD: row(OLD, 12)}, second, after=9, through=20)),
        ]

    def put(self, after, through, data):
        name = pack_name(after, through, 1)
        self.store.put(name, data)
        return Pack(self.store, name).describe().info

    def extents(self, *streams):
        found = [
            LiveExtent(index, extent, 0)
            for index, source in enumerate(self.sources)
            for extent in Pack(self.store, source.name).directory()
            if extent.stream in streams
        ]
        return sorted(found, key=lambda each: each.extent[:2])

    def merge(self, *streams, **more):
        plan = MergePlan(self.sources, self.extents(*streams), ["packs/older"], frozenset("cb"))
        return merge_packs(self.store, self.clock, plan._replace(**more))

    def meta(self, made):
        return Pack(self.store, made.name).delta().meta

    def contents(self, made):
        pack = Pack(self.store, made.name, made.info.size_bytes)
        assert not any(isinstance(end, Exception) for _, end in pack.checked())
        read = pack.data_reader(1 << 20).read
        return {each[:2]: read(each.data_at, each.length) for each in pack.directory()}


@pytest.fixture
def job():
    return Job()


def test_streams_are_in_one_place_again(job):
    made = job.merge(OLD, KEPT)
    assert made.name == pack_name(0, 20, int(made.info.salt, 16))
    assert made.info.size_bytes == job.store.size(made.name)
    assert sum(Pack(job.store, made.name).verify()) == made.info.size_bytes
    assert job.contents(made) == {(OLD, 0): b"onetwo!three", (KEPT, 0): b"kept"}


def test_message_index_comes_along(job):
    made = job.merge(OLD)
    index = Pack(job.store, made.name).index().part(0, 3)
    assert list(index.lengths) == [3, 4, 5]
    assert list(index.timestamps) == [10, 11, 13]
    assert list(index.positions) == [1, 2, 12]


def test_bytes_before_a_streams_start_are_left_out(job):
    extents = [each._replace(needed_from=4) for each in job.extents(OLD)]
    made = job.merge(extents=extents)
    assert job.contents(made) == {(OLD, 3): b"two!three"}


def test_deltas_become_one(job):
    made = job.merge(OLD)
    delta = Pack(job.store, made.name).delta()
    assert dict(delta.items()) == {OLD: row(OLD, 12)}
    assert made.info.rows == 1
    assert job.meta(made).documents == {"a": b"2"}
    assert job.meta(made).removed == []
    assert job.meta(made).last_ms == 7


def test_what_is_gone_is_told_to_what_comes_before(job):
    second = job.sources[1]
    only = MergePlan([second], [], [], frozenset())
    made = merge_packs(job.store, job.clock, only)
    # The young one was born in this range: nothing before it knows of it.
    assert job.meta(made).removed == [KEPT]
    assert job.meta(made).documents == {"a": b"2", "b": None}


def test_it_names_what_it_stands_for(job):
    made = job.merge(OLD)
    assert job.meta(made).has_delta
    assert job.meta(made).supersedes == [*(source.name for source in job.sources), "packs/older"]
    assert job.meta(made).companions == ["b", "c"]
    assert job.meta(made).created_ms == job.clock.now_ms()


def test_pack_without_a_delta_stays_one(job):
    alone = job.put(20, 30, build(FIRST, {}, PackMeta(3, has_delta=False), after=20, through=30))
    extents = [
        LiveExtent(0, each, 4)
        for each in Pack(job.store, alone.name).directory()
        if each.stream == OLD
    ]
    made = merge_packs(job.store, job.clock, MergePlan([alone], extents, [], frozenset()))
    assert not job.meta(made).has_delta
    assert job.meta(made).supersedes == [alone.name]
    assert (made.info.rows, job.meta(made).companions) == (0, [])
    # Messages are kept whole: the second starts before what is needed.
    assert job.contents(made) == {(OLD, 3): b"two!"}


def test_damage_is_noticed_and_nothing_appears(job):
    extents = job.extents(OLD)
    before = [info.name for info in job.store.list()]
    job.store.corrupt(job.sources[1].name, extents[1].extent.data_at)
    with pytest.raises(PackCorruptError, match=job.sources[1].name):
        job.merge(extents=extents)
    assert [info.name for info in job.store.list()] == before


def test_source_that_is_gone_is_missing(job):
    extents = job.extents(OLD)
    job.store.remove(job.sources[0].name)
    with pytest.raises(ObjectMissingError, match=job.sources[0].name):
        job.merge(extents=extents)


def test_failpoints_are_passed(job, monkeypatch):
    passed = []
    monkeypatch.setattr(failpoints, "hook", passed.append)
    job.merge(OLD)
    assert passed == ["merge.started", "merge.uploading", "merge.uploaded"]


class Watched(MemoryObjects):
    """A store that tells how large reads and parts are, and what happens before the last part."""

    def __init__(self, clock):
        super().__init__(clock)
        self.largest_read = 0
        self.parts = []

    def read(self, name, at=0, size=None):
        data = super().read(name, at, size)
        self.largest_read = max(self.largest_read, len(data))
        return data

    def put_parts(self, name, parts):
        super().put_parts(name, self._watched(parts))

    def _watched(self, parts):
        for part in parts:
            self.parts.append((len(part), self.listed))
            yield part


def test_many_streams_pass_through_small_buffers(monkeypatch):
    """Nothing is held as a whole: not the extents, the index, the rows or the data."""
    monkeypatch.setattr(packs, "PIECE_ENTRIES", 256)
    monkeypatch.setattr(packs, "WINDOW_BYTES", 4096)
    monkeypatch.setattr(pack_builder, "WINDOW_BYTES", 4096)
    monkeypatch.setattr(pack_builder, "_EXTENTS_HELD", 100)
    monkeypatch.setattr(pack_reader, "PIECE_ENTRIES", 256)
    monkeypatch.setattr(pack_reader, "_READ_BYTES", 4096)
    monkeypatch.setattr(pack_reader, "_TAIL_BYTES", 4096)
    monkeypatch.setattr(pack_merge, "_PART_BYTES", 4096)
    count, sources = 4000, 3
    store = Watched(FakeClock())
    infos = []
    for at in range(sources):
        streams = {number: (9 * at, [(b"123456789", 1, at)]) for number in range(1, count + 1)}
        rows = {number: row(number, 9 * at + 9) for number in streams}
        data = build(streams, rows, PackMeta(1, has_delta=True), after=at, through=at + 1)
        name = pack_name(at, at + 1, at)
        store.put(name, data)
        infos.append(Pack(store, name).describe().info)
    assert min(info.size_bytes for info in infos) > 50 * 4096
    extents = heapq.merge(
        *(
            (LiveExtent(at, extent, 0) for extent in Pack(store, info.name).directory())
            for at, info in enumerate(infos)
        ),
        key=lambda each: each.extent[:2],
    )
    store.listed, store.largest_read, store.parts = 0, 0, []

    def listed():
        for each in extents:
            store.listed += 1
            yield each

    made = merge_packs(
        store,
        FakeClock(),
        MergePlan(infos, listed(), [], frozenset()),
        MergeBuffers(read_bytes=3 * 4096, column_bytes=1024),
    )
    assert store.largest_read <= 4096
    assert max(size for size, _ in store.parts) <= 4 * 4096
    # Most extents are still to be listed when the first bytes leave.
    assert store.parts[0][1] < 3 * count / 20
    assert sum(Pack(store, made.name).verify()) == made.info.size_bytes
    assert (made.info.rows, made.info.messages) == (count, sources * count)
    assert [extent.length for extent in made.extents] == [9 * sources] * count
    assert dict(Pack(store, made.name).delta().items()) == rows
