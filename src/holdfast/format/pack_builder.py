"""Building a pack without I/O: data passes through, the index follows once everything is known."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from holdfast.format.packs import (
    BLOCK_BYTES,
    DIRECTORY_FIELDS,
    EXTENT_BYTES_MAX,
    EXTENT_MESSAGES_MAX,
    FORMAT_VERSION,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    Extent,
    Footer,
    NewPack,
    PackInfo,
    PackMeta,
    block_sums,
    checksum,
    describe_pack,
    encode_delta,
    encode_footer,
    padded,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def pack_name(after: int, through: int, salt: int) -> str:
    """The name of a new pack: its range of the log, and a salt that distinguishes attempts."""
    return f"packs/{after:016x}-{through:016x}-{salt:016x}.pack"


class Messages:
    """The message index of a run of messages, in three arrays of the same length."""

    __slots__ = ("lengths", "positions", "timestamps")

    def __init__(
        self,
        lengths: array[int] | None = None,
        timestamps: array[int] | None = None,
        positions: array[int] | None = None,
    ) -> None:
        self.lengths = array("I") if lengths is None else lengths
        self.timestamps = array("q") if timestamps is None else timestamps
        self.positions = array("Q") if positions is None else positions

    def __len__(self) -> int:
        return len(self.lengths)

    def add(self, length: int, at_ms: int, position: int) -> None:
        self.lengths.append(length)
        self.timestamps.append(at_ms)
        self.positions.append(position)

    def part(self, first: int, last: int) -> Messages:
        """The messages from `first` up to `last`, exclusive."""
        return Messages(
            self.lengths[first:last], self.timestamps[first:last], self.positions[first:last]
        )

    def extend(self, other: Messages) -> None:
        self.lengths.extend(other.lengths)
        self.timestamps.extend(other.timestamps)
        self.positions.extend(other.positions)


class PackBuilder:
    """Collects a pack's index and directory while its data passes through.

    Streams are added in the order of their numbers. The caller writes `header()`, then what each
    `add` was given, then `finish(…)`.
    """

    def __init__(self, salt: int, after: int, through: int) -> None:
        self.salt = salt
        self.after = after
        self.through = through
        self.extents: list[Extent] = []
        self._index = Messages()
        self._data_end = HEADER_BYTES
        self._info: PackInfo | None = None

    @property
    def name(self) -> str:
        return pack_name(self.after, self.through, self.salt)

    @property
    def pack(self) -> NewPack:
        """The finished pack as the catalog takes it."""
        assert self._info is not None, "finish() comes first"
        return NewPack(self._info, self.extents)

    @staticmethod
    def header() -> bytes:
        return HEADER.pack(MAGIC, FORMAT_VERSION, 0)

    @property
    def data_bytes(self) -> int:
        """The size of the messages so far."""
        return self._data_end - HEADER_BYTES

    def add(self, stream: int, start: int, data: bytes, messages: Messages) -> None:
        """Add messages of a stream, whose data the caller writes next."""
        if len(data) <= EXTENT_BYTES_MAX and len(messages) <= EXTENT_MESSAGES_MAX:
            self._add_extent(stream, start, data, messages)
            return
        view = memoryview(data)
        at = 0
        for first, last, size in _split(messages.lengths):
            self._add_extent(stream, start + at, view[at : at + size], messages.part(first, last))
            at += size

    def _add_extent(
        self, stream: int, start: int, data: bytes | memoryview, messages: Messages
    ) -> None:
        assert len(data) == sum(messages.lengths), "an extent is whole messages"
        length, salt = len(data), self.salt
        self.extents.append(
            Extent(
                stream,
                start,
                length,
                self._data_end,
                len(self._index),
                len(messages),
                messages.positions[0],
                messages.positions[-1],
                checksum(messages.lengths.tobytes(), salt),
                block_sums(data, salt).tobytes(),
            )
        )
        self._index.extend(messages)
        self._data_end += length

    def finish(self, meta: PackMeta, rows: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
        """Everything after the data; `rows` are sorted by stream number."""
        index, data_end = self._index, self._data_end
        lengths_at = padded(data_end)
        timestamps_at = padded(lengths_at + 4 * len(index))
        directory_at = timestamps_at + 16 * len(index)
        index_part = b"".join(
            (
                index.lengths.tobytes().ljust(timestamps_at - lengths_at, b"\0"),
                index.timestamps.tobytes(),
                index.positions.tobytes(),
            )
        )
        directory, blocks = self._directory()
        delta_parts, row_count, meta_bytes = encode_delta(meta, iter(rows))
        delta = b"".join(delta_parts)
        delta_at = directory_at + len(directory)
        footer = Footer(
            BLOCK_BYTES,
            self.salt,
            self.after,
            self.through,
            data_end,
            len(index),
            len(self.extents),
            blocks,
            directory_at,
            delta_at,
            row_count,
            meta_bytes,
            delta_at + len(delta),
            checksum(index_part, self.salt),
            checksum(directory, self.salt),
            checksum(delta, self.salt),
        )
        self._info = describe_pack(self.name, footer, meta)
        yield bytes(lengths_at - data_end)
        yield index_part
        yield directory
        yield delta
        yield encode_footer(footer)

    def _directory(self) -> tuple[bytes, int]:
        extents = self.extents
        columns: dict[str, Iterable[int]] = {
            "streams": (extent.stream for extent in extents),
            "starts": (extent.start for extent in extents),
            "lengths": (extent.length for extent in extents),
            "first_positions": (extent.first_position for extent in extents),
            "last_positions": (extent.last_position for extent in extents),
            "index_sums": (extent.index_sum for extent in extents),
            "messages": (extent.messages for extent in extents),
        }
        parts = []
        for name, code, width in DIRECTORY_FIELDS:
            size = padded(width * len(extents))
            parts.append(array(code, columns[name]).tobytes().ljust(size, b"\0"))
        sums = b"".join(extent.sums for extent in extents)
        return b"".join(parts) + sums, len(sums) // 8


def _split(lengths: array[int]) -> Iterator[tuple[int, int, int]]:
    """Cut a long run into extents: (first message, end, bytes) of each."""
    first = size = 0
    for at, length in enumerate(lengths):
        if at > first and (size + length > EXTENT_BYTES_MAX or at - first >= EXTENT_MESSAGES_MAX):
            yield first, at, size
            first, size = at, 0
        size += length
    yield first, len(lengths), size
