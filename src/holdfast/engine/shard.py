"""A shard: the single writer of its streams.

Rules:

- Everything runs on one event loop and validation never awaits, so there are no locks.
- A write is validated against the staged state: the overlay where there is an entry, the published
  state otherwise. Order: exists, closed, content type, producer, `If-Match`, `Stream-Seq`, body.
- Every answer that rests on an overlay entry, refusals too, waits for the batch that entry rests
  on. Otherwise a duplicate could be acknowledged before its original is durable.
- Reads see published state only: no reader sees a byte that is not durable.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from holdfast.engine.appending import Appending
from holdfast.engine.bucket_writes import BucketWrites
from holdfast.engine.commit import Batch, CommitLoop
from holdfast.engine.counters import Counters
from holdfast.engine.creating import Creating
from holdfast.engine.documents import Documents
from holdfast.engine.existing import confirm
from holdfast.engine.journal import JournalBatch
from holdfast.engine.lifetimes import Lifetimes
from holdfast.engine.listing import Listing
from holdfast.engine.live import LiveReaders
from holdfast.engine.overlay import Staged, Staging
from holdfast.engine.read_through import Reader
from holdfast.engine.requests import Appended, AppendRequest, Created, CreateRequest, Deleted
from holdfast.engine.snapshot_writes import SnapshotWrites
from holdfast.engine.state import State
from holdfast.engine.stream import Stream
from holdfast.engine.tier import Tier
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
    from holdfast.storage.catalog import Catalog
    from holdfast.storage.cold import ColdReader
    from holdfast.storage.commands import Worker

_log = logging.getLogger(__name__)
# What changes a stream without its live readers having anything to say about it.
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
    ) -> None:
        self.state = State(catalog)
        self.catalog = catalog
        # Set by `attach` where there is storage to flush to.
        self.tier: Tier | None = None
        self.cold: ColdReader | None = None
        self.counters = Counters()
        self.live = LiveReaders(clock)
        self.log = log
        self._clock = clock
        # Called with each batch once it is published.
        self.watchers: list[Callable[[Batch, JournalBatch], None]] = []
        self._abandoned = False
        self._flushed = 0
        self._commits = CommitLoop(
            log,
            clock,
            self.counters,
            batch_bytes_max=batch_bytes_max,
            pending_bytes_max=pending_bytes_max,
            timeout_s=commit_timeout_s,
            publish=self._publish,
            drop=self._drop,
        )
        self.when_idle = self._commits.when_idle
        self._staging = Staging(self.state, self._commits)
        self._overlay = self._staging.overlay
        self.lifetimes = Lifetimes(self.state, self._staging, self._commits, clock, catalog)
        appending = Appending(
            self.state, self._staging, self.counters, bucket_bytes_max=bucket_bytes_max
        )
        self._stage_append = appending.stage
        self._creating = Creating(
            self._staging,
            self._commits,
            self.lifetimes,
            ttl_is_fixed=ttl_is_fixed,
            streams_max=bucket_streams_max,
            check_room=appending.check_room,
        )
        self.buckets = BucketWrites(self._staging.buckets, self._commits, clock)
        self.documents = Documents(self.state, self._commits, clock)
        self.snapshots = SnapshotWrites(self._staging, self._commits, self.lifetimes, clock)
        self.listing = Listing(self.state, clock, catalog)
        self.reader = Reader(self.state)

    # Life.

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
        """Flush to storage, and read from it what is not in memory; before `recover`."""
        self.cold = self.reader.cold = cold
        self.tier = Tier(
            self.state,
            self._staging,
            self.lifetimes,
            self._commits,
            self.log,
            worker,
            self._clock,
            soft_bytes=soft_bytes,
            hard_bytes=hard_bytes,
            flush_age_s=flush_age_s,
            streams_cached_max=streams_cached_max,
        )

    def recover(self) -> int:
        """Apply what the log has beyond the catalog; the number of batches.

        For a thread, before `start`.
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
                    f"The log's batch {position} is sound but cannot be applied: {error!r}. "
                    "It was written by a defective or newer server; nothing was changed."
                ) from error
        self.lifetimes.recovered()
        self._commits.start_after(position)
        return batches

    def abandon_recovery(self) -> None:
        """Have `recover` end early with an error; from another thread."""
        self._abandoned = True

    def start(self, post: Any) -> None:
        """Take writes from now on; `post` runs a call on the event loop from any thread."""
        self.log.start(post)
        self.lifetimes.start()
        if self.tier is not None:
            self.tier.start(self._flushed)

    def stop(self) -> None:
        """Start nothing more of one's own accord; what is pending is still answered."""
        self.lifetimes.stop()
        if self.tier is not None:
            self.tier.stop()

    @property
    def position(self) -> int:
        """The last position handed out."""
        return self._commits.last_position

    @property
    def stalled(self) -> bool:
        """Whether an unknown outcome keeps writes out."""
        return self._commits.stalled

    @property
    def full(self) -> str:
        """Why appends are refused for want of memory; empty while they are taken."""
        return self._commits.full

    @property
    def refusals(self) -> int:
        """Writes that were refused for want of memory."""
        return self._commits.refusals

    # Reading.

    def has_bucket(self, name: str) -> bool:
        """Whether the bucket of this name, `bucket/` or `bucket/id`, is there or about to be."""
        bucket = name[: name.index("/")]
        if bucket in self.state.buckets:
            return True
        staged = self._staging.buckets.overlay.get(bucket)
        return staged is not None and staged.exists

    def exists(self, name: str) -> bool:
        """Whether there is a stream of this name, or is about to be."""
        staged = self._staging.view(name)
        return staged is not None and not staged.gone and not staged.expired(self._clock.now_ms())

    def staged(self, name: str) -> Staged | None:
        """The stream of this name as it will be once all that is pending is durable."""
        return self._staging.view(name)

    def names(self, prefix: str) -> Iterator[str]:
        """The names of all published streams that start so, in order within each bucket."""
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
            # Idle, but used: others leave memory before it.
            self.state.clean.move_to_end(stream.number)
        return stream

    # Writing.

    def append(self, name: str, request: AppendRequest, reply: Reply, context: Any) -> None:
        """Append to a stream, close it, or both; `reply(context, outcome)` answers once."""
        commits = self._commits
        if commits.stalled or commits.full or commits.pending_bytes > commits.pending_bytes_max:
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
            self._answer(staged, reply, context, _ended(name, staged))
            return
        outcome: Appended | HoldfastError
        try:
            outcome = self._stage_append(staged, request, now_ms)
        except HoldfastError as error:
            outcome = error
        batch = staged.batch
        if batch is None:
            reply(context, outcome)
        else:
            batch.answers.append((reply, context, outcome))

    def append_to(
        self, number: int, name: str, request: AppendRequest, reply: Reply, context: Any
    ) -> None:
        """Append to the stream with this number, and to no other that has its name by now."""
        staged = self._staging.view(name)
        if staged is not None and staged.number != number:
            self._answer(staged, reply, context, not_found(name))
        else:
            self.append(name, request, reply, context)

    def create(self, name: str, request: CreateRequest, reply: Reply, context: Any) -> None:
        """Create a stream, or confirm that it exists as asked for."""
        self._commits.check()
        now_ms = self._clock.now_ms()
        existing = self._staging.view(name)
        if (
            existing is not None
            and not existing.gone
            and not self.lifetimes.lapsed(existing, now_ms)
        ):
            self._answer(existing, reply, context, confirm(existing, request))
            return
        if existing is not None and existing.deleted:
            error: HoldfastError = StreamExistsError(StreamDeletedError(name).message)
            self._answer(existing, reply, context, error)
            return
        try:
            staged = self._creating.stage(name, request, now_ms)
        except HoldfastError as refusal:
            self._answer_refusal(name, existing, request, reply, context, refusal)
            return
        outcome = Created(True, staged.meta.content_type, staged.tail, staged.closed, staged.number)
        self._answer(staged, reply, context, outcome)

    def _answer_refusal(
        self,
        name: str,
        existing: Staged | None,
        request: CreateRequest,
        reply: Reply,
        context: Any,
        error: HoldfastError,
    ) -> None:
        """A creation is refused: that may rest on the name, its source or its bucket."""
        source = None if request.fork is None else self._overlay.get(request.fork.name)
        bucket = self._staging.buckets.overlay.get(name.partition("/")[0])
        batches = [each.batch for each in (existing, source, bucket) if each is not None]
        last = max(filter(None, batches), key=lambda batch: batch.position, default=None)
        if last is None:
            reply(context, error)
        else:
            last.answers.append((reply, context, error))

    def delete(self, name: str, reply: Reply, context: Any) -> None:
        """Delete a stream and all its data; that is taken even where memory is full."""
        self._commits.check_log()
        now_ms = self._clock.now_ms()
        staged = self._staging.view(name)
        if staged is None:
            reply(context, not_found(name))
            return
        if staged.gone or self.lifetimes.lapsed(staged, now_ms):
            self._answer(staged, reply, context, _ended(name, staged))
            return
        self._staging.remove(staged, Record(Kind.DELETE, staged.number, now_ms))
        self._answer(staged, reply, context, Deleted())

    def _answer(self, staged: Staged | None, reply: Reply, context: Any, outcome: object) -> None:
        if staged is None or staged.batch is None:
            reply(context, outcome)
        else:
            staged.batch.answers.append((reply, context, outcome))

    # Publishing.

    def _publish(self, batch: Batch) -> None:
        """Make a durable batch visible, send its answers, wake the readers of its streams."""
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
        batch.answer()
        for stream in woken:
            if stream.readers is not None:
                stream.readers.wake()
        for watcher in tuple(self.watchers):
            try:
                watcher(batch, entries)
            except Exception:  # noqa: BLE001 (a defect in one must not stop the log)
                _log.exception("a batch could not be told to everybody")
        if self.tier is not None:
            self.tier.published()

    def _published_rare(self, record: Record, stream: Stream) -> None:
        """A record other than an append is applied: count it, and tell who keeps track."""
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
        """A batch failed: nothing of what was pending will be."""
        self._staging.drop()
        self.lifetimes.dropped()
        for call in self.documents.on_drop:
            call()


def _ended(name: str, staged: Staged) -> HoldfastError:
    """What a stream that is gone answers: its name may still be taken."""
    return StreamDeletedError(name) if staged.deleted else not_found(name)
