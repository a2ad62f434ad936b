"""The staged overlay: what will be once everything pending is durable.

Writes are validated against this, never against the published state alone. An entry exists only
for streams with something pending, and is dropped when the last batch that touched it is
published, or all at once when a batch fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.staged_buckets import StagedBuckets
from holdfast.format.records import encode
from holdfast.format.rows import renewed_deadline_ms, take_over

if TYPE_CHECKING:
    from holdfast.engine.commit import Batch, CommitLoop
    from holdfast.engine.state import State
    from holdfast.engine.stream import Stream
    from holdfast.format.records import Record, StreamMeta
    from holdfast.protocol.producer import Producer, ProducerState


class Staged(msgspec.Struct):
    """A stream as it will be; `batch` is the last pending batch that touched it, if any."""

    number: int
    meta: StreamMeta
    media: str
    deadline_ms: int | None
    base: Stream | None = None
    tail: int = 0
    closed: bool = False
    closer: Producer | None = None
    seq: bytes | None = None
    producers: dict[bytes, ProducerState] | None = None
    gone: bool = False
    batch: Batch | None = None
    # Deleted, but there for its forks; `gone` is for everybody else.
    deleted: bool = False
    # Known once they matter: less than 0 is whatever is published.
    forks: int = -1
    earliest: int = -1

    @classmethod
    def over(cls, stream: Stream) -> Staged:
        """A view of a published stream with nothing pending yet."""
        return cls(
            stream.number,
            stream.meta,
            stream.media,
            stream.deadline_ms,
            stream,
            stream.tail,
            stream.closed,
            stream.closer,
            stream.seq,
        )

    def producer_state(self, producer_id: bytes) -> ProducerState | None:
        """The last pair accepted from this producer, pending ones included."""
        if self.producers is not None:
            state = self.producers.get(producer_id)
            if state is not None:
                return state
        if self.base is not None and self.base.producers is not None:
            return self.base.producers.get(producer_id)
        return None

    def fork_count(self) -> int:
        """How many forks it has, pending ones included."""
        if self.forks < 0:
            self.forks = 0 if self.base is None else self.base.forks
        return self.forks

    def first_offset(self) -> int:
        """The earliest offset that readers may ask for, pending snapshots included."""
        if self.earliest < 0:
            return 0 if self.base is None else self.base.earliest
        return self.earliest

    def expired(self, now_ms: int) -> bool:
        """Whether the deadline has passed, renewals by reads included."""
        deadline_ms = self.deadline_ms
        if deadline_ms is None or deadline_ms > now_ms:
            return False
        base = self.base
        return base is None or base.deadline_ms is None or base.deadline_ms <= now_ms


class Staging:
    """The overlay, and the open batch that its entries go into."""

    def __init__(self, state: State, commits: CommitLoop) -> None:
        self._state = state
        self._commits = commits
        self.overlay: dict[str, Staged] = {}
        self.buckets = StagedBuckets(state, commits)

    def view(self, name: str) -> Staged | None:
        """The stream of this name as it will be, or None if there is none."""
        staged = self.overlay.get(name)
        if staged is None:
            stream = self._state.find(name)
            if stream is None:
                return None
            staged = Staged.over(stream)
            staged.gone = staged.deleted = stream.gone
        return staged

    def create(self, staged: Staged, record: Record, source: Staged | None) -> None:
        """Put a creation into the open batch: a name is taken, and a fork counts."""
        origin = staged.meta.fork
        if origin is not None and source is not None:
            staged.earliest = source.first_offset()
            staged.tail = origin.offset
        batch = self.add(staged, record)
        if source is not None:
            source.forks = source.fork_count() + 1
            self._touch(source, batch)
        self.buckets.count(staged.meta.name, 1, batch)

    def publish_snapshot(self, staged: Staged, offset: int, record: Record) -> None:
        """Put a snapshot into the open batch: the stream starts there from now on."""
        self._touch(staged, self._commits.add(record, encode(record)))
        staged.earliest = offset

    def _touch(self, staged: Staged, batch: Batch) -> None:
        staged.batch = batch
        batch.touched.append(staged)
        self.overlay[staged.meta.name] = staged

    def add(self, staged: Staged, record: Record) -> Batch:
        """Put a record into the open batch, which is returned, and its effect into the overlay."""
        batch = self._commits.add(record, encode(record))
        staged.tail += len(record.payload)
        if record.producer is not None or record.seq is not None or record.closes:
            take_over(staged, record)
        meta = staged.meta
        if meta.ttl_s is not None:
            staged.deadline_ms = renewed_deadline_ms(meta, record.at_ms) or staged.deadline_ms
        staged.batch = batch
        batch.touched.append(staged)
        self.overlay[meta.name] = staged
        return batch

    def remove(self, staged: Staged, record: Record) -> None:
        """Put a deletion or expiry into the open batch: the stream is as good as gone."""
        batch = self._commits.add(record, encode(record))
        staged.gone = True
        staged.deleted = staged.fork_count() > 0
        self._touch(staged, batch)
        self.buckets.count(staged.meta.name, -1, batch)
        while not staged.deleted and staged.meta.fork is not None:
            source = self.view(staged.meta.fork.name)
            assert source is not None, "a source stays as long as its forks"
            source.forks = source.fork_count() - 1
            self._touch(source, batch)
            if source.forks or not source.deleted:
                break
            source.deleted = False
            staged = source

    def is_gone(self, stream: Stream) -> bool:
        """Whether the removal of a published stream is pending."""
        staged = self.overlay.get(stream.meta.name)
        return staged is not None and (staged.gone or staged.number != stream.number)

    def created(self, stream: Stream) -> None:
        """A stream is published: an entry that later writes keep alive sees it from now on."""
        staged = self.overlay.get(stream.meta.name)
        if staged is not None and staged.number == stream.number:
            staged.base = stream

    def settle(self, batch: Batch) -> None:
        """The batch is published: drop the entries that nothing later touched."""
        overlay = self.overlay
        for staged in batch.touched:
            if staged.batch is batch:
                staged.batch = None
                name = staged.meta.name
                if overlay.get(name) is staged:
                    del overlay[name]
        if batch.buckets:
            self.buckets.settle(batch)

    def drop(self) -> None:
        """A batch failed: nothing of what was pending will be."""
        self.overlay.clear()
        self.buckets.overlay.clear()
