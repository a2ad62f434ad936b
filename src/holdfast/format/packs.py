"""Packs: immutable objects that hold the bytes of many streams, and an index to find them.

    header | data | lengths | timestamps | positions | directory | delta | footer

Everything is little-endian and starts at a multiple of 8 behind the data. The data of a stream is
one or more *extents*, each a run of whole messages, back to back in the order of the directory.

- The message index is three arrays with one entry per message in the order of the data: length
  (u32), timestamp in ms (i64), position in the log (u64).
- The directory is one array per field with one entry per extent (`DIRECTORY_FIELDS`), then the
  checksum (u64) of every block of every extent. A block is `block_bytes` of an extent, its last one
  what is left; so a part of an extent can be read and verified without the rest.
- The delta says what changed in the pack's range of the log besides the bytes: the rows of streams
  as of its end, and the numbers of streams that are gone. A pack that holds only the bytes of one
  large stream has none; the pack of the same range that has it names it as a companion.
- The footer has a fixed size, so that a reader finds everything from the end.

Checksums are XXH3-64, seeded with the pack's random salt: a block of one pack never passes for one
of another.
"""

from __future__ import annotations

import sys
from array import array
from itertools import accumulate
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    # Returns the bytes of a part of a pack: the first, and how many.
    Read = Callable[[int, int], bytes]

FORMAT_VERSION: Final = 1
HEADER_BYTES: Final = 16
BLOCK_BYTES: Final = 256 * 1024
# An extent is at most this large, unless a single message is larger.
EXTENT_BYTES_MAX: Final = 8 * 1024 * 1024
EXTENT_MESSAGES_MAX: Final = 65_536
# How much of a part is read at once: entries of an array, and bytes of rows.
PIECE_ENTRIES: Final = 32_768
WINDOW_BYTES: Final = 1024 * 1024

MAGIC: Final = b"HFPACK\r\n"
HEADER: Final = Struct("<8sII")
_FOOTER: Final = Struct("<8sII15Q")
_CHECKSUM: Final = Struct("<Q")
FOOTER_BYTES: Final = _FOOTER.size + _CHECKSUM.size
# (name, type of the array, bytes of an entry)
DIRECTORY_FIELDS: Final = (
    ("streams", "Q", 8),
    ("starts", "Q", 8),
    ("lengths", "Q", 8),
    ("first_positions", "Q", 8),
    ("last_positions", "Q", 8),
    ("index_sums", "Q", 8),
    ("messages", "I", 4),
)
assert sys.byteorder == "little", "arrays are written as they lie in memory"


class PackFormatError(ValueError):
    """The bytes are not a valid pack; the message says why."""


class UnknownPackVersionError(PackFormatError):
    """A valid pack of a version that this code does not read."""


TIME_MIN_MS: Final = -(2**63)
TIME_MAX_MS: Final = 2**63 - 1


class TimeSpan(NamedTuple):
    """Between which times the messages of a part of the log were appended.

    Both positions are included. If `min_ms` is greater than `max_ms`, there are no messages.
    """

    first_position: int
    last_position: int
    min_ms: int
    max_ms: int


def unknown_times(after: int, through: int) -> TimeSpan:
    """The span of packs of earlier versions, which have no times besides their messages'."""
    return TimeSpan(after + 1, through, TIME_MIN_MS, TIME_MAX_MS)


class PackMeta(msgspec.Struct):
    """A pack's metadata."""

    created_ms: int
    has_delta: bool
    # Packs whose contents are in this one or deleted: a rebuild ignores them.
    supersedes: list[str] = []
    # Packs of one large stream each that belong to the same range of the log.
    companions: list[str] = []
    # Streams that ended in this range.
    removed: list[int] = []
    # Documents that changed in this range, None for deleted ones.
    documents: dict[str, bytes | None] = {}
    # When the last record of this range was written.
    last_ms: int = 0
    # The times of the range, in the order of the log; packs of earlier versions have none.
    times: list[TimeSpan] = []


def times_of(meta: PackMeta, after: int, through: int) -> list[TimeSpan]:
    """The times of the range of a pack with a delta."""
    return meta.times or [unknown_times(after, through)]


