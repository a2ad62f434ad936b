"""Directories of packs, on executors: what a pack holds, as arrays of numbers.

A pack is opened with two requests: its directory, delta and footer lie together at its end, and its
message index is read once for all extents of a part. Both are verified before they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.errors import PackCorruptError
from holdfast.format.packs import (
    BLOCK_BYTES,
    DIRECTORY_FIELDS,
    FOOTER_BYTES,
    HEADER_BYTES,
    Footer,
    PackFormatError,
    PackInfo,
    check_sum,
    checksum,
    decode_footer,
    padded,
)
from holdfast.objects.pack_reader import naming
from holdfast.spark.reading.arrow import Numbers, StreamName
from holdfast.spark.reading.packs import PackBytes
from holdfast.spark.reading.selection import TIME_MAX_MS, TIME_MIN_MS
from holdfast.spark.reading.source import PackPart

# A MessagePack array of so many elements starts like this.
_ARRAY_HEADER: Final = b"\xdd"


class _RowMeta(msgspec.Struct):
    name: str
    content_type: str


class _RowStart(msgspec.Struct, array_like=True):
    """The beginning of a stream's row; the rest is skipped."""

    number: int
    meta: _RowMeta


# In place of streams that are not read, and of those that are gone.
UNKNOWN: Final = StreamName("", "")
_decode_rows = msgspec.msgpack.Decoder(list[_RowStart]).decode


class PackEntries(NamedTuple):
    """Entries of directories, column by column."""

    # Indexes of the packs, and of the entries in them.
    packs: Numbers
    entries: Numbers
    streams: Numbers
    # Offsets in the streams.
    starts: Numbers
    ends: Numbers
    messages: Numbers
    # The first offset that can be read, and the one before which messages are missed.
    earliest: Numbers
    missed: Numbers

    def select(self, rows: Any) -> PackEntries:
        return PackEntries(*(column[rows] for column in self))


