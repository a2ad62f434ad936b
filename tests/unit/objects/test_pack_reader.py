"""Reading packs from a store: every damage is found, and named."""

from functools import partial
from struct import pack_into

import pytest
from xxhash import xxh3_64_intdigest

from holdfast.errors import ObjectMissingError, PackCorruptError, UnknownFormatError
from holdfast.format.pack_builder import PackBuilder
from holdfast.format.packs import (
    BLOCK_BYTES,
    FOOTER_BYTES,
    FORMAT_VERSION,
    HEADER_BYTES,
    PackMeta,
    SequentialReader,
)
from holdfast.objects import pack_reader
from holdfast.objects.pack_reader import Pack
from holdfast.objects.store import MemoryObjects
from holdfast.testing import FakeClock, FaultyObjects
from tests.unit.format.test_packs import SALT, SMALL, build, index_of

NAME = "packs/some.pack"
ROWS = {1: b"row of one", 7: b"the row of seven"}


@pytest.fixture
def store():
    return FaultyObjects(MemoryObjects(FakeClock()))


def read_all(store):
    """Everything that can be read of a pack."""
    found = Pack(store, NAME)
    for _ in found.verify():
        pass
    return found


class TestVerify:
    @pytest.mark.parametrize("tail_bytes", [0, FOOTER_BYTES, 1 << 20])
    def test_sound_pack_passes_and_every_byte_is_counted(self, store, monkeypatch, tail_bytes):
        monkeypatch.setattr(pack_reader, "_TAIL_BYTES", max(tail_bytes, FOOTER_BYTES))
        store.put(NAME, build(SMALL, ROWS))
        assert sum(Pack(store, NAME).verify()) == store.size(NAME)

    @pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
    def test_every_flipped_byte_is_noticed(self, store, flip):
        sound = build(SMALL, ROWS)
        for at in range(len(sound)):
            damaged = bytearray(sound)
            damaged[at] ^= flip
            store.put(NAME, damaged)
            with pytest.raises(PackCorruptError, match=NAME):
                read_all(store)

    def test_every_truncation_is_noticed(self, store):
        sound = build(SMALL, ROWS)
        for size in range(len(sound)):
            store.put(NAME, sound[:size])
            for known_size in (None, len(sound)):
                with pytest.raises(PackCorruptError, match=NAME):
                    Pack(store, NAME, known_size)

    def test_a_large_extent_is_read_in_pieces(self, store, monkeypatch):
        monkeypatch.setattr(pack_reader, "_READ_BYTES", 2 * BLOCK_BYTES)
        data = bytes(range(256)) * 1024 * 7 + b"end"
        store.put(NAME, build({1: (0, [(data, 0, 1)])}))
        pack = Pack(store, NAME)
        sizes = []
        read = store.read

        def noted(name, at=0, size=None):
            sizes.append(size)
            return read(name, at, size)

        monkeypatch.setattr(store, "read", noted)
        ((extent, last),) = pack.checked()
        assert (extent.length, last) == (len(data), b"d")
        assert max(sizes) <= 2 * BLOCK_BYTES

    def test_every_block_of_a_large_extent_is_checked(self, store):
        data = bytes(3 * BLOCK_BYTES + 5)
        store.put(NAME, build({1: (0, [(data, 0, 1)])}))
        read_all(store)
        for block in range(4):
            store.corrupt(NAME, HEADER_BYTES + block * BLOCK_BYTES + 4)
            with pytest.raises(PackCorruptError, match="the extent of stream 1 at offset 0"):
                read_all(store)
            store.heal()

    def test_object_that_shrinks_behind_the_catalogs_back_is_noticed(self, store):
        store.put(NAME, build(SMALL, ROWS))
        found = Pack(store, NAME)
        store.put(NAME, build(SMALL, ROWS)[: HEADER_BYTES + 3])
        with pytest.raises(PackCorruptError):
            for _ in found.verify():
                pass

    def test_unknown_version_is_refused_and_not_called_damage(self, store):
        later = bytearray(build(SMALL))
        body = slice(len(later) - FOOTER_BYTES, len(later) - 8)
        pack_into("<I", later, body.start + 8, FORMAT_VERSION + 1)
        pack_into("<Q", later, body.stop, xxh3_64_intdigest(later[body]))
        store.put(NAME, later)
        with pytest.raises(UnknownFormatError, match=r"some\.pack is newer"):
            Pack(store, NAME)

    def test_missing_pack_is_missing(self, store):
        with pytest.raises(ObjectMissingError):
            Pack(store, NAME)


class TestParts:
    def test_index_directory_and_delta_are_read_on_demand(self, store, monkeypatch):
        monkeypatch.setattr(pack_reader, "_TAIL_BYTES", FOOTER_BYTES)
        store.put(NAME, build(SMALL, ROWS))
        found = Pack(store, NAME)
        assert store.calls["read"] == 1
        assert dict(found.delta().items()) == ROWS
        assert [extent.stream for extent in found.directory()] == [1, 7]
        index = found.index().part(0, 3)
        assert list(index.lengths) == [3, 4, 5]
        assert list(index.timestamps) == [10, 11, 12]
        assert list(index.positions) == [1, 2, 3]
        assert store.calls["read"] == 4

    def test_small_pack_takes_one_read(self, store):
        store.put(NAME, build(SMALL, ROWS))
        found = Pack(store, NAME)
        found.delta()
        list(found.directory())
        found.index()
        assert store.calls["read"] == 1


class TestSequentialReader:
    @pytest.mark.parametrize("window", [1, 4, 7, 1000])
    def test_any_ascending_reads(self, store, window):
        data = bytes(range(100))
        store.put(NAME, data)
        reader = SequentialReader(partial(store.read, NAME), 90, window)
        for at, size in [(0, 3), (3, 5), (3, 9), (20, 1), (21, 30), (80, 10)]:
            assert reader.read(at, size) == data[at : at + size]

    def test_few_requests(self, store):
        store.put(NAME, bytes(1000))
        reader = SequentialReader(partial(store.read, NAME), 1000, 2000)
        for at in range(0, 1000, 10):
            reader.read(at, 10)
        assert store.calls["read"] == 1

    def test_going_back_is_allowed(self, store):
        data = bytes(range(100))
        store.put(NAME, data)
        reader = SequentialReader(partial(store.read, NAME), 100, 10)
        assert reader.read(50, 5) == data[50:55]
        assert reader.read(10, 5) == data[10:15]


def test_pack_is_described_as_its_builder_knew_it(store):
    builder = PackBuilder(SALT, 3, 8)
    out = bytearray(builder.header())
    for number, (start, messages) in SMALL.items():
        data, index = index_of(messages)
        builder.add(number, start, data, index)
        out += data
    for part in builder.finish(PackMeta(77, has_delta=True), sorted(ROWS.items())):
        out += part
    store.put(builder.name, out)
    assert builder.pack.info.size_bytes == len(out)
    assert builder.pack.info.rows == len(ROWS)
    found = Pack(store, builder.name).describe()
    assert found.info == builder.pack.info
    assert list(found.extents) == list(builder.pack.extents)