def fewer_times(times: list[TimeSpan], most: int) -> list[TimeSpan]:
    """The same times in no more than so many spans: neighbours are joined."""
    count = max(1, -(-len(times) // most))
    parts = [times[at : at + count] for at in range(0, len(times), count)]
    return [
        TimeSpan(
            part[0].first_position,
            part[-1].last_position,
            min(span.min_ms for span in part),
            max(span.max_ms for span in part),
        )
        for part in parts
    ]


class Footer(NamedTuple):
    """The offsets, counts and checksums of all parts."""

    block_bytes: int
    salt: int
    after: int
    through: int
    data_end: int
    messages: int
    extents: int
    blocks: int
    directory_at: int
    delta_at: int
    rows: int
    meta_bytes: int
    footer_at: int
    index_sum: int
    directory_sum: int
    delta_sum: int

    @property
    def lengths_at(self) -> int:
        """The start of the message index, which begins with the lengths."""
        return padded(self.data_end)

    @property
    def timestamps_at(self) -> int:
        return padded(self.lengths_at + 4 * self.messages)

    @property
    def positions_at(self) -> int:
        return self.timestamps_at + 8 * self.messages

    @property
    def size_bytes(self) -> int:
        return self.footer_at + FOOTER_BYTES


class Extent(NamedTuple):
    """A run of whole messages of one stream, and where it is in its pack."""

    stream: int
    start: int
    length: int
    data_at: int
    message_at: int
    messages: int
    first_position: int
    last_position: int
    index_sum: int
    # Eight bytes for each block.
    sums: bytes

    @property
    def end(self) -> int:
        return self.start + self.length


class PackInfo(msgspec.Struct, frozen=True):
    """What a pack's footer and metadata say about it, as the catalog keeps it and the API lists it.

    Only the catalog knows `dead_bytes` and `superseded`: a pack by itself has 0 and none.
    """

    name: str
    size_bytes: int
    data_bytes: int
    # Bytes of streams that were deleted or trimmed since the pack was written.
    dead_bytes: int
    messages: int
    rows: int
    has_delta: bool
    after: int
    through: int
    # 16 hexadecimal digits, as in the pack's name.
    salt: str
    created_ms: int
    # Retired packs that this one replaces, whose objects may still be in the store.
    superseded: list[str]


class PackExtent(msgspec.Struct, frozen=True):
    """An extent in use and its stream, as the catalog has it and the API lists it."""

    stream: int
    start: int
    length: int
    data_at: int
    message_at: int
    messages: int
    first_position: int
    last_position: int
    # Little-endian, in hexadecimal digits: the checksum of the lengths, and of each block.
    index_sum: str
    sums: str
    # Bytes of the stream before this offset are dead.
    needed_from: int
    # Bucket and id.
    name: str
    json: bool
    tail: int

    @property
    def extent(self) -> Extent:
        """The extent as the pack's directory has it."""
        return Extent(
            self.stream,
            self.start,
            self.length,
            self.data_at,
            self.message_at,
            self.messages,
            self.first_position,
            self.last_position,
            int.from_bytes(bytes.fromhex(self.index_sum), "little"),
            bytes.fromhex(self.sums),
        )


class ScanRange(msgspec.Struct, frozen=True):
    """Bytes of a stream in a pack, with everything needed to read and verify them."""

    stream_id: str
    stream: int
    pack: str
    offset: int
    length: int
    earliest: int
    content_type: str
    first_position: int
    last_position: int
    # Where the bytes start in the pack, the number of the first message, and how many there are.
    data_at: int
    message_at: int
    messages: int
    # Checksums in hexadecimal, eight little-endian bytes each: of the messages' lengths, and of
    # every block.
    index_sum: str
    sums: str
    # The pack's checksum seed (16 hexadecimal digits) and its sizes.
    salt: str
    pack_data_bytes: int
    pack_messages: int
    # Where in the log bytes before `earliest` went; 0 if that is unknown.
    hidden_at: int = 0


class ScanPart(msgspec.Struct, frozen=True):
    """What streams between two numbers gained at positions (after, until], and the packs with it.

    The streams' messages are sorted by number, then by offset.
    """

    after: int
    until: int
    # Stream and offset of the first message, and of the first one that is not part of it any more.
    # Without the latter it reaches to the end.
    first: tuple[int, int]
    last: tuple[int, int] | None
    # Indexes in the plan's list of packs.
    packs: list[int]
    # About how much there is.
    bytes: int
    messages: int

    def covers(self, stream: int, offset: int) -> bool:
        """Whether the extent of a stream at an offset belongs to this part."""
        at = stream, offset
        return self.first <= at and (self.last is None or at < self.last)


class PackStreams(msgspec.Struct, frozen=True):
    """What a pack does not say about its streams itself; arrays are little-endian and sorted."""

    pack: str
    # u64: the numbers of the streams of which the pack holds anything in use. None: all of them.
    live: bytes | None
    # Streams of which a part or everything is gone: their numbers (u64), the offsets from which
    # they can be read (i64; the highest if they cannot), and the positions at which the rest went
    # (u64; 0 if that is unknown).
    hidden: bytes
    visible_from: bytes
    hidden_at: bytes
    # Ids and content types of streams, by number.
    names: dict[int, tuple[str, str]]


class NewPack(NamedTuple):
    """A pack that is in the store and durable, but not in the catalog yet."""

    info: PackInfo
    # By stream and offset, and as often as they are iterated.
    extents: Iterable[Extent]

    @property
    def name(self) -> str:
        return self.info.name


def describe_pack(name: str, footer: Footer, meta: PackMeta) -> PackInfo:
    return PackInfo(
        name,
        footer.size_bytes,
        footer.data_end - HEADER_BYTES,
        0,
        footer.messages,
        footer.rows,
        meta.has_delta,
        footer.after,
        footer.through,
        f"{footer.salt:016x}",
        meta.created_ms,
        [],
    )


def padded(at: int) -> int:
    return at + 7 & ~7


def checksum(data: bytes | memoryview, salt: int) -> int:
    return xxh3_64_intdigest(data, seed=salt)


def check_sum(pieces: Iterable[bytes | memoryview], salt: int, expected: int, what: str) -> None:
    """Raise unless these pieces are the part of a pack that has this checksum."""
    digest = xxh3_64(seed=salt)
    for piece in pieces:
        digest.update(piece)
    if digest.intdigest() != expected:
        raise PackFormatError(f"its {what} is damaged")


def block_sums(data: bytes | memoryview, salt: int) -> array[int]:
    if len(data) <= BLOCK_BYTES:
        return array("Q", [xxh3_64_intdigest(data, seed=salt)] if data else [])
    view = memoryview(data)
    return array(
        "Q",
        (
            xxh3_64_intdigest(view[at : at + BLOCK_BYTES], seed=salt)
            for at in range(0, len(view), BLOCK_BYTES)
        ),
    )


def encode_footer(footer: Footer) -> bytes:
    block_bytes, *rest = footer
    packed = _FOOTER.pack(MAGIC, FORMAT_VERSION, block_bytes, *rest)
    return packed + _CHECKSUM.pack(xxh3_64_intdigest(packed))


def decode_footer(data: bytes, size_bytes: int) -> Footer:
    """Decode the last bytes of a pack of this size."""
    if len(data) < FOOTER_BYTES:
        raise PackFormatError("it is too short to be a pack")
    packed = data[-FOOTER_BYTES : -_CHECKSUM.size]
    (expected,) = _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)
    magic, version, block_bytes, *rest = _FOOTER.unpack(packed)
    if magic != MAGIC or xxh3_64_intdigest(packed) != expected:
        raise PackFormatError("its footer is damaged")
    if version != FORMAT_VERSION:
        raise UnknownPackVersionError(f"it has the pack format {version}")
    if block_bytes != BLOCK_BYTES:
        raise UnknownPackVersionError(f"it has blocks of {block_bytes} bytes")
    footer = Footer(block_bytes, *rest)
    if footer.size_bytes != size_bytes:
        raise PackFormatError(f"it has {size_bytes} bytes instead of {footer.size_bytes}")
    return footer


class SequentialReader:
    """Reads in ascending order with few calls of `read`, each for a window of bytes."""

    def __init__(self, read: Read, end: int, window_bytes: int) -> None:
        self._read = read
        self._end = end
        self._window_bytes = window_bytes
        self._at = 0
        self._window = b""

    def read(self, at: int, size: int) -> bytes:
        """Read these bytes; going back is allowed, but costs a call."""
        inside = at - self._at
        if inside < 0 or inside + size > len(self._window):
            self._at, inside = at, 0
            self._window = self._read(at, min(max(size, self._window_bytes), self._end - at))
        return self._window[inside : inside + size]


class Directory:
    """A pack's extents, decoded piece by piece each time they are iterated.

    `columns` are the directory's arrays, one for each of `DIRECTORY_FIELDS`, and the blocks' sums.
    """

    __slots__ = ("_columns", "_footer")

    def __init__(self, footer: Footer, columns: Sequence[Read]) -> None:
        self._footer = footer
        self._columns = columns

    def __iter__(self) -> Iterator[Extent]:
        footer, (*columns, read_sums) = self._footer, self._columns
        data_at, message_at, sum_at = HEADER_BYTES, 0, 0
        for first in range(0, footer.extents, PIECE_ENTRIES):
            count = min(PIECE_ENTRIES, footer.extents - first)
            fields = [
                array(code, read(width * first, width * count))
                for (_, code, width), read in zip(DIRECTORY_FIELDS, columns, strict=True)
            ]
            ends = list(accumulate(8 * -(-length // footer.block_bytes) for length in fields[2]))
            sums, at = read_sums(sum_at, ends[-1]), 0
            for stream, start, length, earliest, latest, index_sum, messages, end in zip(
                *fields, ends, strict=True
            ):
                yield Extent(
                    stream,
                    start,
                    length,
                    data_at,
                    message_at,
                    messages,
                    earliest,
                    latest,
                    index_sum,
                    sums[at:end],
                )
                data_at, message_at, at = data_at + length, message_at + messages, end
            sum_at += at
        if message_at != footer.messages or sum_at != 8 * footer.blocks:
            raise PackFormatError("its directory does not fit its footer")
        if data_at != footer.data_end:
            raise PackFormatError("its directory does not cover its data")


def directory_in(read: Read, footer: Footer) -> Directory:
    """The directory; `read` reads the bytes from `directory_at` to `delta_at`."""
    columns, at = [], 0
    for _, _, width in DIRECTORY_FIELDS:
        columns.append(_from(read, at))
        at = padded(at + width * footer.extents)
    return Directory(footer, [*columns, _from(read, at)])


def _from(read: Read, start: int) -> Read:
    return lambda at, size: read(start + at, size)


class Delta:
    """A pack's metadata and its encoded rows, sorted by stream number.

    `read` reads the bytes from `delta_at` to `footer_at`. The rows are read piece by piece.
    """

    __slots__ = ("_footer", "_read", "meta")

    def __init__(self, read: Read, footer: Footer) -> None:
        self._read = read
        self._footer = footer
        self.meta = _decode_meta(read(0, footer.meta_bytes))

    def items(self) -> Iterator[tuple[int, bytes]]:
        """Stream numbers and encoded rows."""
        read, footer = self._read, self._footer
        numbers_at = padded(footer.meta_bytes)
        sizes_at = numbers_at + 8 * footer.rows
        at = padded(sizes_at + 4 * footer.rows)
        rows = SequentialReader(read, footer.footer_at - footer.delta_at, WINDOW_BYTES)
        for first in range(0, footer.rows, PIECE_ENTRIES):
            count = min(PIECE_ENTRIES, footer.rows - first)
            numbers = array("Q", read(numbers_at + 8 * first, 8 * count))
            sizes = array("I", read(sizes_at + 4 * first, 4 * count))
            for number, size in zip(numbers, sizes, strict=True):
                yield number, rows.read(at, size)
                at += size


encode_meta = msgspec.msgpack.Encoder().encode
_decode_meta = msgspec.msgpack.Decoder(PackMeta).decode
