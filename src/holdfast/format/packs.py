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
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FORMAT_VERSION: Final = 1
HEADER_BYTES: Final = 16
BLOCK_BYTES: Final = 256 * 1024
# An extent is at most this large, unless a single message is larger.
EXTENT_BYTES_MAX: Final = 8 * 1024 * 1024
EXTENT_MESSAGES_MAX: Final = 65_536

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


class NewPack(NamedTuple):
    """A pack that is in the store and durable, but not in the catalog yet."""

    info: PackInfo
    extents: Sequence[Extent]

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


def block_sums(data: bytes | memoryview, salt: int) -> array[int]:
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


class Directory:
    __slots__ = ("_arrays", "_block_bytes", "_sums")

    def __init__(self, arrays: dict[str, array[int]], sums: bytes, block_bytes: int) -> None:
        self._arrays = arrays
        self._sums = sums
        self._block_bytes = block_bytes

    def __iter__(self) -> Iterator[Extent]:
        data_at, message_at, sum_at = HEADER_BYTES, 0, 0
        columns = (self._arrays[name] for name, _, _ in DIRECTORY_FIELDS)
        for stream, start, length, first, last, index_sum, messages in zip(*columns, strict=True):
            sum_end = sum_at + 8 * -(-length // self._block_bytes)
            yield Extent(
                stream,
                start,
                length,
                data_at,
                message_at,
                messages,
                first,
                last,
                index_sum,
                self._sums[sum_at:sum_end],
            )
            data_at, message_at, sum_at = data_at + length, message_at + messages, sum_end


def decode_directory(data: bytes, footer: Footer) -> Directory:
    """Decode the bytes from `directory_at` to `delta_at`."""
    if checksum(data, footer.salt) != footer.directory_sum:
        raise PackFormatError("its directory is damaged")
    arrays: dict[str, array[int]] = {}
    at = 0
    for name, code, width in DIRECTORY_FIELDS:
        size = width * footer.extents
        arrays[name] = array(code, data[at : at + size])
        at = padded(at + size)
    sums = data[at : at + 8 * footer.blocks]
    if len(sums) != 8 * footer.blocks or sum(arrays["messages"]) != footer.messages:
        raise PackFormatError("its directory does not fit its footer")
    if HEADER_BYTES + sum(arrays["lengths"]) != footer.data_end:
        raise PackFormatError("its directory does not cover its data")
    return Directory(arrays, sums, footer.block_bytes)


class Delta(NamedTuple):
    """The decoded delta; its rows are still encoded, sorted by stream number."""

    meta: PackMeta
    numbers: array[int]
    sizes: array[int]
    rows: bytes

    def items(self) -> Iterator[tuple[int, bytes]]:
        """Stream numbers and encoded rows."""
        at = 0
        for number, size in zip(self.numbers, self.sizes, strict=True):
            yield number, self.rows[at : at + size]
            at += size


_encode_meta = msgspec.msgpack.Encoder().encode
_decode_meta = msgspec.msgpack.Decoder(PackMeta).decode


def encode_delta(meta: PackMeta, rows: Iterator[tuple[int, bytes]]) -> tuple[list[bytes], int, int]:
    """The delta's parts, its number of rows and the size of its metadata."""
    encoded = _encode_meta(meta)
    numbers, sizes, blobs = array("Q"), array("I"), []
    for number, row in rows:
        numbers.append(number)
        sizes.append(len(row))
        blobs.append(row)
    parts = [
        encoded.ljust(padded(len(encoded)), b"\0"),
        numbers.tobytes(),
        sizes.tobytes().ljust(padded(4 * len(sizes)), b"\0"),
        *blobs,
        bytes(-sum(sizes) % 8),
    ]
    return parts, len(numbers), len(encoded)


def decode_delta(data: bytes, footer: Footer) -> Delta:
    """Decode the bytes from `delta_at` to `footer_at`."""
    if checksum(data, footer.salt) != footer.delta_sum:
        raise PackFormatError("its delta is damaged")
    meta = _decode_meta(data[: footer.meta_bytes])
    at = padded(footer.meta_bytes)
    sizes_at = at + 8 * footer.rows
    rows_at = padded(sizes_at + 4 * footer.rows)
    numbers = array("Q", data[at:sizes_at])
    sizes = array("I", data[sizes_at : sizes_at + 4 * footer.rows])
    return Delta(meta, numbers, sizes, data[rows_at:])
