"""A stream in memory, and the generation it belongs to: what was written between two cuts."""

from __future__ import annotations

from bisect import bisect_right
from sys import intern
from typing import TYPE_CHECKING, Final

from holdfast.format.records import StreamMeta
from holdfast.format.rows import BucketRow, StreamRow
from holdfast.protocol.content import media_type

if TYPE_CHECKING:
    from holdfast.engine.live import Readers
    from holdfast.format.records import Snapshot
    from holdfast.protocol.producer import Producer, ProducerState

# What a record and a stream take up in memory besides the bytes, as measured.
RECORD_COST_BYTES: Final = 156
STREAM_COST_BYTES: Final = 700


class Generation:
    """What was written between two cuts of the log: who changed, and what it costs to keep."""

    __slots__ = ("records", "started_bytes", "streams")

    def __init__(self, started_bytes: int) -> None:
        self.streams: list[Stream] = []
        self.records = 0
        self.started_bytes = started_bytes

    def cost_bytes(self, appended_bytes: int) -> int:
        """The memory it takes up, once this many bytes were appended in all."""
        return (
            appended_bytes
            - self.started_bytes
            + RECORD_COST_BYTES * self.records
            + STREAM_COST_BYTES * len(self.streams)
        )


class Stream:
    """A stream as its readers see it."""

    __slots__ = (
        "base",
        "bucket",
        "chunks",
        "closed",
        "closer",
        "created_ms",
        "cut_tail",
        "deadline_ms",
        "deleted",
        "earliest",
        "ends",
        "forks",
        "generation",
        "gone",
        "last_write_ms",
        "media",
        "meta",
        "number",
        "producers",
        "readers",
        "recorded_deadline_ms",
        "seq",
        "snapshot",
        "start",
        "tail",
    )

    def __init__(
        self, number: int, meta: StreamMeta, created_ms: int, bucket: BucketRow | None = None
    ) -> None:
        self.number = number
        self.meta = meta
        self.bucket = BucketRow(created_ms) if bucket is None else bucket
        self.media = media_type(meta.content_type)
        self.created_ms = created_ms
        self.last_write_ms = created_ms
        self.tail = 0
        self.closed = False
        self.closer: Producer | None = None
        self.producers: dict[bytes, ProducerState] | None = None
        self.seq: bytes | None = None
        # One chunk per append, and the offset each one ends at. What lies before `base` is in
        # packs only.
        self.base = 0
        self.chunks: list[bytes] = []
        self.ends: list[int] = []
        # The generation that changed it last, and the tail it had before that.
        self.generation: Generation | None = None
        self.cut_tail = 0
        # When it expires as far as this process knows, and as far as the log knows.
        self.deadline_ms: int | None = None
        self.recorded_deadline_ms: int | None = None
        self.readers: Readers | None = None
        # Where its own bytes and where readers may start; see `format.lineage`.
        self.start = 0
        self.earliest = 0
        self.snapshot: Snapshot | None = None
        self.forks = 0
        # Deleted, but there for its forks; `gone` is for everybody else.
        self.deleted = False
        self.gone = False

    @classmethod
    def from_row(cls, row: StreamRow, bucket: BucketRow | None = None) -> Stream:
        """A stream as it came back from the catalog: all its bytes are in packs."""
        meta = row.meta
        # All streams of a content type share one text.
        meta = StreamMeta(
            meta.name, intern(meta.content_type), meta.ttl_s, meta.expires_at_ms, meta.fork
        )
        stream = cls(row.number, meta, row.created_ms, bucket)
        stream.last_write_ms = row.last_write_ms
        stream.tail = stream.base = row.tail
        stream.closed, stream.closer = row.closed, row.closer
        stream.producers, stream.seq = row.producers, row.seq
        stream.deadline_ms = stream.recorded_deadline_ms = row.deadline_ms
        stream.start, stream.earliest = row.start, row.earliest
        stream.snapshot, stream.forks = row.snapshot, row.forks
        stream.deleted = stream.gone = row.deleted
        return stream

    def forget_before(self, offset: int) -> None:
        """Let go of the appends that end at this offset or before."""
        if offset <= self.base:
            return
        if offset == self.tail:
            self.chunks.clear()
            self.ends.clear()
            self.base = offset
            return
        count = bisect_right(self.ends, offset)
        if count:
            self.base = self.ends[count - 1]
            del self.chunks[:count]
            del self.ends[:count]
