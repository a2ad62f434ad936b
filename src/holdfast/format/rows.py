"""Rows: the durable state of streams and buckets without message bytes, and how records change it.

The engine applies records to streams in memory, the storage process applies the same records to
rows. The rules they share are here. A row is a MessagePack array in the order of the fields; fields
added by later versions come last and have defaults.

Rules for forks and snapshots:

- A stream keeps its own bytes from `start` on. Without forks that is the first readable offset,
  `earliest`, or the beginning of the stream if it is a fork and that comes later.
- While a stream has forks its `start` does not move, whatever snapshots are published, because the
  forks read the bytes before them. A fork inherits `earliest` and the snapshot of its source; later
  changes of the source do not affect it.
- A deleted stream with forks is kept for them, under its name, until the last of them is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

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
    # In a delta, those that wrote in its range; none in the catalog, which has a table for them.
    producers: dict[bytes, ProducerState] | None = None
    # The expiry recorded in the log.
    deadline_ms: int | None = None
    # The first of its own bytes, and the first readable offset.
    start: int = 0
    earliest: int = 0
    snapshot: Snapshot | None = None
    # The number of its forks, and whether it is kept for them only.
    forks: int = 0
    deleted: bool = False
    # Where in the log it was deleted, or `earliest` moved last; 0 if never, or if that is unknown.
    hidden_at: int = 0


class BucketRow(msgspec.Struct, array_like=True):
    """A bucket as of a position in the log; `explicit` if a request created it.

    `size_bytes` is what its streams store, deleted ones that are kept for their forks included. A
    bucket that does not exist any more keeps its row while there are such.
    """

    created_ms: int
    explicit: bool = False
    streams: int = 0
    size_bytes: int = 0
    last_write_ms: int | None = None

    @property
    def exists(self) -> bool:
        return self.explicit or self.streams > 0

    @property
    def is_needed(self) -> bool:
        """Whether the bucket exists, or streams of it are kept."""
        return self.exists or self.size_bytes > 0

    def begin(self, at_ms: int) -> None:
        """Start anew if the bucket does not exist: it is being created."""
        if not self.exists:
            self.created_ms, self.last_write_ms = at_ms, None


class Writable(Protocol):
    """The fields of a stream, staged stream or row that a write changes."""

    producers: dict[bytes, ProducerState] | None
    seq: bytes | None
    closed: bool
    closer: Producer | None


def apply_write(stream: Writable, record: Record) -> None:
    """Apply the producer, sequence and closure of a record."""
    if record.producer is not None:
        producer_id, epoch, seq, digest = record.producer
        if stream.producers is None:
            stream.producers = {}
        stream.producers[producer_id] = ProducerState(epoch, seq, record.at_ms, digest)
    if record.seq is not None:
        stream.seq = record.seq
    if record.closes:
        stream.closed = True
        stream.closer = record.producer


def renewed_deadline_ms(meta: StreamMeta, at_ms: int) -> int | None:
    """The deadline after a write at this time; None if writes do not renew it."""
    if meta.ttl_s is None or meta.expires_at_ms is not None:
        return None
    return at_ms + meta.ttl_s * 1000


encode_row = msgspec.msgpack.Encoder().encode
decode_row = msgspec.msgpack.Decoder(StreamRow).decode


def take_producers(row: StreamRow) -> dict[bytes, ProducerState]:
    """Take the producers out of a row.

    Where an earlier version did not record when they wrote, it was at the stream's last write or
    before.
    """
    producers, row.producers = row.producers or {}, None
    return {
        producer_id: state if state.used_ms else state._replace(used_ms=row.last_write_ms)
        for producer_id, state in producers.items()
    }


def later_row(older: bytes, newer: bytes, used_from_ms: int = 0) -> bytes:
    """A stream's row after two ranges of the log, from the encoded row of each.

    The row of a range may have only those producers that wrote in it; the others are those of the
    range before, without those that wrote last before `used_from_ms`. Everything else is in the
    later row.
    """
    before = decode_row(older)
    if not before.producers:
        return newer
    row = decode_row(newer)
    producers = {
        producer_id: state
        for producer_id, state in take_producers(before).items()
        if state.used_ms >= used_from_ms
    }
    row.producers = producers | take_producers(row) or None
    return encode_row(row)


encode_bucket = msgspec.msgpack.Encoder().encode
decode_bucket = msgspec.msgpack.Decoder(BucketRow).decode

# Bucket rows are stored as documents with this prefix.
BUCKET_PREFIX: Final = "bucket/"


class Descendant(Protocol):
    """The fields of a stream or row that forks and snapshots change."""

    number: int
    meta: StreamMeta
    tail: int
    start: int
    earliest: int
    hidden_at: int
    snapshot: Snapshot | None
    forks: int
    deleted: bool


Each = TypeVar("Each", bound=Descendant)


def stored_bytes(stream: Descendant) -> int:
    """What a stream adds to the size of its bucket: its own bytes, and its snapshot.

    A fork counts the snapshot that it has from its source, because it may be the last to have it.
    """
    snapshot = stream.snapshot
    return stream.tail - stream.start + (0 if snapshot is None else snapshot.size_bytes)


def inherited_bytes(stream: Descendant) -> int:
    """How many bytes of its sources a fork can be read from; 0 for other streams."""
    origin = stream.meta.fork
    if origin is None or stream.deleted:
        return 0
    return max(0, origin.offset - stream.earliest)


def begin_fork(fork: Descendant, source: Descendant) -> None:
    """Initialise a new fork from its source."""
    origin = fork.meta.fork
    assert origin is not None, "a fork has an origin"
    assert source.earliest <= origin.offset <= source.tail, "a fork starts inside its source"
    fork.tail = fork.start = origin.offset
    fork.earliest = source.earliest
    fork.snapshot = source.snapshot
    source.forks += 1


def publish_snapshot(stream: Descendant, snapshot: Snapshot, position: int) -> int:
    """Make the stream start at the snapshot; returns how many bytes that frees.

    The number is negative if the snapshot is larger than what it replaces.
    """
    before = stored_bytes(stream)
    stream.snapshot = snapshot
    if snapshot.offset > stream.earliest:
        stream.earliest = snapshot.offset
        stream.hidden_at = position
    _move_start(stream)
    return before - stored_bytes(stream)


def remove(
    stream: Each,
    find: Callable[[int], Each],
    gone: Callable[[Each], None],
    freed: Callable[[Each, int], None],
) -> None:
    """Remove a stream without forks, and deleted sources that were kept for it alone.

    Calls `gone` for each removed stream, and `freed` with the number of freed bytes for the source
    that stays.
    """
    while True:
        assert not stream.forks, "a stream with forks stays"
        gone(stream)
        origin = stream.meta.fork
        if origin is None:
            return
        source = find(origin.source)
        source.forks -= 1
        if source.forks or not source.deleted:
            freed(source, _move_start(source))
            return
        stream = source


def _move_start(stream: Descendant) -> int:
    if stream.forks:
        return 0
    start = max(stream.start, min(stream.earliest, stream.tail))
    freed, stream.start = start - stream.start, start
    return freed
