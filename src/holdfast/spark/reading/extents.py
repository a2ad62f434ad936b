"""Extents read from packs: several at once, each verified, as one chunk.

The server's ranges say where everything is, so nothing of a pack is read but the bytes of the
extents and their part of the message index. Parts that lie near one another are read together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from holdfast.client.types import ScanRange
from holdfast.errors import PackCorruptError
from holdfast.format.packs import BLOCK_BYTES, HEADER_BYTES, checksum, padded
from holdfast.spark.reading.chunks import (
    BATCH_BYTES,
    ROW_BYTES,
    Chunk,
    Numbers,
    StreamName,
    binary_array,
)

# Reading what nobody asked for is cheaper than asking twice, up to here.
_GAP_BYTES: Final = 128 * 1024
# Below that one read of everything costs less than a copy.
_RUN_BYTES_MIN: Final = 256 * 1024
# A chunk has an end even if every extent is tiny.
_CHUNK_RANGES_MAX: Final = 20_000


class Ranged(Protocol):
    """Where packs are read from."""

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        """Parts of an object, given by where they start and how long they are."""


class Cut(NamedTuple):
    """Which messages belong to a read: those at positions in (after, until]."""

    after: int
    until: int


class Wanted(NamedTuple):
    """A range, and which of the stream's offsets count."""

    range: ScanRange
    start: int
    end: int


def in_chunks(ranges: Iterable[Wanted]) -> Iterator[list[Wanted]]:
    """Ranges in the order they come, as many together as make a batch."""
    held: list[Wanted] = []
    size = 0
    for each in ranges:
        more = each.range.length + ROW_BYTES * each.range.messages
        if held and (size + more > BATCH_BYTES * 2 or len(held) >= _CHUNK_RANGES_MAX):
            yield held
            held, size = [], 0
        held.append(each)
        size += more
    if held:
        yield held


def read_extents(store: Ranged, ranges: Sequence[Wanted], cut: Cut) -> tuple[Chunk, list[int]]:
    """The messages of these ranges that are inside the cut.

    And which of the ranges hold others inside it that are not their stream's any more.
    """
    places = _Places(ranges)
    for pack, of_pack in groupby(
        sorted(range(len(ranges)), key=lambda at: ranges[at].range.pack),
        key=lambda at: ranges[at].range.pack,
    ):
        _read_pack(store, pack, [(at, ranges[at].range) for at in of_pack], places)
    return _chunk(ranges, places, cut)


class _Places:
    """Room for everything the ranges hold, and where each range's part of it is."""

    def __init__(self, ranges: Sequence[Wanted]) -> None:
        sizes = np.fromiter((each.range.length for each in ranges), np.int64, len(ranges))
        self.counts = np.fromiter((each.range.messages for each in ranges), np.int64, len(ranges))
        self.data_ends = np.cumsum(sizes)
        self.row_ends = np.cumsum(self.counts)
        rows = int(self.row_ends[-1])
        # Bytes that lie in a pack as they are asked for stay in the buffer that they came in.
        self.is_run = _is_run(ranges)
        size = 0 if self.is_run else int(self.data_ends[-1])
        self.data: npt.NDArray[np.uint8] = np.empty(size, dtype=np.uint8)
        self.lengths = np.empty(rows, dtype=np.uint32)
        self.timestamps = np.empty(rows, dtype=np.int64)
        self.positions = np.empty(rows, dtype=np.int64)

    def part(self, array: npt.NDArray[Any], ends: Numbers, at: int) -> npt.NDArray[Any]:
        """The part of an array that one range fills."""
        return array[int(ends[at - 1]) if at else 0 : int(ends[at])]


def _is_run(ranges: Sequence[Wanted]) -> bool:
    """Whether the bytes of each range follow those of the one before in a pack, and are many."""
    return sum(each.range.length for each in ranges) >= _RUN_BYTES_MIN and all(
        one.range.pack == other.range.pack
        and one.range.data_at + one.range.length == other.range.data_at
        for one, other in pairwise(ranges)
    )


def _read_pack(
    store: Ranged, pack: str, ranges: list[tuple[int, ScanRange]], places: _Places
) -> None:
    """Fill in what one pack has, and verify it."""
    first = ranges[0][1]
    lengths_at = padded(HEADER_BYTES + first.pack_data_bytes)
    timestamps_at = padded(lengths_at + 4 * first.pack_messages)
    positions_at = timestamps_at + 8 * first.pack_messages
    spans = []
    for at, each in ranges:
        targets = [
            (lengths_at + 4 * each.message_at, _rows(places, places.lengths, at)),
            (timestamps_at + 8 * each.message_at, _rows(places, places.timestamps, at)),
            (positions_at + 8 * each.message_at, _rows(places, places.positions, at)),
        ]
        if not places.is_run:
            targets.append((each.data_at, places.part(places.data, places.data_ends, at)))
        spans += [_Span(start, target.view(np.uint8)) for start, target in targets]
    if places.is_run:
        whole = first.data_at, int(places.data_ends[-1])
        places.data = _fill(store, pack, spans, [whole])[0]
    else:
        _fill(store, pack, spans, [])
    salt = int(first.salt, 16)
    for at, each in ranges:
        _verify(pack, salt, each, targets_of(places, at))


