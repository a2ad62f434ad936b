"""Segments: the files of the log, as bytes.

A segment is a 64-byte header and then batches. The header

    magic 8s | version u32 | reserved u32 | salt u64 | first position u64
    | predecessor u64 | predecessor's durable end u64 | checksum u64 | zeros

names the segment before it (its number, 0 for none) and the byte where that one ends: bytes beyond
it were never acknowledged and are ignored. A batch is

    magic 4s | body length u32 | position u64 | head checksum u64 | body checksum u64 | body

Both of its checksums are XXH3-64, seeded with the segment's random salt, so that no payload can
pass for a batch. The head has its own checksum, so that a search for batches in damaged bytes never
trusts a length that was not written as such.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER_BYTES: Final = 64
FRAME_BYTES: Final = 32
FORMAT_VERSION: Final = 1

_MAGIC: Final = b"HOLDFAST"
_FRAME_MAGIC: Final = b"HFB\x01"
_HEADER: Final = Struct("<8sIIQQQQ")
_CHECKSUM: Final = Struct("<Q")
_FRAME_HEAD: Final = Struct("<4sIQ")
_FRAME: Final = Struct("<4sIQQQ")


class SegmentHeader(NamedTuple):
    salt: int
    first_position: int
    predecessor: int
    predecessor_end: int


class BatchFrame(NamedTuple):
    """A valid batch in a segment; `end` is the byte after it."""

    position: int
    body: bytes
    end: int


class UnknownVersionError(ValueError):
    """The header is valid, but its version is not supported."""


class DamagedSegmentError(ValueError):
    """A segment's batches do not match its header and end; the message names the byte."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(f"byte {at}: {what}")


def encode_header(header: SegmentHeader) -> bytes:
    packed = _HEADER.pack(_MAGIC, FORMAT_VERSION, 0, *header)
    return (packed + _CHECKSUM.pack(xxh3_64_intdigest(packed))).ljust(HEADER_BYTES, b"\0")


def decode_header(data: bytes | memoryview) -> SegmentHeader | None:
    """The header at the start of `data`; None if it is not valid."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, _, *rest = _HEADER.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _HEADER.size)
    if magic != _MAGIC or checksum != xxh3_64_intdigest(data[: _HEADER.size]):
        return None
    if any(data[_HEADER.size + _CHECKSUM.size : HEADER_BYTES]):
        return None
    if version != FORMAT_VERSION:
        raise UnknownVersionError(f"segment format {version}")
    return SegmentHeader(*rest)


def encode_batch(salt: int, position: int, body: bytes) -> bytes:
    head = _FRAME_HEAD.pack(_FRAME_MAGIC, len(body), position)
    return (
        _FRAME.pack(
            _FRAME_MAGIC,
            len(body),
            position,
            xxh3_64_intdigest(head, seed=salt),
            xxh3_64_intdigest(body, seed=salt),
        )
        + body
    )


def decode_batch(data: bytes | memoryview, at: int, salt: int) -> BatchFrame | None:
    """The batch at byte `at`; None if there is no valid one."""
    if at + FRAME_BYTES > len(data):
        return None
    magic, length, position, head_sum, body_sum = _FRAME.unpack_from(data, at)
    if magic != _FRAME_MAGIC:
        return None
    if head_sum != xxh3_64_intdigest(data[at : at + _FRAME_HEAD.size], seed=salt):
        return None
    start = at + FRAME_BYTES
    # One copy whatever `data` is: bytes are copied by the slice, a view by bytes().
    body = bytes(data[start : start + length])
    if len(body) != length or body_sum != xxh3_64_intdigest(body, seed=salt):
        return None
    return BatchFrame(position, body, start + length)


def iter_batches(
    data: bytes | memoryview, header: SegmentHeader, end: int | None
) -> Iterator[BatchFrame]:
    """Yield the batches up to byte `end`, all of which must be valid and in order.

    Without a known end, yield batches as long as they are valid; the caller examines the rest.
    """
    at, expected, salt = HEADER_BYTES, header.first_position, header.salt
    while at != end:
        frame = decode_batch(data, at, salt)
        if frame is None:
            if end is None:
                return
            raise DamagedSegmentError(at, f"there is no valid batch, but the segment ends at {end}")
        if frame.position != expected:
            raise DamagedSegmentError(at, f"batch {frame.position} where {expected} belongs")
        if end is not None and frame.end > end:
            raise DamagedSegmentError(at, f"batch {expected} goes on past the end at {end}")
        yield frame
        at, expected = frame.end, expected + 1


def find_batch(data: bytes, at: int, salt: int) -> int | None:
    """The first byte at or after `at` where a valid batch starts."""
    while (at := data.find(_FRAME_MAGIC, at)) >= 0:
        if decode_batch(data, at, salt) is not None:
            return at
        at += 1
    return None
