"""What requests answer with, as small typed values."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Created:
    """The answer to creating a stream; `created` is False if it was there already."""

    created: bool
    content_type: str
    next_offset: str
    closed: bool
    etag: str | None


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer to an append; a duplicate of a producer's was not stored again."""

    next_offset: str
    closed: bool
    etag: str | None
    duplicate: bool = False
    # The producer's last sequence number that the server has.
    producer_seq: int | None = None


@dataclass(frozen=True, slots=True)
class StreamHead:
    """What HEAD tells of a stream; what a server does not tell is None."""

    content_type: str
    next_offset: str
    closed: bool
    etag: str | None
    ttl_s: int | None
    expires_at: str | None
    snapshot_offset: str | None
    earliest_offset: str | None


@dataclass(frozen=True, slots=True)
class ProducerStamp:
    """The producer headers of one append, for those who number appends themselves."""

    producer_id: str
    epoch: int
    seq: int


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream in a bucket's listing."""

    stream_id: str
    status: str
    content_type: str
    tail_offset: int
    created_at_ms: int
    last_write_at_ms: int | None = None


class BucketInfo(msgspec.Struct, frozen=True):
    """What a bucket holds."""

    bucket_id: str
    streams: int
    bytes: int
    created_at_ms: int | None = None
    last_write_at_ms: int | None = None


class Change(msgspec.Struct, frozen=True):
    """One append, creation or deletion in a bucket."""

    stream_id: str
    offset: int = 0
    length: int = 0
    created: bool = False
    deleted: bool = False


class ChangePage(msgspec.Struct, frozen=True):
    """Changes up to a cursor, which is where to go on."""

    changes: list[Change]
    next_cursor: str
    up_to_date: bool = False


class ScanPartition(msgspec.Struct, frozen=True):
    """A part of a scan for one worker: streams whose bytes are in packs."""

    shard: int
    first_stream_id: str
    last_stream_id: str
    after: str
    until: str
    bytes: int
    ranges: int
    packs: list[str]


class ScanHot(msgspec.Struct, frozen=True):
    """The part of a scan that is not in packs yet."""

    shard: int
    after: str
    until: str


class ScanPlan(msgspec.Struct, frozen=True):
    """How to read a bucket as a whole."""

    bucket_id: str
    after: str
    until: str
    flushed: str
    store: str
    partitions: list[ScanPartition]
    next_cursor: str
    prefix: str = ""
    hot: ScanHot | None = None
    # The id in the store's marker.
    store_id: str = ""
    # Streams of which something that was appended in between is gone by now.
    lost: list[str] = []


class ScanRange(msgspec.Struct, frozen=True):
    """Bytes of a stream in a pack, and all it takes to read and verify them."""

    stream_id: str
    stream: int
    pack: str
    offset: int
    length: int
    earliest: int
    content_type: str
    first_position: int
    last_position: int
    # Where the bytes start in the pack, which of its messages is the first, and how many they are.
    data_at: int
    message_at: int
    messages: int
    # Checksums in hexadecimal digits, of eight little-endian bytes each: of the lengths of the
    # messages, and of every block.
    index_sum: str
    sums: str
    # Of the pack: what checksums are seeded with (16 hexadecimal digits), and its sizes.
    salt: str
    pack_data_bytes: int
    pack_messages: int


class ScanEnd(msgspec.Struct, frozen=True):
    """How far a stretch of the log of limited size goes, and about what is in it."""

    bucket_id: str
    after: str
    until: str
    latest: str
    bytes: int
    messages: int
    # Whose log the cursors are of.
    store_id: str = ""


class Record(msgspec.Struct, frozen=True):
    """A message that is not in packs yet."""

    stream_id: str
    stream: int
    offset: int
    next_offset: int
    timestamp_ms: int
    position: int
    content_type: str
    payload: bytes


class StoreInfo(msgspec.Struct, frozen=True):
    """The object store of a server: where it is, whose it is, and how far it goes."""

    store: str
    store_id: str
    flushed: str
