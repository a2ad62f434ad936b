"""A shard: the single writer of its streams.

Rules:

- Everything runs on one event loop and validation never awaits, so there are no locks.
- A write is validated against the staged state: the overlay where it has an entry, the published
  state otherwise. Order: exists, closed, content type, producer, `If-Match`, `Stream-Seq`, body.
- Every reply that depends on an overlay entry, an error too, waits for the batch of that entry.
  Otherwise a duplicate could be acknowledged before its original is durable.
- Reads see published state only: no reader sees a byte that is not durable.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from holdfast.engine.commit import Batch, CommitLoop, reply_after
from holdfast.engine.counters import Counters
from holdfast.engine.journal import JournalBatch
from holdfast.engine.lifetimes import Lifetimes
from holdfast.engine.listing import Listing
from holdfast.engine.metadata_writes import BucketWrites, Documents, SnapshotWrites
from holdfast.engine.overlay import Staged, Staging
from holdfast.engine.reading import ShardReader
from holdfast.engine.state import State
from holdfast.engine.stream import LiveReaders, Stream
from holdfast.engine.tier import Tier
from holdfast.engine.writes import (
    AppendRequest,
    CreateRequest,
    Deleted,
    StreamAppended,
    StreamCreated,
    StreamWrites,
    confirm_created,
)
from holdfast.errors import (
    HoldfastError,
    LogCorruptError,
    StreamDeletedError,
    StreamExistsError,
    UnavailableError,
)
from holdfast.format.records import Kind, Record, decode
from holdfast.protocol.names import not_found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.clock import Clock
    from holdfast.engine.commit import Reply
    from holdfast.log.interface import Log
    from holdfast.protocol.producer import Producer, ProducerState
    from holdfast.storage.catalog import Catalog
    from holdfast.storage.cold import ColdReader
    from holdfast.storage.commands import Worker

_log = logging.getLogger(__name__)
# Changes of a stream that its live readers are not told about.
_UNSEEN: Final = (Kind.TOUCH, Kind.SNAPSHOT)


class Shard:
    """Streams, their single writer, and the log behind them."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        *,
        batch_bytes_max: int,
        pending_bytes_max: int,
        commit_timeout_s: float,
        ttl_is_fixed: bool = False,
        catalog: Catalog | None = None,
        bucket_bytes_max: int = 0,
        bucket_streams_max: int = 0,
        producers_max: int = 0,
        producer_idle_s: float = 0,
    ) -> None:
        self.state = State(catalog)
        self.catalog = catalog
        # Set by `attach` if there is storage to flush to.
        self.tier: Tier | None = None
        self.counters = Counters()
        self.live = LiveReaders(clock)
        self.log = log
        self._clock = clock
        # Called with each batch once it is published.
        self.watchers: list[Callable[[Batch, JournalBatch], None]] = []
        self._abandoned = False
        self._flushed = 0
        self.commits = CommitLoop(
            log,
            clock,
            self.counters,
            batch_bytes_max=batch_bytes_max,
            pending_bytes_max=pending_bytes_max,
            timeout_s=commit_timeout_s,
            publish=self._publish,
            drop=self._drop,
        )
        self._staging = Staging(self.state, self.commits)
        self._overlay = self._staging.overlay
        self.lifetimes = Lifetimes(self.state, self._staging, self.commits, clock, catalog)
        writes = StreamWrites(
            self.state,
            self._staging,
            self.commits,
            self.lifetimes,
            self.counters,
            ttl_is_fixed=ttl_is_fixed,
            bucket_bytes_max=bucket_bytes_max,
            bucket_streams_max=bucket_streams_max,
            producers_max=producers_max,
            producer_idle_s=producer_idle_s,
        )
        self._stage_append = writes.append
        self._stage_create = writes.create
        self._check_first = writes.check_first
        self.buckets = BucketWrites(self._staging.buckets, self.commits, clock)
        self.documents = Documents(self.state, self.commits, clock)
        self.snapshots = SnapshotWrites(
            self.state,
            self._staging,
            self.commits,
            self.lifetimes,
            clock,
            bucket_bytes_max=bucket_bytes_max,
        )
        self.listing = Listing(self.state, clock, catalog)
        self.reader = ShardReader(self.state)

    def attach(
        self,
        worker: Worker,
        cold: ColdReader,
        *,
        soft_bytes: int,
        hard_bytes: int,
        flush_age_s: float,
        streams_cached_max: int,
    ) -> None:
        """Flush to storage, and read from it; called before `recover`."""
        self.reader.cold = cold
        self.tier = Tier(
            self.state,
            self._staging,
            self.lifetimes,
            self.commits,
            self.log,
            worker,
            self._clock,
            soft_bytes=soft_bytes,
            hard_bytes=hard_bytes,
            flush_age_s=flush_age_s,
            streams_cached_max=streams_cached_max,
        )

    def recover(self) -> int:
        """Apply the batches that the log has beyond the catalog, and return their number.

        Runs in a thread, before `start`.
        """
        batches = 0
        if self.catalog is not None:
            totals = self.catalog.totals()
            self.state.begin(totals.flushed, totals.streams, self.catalog.documents())
            self._flushed = totals.flushed
        position = self._flushed
        for position, body in self.log.replay(self._flushed):
            if self._abandoned:
                raise UnavailableError("The server is shutting down.")
            batches += 1
            try:
                self.state.replay(position, decode(body))
            except (AssertionError, KeyError, ValueError) as error:
                raise LogCorruptError(
                    f"The log's batch {position} is intact but cannot be applied: {error!r}. "
                    "It was written by a defective or newer server; nothing was changed."
                ) from error
        self.lifetimes.recovered()
        self.commits.start_after(position)
        return batches

    def abandon_recovery(self) -> None:
        """Make `recover` in another thread raise soon."""
        self._abandoned = True

    def start(self, post: Any) -> None:
        """Accept writes; `post` runs a call on the event loop from any thread."""
        self.log.start(post)
        self.lifetimes.start()
        if self.tier is not None:
            self.tier.start(self._flushed)

    def stop(self) -> None:
        """Start no more background work; pending writes still get their replies."""
        self.lifetimes.stop()
        if self.tier is not None:
            self.tier.stop()

    def has_bucket(self, name: str) -> bool:
        """Whether the bucket of a name, `bucket/` or `bucket/id`, exists or is pending."""
        bucket = name[: name.index("/")]
        if bucket in self.state.buckets:
            return True
        staged = self._staging.buckets.overlay.get(bucket)
        return staged is not None and staged.exists

    def exists(self, name: str) -> bool:
        """Whether a stream of this name exists or is pending."""
        staged = self._staging.view(name)
        return staged is not None and not staged.gone and not staged.expired(self._clock.now_ms())

    def staged(self, name: str) -> Staged | None:
        """The stream as it will be once everything pending is durable."""
        return self._staging.view(name)

    def producer_state(self, staged: Staged, producer_id: bytes) -> ProducerState | None:
        """The last pair accepted from a producer, pending writes included."""
        return self._staging.producer_state(staged, producer_id)

    def names(self, prefix: str) -> Iterator[str]:
        """The names of published streams with this prefix, in order within each bucket."""
        bucket, slash, _ = prefix.partition("/")
        buckets = (
            [bucket] if slash else [each for each in self.state.buckets if each.startswith(bucket)]
        )
        for each in sorted(buckets):
            for listed in self.listing.streams(prefix if slash else f"{each}/"):
                yield listed.name

    def find(self, name: str) -> Stream:
        """The published stream of this name; raises if there is none or it has expired."""
        stream = self.state.by_name.get(name) or self.state.find(name)
        if stream is None:
            raise not_found(name)
        if stream.deleted:
            raise StreamDeletedError(name)
        if stream.deadline_ms is not None and self.lifetimes.has_ended(stream):
            raise not_found(name)
        if stream.generation is None:
            # Mark it as recently used.
            self.state.clean.move_to_end(stream.number)
        return stream

    def append(self, name: str, request: AppendRequest, reply: Reply, context: Any) -> None:
        """Append to a stream, close it, or both; `reply(context, outcome)` is called once."""
        commits = self.commits
        if commits.stalled or commits.full or commits.pending_bytes > commits.room_bytes:
            commits.check()
        now_ms = self._clock.now_ms()
        staged = self._overlay.get(name)
        if staged is None:
            stream = self.state.by_name.get(name) or self.state.find(name)
            if stream is None:
                raise not_found(name)
            if stream.deleted:
                raise StreamDeletedError(name)
            staged = Staged.over(stream)
        if staged.gone or (
            staged.deadline_ms is not None and self.lifetimes.lapsed(staged, now_ms)
        ):
            reply_after(staged.batch, reply, context, _gone(name, staged))
            return
        outcome: StreamAppended | HoldfastError
        try:
            outcome = self._stage_append(staged, request, now_ms)
        except HoldfastError as error:
            outcome = error
        batch = staged.batch
        if batch is None:
            reply(context, outcome)
        else:
            batch.replies.append((reply, context, outcome))

    def check_first(self, name: str, media: str, producer: Producer) -> bool:
        """Whether there is such a stream; raises if it rejects the first append of an epoch."""
        now_ms = self._clock.now_ms()
        staged = self._staging.view(name)
        if staged is not None and staged.deleted:
            raise StreamDeletedError(name)
        if staged is None or staged.gone or staged.expired(now_ms):
            return False
        self._check_first(staged, media, producer, now_ms)
        return True

    def append_to(
        self, number: int, name: str, request: AppendRequest, reply: Reply, context: Any
    ) -> None:
        """Append to the stream with this number, not to a newer one of the same name."""
        staged = self._staging.view(name)
        if staged is not None and staged.number != number:
            reply_after(staged.batch, reply, context, not_found(name))
        else:
            self.append(name, request, reply, context)

    def create(self, name: str, request: CreateRequest, reply: Reply, context: Any) -> None:
        """Create a stream, or confirm that it exists with this configuration."""
        self.commits.check()
        now_ms = self._clock.now_ms()
        existing = self._staging.view(name)
        if (
            existing is not None
            and not existing.gone
            and not self.lifetimes.lapsed(existing, now_ms)
        ):
            reply_after(existing.batch, reply, context, confirm_created(existing, request))
            return
        if existing is not None and existing.deleted:
            error: HoldfastError = StreamExistsError(StreamDeletedError(name).message)
            reply_after(existing.batch, reply, context, error)
            return
        try:
            staged = self._stage_create(name, request, now_ms)
        except HoldfastError as rejection:
            reply_after(self._decisive(name, existing, request), reply, context, rejection)
            return
        outcome = StreamCreated(
            True, staged.meta.content_type, staged.tail, staged.closed, staged.number
        )
        reply_after(staged.batch, reply, context, outcome)

    def _decisive(self, name: str, existing: Staged | None, request: CreateRequest) -> Batch | None:
        """The last pending batch that the rejection of a creation may depend on.

        It may depend on the name, the source to fork, or the bucket.
        """
        source = None if request.fork is None else self._overlay.get(request.fork.name)
        bucket = self._staging.buckets.overlay.get(name.partition("/")[0])
        batches = [each.batch for each in (existing, source, bucket) if each is not None]
        return max(filter(None, batches), key=lambda batch: batch.position, default=None)

    def delete(self, name: str, reply: Reply, context: Any) -> None:
        """Delete a stream and all its data; accepted even when memory is full."""
        self.commits.check_log()
        now_ms = self._clock.now_ms()
        staged = self._staging.view(name)
        if staged is None:
            reply(context, not_found(name))
            return
        if staged.gone or self.lifetimes.lapsed(staged, now_ms):
            reply_after(staged.batch, reply, context, _gone(name, staged))
            return
        self._staging.remove(staged, Record(Kind.DELETE, staged.number, now_ms))
        reply_after(staged.batch, reply, context, Deleted())

    def _publish(self, batch: Batch) -> None:
        """Make a durable batch visible, send its replies, wake the readers of its streams."""
        state, position = self.state, batch.position
        append, bytes_before = state.append, state.appended_bytes
        woken: dict[Stream, None] = {}
        rare: dict[int, tuple[int, str]] = {}
        ends: list[int] = []
        stream: Stream | None
        for index, record in enumerate(batch.records):
            if record.kind == Kind.APPEND:
                stream = append(record)
            else:
                stream = state.apply(record, position, index)
                rare[index] = record.kind, "" if stream is None else stream.meta.name
                if stream is None:
                    ends.append(0)
                    continue
                self._published_rare(record, stream)
            ends.append(stream.tail)
            if stream.readers is not None and record.kind not in _UNSEEN:
                woken[stream] = None
        entries = JournalBatch(position, batch.records, ends, rare)
        state.published(entries)
        self._staging.settle(batch)
        counters = self.counters
        counters.appends += len(batch.records) - len(rare)
        counters.append_bytes += state.appended_bytes - bytes_before
        batch.send_replies()
        for stream in woken:
            if stream.readers is not None:
                stream.readers.wake()
        for watcher in tuple(self.watchers):
            try:
                watcher(batch, entries)
            except Exception:  # noqa: BLE001 (a defect in one must not stop the log)
                _log.exception("a watcher failed on a published batch")
        if self.tier is not None:
            self.tier.published()

    def _published_rare(self, record: Record, stream: Stream) -> None:
        """Count a record other than an append, and update overlay and lifetimes."""
        counters = self.counters
        if record.kind == Kind.CREATE:
            counters.creates += 1
            counters.forks += stream.meta.fork is not None
            self._staging.created(stream)
        elif record.kind == Kind.SNAPSHOT:
            counters.snapshots += 1
        elif record.kind == Kind.DELETE:
            counters.deletes += 1
        elif record.kind == Kind.EXPIRE:
            counters.expirations += 1
        self.lifetimes.published(record, stream)

    def _drop(self) -> None:
        """Drop everything pending: a batch failed."""
        self._staging.drop()
        self.lifetimes.dropped()
        for call in self.documents.on_drop:
            call()


def _gone(name: str, staged: Staged) -> HoldfastError:
    """The error for a stream that is gone; the name of one with forks stays taken."""
    return StreamDeletedError(name) if staged.deleted else not_found(name)
