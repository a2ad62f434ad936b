"""Records: everything that changes durable state, as bytes.

A batch's body is a sequence of records. A record is

    length u32 | kind u8 | flags u8 | reserved u16 | stream u64 | at_ms i64 | sections | payload

little-endian; `length` counts the bytes that follow it. Sections come in this order, each only if
its flag is set:

    PRODUCER  id length u16, epoch u64, seq u64, id
    SEQ       length u16, bytes
    META      length u32, MessagePack map (see `StreamMeta`)
    DIGEST    8 bytes: the digest of the producer

`stream` is the stream's number, made from the position of the batch and the index of the record
that created it. Append, producer state, `Stream-Seq` and closure share one record, so they are
atomic. Nothing here depends on a clock: an expiry carries its deadline in `at_ms`.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.protocol.producer import DIGEST_BYTES, Producer

if TYPE_CHECKING:
    from collections.abc import Iterator

INDEX_BITS: Final = 20
RECORDS_MAX: Final = 1 << INDEX_BITS

_HEAD: Final = Struct("<IBBHQq")
_PRODUCER: Final = Struct("<HQQ")
_SEQ: Final = Struct("<H")
_META: Final = Struct("<I")

CLOSES: Final = 1
HAS_PRODUCER: Final = 2
HAS_SEQ: Final = 4
HAS_META: Final = 8
HAS_DIGEST: Final = 16
_KNOWN_FLAGS: Final = CLOSES | HAS_PRODUCER | HAS_SEQ | HAS_META | HAS_DIGEST


class Kind(IntEnum):
    """What a record does."""

    CREATE = 1
    APPEND = 2
    DELETE = 3
    EXPIRE = 4
    TOUCH = 5
    # The payload is the bucket's name.
    CREATE_BUCKET = 6
    DELETE_BUCKET = 7
    # The payload is a `Snapshot`, at which the stream starts from then on.
    SNAPSHOT = 8
    # The payload is a MessagePack map of keys to values, or to nil for removed documents.
    DOCUMENTS = 9


class Fork(msgspec.Struct, frozen=True, array_like=True):
    """Where a fork starts: all bytes before `offset` are its source's."""

    source: int
    name: str
    offset: int
    # The offset as the client sent it, to recognise a repeated request.
    requested_offset: int | None = None
    sub_offset: int = 0


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot of everything before `offset`, and the object that holds it.

    Snapshots that were published together share an object: this one has `size_bytes` from `start`
    on, and the size and checksum of the whole object are given, too.
    """

    offset: int
    object: str
    content_type: str
    size_bytes: int
    checksum: int
    start: int = 0
    object_bytes: int | None = None
    object_checksum: int = 0

    @property
    def whole(self) -> tuple[int, int]:
        """The size and the checksum of the object."""
        if self.object_bytes is None:
            return self.size_bytes, self.checksum
        return self.object_bytes, self.object_checksum


class StreamMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a stream is created with; it never changes."""

    name: str
    content_type: str
    ttl_s: int | None = None
    expires_at_ms: int | None = None
    fork: Fork | None = None


class Record(msgspec.Struct, gc=False):
    """A record; which fields are used depends on the kind."""

    kind: int
    stream: int
    at_ms: int
    payload: bytes = b""
    closes: bool = False
    producer: Producer | None = None
    seq: bytes | None = None
    meta: StreamMeta | None = None


encode_snapshot = msgspec.msgpack.Encoder().encode
decode_snapshot = msgspec.msgpack.Decoder(Snapshot).decode
encode_documents = msgspec.msgpack.Encoder().encode
decode_documents = msgspec.msgpack.Decoder(dict[str, bytes | None]).decode
_encode_meta = msgspec.msgpack.Encoder().encode
_decode_meta = msgspec.msgpack.Decoder(StreamMeta).decode


def stream_number(position: int, index: int) -> int:
    """The number of the stream created by record `index` of the batch at `position`."""
    return position << INDEX_BITS | index


def encode(record: Record) -> bytes:
    payload = record.payload
    if record.producer is None and record.seq is None and record.meta is None:
        flags = CLOSES if record.closes else 0
        length = _HEAD.size - 4 + len(payload)
        return _HEAD.pack(length, record.kind, flags, 0, record.stream, record.at_ms) + payload
    return _encode_with_sections(record)


def _encode_with_sections(record: Record) -> bytes:
    flags = CLOSES if record.closes else 0
    digest = b""
    sections = []
    if record.producer is not None:
        flags |= HAS_PRODUCER
        producer_id, epoch, seq, digest = record.producer
        sections += [_PRODUCER.pack(len(producer_id), epoch, seq), producer_id]
    if record.seq is not None:
        flags |= HAS_SEQ
        sections += [_SEQ.pack(len(record.seq)), record.seq]
    if record.meta is not None:
        flags |= HAS_META
        meta = _encode_meta(record.meta)
        sections += [_META.pack(len(meta)), meta]
    if digest:
        assert len(digest) == DIGEST_BYTES, "a digest has a fixed size"
        flags |= HAS_DIGEST
        sections.append(digest)
    body = b"".join([*sections, record.payload])
    length = _HEAD.size - 4 + len(body)
    return _HEAD.pack(length, record.kind, flags, 0, record.stream, record.at_ms) + body


def decode(body: bytes) -> Iterator[Record]:
    """Yield the records of a batch's body.

    The body has passed its checksum, so a malformed record is a defect of the writer: ValueError.
    """
    at = 0
    size = len(body)
    while at < size:
        if size - at < _HEAD.size:
            raise ValueError(f"record at byte {at} has no room for its head")
        length, kind, flags, reserved, stream, at_ms = _HEAD.unpack_from(body, at)
        end = at + 4 + length
        start = at + _HEAD.size
        if not start <= end <= size:
            raise ValueError(f"record at byte {at} has length {length}, which does not fit")
        if reserved or flags & ~_KNOWN_FLAGS:
            raise ValueError(f"record at byte {at} has flags {flags:#x}, of which some are unknown")
        if flags & (HAS_PRODUCER | HAS_SEQ | HAS_META | HAS_DIGEST):
            try:
                yield _decode_sections(body, start, end, kind, flags, stream, at_ms)
            except (struct_error, msgspec.DecodeError) as error:
                raise ValueError(f"record at byte {at} has malformed sections: {error}") from None
        else:
            yield Record(kind, stream, at_ms, body[start:end], bool(flags & CLOSES))
        at = end


def _decode_sections(
    body: bytes, at: int, end: int, kind: int, flags: int, stream: int, at_ms: int
) -> Record:
    record = Record(kind, stream, at_ms, closes=bool(flags & CLOSES))
    if flags & HAS_PRODUCER:
        size, epoch, seq = _PRODUCER.unpack_from(body, at)
        at += _PRODUCER.size
        record.producer = Producer(body[at : at + size], epoch, seq)
        at += size
    if flags & HAS_SEQ:
        (size,) = _SEQ.unpack_from(body, at)
        at += _SEQ.size
        record.seq = body[at : at + size]
        at += size
    if flags & HAS_META:
        (size,) = _META.unpack_from(body, at)
        at += _META.size
        record.meta = _decode_meta(body[at : at + size])
        at += size
    if flags & HAS_DIGEST:
        if record.producer is None:
            raise ValueError("a record has the digest of a producer, and no producer")
        record.producer = record.producer._replace(digest=body[at : at + DIGEST_BYTES])
        at += DIGEST_BYTES
    if at > end:
        raise ValueError("a record's sections are longer than the record")
    record.payload = body[at:end]
    return record