class OpenPack:
    """A pack whose directory is read and verified."""

    def __init__(self, store: PackBytes, info: PackInfo, part: PackPart) -> None:
        self.info = info
        self.given_names: dict[int, StreamName] = {}
        self._store = store
        self._lengths_at = padded(HEADER_BYTES + info.data_bytes)
        self._timestamps_at = padded(self._lengths_at + 4 * info.messages)
        self._positions_at = self._timestamps_at + 8 * info.messages
        directory_at = self._positions_at + 8 * info.messages
        (tail,) = store.read_ranges(info.name, [(directory_at, info.size_bytes - directory_at)])
        with naming(info.name):
            footer = decode_footer(bytes(tail[-FOOTER_BYTES:]), info.size_bytes)
            if footer.directory_at != directory_at:
                raise PackFormatError("its footer does not fit the catalog")
            delta_at, delta_end = footer.delta_at - directory_at, footer.footer_at - directory_at
            check_sum([tail[:delta_at]], footer.salt, footer.directory_sum, "directory")
            check_sum([tail[delta_at:delta_end]], footer.salt, footer.delta_sum, "delta")
        self.salt = footer.salt
        self._read_directory(tail, footer)
        self._read_delta(tail[delta_at:delta_end], footer)
        self._first, self._last = self._bounds(part)
        self._index: list[npt.NDArray[Any]] | None = None

    def _read_directory(self, data: memoryview, footer: Footer) -> None:
        columns: list[npt.NDArray[Any]] = []
        at = 0
        for _, _, width in DIRECTORY_FIELDS:
            kind = np.int64 if width == 8 else np.uint32
            columns.append(np.frombuffer(data, kind, footer.extents, at))
            at = padded(at + width * footer.extents)
        self.streams: Numbers = columns[0]
        self.starts: Numbers = columns[1]
        self.lengths: Numbers = columns[2]
        self._first_positions, self._last_positions, index_sums, messages = columns[3:]
        self._index_sums = index_sums.view(np.uint64)
        self.messages = messages.astype(np.int64)
        self._sums = np.frombuffer(data, np.uint64, footer.blocks, at)
        blocks = -(-self.lengths // BLOCK_BYTES)
        self.data_at = HEADER_BYTES + np.cumsum(self.lengths) - self.lengths
        self.message_at = np.cumsum(self.messages) - self.messages
        self._sum_at = np.cumsum(blocks) - blocks

    def _read_delta(self, data: memoryview, footer: Footer) -> None:
        numbers_at = padded(footer.meta_bytes)
        sizes_at = numbers_at + 8 * footer.rows
        self._row_numbers = np.frombuffer(data, np.int64, footer.rows, numbers_at)
        sizes = np.frombuffer(data, np.uint32, footer.rows, sizes_at)
        self._row_ends = padded(sizes_at + 4 * footer.rows) + np.cumsum(sizes, dtype=np.int64)
        self._row_starts = self._row_ends - sizes
        self._rows = data

    def _bounds(self, part: PackPart) -> tuple[int, int]:
        """The first entry of a part, and the first one after it."""
        number, offset = part.first
        begin, end = np.searchsorted(self.streams, [number, number + 1])
        ends = self.starts[begin:end] + self.lengths[begin:end]
        first = begin + np.searchsorted(ends, offset, "right")
        if part.last is None:
            return int(first), len(self.streams)
        number, offset = part.last
        begin, end = np.searchsorted(self.streams, [number, number + 1])
        return int(first), int(begin + np.searchsorted(self.starts[begin:end], offset))

    def entries(self, part: PackPart, at: int) -> PackEntries:
        """The entries with positions of a part; `at` is the index of this pack."""
        here = slice(self._first, self._last)
        reaches = (self._last_positions[here] > part.after) & (
            self._first_positions[here] <= part.until
        )
        index = self._first + np.flatnonzero(reaches)
        starts = self.starts[index]
        none = np.zeros(len(index), dtype=np.int64)
        return PackEntries(
            none + at,
            index,
            self.streams[index],
            starts,
            starts + self.lengths[index],
            self.messages[index],
            none,
            none,
        )

    def has_messages(
        self, index: Numbers, part: PackPart, from_ms: int, to_ms: int
    ) -> npt.NDArray[np.bool_]:
        """Which entries have messages at the positions of a part and of a range of times.

        After a merge, an entry may have messages of a long time.
        """
        is_open = from_ms == TIME_MIN_MS and to_ms == TIME_MAX_MS
        inside = (self._first_positions[index] > part.after) & (
            self._last_positions[index] <= part.until
        )
        if not len(index) or (is_open and inside.all()):
            return np.ones(len(index), dtype=bool)
        first, last = int(index[0]), int(index[-1]) + 1
        _, timestamps, positions = self.index(first, last)
        wanted = (positions > part.after) & (positions <= part.until)
        wanted &= (timestamps >= from_ms) & (timestamps < to_ms)
        counts = np.concatenate(([0], np.cumsum(wanted)))
        begins = self.message_at[index] - self.message_at[first]
        return np.asarray(counts[begins + self.messages[index]] > counts[begins])

    def names(self, numbers: Numbers, bucket: str) -> list[StreamName]:
        """The streams with these numbers, those of other buckets as unknown."""
        if not self.info.has_delta:
            return [self.given_names.get(number, UNKNOWN) for number in numbers.tolist()]
        rows = np.minimum(np.searchsorted(self._row_numbers, numbers), len(self._row_numbers) - 1)
        with naming(self.info.name):
            if (self._row_numbers[rows] != numbers).any():
                raise PackFormatError("its delta lacks a stream of its directory")
            data = self._rows
            bounds = zip(
                self._row_starts[rows].tolist(), self._row_ends[rows].tolist(), strict=True
            )
            header = _ARRAY_HEADER + len(rows).to_bytes(4, "big")
            found = _decode_rows(b"".join([header, *(data[at:end] for at, end in bounds)]))
        prefix, skip = f"{bucket}/", len(bucket) + 1
        return [
            StreamName(each.meta.name[skip:], each.meta.content_type)
            if each.meta.name.startswith(prefix)
            else UNKNOWN
            for each in found
        ]

    def index(self, first: int, last: int) -> list[npt.NDArray[Any]]:
        """Lengths, timestamps and positions of the messages of some entries."""
        begin, end = self._messages_of(self._first, self._last)
        if self._index is None:
            places = ((self._lengths_at, 4), (self._timestamps_at, 8), (self._positions_at, 8))
            ranges = [(at + width * begin, width * (end - begin)) for at, width in places]
            found = self._store.read_ranges(self.info.name, ranges)
            kinds = np.uint32, np.int64, np.int64
            self._index = [
                np.frombuffer(part, kind) for part, kind in zip(found, kinds, strict=True)
            ]
        here = slice(*(at - begin for at in self._messages_of(first, last)))
        return [column[here] for column in self._index]

    def _messages_of(self, first: int, last: int) -> tuple[int, int]:
        return int(self.message_at[first]), int(self.message_at[last - 1] + self.messages[last - 1])

    def data(self, regions: Sequence[tuple[int, int]]) -> list[npt.NDArray[np.uint8]]:
        """The bytes of runs of entries, each from one entry up to another."""
        ends = self.data_at + self.lengths
        ranges = [
            (int(self.data_at[first]), int(ends[last - 1] - self.data_at[first]))
            for first, last in regions
        ]
        found = self._store.read_ranges(self.info.name, ranges)
        return [np.frombuffer(part, dtype=np.uint8) for part in found]

    def verify(self, region: tuple[int, int], index: Numbers, lengths: Any, data: Any) -> None:
        """Check entries of a region by their checksums: the messages' lengths, and the bytes."""
        first, _ = region
        begins = 4 * (self.message_at[index] - self.message_at[first])
        found = _sums(lengths, begins, begins + 4 * self.messages[index], self.salt)
        is_damaged = found != self._index_sums[index]
        if data is not None:
            sizes = self.lengths[index]
            blocks = -(-sizes // BLOCK_BYTES)
            entry_of = np.repeat(np.arange(len(index)), blocks)
            number = np.arange(len(entry_of)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
            starts = (self.data_at[index] - self.data_at[first])[entry_of] + number * BLOCK_BYTES
            ends = (self.data_at[index] - self.data_at[first] + sizes)[entry_of]
            found = _sums(data, starts, np.minimum(starts + BLOCK_BYTES, ends), self.salt)
            expected = self._sums[self._sum_at[index][entry_of] + number]
            is_damaged[entry_of[found != expected]] = True
        if is_damaged.any():
            at = index[np.argmax(is_damaged)]
            raise PackCorruptError(
                f"The pack {self.info.name} is damaged: the extent of stream "
                f"{int(self.streams[at]):x} at offset {int(self.starts[at])} does not match its "
                "checksum."
            )


def _sums(data: Any, starts: Numbers, ends: Numbers, salt: int) -> npt.NDArray[np.uint64]:
    """The checksum of each part of a buffer."""
    view = memoryview(data).cast("B")
    parts = zip(starts.tolist(), ends.tolist(), strict=True)
    return np.fromiter(
        (checksum(view[start:end], salt) for start, end in parts), np.uint64, len(starts)
    )
