"""A shard: the single writer of its streams.

Rules:

- Everything runs on one event loop and validation never awaits, so there are no locks.
- A write is validated against the staged state: the overlay where there is an entry, the published
  state otherwise. Order: exists, closed, content type, producer, `Stream-Seq`, body.
- Every answer that rests on an overlay entry, refusals too, waits for the batch that entry rests
  on. Otherwise a duplicate could be acknowledged before its original is durable.
- Reads see published state only: no reader sees a byte that is not durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.engine.commit import Batch, CommitLoop
from holdfast.engine.counters import Counters
from holdfast.engine.existing import answer_closed, confirm
from holdfast.engine.lifetimes import Lifetimes
from holdfast.engine.live import LiveReaders
from holdfast.engine.overlay import Staged, Staging
from holdfast.engine.requests import Appended, AppendRequest, Created, CreateRequest, Deleted
from holdfast.engine.state import State, Stream
from holdfast.engine.tier import Tier
from holdfast.errors import (
    ContentTypeMismatchError,
    HoldfastError,
    InvalidJsonError,
    LogCorruptError,
    StreamNotFoundError,
    StreamSeqError,
    UnavailableError,
)
from holdfast.format.records import Kind, Record, StreamMeta, decode, stream_number
from holdfast.protocol import content, json_mode
from holdfast.protocol.producer import ProducerState, is_duplicate

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.engine.commit import Reply
    from holdfast.log.interface import Log
    from holdfast.storage.catalog import Catalog
    from holdfast.storage.cold import ColdReader
    from holdfast.storage.commands import Worker


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
        self._ttl_is_fixed = ttl_is_fixed
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
        self.cold = cold
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
            self.state.begin(totals.streams, totals.stored_bytes)
            self._flushed = totals.flushed
        position = self._flushed
        for position, body in self.log.replay(self._flushed):
            if self._abandoned:
                raise UnavailableError("The server is shutting down.")
            batches += 1
            index = -1
            try:
                for index, record in enumerate(decode(body)):
                    self.state.apply(record, position, index)
                self.state.generation.records += index + 1
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

    def find(self, name: str) -> Stream:
        """The published stream of this name; raises if there is none or it has expired."""
        stream = self.state.by_name.get(name) or self.state.find(name)
        if stream is None:
            raise StreamNotFoundError(name)
        if stream.deadline_ms is not None and self.lifetimes.has_ended(stream):
            raise StreamNotFoundError(name)
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
                raise StreamNotFoundError(name)
            staged = Staged.over(stream)
        if staged.gone or (
            staged.deadline_ms is not None and self.lifetimes.lapsed(staged, now_ms)
        ):
            self._answer(staged, reply, context, StreamNotFoundError(name))
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
        try:
            staged = self._stage_create(name, request, now_ms)
        except HoldfastError as error:
            self._answer(existing, reply, context, error)
            return
        outcome = Created(True, request.content_type, staged.tail, staged.closed)
        self._answer(staged, reply, context, outcome)

    def delete(self, name: str, reply: Reply, context: Any) -> None:
        """Delete a stream and all its data; that is taken even where memory is full."""
        self._commits.check_log()
        now_ms = self._clock.now_ms()
        staged = self._staging.view(name)
        if staged is None or staged.gone or self.lifetimes.lapsed(staged, now_ms):
            self._answer(staged, reply, context, StreamNotFoundError(name))
            return
        self._staging.remove(staged, Record(Kind.DELETE, staged.number, now_ms))
        self._answer(staged, reply, context, Deleted())

    # Staging.

    def _stage_append(self, staged: Staged, request: AppendRequest, now_ms: int) -> Appended:
        body, producer, seq = request.body, request.producer, request.seq
        if staged.closed:
            return answer_closed(staged, request)
        if body and request.media != staged.media:
            raise ContentTypeMismatchError(
                f"The stream holds {staged.media}, the append is {request.media}."
            )
        if producer is not None:
            state = staged.producer_state(producer.id)
            if is_duplicate(state, producer):
                self.counters.duplicates += 1
                return Appended(staged.tail, staged.closed, state, added=False)
        if seq is not None and staged.seq is not None and seq <= staged.seq:
            raise StreamSeqError(
                f"Stream-Seq {seq.decode('latin-1')!r} is not greater than the last one, "
                f"{staged.seq.decode('latin-1')!r}."
            )
        if body and staged.media == content.JSON:
            body = json_mode.store_form(body)
            if not body:
                raise InvalidJsonError("An empty array appends nothing; send at least one message.")
        record = Record(Kind.APPEND, staged.number, now_ms, body, request.close, producer, seq)
        self._staging.add(staged, record)
        return Appended(
            staged.tail,
            staged.closed,
            None if producer is None else ProducerState(producer.epoch, producer.seq),
            bool(body),
        )

    def _stage_create(self, name: str, request: CreateRequest, now_ms: int) -> Staged:
        body = request.body
        media = content.media_type(request.content_type)
        if request.producer is not None:
            is_duplicate(None, request.producer)
        if body and media == content.JSON:
            body = json_mode.store_form(body)
        expires_at_ms = request.expires_at_ms
        if request.ttl_s is not None and self._ttl_is_fixed:
            expires_at_ms = now_ms + request.ttl_s * 1000
        meta = StreamMeta(name, request.content_type, request.ttl_s, expires_at_ms)
        batch = self._commits.batch()
        number = stream_number(batch.position, len(batch.records))
        staged = Staged(number, meta, media, meta.expires_at_ms)
        record = Record(
            Kind.CREATE, number, now_ms, body, request.close, request.producer, request.seq, meta
        )
        self._staging.add(staged, record)
        return staged

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
        rare = 0
        for index, record in enumerate(batch.records):
            if record.kind == Kind.APPEND:
                stream = append(record)
            else:
                stream = state.apply(record, position, index)
                self._published_rare(record, stream)
                rare += 1
            if stream.readers is not None:
                woken[stream] = None
        self._staging.settle(batch)
        counters = self.counters
        state.generation.records += len(batch.records)
        counters.appends += len(batch.records) - rare
        counters.append_bytes += state.appended_bytes - bytes_before
        batch.answer()
        for stream in woken:
            if stream.readers is not None:
                stream.readers.wake()
        if self.tier is not None:
            self.tier.published()

    def _published_rare(self, record: Record, stream: Stream) -> None:
        """A record other than an append is applied: count it, and tell who keeps track."""
        counters = self.counters
        if record.kind == Kind.CREATE:
            counters.creates += 1
            self._staging.created(stream)
        elif record.kind == Kind.DELETE:
            counters.deletes += 1
        elif record.kind == Kind.EXPIRE:
            counters.expirations += 1
        self.lifetimes.published(record, stream)

    def _drop(self) -> None:
        """A batch failed: nothing of what was pending will be."""
        self._overlay.clear()
        self.lifetimes.dropped()
