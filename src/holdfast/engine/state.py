"""Published state: what the durable records, applied in order, add up to.

Nothing here reads a clock or decides anything: `apply` does what a record says, the same at replay
as right after a commit. Readers see this state and no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.format.records import Kind, Record, StreamMeta, stream_number
from holdfast.protocol.content import media_type
from holdfast.protocol.producer import Producer, ProducerState

if TYPE_CHECKING:
    from holdfast.engine.live import Readers


class Stream:
    """A stream as its readers see it."""

    __slots__ = (
        "chunks",
        "closed",
        "closer",
        "created_ms",
        "deadline_ms",
        "ends",
        "gone",
        "last_write_ms",
        "media",
        "meta",
        "number",
        "producers",
        "readers",
        "recorded_deadline_ms",
        "seq",
        "tail",
    )

    def __init__(self, number: int, meta: StreamMeta, created_ms: int) -> None:
        self.number = number
        self.meta = meta
        self.media = media_type(meta.content_type)
        self.created_ms = created_ms
        self.last_write_ms = created_ms
        self.tail = 0
        self.closed = False
        self.closer: Producer | None = None
        self.producers: dict[bytes, ProducerState] | None = None
        self.seq: bytes | None = None
        # One chunk per append, and the offset each one ends at.
        self.chunks: list[bytes] = []
        self.ends: list[int] = []
        # When it expires as far as this process knows, and as far as the log knows.
        self.deadline_ms: int | None = None
        self.recorded_deadline_ms: int | None = None
        self.readers: Readers | None = None
        self.gone = False


class Writable(Protocol):
    """What a write changes besides the bytes, of a published stream or a staged one."""

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


class State:
    """All streams of a shard, by name and by number."""

    __slots__ = ("appended_bytes", "by_name", "by_number", "stored_bytes")

    def __init__(self) -> None:
        self.by_name: dict[str, Stream] = {}
        self.by_number: dict[int, Stream] = {}
        self.stored_bytes = 0
        self.appended_bytes = 0

    def apply(self, record: Record, position: int, index: int) -> Stream:
        """Do what the record says; the stream it changed is returned."""
        kind = record.kind
        if kind == Kind.APPEND:
            return self.append(record)
        if kind == Kind.CREATE:
            return self._create(record, position, index)
        stream = self.by_number[record.stream]
        if kind == Kind.TOUCH:
            stream.recorded_deadline_ms = record.at_ms
            stream.deadline_ms = max(record.at_ms, stream.deadline_ms or 0)
        elif kind in (Kind.DELETE, Kind.EXPIRE):
            self._remove(stream)
        else:
            raise ValueError(f"unknown kind of record: {kind}")
        return stream

    def _create(self, record: Record, position: int, index: int) -> Stream:
        meta = record.meta
        assert meta is not None, "a creation carries its metadata"
        assert record.stream == stream_number(position, index), "a stream's number is its birth"
        stream = Stream(record.stream, meta, record.at_ms)
        stream.deadline_ms = stream.recorded_deadline_ms = meta.expires_at_ms
        assert meta.name not in self.by_name, "a name is free before it is created"
        self.by_name[meta.name] = stream
        self.by_number[stream.number] = stream
        return self.append(record)

    def append(self, record: Record) -> Stream:
        """Add the record's bytes, and take over the producer, sequence and closure it carries."""
        stream = self.by_number[record.stream]
        payload = record.payload
        if payload:
            stream.tail = tail = stream.tail + len(payload)
            stream.chunks.append(payload)
            stream.ends.append(tail)
            self.appended_bytes += len(payload)
            self.stored_bytes += len(payload)
        stream.last_write_ms = record.at_ms
        if record.producer is not None or record.seq is not None or record.closes:
            take_over(stream, record)
        if stream.meta.ttl_s is not None and stream.meta.expires_at_ms is None:
            deadline_ms = record.at_ms + stream.meta.ttl_s * 1000
            stream.recorded_deadline_ms = deadline_ms
            stream.deadline_ms = max(deadline_ms, stream.deadline_ms or 0)
        return stream

    def _remove(self, stream: Stream) -> None:
        del self.by_name[stream.meta.name]
        del self.by_number[stream.number]
        self.stored_bytes -= stream.tail
        stream.gone = True