def _rows(places: _Places, array: npt.NDArray[Any], at: int) -> npt.NDArray[Any]:
    return places.part(array, places.row_ends, at)


def targets_of(places: _Places, at: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The bytes and the lengths of one range."""
    return places.part(places.data, places.data_ends, at), _rows(places, places.lengths, at)


class _Span(NamedTuple):
    """Bytes of a pack, and where they go."""

    at: int
    target: npt.NDArray[np.uint8]

    @property
    def end(self) -> int:
        return self.at + len(self.target)


def _fill(
    store: Ranged, pack: str, spans: list[_Span], as_they_are: list[tuple[int, int]]
) -> list[npt.NDArray[np.uint8]]:
    """Read the spans, near ones together; and parts that are handed out as they come."""
    runs: list[list[_Span]] = []
    end = 0
    for span in sorted(spans, key=lambda span: span.at):
        if runs and span.at - end <= _GAP_BYTES:
            runs[-1].append(span)
            end = max(end, span.end)
        else:
            runs.append([span])
            end = span.end
    wanted = [(run[0].at, max(span.end for span in run) - run[0].at) for run in runs]
    parts = store.read_ranges(pack, [*as_they_are, *wanted])
    found = [np.frombuffer(part, dtype=np.uint8) for part in parts]
    for run, data in zip(runs, found[len(as_they_are) :], strict=True):
        for span in run:
            inside = span.at - run[0].at
            span.target[:] = data[inside : inside + len(span.target)]
    return found[: len(as_they_are)]


def _verify(
    pack: str, salt: int, each: ScanRange, targets: tuple[npt.NDArray[Any], npt.NDArray[Any]]
) -> None:
    data, lengths = targets
    view = data.data
    sums = each.sums
    blocks = range(0, each.length, BLOCK_BYTES)
    found = "".join(
        checksum(view[at : at + BLOCK_BYTES], salt).to_bytes(8, "little").hex() for at in blocks
    )
    index_sum = checksum(lengths.view(np.uint8).data, salt).to_bytes(8, "little").hex()
    if found != sums or index_sum != each.index_sum:
        raise PackCorruptError(
            f"The pack {pack} is damaged: the extent of stream {each.stream_id!r} at offset "
            f"{each.offset} does not match its checksum."
        )


def _chunk(ranges: Sequence[Wanted], places: _Places, cut: Cut) -> tuple[Chunk, list[int]]:
    """What was read, as rows: offsets by adding up lengths, and only what is asked for."""
    lengths, counts = places.lengths.astype(np.int64), places.counts
    ends = np.cumsum(lengths)
    which = np.repeat(np.arange(len(ranges), dtype=np.int32), counts)
    first_bytes = np.concatenate(([0], places.data_ends[:-1]))
    starts = np.fromiter((each.range.offset for each in ranges), np.int64, len(ranges))
    next_offsets = ends + np.repeat(starts - first_bytes, counts)
    offsets = next_offsets - lengths
    streams = [StreamName(each.range.stream_id, each.range.content_type) for each in ranges]
    is_json = np.fromiter((each.is_json for each in streams), bool, len(streams))
    payloads = binary_array(places.data, ends)
    if is_json.all():
        payloads = pc.binary_slice(payloads, 0, -1)
    elif is_json.any():
        payloads = _without_separators(places.data, ends, is_json[which])
    chunk = Chunk(streams, which, offsets, next_offsets, places.timestamps, payloads)
    return _inside(chunk, places.positions, ranges, cut)


def _without_separators(
    data: npt.NDArray[np.uint8], ends: Numbers, is_json: npt.NDArray[np.bool_]
) -> Any:
    """The messages of streams of which some are JSON: there the last byte only separates."""
    kept = np.ones(len(data), dtype=bool)
    kept[ends[is_json] - 1] = False
    return binary_array(data[kept], ends - np.cumsum(is_json))


def _inside(
    chunk: Chunk, positions: Numbers, ranges: Sequence[Wanted], cut: Cut
) -> tuple[Chunk, list[int]]:
    """The messages that are inside the cut and between the offsets that count."""
    start, end, earliest = (
        np.fromiter(values, np.int64, len(ranges))
        for values in (
            (each.start for each in ranges),
            (each.end for each in ranges),
            (each.range.earliest for each in ranges),
        )
    )
    assert isinstance(chunk.offsets, np.ndarray)
    inside = (positions > cut.after) & (positions <= cut.until)
    gone = np.unique(chunk.which[inside & (chunk.offsets < earliest[chunk.which])])
    keep = inside & (chunk.offsets >= start[chunk.which]) & (chunk.offsets < end[chunk.which])
    return chunk if keep.all() else filtered(chunk, keep), gone.tolist()


def filtered(chunk: Chunk, keep: npt.NDArray[np.bool_]) -> Chunk:
    """The messages that are marked."""
    assert isinstance(chunk.offsets, np.ndarray)
    assert isinstance(chunk.next_offsets, np.ndarray)
    return Chunk(
        chunk.streams,
        chunk.which[keep],
        chunk.offsets[keep],
        chunk.next_offsets[keep],
        None if chunk.timestamps is None else chunk.timestamps[keep],
        chunk.payloads.filter(keep),
    )
