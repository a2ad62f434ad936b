"""Building a pack without I/O: data passes through, the index follows once everything is known.

What follows the data is collected in columns, one for each array of the format. They may be larger
than memory, so each is written to a spool of the caller's choice and read back in pieces.
"""

from __future__ import annotations

from array import array
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol

from xxhash import xxh3_64

from holdfast.format.packs import (
    BLOCK_BYTES,
    DIRECTORY_FIELDS,
    EXTENT_BYTES_MAX,
    EXTENT_MESSAGES_MAX,
    FORMAT_VERSION,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    WINDOW_BYTES,
    Directory,
    Extent,
    Footer,
    NewPack,
    PackMeta,
    block_sums,
    checksum,
    describe_pack,
    encode_footer,
    encode_meta,
    padded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

# Extents that are held before they go to spools.
_EXTENTS_HELD: Final = 4096


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


class Spool(Protocol):
    """Takes the bytes of a column, and returns any part of them."""

    def write(self, data: bytes) -> None: ...

    def read(self, at: int, size: int) -> bytes: ...


class HeldBytes:
    """A spool in memory."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> None:
        self._data += data

    def read(self, at: int, size: int) -> bytes:
        return bytes(memoryview(self._data)[at : at + size])


class _Column:
    __slots__ = ("_spool", "read", "size")

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self.read = spool.read
        self.size = 0

    def write(self, data: bytes) -> None:
        self._spool.write(data)
        self.size += len(data)

    def pieces(self) -> Iterator[bytes]:
        """All of it, and zeros up to a multiple of 8."""
        for at in range(0, self.size, WINDOW_BYTES):
            yield self.read(at, min(WINDOW_BYTES, self.size - at))
        yield bytes(-self.size % 8)


class PackBuilder:
    """Collects a pack's index and directory while its data passes through.

    Streams are added in the order of their numbers. The caller writes `header()`, then what each
    `add` was given, then `finish(…)`.
    """

    def __init__(
        self, salt: int, after: int, through: int, spool: Callable[[], Spool] = HeldBytes
    ) -> None:
        self.salt = salt
        self.after = after
        self.through = through
        self._spool = spool
        self._index = [_Column(spool()) for _ in range(3)]
        self._directory = [_Column(spool()) for _ in range(len(DIRECTORY_FIELDS) + 1)]
        # What is not in the columns yet.
        self._messages = Messages()
        self._extents: list[Extent] = []
        self._message_count = self._extent_count = 0
        self._data_end = HEADER_BYTES
        self._pack: NewPack | None = None

    @property
    def name(self) -> str:
        return pack_name(self.after, self.through, self.salt)

    @property
    def pack(self) -> NewPack:
        """The finished pack as the catalog takes it."""
        assert self._pack is not None, "finish() comes first"
        return self._pack

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
        self._extents.append(
            Extent(
                stream,
                start,
                length,
                self._data_end,
                self._message_count,
                len(messages),
                messages.positions[0],
                messages.positions[-1],
                checksum(messages.lengths.tobytes(), salt),
                block_sums(data, salt).tobytes(),
            )
        )
        self._messages.extend(messages)
        self._message_count += len(messages)
        self._data_end += length
        if len(self._extents) >= _EXTENTS_HELD or len(self._messages) >= EXTENT_MESSAGES_MAX:
            self._spill()

    def _spill(self) -> None:
        """Move what is held into the columns."""
        extents, messages = self._extents, self._messages
        arrays = (messages.lengths, messages.timestamps, messages.positions)
        for column, values in zip(self._index, arrays, strict=True):
            column.write(values.tobytes())
        fields: dict[str, Iterable[int]] = {
            "streams": (extent.stream for extent in extents),
            "starts": (extent.start for extent in extents),
            "lengths": (extent.length for extent in extents),
            "first_positions": (extent.first_position for extent in extents),
            "last_positions": (extent.last_position for extent in extents),
            "index_sums": (extent.index_sum for extent in extents),
            "messages": (extent.messages for extent in extents),
        }
        *columns, sums = self._directory
        for (name, code, _), column in zip(DIRECTORY_FIELDS, columns, strict=True):
            column.write(array(code, fields[name]).tobytes())
        sums.write(b"".join(extent.sums for extent in extents))
        self._extent_count += len(extents)
        self._messages, self._extents = Messages(), []

    def finish(self, meta: PackMeta, rows: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
        """Everything after the data; `rows` are sorted by stream number."""
        self._spill()
        salt, data_end = self.salt, self._data_end
        encoded = encode_meta(meta)
        delta = self._rows(rows)
        index_at = padded(data_end)
        directory_at = index_at + _size(self._index)
        delta_at = directory_at + _size(self._directory)
        yield bytes(index_at - data_end)
        index_sum = yield from _summed(_pieces(self._index), salt)
        directory_sum = yield from _summed(_pieces(self._directory), salt)
        head = encoded.ljust(padded(len(encoded)), b"\0")
        delta_sum = yield from _summed(chain([head], _pieces(delta)), salt)
        footer = Footer(
            BLOCK_BYTES,
            salt,
            self.after,
            self.through,
            data_end,
            self._message_count,
            self._extent_count,
            self._directory[-1].size // 8,
            directory_at,
            delta_at,
            delta[0].size // 8,
            len(encoded),
            delta_at + len(head) + _size(delta),
            index_sum,
            directory_sum,
            delta_sum,
        )
        extents = Directory(footer, [column.read for column in self._directory])
        self._pack = NewPack(describe_pack(self.name, footer, meta), extents)
        yield encode_footer(footer)

    def _rows(self, rows: Iterable[tuple[int, bytes]]) -> list[_Column]:
        """The columns of the delta: the streams' numbers, the sizes of their rows, and the rows."""
        numbers, sizes, encoded = columns = [_Column(self._spool()) for _ in range(3)]
        for number, row in rows:
            numbers.write(number.to_bytes(8, "little"))
            sizes.write(len(row).to_bytes(4, "little"))
            encoded.write(row)
        return columns


def _size(columns: Iterable[_Column]) -> int:
    return sum(padded(column.size) for column in columns)


def _pieces(columns: Iterable[_Column]) -> Iterator[bytes]:
    return chain.from_iterable(column.pieces() for column in columns)


def _summed(pieces: Iterable[bytes], salt: int) -> Generator[bytes, None, int]:
    """Pass the pieces on; returns their checksum."""
    digest = xxh3_64(seed=salt)
    for piece in pieces:
        digest.update(piece)
        yield piece
    return digest.intdigest()


def _split(lengths: array[int]) -> Iterator[tuple[int, int, int]]:
    """Cut a long run into extents: (first message, end, bytes) of each."""
    first = size = 0
    for at, length in enumerate(lengths):
        if at > first and (size + length > EXTENT_BYTES_MAX or at - first >= EXTENT_MESSAGES_MAX):
            yield first, at, size
            first, size = at, 0
        size += length
    yield first, len(lengths), size
