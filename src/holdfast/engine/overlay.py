"""The overlay: the state as it will be once everything pending is durable.

Writes are validated against the overlay, never against the published state alone. Only streams and
buckets with something pending have an entry. It is dropped when the last batch that touched it is
published; all entries are dropped when a batch fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.format.rows import apply_write, renewed_deadline_ms

if TYPE_CHECKING:
    from holdfast.engine.commit import Batch, CommitLoop
    from holdfast.engine.state import State
    from holdfast.engine.stream import Stream
    from holdfast.format.records import Record, StreamMeta
    from holdfast.protocol.producer import Producer, ProducerState


class Staged(msgspec.Struct):
    """A stream with its pending writes; `batch` is the last pending batch that touched it."""

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
    # Deleted, but kept for its forks; `gone` means gone for everyone else.
    deleted: bool = False
    # Negative until a pending write changes them: the published values apply.
    forks: int = -1
    earliest: int = -1

    @classmethod
    def over(cls, stream: Stream) -> Staged:
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

    def producer_count(self) -> int:
        """How many producers have written to it; pending writes are not counted."""
        base = self.base
        if base is None:
            return 0
        counted = max(base.stored_producers, 0) + base.cut_new_producers + base.new_producers
        # After a restart those that the log has are not counted as new.
        return max(counted, len(base.producers or ()))

    def fork_count(self) -> int:
        """The number of forks, pending ones included."""
        if self.forks < 0:
            self.forks = 0 if self.base is None else self.base.forks
        return self.forks

    def first_offset(self) -> int:
        """The earliest readable offset, pending snapshots included."""
        if self.earliest < 0:
            return 0 if self.base is None else self.base.earliest
        return self.earliest

    def expired(self, now_ms: int) -> bool:
        """Whether the deadline has passed, taking renewals by reads into account."""
        deadline_ms = self.deadline_ms
        if deadline_ms is None or deadline_ms > now_ms:
            return False
        base = self.base
        return base is None or base.deadline_ms is None or base.deadline_ms <= now_ms


class StagedBucket(msgspec.Struct):
    """A bucket with its pending writes; `batch` is the last pending batch that touched it."""

    name: str
    explicit: bool = False
    streams: int = 0
    batch: Batch | None = None

    @property
    def exists(self) -> bool:
        return self.explicit or self.streams > 0


class StagedBuckets:
    """The buckets with something pending."""

    def __init__(self, state: State, commits: CommitLoop) -> None:
        self._state = state
        self._commits = commits
        self.overlay: dict[str, StagedBucket] = {}

    def view(self, name: str) -> StagedBucket:
        """The bucket as it will be, whether it exists or not."""
        staged = self.overlay.get(name)
        if staged is not None:
            return staged
        bucket = self._state.buckets.get(name)
        if bucket is None:
            return StagedBucket(name)
        return StagedBucket(name, bucket.explicit, bucket.streams)

    def add(self, staged: StagedBucket, record: Record, *, explicit: bool) -> None:
        """Add the bucket's creation or deletion to the open batch."""
        staged.explicit = explicit
        self._touch(staged, self._commits.add(record))

    def count(self, stream_name: str, change: int, batch: Batch) -> None:
        """Count a stream that is created (+1) or removed (-1) by `batch`."""
        staged = self.view(stream_name.partition("/")[0])
        staged.streams += change
        self._touch(staged, batch)

    def _touch(self, staged: StagedBucket, batch: Batch) -> None:
        staged.batch = batch
        batch.buckets.append(staged)
        self.overlay[staged.name] = staged

    def settle(self, batch: Batch) -> None:
        """Drop the entries that no later batch touched: `batch` is published."""
        for staged in batch.buckets:
            if staged.batch is batch:
                staged.batch = None
                if self.overlay.get(staged.name) is staged:
                    del self.overlay[staged.name]


