"""The values that requests return."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Created:
    """The result of creating a stream; `created` is False if it existed already."""

    created: bool
    content_type: str
    next_offset: str
    closed: bool
    etag: str | None


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of an append; a producer's duplicate was not stored again."""

    next_offset: str
    closed: bool
    etag: str | None
    duplicate: bool = False
    # The last sequence number of the producer that the server has.
    producer_seq: int | None = None


@dataclass(frozen=True, slots=True)
class StreamHead:
    """The metadata of a stream; None where the server sends none."""

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
    """The producer headers of one append, for callers that number appends themselves."""

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
    """The size of a bucket."""

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
    """Changes up to a cursor from which to continue."""

    changes: list[Change]
    next_cursor: str
    up_to_date: bool = False


class ScanPartition(msgspec.Struct, frozen=True):
    """The part of a scan for one worker: streams whose bytes are in packs."""

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
    """A plan to read a whole bucket."""

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
    # Streams of which some data in this range is gone.
    lost: list[str] = []


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


class ScanEnd(msgspec.Struct, frozen=True):
    """The end of a stretch of the log of limited size, and roughly what is in it."""

    bucket_id: str
    after: str
    until: str
    latest: str
    bytes: int
    messages: int
    # The store of the log that the cursors refer to.
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
    """A server's object store: its URL, its id, and the position up to which it has data."""

    store: str
    store_id: str
    flushed: str
