"""A stream in memory, the generation that changed it last, and its live readers.

Live readers are woken in rounds: a pass over the readers of a stream yields to the event loop every
`WAKES_PER_ROUND` readers. Each reader knows its own offset and reads whatever it lacks, so it does
no harm if more is published during a pass; another pass follows.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from dataclasses import dataclass, field
from sys import intern
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.format.records import StreamMeta
from holdfast.format.rows import BucketRow, StreamRow
from holdfast.protocol.content import media_type

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.format.records import Snapshot
    from holdfast.protocol.producer import Producer, ProducerState

_log = logging.getLogger(__name__)
# Memory taken by a record and by a stream besides their bytes, as measured.
RECORD_COST_BYTES: Final = 156
STREAM_COST_BYTES: Final = 700
WAKES_PER_ROUND: Final = 32


class Generation:
    """The streams that changed between two cuts of the log, and the memory they take."""

    __slots__ = ("records", "snapshots", "started_bytes", "streams")

    def __init__(self, started_bytes: int) -> None:
        self.streams: list[Stream] = []
        # The objects of the snapshots that were published.
        self.snapshots: set[str] = set()
        self.records = 0
        self.started_bytes = started_bytes

    def cost_bytes(self, appended_bytes: int) -> int:
        """The memory it takes, given the total of bytes ever appended."""
        return (
            appended_bytes
            - self.started_bytes
            + RECORD_COST_BYTES * self.records
            + STREAM_COST_BYTES * len(self.streams)
        )


@dataclass(slots=True, eq=False, repr=False)
class Stream:
    """A stream as readers see it: published writes only."""

    number: int
    meta: StreamMeta
    created_ms: int
    bucket: BucketRow
    media: str = field(init=False)
    last_write_ms: int = field(init=False)
    tail: int = 0
    closed: bool = False
    closer: Producer | None = None
    # Producers that wrote since the last cut of the log, and those that wrote before it while that
    # part is being flushed. The others are in the catalog.
    producers: dict[bytes, ProducerState] | None = None
    cut_producers: dict[bytes, ProducerState] | None = None
    # How many are in the catalog, negative if unknown, and how many were new since the last cut and
    # before it.
    stored_producers: int = 0
    new_producers: int = 0
    cut_new_producers: int = 0
    seq: bytes | None = None
    # One chunk per append, and the offset where each one ends. Bytes before `base` are in packs
    # only.
    base: int = 0
    chunks: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    # The generation that changed it last, None if it is clean, and the tail before that.
    generation: Generation | None = None
    cut_tail: int = 0
    # The deadline in memory, and the one recorded in the log.
    deadline_ms: int | None = None
    recorded_deadline_ms: int | None = None
    readers: Readers | None = None
    # The first of its own bytes, and the first readable offset; see `format.rows`.
    start: int = 0
    earliest: int = 0
    # Where in the log it was deleted, or `earliest` moved last.
    hidden_at: int = 0
    snapshot: Snapshot | None = None
    forks: int = 0
    # Deleted, but kept for its forks; `gone` means gone for everyone else.
    deleted: bool = False
    gone: bool = False

    def __post_init__(self) -> None:
        self.media = media_type(self.meta.content_type)
        self.last_write_ms = self.created_ms

    @classmethod
    def from_row(cls, row: StreamRow, bucket: BucketRow | None = None) -> Stream:
        """Load a stream from the catalog; all its bytes are in packs."""
        meta = row.meta
        # All streams of one content type share one string.
        meta = StreamMeta(
            meta.name, intern(meta.content_type), meta.ttl_s, meta.expires_at_ms, meta.fork
        )
        stream = cls(row.number, meta, row.created_ms, bucket or BucketRow(row.created_ms))
        stream.last_write_ms = row.last_write_ms
        stream.tail = stream.base = row.tail
        stream.closed, stream.closer = row.closed, row.closer
        stream.stored_producers, stream.seq = -1, row.seq
        stream.deadline_ms = stream.recorded_deadline_ms = row.deadline_ms
        stream.start, stream.earliest = row.start, row.earliest
        stream.hidden_at = row.hidden_at
        stream.snapshot, stream.forks = row.snapshot, row.forks
        stream.deleted = stream.gone = row.deleted
        return stream

    def set_producers_apart(self) -> None:
        """Set apart the producers that wrote so far: the log was cut."""
        self.cut_producers, self.producers = self.producers, None
        self.cut_new_producers, self.new_producers = self.new_producers, 0

    def forget_flushed_producers(self) -> None:
        """Drop from memory the producers that are in the catalog by now."""
        if self.generation is None:
            self.set_producers_apart()
        self.cut_producers, self.cut_new_producers = None, 0
        self.stored_producers = -1

    def forget_before(self, offset: int) -> None:
        """Drop from memory the appends that end at or before this offset."""
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


class LiveReader(Protocol):
    """Waits for a stream to change."""

    def wake(self) -> None:
        """Called when the stream grew, was closed or is gone."""

    def finish(self) -> None:
        """Called when the server shuts down: send a last message."""


class Readers:
    """The live readers of one stream."""

    __slots__ = ("_again", "_clock", "_members", "_pass")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._members: dict[LiveReader, None] = {}
        self._pass: list[LiveReader] | None = None
        self._again = False

    def __len__(self) -> int:
        return len(self._members)

    def add(self, reader: LiveReader) -> None:
        self._members[reader] = None

    def remove(self, reader: LiveReader) -> None:
        """Remove a reader, if it is there."""
        self._members.pop(reader, None)

    def wake(self) -> None:
        """Wake every reader, in rounds."""
        if self._pass is not None:
            self._again = True
            return
        self._pass = list(self._members)
        self._round(0)

    def _round(self, at: int) -> None:
        readers = self._pass
        assert readers is not None
        members = self._members
        for reader in readers[at : at + WAKES_PER_ROUND]:
            if reader in members:
                try:
                    reader.wake()
                except Exception:  # noqa: BLE001 (a defect in one reader must not stop the others)
                    _log.exception("a live reader could not be woken")
                    self.remove(reader)
        at += WAKES_PER_ROUND
        if at < len(readers):
            self._clock.call_soon(self._round, at)
            return
        self._pass = None
        if self._again:
            self._again = False
            self._clock.call_soon(self.wake)


class LiveReaders:
    """All live readers of a shard."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clients: dict[LiveReader, None] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def add(self, stream: Stream, reader: LiveReader) -> None:
        """Wake this client whenever the stream changes."""
        self._clients[reader] = None
        self.attend(stream, reader)

    def attend(self, stream: Stream, reader: LiveReader) -> None:
        """Wake a reader that is not a client: it is not counted, and not told of a shutdown."""
        if stream.readers is None:
            stream.readers = Readers(self._clock)
        stream.readers.add(reader)

    def remove(self, stream: Stream, reader: LiveReader) -> None:
        """Remove a reader, if it is there."""
        self._clients.pop(reader, None)
        if stream.readers is not None:
            stream.readers.remove(reader)
            if not stream.readers:
                stream.readers = None

    def finish_all(self) -> None:
        """Tell every client that the server shuts down."""
        for reader in list(self._clients):
            reader.finish()
