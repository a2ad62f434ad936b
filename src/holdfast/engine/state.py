"""Published state: what the durable records, applied in order, add up to.

Nothing here reads a clock or decides anything: `apply` does what a record says, the same at replay
as right after a commit. Readers see this state and no other.

Only a part of it is in memory. Streams whose records are all in packs are in the catalog, from
where they come back when somebody asks for them; of a stream in memory only the bytes from `base`
on are here. What is not in packs yet belongs to a *generation*: everything since the last cut of
the log, or between the two cuts before it while that part is being flushed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from sys import intern
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.format.records import Kind, Record, StreamMeta, stream_number
from holdfast.format.rows import StreamRow, renewed_deadline_ms, take_over
from holdfast.protocol.content import media_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.live import Readers
    from holdfast.protocol.producer import Producer, ProducerState

# What a record and a stream take up in memory besides the bytes, as measured.
RECORD_COST_BYTES: Final = 128
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
        "chunks",
        "closed",
        "closer",
        "created_ms",
        "cut_tail",
        "deadline_ms",
        "ends",
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
        self.gone = False

    @classmethod
    def from_row(cls, row: StreamRow) -> Stream:
        """A stream as it came back from the catalog: all its bytes are in packs."""
        meta = row.meta
        # All streams of a content type share one text.
        meta = StreamMeta(meta.name, intern(meta.content_type), meta.ttl_s, meta.expires_at_ms)
        stream = cls(row.number, meta, row.created_ms)
        stream.last_write_ms = row.last_write_ms
        stream.tail = stream.base = row.tail
        stream.closed, stream.closer = row.closed, row.closer
        stream.producers, stream.seq = row.producers, row.seq
        stream.deadline_ms = stream.recorded_deadline_ms = row.deadline_ms
        return stream

    def forget_before(self, offset: int) -> None:
        """Let go of the bytes before this offset, which is where an append ended."""
        if offset <= self.base:
            return
        if offset == self.tail:
            self.chunks.clear()
            self.ends.clear()
        else:
            count = bisect_right(self.ends, offset)
            del self.chunks[:count]
            del self.ends[:count]
        self.base = offset


class StreamSource(Protocol):
    """Where streams are that are not in memory: the catalog."""

    def find_name(self, name: str) -> StreamRow | None:
        """The stream of this name."""

    def find_number(self, number: int) -> StreamRow | None:
        """The stream with this number."""


class State:
    """All streams of a shard: by name and by number those in memory, the others on demand."""

    __slots__ = (
        "_source",
        "appended_bytes",
        "by_name",
        "by_number",
        "clean",
        "generation",
        "gone_bytes",
        "loads",
        "on_load",
        "removed",
        "removed_numbers",
        "streams",
    )

    def __init__(self, source: StreamSource | None = None) -> None:
        self._source = source
        self.by_name: dict[str, Stream] = {}
        self.by_number: dict[int, Stream] = {}
        # Streams in memory that the catalog has just the same, longest unused first.
        self.clean: OrderedDict[int, Stream] = OrderedDict()
        # Streams that are gone, but may still be in the catalog.
        self.removed: dict[str, int] = {}
        self.removed_numbers: set[int] = set()
        self.generation = Generation(0)
        self.streams = 0
        self.appended_bytes = 0
        self.gone_bytes = 0
        self.loads = 0
        self.on_load: Callable[[Stream], None] | None = None

    @property
    def stored_bytes(self) -> int:
        """Message bytes of all streams."""
        return self.appended_bytes - self.gone_bytes

    def begin(self, streams: int, stored_bytes: int) -> None:
        """Start from what the catalog adds up to, before anything is applied."""
        self.streams, self.appended_bytes = streams, stored_bytes
        self.generation = Generation(stored_bytes)

    def next_generation(self) -> Generation:
        """The log was cut: what is written from now on is another generation."""
        ended, self.generation = self.generation, Generation(self.appended_bytes)
        return ended

    # Streams that are in memory, or come there.

    def find(self, name: str) -> Stream | None:
        """The stream of this name, from wherever it is."""
        stream = self.by_name.get(name)
        if stream is not None or self._source is None or name in self.removed:
            return stream
        row = self._source.find_name(name)
        return None if row is None else self._load(row)

    def find_number(self, number: int) -> Stream | None:
        """The stream with this number, from wherever it is."""
        stream = self.by_number.get(number)
        if stream is not None or self._source is None or number in self.removed_numbers:
            return stream
        row = self._source.find_number(number)
        return None if row is None else self._load(row)

    def _load(self, row: StreamRow) -> Stream:
        stream = Stream.from_row(row)
        self.by_name[row.meta.name] = self.by_number[row.number] = stream
        self.clean[row.number] = stream
        self.loads += 1
        if self.on_load is not None:
            self.on_load(stream)
        return stream

    def evict(self, stream: Stream) -> None:
        """Forget a clean stream: the catalog has it."""
        del self.clean[stream.number]
        del self.by_number[stream.number]
        del self.by_name[stream.meta.name]

    # What records do.

    def apply(self, record: Record, position: int, index: int) -> Stream:
        """Do what the record says; the stream it changed is returned."""
        kind = record.kind
        if kind == Kind.APPEND:
            return self.append(record)
        if kind == Kind.CREATE:
            return self._create(record, position, index)
        stream = self.find_number(record.stream)
        if stream is None:
            raise KeyError(record.stream)
        if stream.generation is not self.generation:
            self._touch(stream)
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
        self.streams += 1
        return self.append(record)

    def append(self, record: Record) -> Stream:
        """Add the record's bytes, and take over the producer, sequence and closure it carries."""
        stream = self.by_number.get(record.stream)
        if stream is None:
            stream = self.find_number(record.stream)
            if stream is None:
                raise KeyError(record.stream)
        if stream.generation is not self.generation:
            self._touch(stream)
        payload = record.payload
        if payload:
            stream.tail = tail = stream.tail + len(payload)
            stream.chunks.append(payload)
            stream.ends.append(tail)
            self.appended_bytes += len(payload)
        stream.last_write_ms = record.at_ms
        if record.producer is not None or record.seq is not None or record.closes:
            take_over(stream, record)
        if stream.meta.ttl_s is not None:
            deadline_ms = renewed_deadline_ms(stream.meta, record.at_ms)
            if deadline_ms is not None:
                stream.recorded_deadline_ms = deadline_ms
                stream.deadline_ms = max(deadline_ms, stream.deadline_ms or 0)
        return stream

    def _touch(self, stream: Stream) -> None:
        """The stream changes for the first time since the last cut."""
        stream.generation = self.generation
        stream.cut_tail = stream.tail
        self.generation.streams.append(stream)
        self.clean.pop(stream.number, None)

    def _remove(self, stream: Stream) -> None:
        name, number = stream.meta.name, stream.number
        del self.by_name[name]
        del self.by_number[number]
        self.removed[name] = number
        self.removed_numbers.add(number)
        self.streams -= 1
        self.gone_bytes += stream.tail
        stream.gone = True
        stream.chunks.clear()
        stream.ends.clear()
