"""Stream rows: a stream's durable state without its bytes, and how a record changes it.

The engine applies records to streams in memory, the storage process applies the same records to
rows; what a record carries over is therefore said once, here. A row is a MessagePack array in the
order of `StreamRow`'s fields; fields that later versions add come last and have defaults.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from holdfast.format.records import Record, Snapshot, StreamMeta
from holdfast.protocol.producer import Producer, ProducerState


class StreamRow(msgspec.Struct, array_like=True):
    """A stream as of a position in the log."""

    number: int
    meta: StreamMeta
    created_ms: int
    last_write_ms: int
    tail: int = 0
    closed: bool = False
    closer: Producer | None = None
    seq: bytes | None = None
    producers: dict[bytes, ProducerState] | None = None
    # When it expires as far as the log knows.
    deadline_ms: int | None = None
    # Its own bytes are kept from here on, and readers may ask for those from `earliest` on. A fork
    # has no bytes of its own before the place where it starts.
    start: int = 0
    earliest: int = 0
    snapshot: Snapshot | None = None
    # How many forks of it there are, and whether it is there for them only.
    forks: int = 0
    deleted: bool = False


class BucketRow(msgspec.Struct, array_like=True):
    """A bucket as of a position in the log; `explicit` if it was created, not just used."""

    created_ms: int
    explicit: bool = False
    streams: int = 0
    size_bytes: int = 0
    last_write_ms: int | None = None


class Writable(Protocol):
    """What a write changes besides the bytes: of a stream, a staged stream or a row."""

    producers: dict[bytes, ProducerState] | None
    seq: bytes | None
    closed: bool
    closer: Producer | None


def take_over(stream: Writable, record: Record) -> None:
    """Take over the producer, sequence and closure that a record carries."""
    if record.producer is not None:
        producer_id, epoch, seq = record.producer
        if stream.producers is None:
            stream.producers = {}
        stream.producers[producer_id] = ProducerState(epoch, seq)
    if record.seq is not None:
        stream.seq = record.seq
    if record.closes:
        stream.closed = True
        stream.closer = record.producer


def renewed_deadline_ms(meta: StreamMeta, at_ms: int) -> int | None:
    """The deadline that a write at this time gives the stream; None if writes do not renew it."""
    if meta.ttl_s is None or meta.expires_at_ms is not None:
        return None
    return at_ms + meta.ttl_s * 1000


encode_row = msgspec.msgpack.Encoder().encode
decode_row = msgspec.msgpack.Decoder(StreamRow).decode
encode_bucket = msgspec.msgpack.Encoder().encode
decode_bucket = msgspec.msgpack.Decoder(BucketRow).decode

# Documents with this prefix are the buckets' rows.
BUCKET_PREFIX: Final = "bucket/"