class Staging:
    """Adds records to the open batch and their effects to the overlay."""

    def __init__(self, state: State, commits: CommitLoop) -> None:
        self._state = state
        self._commits = commits
        self.overlay: dict[str, Staged] = {}
        self.buckets = StagedBuckets(state, commits)

    def view(self, name: str) -> Staged | None:
        """The stream as it will be; None if there is none."""
        staged = self.overlay.get(name)
        if staged is None:
            stream = self._state.find(name)
            if stream is None:
                return None
            staged = Staged.over(stream)
            staged.gone = staged.deleted = stream.gone
        return staged

    def producer_state(self, staged: Staged, producer_id: bytes) -> ProducerState | None:
        """The last pair accepted from this producer, pending writes included."""
        if staged.producers is not None:
            state = staged.producers.get(producer_id)
            if state is not None:
                return state
        return None if staged.base is None else self._state.find_producer(staged.base, producer_id)

    def forget_producers(self, stream: Stream) -> None:
        """Drop producers whose last write is published: a busy stream always has an entry here."""
        staged = self.overlay.get(stream.meta.name)
        pending = None if staged is None else staged.producers
        if pending:
            for known in (stream.cut_producers, stream.producers):
                for producer_id, state in (known or {}).items():
                    if pending.get(producer_id) == state:
                        del pending[producer_id]

    def create(self, staged: Staged, record: Record, source: Staged | None) -> None:
        """Add a creation to the open batch; a fork is counted at its source."""
        origin = staged.meta.fork
        if origin is not None and source is not None:
            staged.earliest = source.first_offset()
            staged.tail = origin.offset
        batch = self.add(staged, record)
        if source is not None:
            source.forks = source.fork_count() + 1
            self._touch(source, batch)
        if record.producer is not None:
            batch.new_producers.append(staged)
        self.buckets.count(staged.meta.name, 1, batch)

    def publish_snapshots(self, published: list[tuple[Staged, int, Record]]) -> None:
        """Add snapshots to one batch: each stream will start at the offset of its own.

        In one batch, because they may share an object: garbage collection would take it for unused
        if it saw some of them replaced before it saw the others.
        """
        self._commits.begin_append([record for _, _, record in published[:-1]])
        batch = self._commits.add(published[-1][2])
        for staged, offset, _ in published:
            self._touch(staged, batch)
            staged.earliest = offset

    def _touch(self, staged: Staged, batch: Batch) -> None:
        staged.batch = batch
        batch.touched.append(staged)
        self.overlay[staged.meta.name] = staged

    def add(self, staged: Staged, record: Record) -> Batch:
        """Add an append or creation to the open batch, which is returned."""
        batch = self._commits.add(record)
        staged.tail += len(record.payload)
        if record.producer is not None or record.seq is not None or record.closes:
            apply_write(staged, record)
        meta = staged.meta
        if meta.ttl_s is not None:
            staged.deadline_ms = renewed_deadline_ms(meta, record.at_ms) or staged.deadline_ms
        staged.batch = batch
        batch.touched.append(staged)
        self.overlay[meta.name] = staged
        return batch

    def add_all(self, staged: Staged, records: list[Record]) -> Batch:
        """Add the messages of one append to one batch; the last has the append's other effects."""
        self._commits.begin_append(records[:-1])
        staged.tail += sum(len(record.payload) for record in records[:-1])
        return self.add(staged, records[-1])

    def remove(self, staged: Staged, record: Record) -> None:
        """Add a deletion or expiry to the open batch."""
        self._load_sources(staged)
        batch = self._commits.add(record)
        staged.gone = True
        staged.deleted = staged.fork_count() > 0
        self._touch(staged, batch)
        self.buckets.count(staged.meta.name, -1, batch)
        while not staged.deleted and staged.meta.fork is not None:
            source = self.view(staged.meta.fork.name)
            assert source is not None, "a source outlives its forks"
            source.forks = source.fork_count() - 1
            self._touch(source, batch)
            if source.forks or not source.deleted:
                break
            source.deleted = False
            staged = source

    def _load_sources(self, staged: Staged) -> None:
        """Look up what a removal may change before it changes anything: a look-up may wait."""
        source: Staged | None = staged
        while source is not None and source.meta.fork is not None:
            source = self.view(source.meta.fork.name)
            if source is not None and not source.deleted:
                return

    def is_gone(self, stream: Stream) -> bool:
        """Whether the removal of this published stream is pending."""
        staged = self.overlay.get(stream.meta.name)
        return staged is not None and (staged.gone or staged.number != stream.number)

    def created(self, stream: Stream) -> None:
        """Link a newly published stream to the entry that later writes have for it."""
        staged = self.overlay.get(stream.meta.name)
        if staged is not None and staged.number == stream.number:
            staged.base = stream

    def settle(self, batch: Batch) -> None:
        """Drop the entries that no later batch touched: `batch` is published."""
        overlay = self.overlay
        for staged in batch.touched:
            if staged.batch is batch:
                staged.batch = None
                name = staged.meta.name
                if overlay.get(name) is staged:
                    del overlay[name]
        for staged in batch.new_producers:
            if staged.base is not None:
                staged.base.new_producers += 1
        if batch.buckets:
            self.buckets.settle(batch)

    def drop(self) -> None:
        """Drop everything pending: a batch failed."""
        self.overlay.clear()
        self.buckets.overlay.clear()
