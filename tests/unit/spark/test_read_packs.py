"""Extents of packs as rows, and the stores that packs are read from."""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client import ScanRange
from holdfast.errors import ObjectMissingError, PackCorruptError, StoreError
from holdfast.format.pack_builder import Messages, PackBuilder, pack_name
from holdfast.format.packs import PackMeta
from holdfast.objects.directory_objects import DirectoryObjects
from holdfast.objects.locations import StoreLocation
from holdfast.objects.store import MARKER, encode_marker
from holdfast.protocol.headers import OFFSET_MAX
from holdfast.spark.reading.packs import (
    PositionRange,
    WantedRange,
    group_ranges,
    reachable_store,
    read_extents,
)
from holdfast.testing import FakeClock

SALT = 0x0123456789ABCDEF
BYTES, JSON = "application/octet-stream", "application/json"
ALL = PositionRange(0, 1 << 60)


class Said(NamedTuple):
    """A message as it was appended."""

    stream_id: str
    offset: int
    next_offset: int
    timestamp: int
    position: int
    payload: bytes


class Made(NamedTuple):
    """A pack, where everything in it is, and what it says."""

    name: str
    ranges: list[ScanRange]
    said: list[Said]


def make_pack(
    store: DirectoryObjects,
    streams: Sequence[tuple[bool, int, Sequence[bytes]]],
    salt: int = SALT,
    gap: int = 0,
) -> Made:
    """A pack of streams: (whether JSON, offset of the first message, messages); positions rise."""
    builder = PackBuilder(salt, 0, 1 << 40)
    parts = [builder.header()]
    said: list[Said] = []
    position = 0
    for number, (is_json, start, payloads) in enumerate(streams):
        index, data, at = Messages(), b"", start
        for payload in payloads:
            stored = payload + b"\x1e" if is_json else payload
            position += 1
            index.add(len(stored), 1_700_000_000_000 + position, position)
            said.append(
                Said(
                    f"s{number:03d}",
                    at,
                    at + len(stored),
                    1_700_000_000_000 + position,
                    position,
                    payload,
                )
            )
            data += stored
            at += len(stored)
        builder.add(2 * number, start, data, index)
        parts.append(data)
        if gap:
            # Somebody else's bytes in between.
            between = Messages(array("I", [gap]), array("q", [1]), array("Q", [1]))
            builder.add(2 * number + 1, 0, bytes(gap), between)
            parts.append(bytes(gap))
    parts += builder.finish(PackMeta(1, True), [])
    name = pack_name(0, 1 << 40, salt)
    store.put_parts(name, parts)
    total_messages = sum(each.messages for each in builder.pack.extents)
    ranges = [
        ScanRange(
            stream_id=f"s{each.stream // 2:03d}",
            stream=each.stream,
            pack=name,
            offset=each.start,
            length=each.length,
            earliest=0,
            content_type=JSON if streams[each.stream // 2][0] else BYTES,
            first_position=each.first_position,
            last_position=each.last_position,
            data_at=each.data_at,
            message_at=each.message_at,
            messages=each.messages,
            index_sum=each.index_sum.to_bytes(8, "little").hex(),
            sums=each.sums.hex(),
            salt=f"{salt:016x}",
            pack_data_bytes=builder.data_bytes,
            pack_messages=total_messages,
        )
        for each in builder.pack.extents
        if each.stream % 2 == 0
    ]
    return Made(name, ranges, said)


def wanted(ranges: Sequence[ScanRange], start: int = 0, end: int = OFFSET_MAX) -> list[WantedRange]:
    return [WantedRange(each, start, end) for each in ranges]


def rows(
    store: DirectoryObjects, ranges: Sequence[WantedRange], cut: PositionRange = ALL
) -> list[tuple]:
    chunk, _ = read_extents(store, ranges, cut)
    chunk.payloads.validate(full=True)
    ids = [chunk.streams[which].stream_id for which in chunk.stream_indexes]
    columns = (chunk.offsets, chunk.next_offsets, chunk.timestamps, chunk.payloads.to_pylist())
    return list(zip(ids, *columns, strict=True))


def shown(said: Sequence[Said]) -> list[tuple]:
    return [(s.stream_id, s.offset, s.next_offset, s.timestamp, s.payload) for s in said]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DirectoryObjects:
    return DirectoryObjects(tmp_path_factory.mktemp("store"))


STREAMS = st.lists(
    st.tuples(
        st.booleans(),
        st.integers(0, 10**15),
        st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=5,
)


@given(STREAMS, st.data())
def test_every_cut_and_window(store: DirectoryObjects, streams, data) -> None:
    made = make_pack(store, streams)
    last = made.said[-1].position
    cut = PositionRange(
        *sorted((data.draw(st.integers(0, last)), data.draw(st.integers(0, last + 1))))
    )
    windows = {}
    for each in made.ranges:
        places = sorted({s.offset for s in made.said if s.stream_id == each.stream_id})
        edges = st.sampled_from([0, *places, places[-1] + 1, OFFSET_MAX])
        windows[each.stream_id] = tuple(sorted((data.draw(edges), data.draw(edges))))
    asked = [WantedRange(each, *windows[each.stream_id]) for each in made.ranges]
    expected = [
        s
        for s in made.said
        if cut.after < s.position <= cut.until
        and windows[s.stream_id][0] <= s.offset < windows[s.stream_id][1]
    ]
    assert rows(store, asked, cut) == shown(expected)


@given(STREAMS, STREAMS, st.permutations(range(10)))
def test_packs_in_any_order(store: DirectoryObjects, one, other, order) -> None:
    packs = [make_pack(store, one), make_pack(store, other, SALT + 1)]
    ranges = [each for made in packs for each in made.ranges]
    ranges = [ranges[at] for at in order if at < len(ranges)]
    expected = [
        s
        for each in ranges
        for made in packs
        if made.name == each.pack
        for s in made.said
        if s.stream_id == each.stream_id
    ]
    assert rows(store, wanted(ranges)) == shown(expected)


def test_what_is_gone_is_told(store: DirectoryObjects) -> None:
    made = make_pack(store, [(False, 0, [b"a", b"b", b"c"]), (True, 0, [b"1", b"2"])])
    trimmed = [
        WantedRange(ScanRange(**{**_fields(each), "earliest": earliest}), earliest, OFFSET_MAX)
        for each, earliest in zip(made.ranges, (2, 0), strict=True)
    ]
    chunk, gone = read_extents(store, trimmed, ALL)
    assert gone == [0]
    assert chunk.payloads.to_pylist() == [b"c", b"1", b"2"]
    # What went is before the cut: somebody has read it.
    assert read_extents(store, trimmed, PositionRange(2, 100))[1] == []


def _fields(each: ScanRange) -> dict:
    return {name: getattr(each, name) for name in each.__struct_fields__}


class Counting:
    """A store that remembers what was asked of it."""

    def __init__(self, store: DirectoryObjects) -> None:
        self._store = store
        self.asked: list[tuple[int, int]] = []

    def read_ranges(self, name, ranges):
        self.asked += ranges
        return self._store.read_ranges(name, ranges)


@pytest.mark.parametrize(("gap", "reads"), [(1000, 1), (1 << 20, 4)])
def test_near_parts_are_read_together(store: DirectoryObjects, gap: int, reads: int) -> None:
    made = make_pack(store, [(False, 0, [b"x" * 100])] * 3, gap=gap)
    counting = Counting(store)
    read_extents(counting, wanted(made.ranges), ALL)
    # The index of all of them is near, whether their bytes are or not.
    assert len(counting.asked) == reads


def test_a_large_stream_and_large_messages(store: DirectoryObjects) -> None:
    payloads = [bytes([n]) * size for n, size in enumerate([9 << 20, 1, 300_000, 256 * 1024, 5])]
    for is_json in (False, True):
        made = make_pack(store, [(is_json, 7, payloads)])
        assert len(made.ranges) == 2
        assert rows(store, wanted(made.ranges)) == shown(made.said)


def test_chunks_have_a_size(store: DirectoryObjects) -> None:
    made = make_pack(store, [(False, 0, [b"x" * (6 << 20)])] * 5)
    assert [len(each) for each in group_ranges(wanted(made.ranges))] == [2, 2, 1]
    assert list(group_ranges([])) == []
    one = wanted(made.ranges[:1])
    assert [len(each) for each in group_ranges(one * 1)] == [1]


@pytest.mark.slow
def test_many_small_messages_make_chunks_too(store: DirectoryObjects) -> None:
    made = make_pack(store, [(False, 0, [b"x"] * 60_000)] * 8)
    sizes = [
        sum(each.range.messages for each in chunk) for chunk in group_ranges(wanted(made.ranges))
    ]
    assert sum(sizes) == 480_000
    assert max(sizes) < 200_000


@pytest.mark.parametrize("place", ["data", "last byte", "lengths"])
def test_a_damaged_pack_is_named(store: DirectoryObjects, place: str) -> None:
    made = make_pack(store, [(False, 0, [b"first"]), (False, 5, [b"x" * 300_000, b"tail"])])
    path = store.root / made.name
    data = bytearray(path.read_bytes())
    each = made.ranges[1]
    at = {
        "data": each.data_at,
        "last byte": each.data_at + each.length - 1,
        "lengths": (16 + each.pack_data_bytes + 7 & ~7) + 4 * each.message_at,
    }[place]
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(PackCorruptError) as caught:
        read_extents(store, wanted(made.ranges), ALL)
    assert made.name in caught.value.message
    assert "'s001' at offset 5" in caught.value.message
    assert rows(store, wanted(made.ranges[:1])) == shown(made.said[:1])


def test_a_pack_that_is_gone_or_short(store: DirectoryObjects) -> None:
    made = make_pack(store, [(False, 0, [b"x" * 1000])])
    path: Path = store.root / made.name
    whole = path.read_bytes()
    path.write_bytes(whole[:500])
    with pytest.raises(StoreError, match=f"'{made.name}': it ends too early"):
        read_extents(store, wanted(made.ranges), ALL)
    path.unlink()
    with pytest.raises(ObjectMissingError):
        read_extents(store, wanted(made.ranges), ALL)


def test_offsets_are_numbers_of_64_bits(store: DirectoryObjects) -> None:
    start = OFFSET_MAX - 100
    made = make_pack(store, [(False, start, [b"abc", b"d"])])
    chunk, _ = read_extents(store, wanted(made.ranges), ALL)
    assert chunk.offsets.dtype == np.int64
    assert chunk.next_offsets.tolist() == [start + 3, start + 4]


@given(st.permutations(range(4)), st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_large_parts_in_any_order(store: DirectoryObjects, order, first, last, is_json) -> None:
    """Whether they follow one another in the pack, so that nothing is copied, or not."""
    streams = [(is_json, n, [bytes([n]) * 100_000, b"x" * n + b"y"]) for n in range(4)]
    made = make_pack(store, streams)
    chosen = [made.ranges[at] for at in order[min(first, last) : max(first, last) + 1]]
    expected = [s for each in chosen for s in made.said if s.stream_id == each.stream_id]
    assert rows(store, wanted(chosen)) == shown(expected)
    in_order = sorted(chosen, key=lambda each: each.data_at)
    expected.sort(key=lambda s: s.position)
    assert rows(store, wanted(in_order)) == shown(expected)
    assert rows(store, wanted(in_order), PositionRange(1, 6)) == shown(
        [s for s in expected if 1 < s.position <= 6]
    )


def test_a_store_that_comes_later_is_found(tmp_path: Path) -> None:
    clock, place = FakeClock(), StoreLocation(str(tmp_path / "store"))

    def look(*, insist: bool = False) -> object:
        return reachable_store(place, "abc", insist=insist, clock=clock)

    said = look()
    assert said == f"The object store {place.url} does not exist, or is not one of Holdfast's."
    DirectoryObjects(tmp_path / "store").put(MARKER, encode_marker("abc"))
    # Asking takes seconds where nobody answers, so it is not done for every slice.
    assert look() == said
    clock.advance(61)
    assert isinstance(look(), DirectoryObjects)


def test_who_insists_looks_again(tmp_path: Path) -> None:
    clock, place = FakeClock(), StoreLocation(str(tmp_path / "store"))
    assert isinstance(reachable_store(place, "abc", clock=clock), str)
    DirectoryObjects(tmp_path / "store").put(MARKER, encode_marker("abc"))
    assert isinstance(reachable_store(place, "abc", insist=True, clock=clock), DirectoryObjects)


def test_a_store_of_another_server(tmp_path: Path) -> None:
    DirectoryObjects(tmp_path).put(MARKER, encode_marker("other"))
    said = reachable_store(StoreLocation(str(tmp_path)), "abc", clock=FakeClock())
    assert said == f"The object store {tmp_path} is not the server's own."
