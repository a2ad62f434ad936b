"""Batches: what many writers have staged becomes visible by one decision, once.

A writer stages its appends as a *part*, a hidden stream. A *batch* is the appends of several parts
in order, under the id of a producer and an epoch.

Rules:

- A batch is checked first: that all parts are complete, and that every stream will take what the
  batch has for it. A batch that is refused has stored nothing.
- Then the *decision*, a document with the parts and the options, is made durable. From there on
  the batch will be published, whatever happens. It is the producer's only document, and stays when
  the batch is published: a repetition finds it and is confirmed, and its own parts are dropped.
- Publishing appends to the streams, numbered by the batch's producer and epoch. So it can start
  again from the beginning, after an error or by the next server, and stores nothing twice.
- While a batch is under way, its parts do not change, and no request creates or closes its streams.
- A stream that is deleted after the decision counts as deleted after the batch: what the batch had
  for it is dropped. Only a server that starts meanwhile cannot know, and creates it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.engine.writes import (
    AppendRequest,
    CreateRequest,
    StreamAppended,
    check_quota,
)
from holdfast.errors import (
    BatchConflictError,
    ConflictError,
    GoneError,
    HoldfastError,
    NotFoundError,
    OverloadedError,
    PayloadTooLargeError,
    ProducerFencedError,
    QuotaExceededError,
    StreamClosedError,
    StreamNotFoundError,
    UnavailableError,
)
from holdfast.failpoints import failpoint
from holdfast.http.responses import result_of
from holdfast.http.turns import ROUND_S
from holdfast.protocol.content import DEFAULT, JSON, media_type
from holdfast.protocol.names import PARTS
from holdfast.protocol.parts import PartAppend, split_appends
from holdfast.protocol.producer import Producer
from holdfast.storage.pending import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from holdfast.clock import Clock, Timer
    from holdfast.engine.commit import Reply
    from holdfast.engine.shard import Shard
    from holdfast.settings.groups import LimitSettings

_log = logging.getLogger(__name__)
DOCUMENTS: Final = "batch/"
# Their names are in memory while the batch is under way: of one batch, and of all.
STREAMS_MAX: Final = 1_000_000
NAMES_MAX: Final = 2 * STREAMS_MAX
PARTS_MAX: Final = 100_000
_WINDOW_BYTES: Final = 256 * 1024
# Appends of a batch that wait for the disk.
_PENDING_BYTES_MAX: Final = 8 * 1024 * 1024
_PAUSE_S: Final = 0.1
_SWEEP_S: Final = 600.0
_WRITER: Final = b"part"


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """The document of a producer: the batch that it published last, or is publishing."""

    producer_id: str
    epoch: int
    content_type: str
    at_ms: int
    # Tells the same rows from others; empty if the writer does not want that to be checked.
    digest: str = ""
    # Empty once everything is published.
    parts: tuple[str, ...] = ()
    creates: bool = True
    closes: bool = False
    ttl_s: int | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Decision).decode


class BatchPublication:
    """A batch that is under way."""

    def __init__(self, key: str, decision: Decision) -> None:
        self.key = key
        self.decision = decision
        self.is_decided = False
        # For each stream the number of its appends.
        self.streams: dict[str, int] = {}
        self.knows_streams = True
        # Streams with appends that are durable: if one is missing, it was deleted since.
        self.begun: set[str] = set()
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # An error without anybody to tell is no defect.
        self.finished.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.task: asyncio.Task[None] | None = None

    def producer(self, seq: int) -> Producer:
        return Producer(self.decision.producer_id.encode(), self.decision.epoch, seq)

    def is_free(self, name: str) -> bool:
        """Whether others may close the stream or create it, as far as this batch is concerned."""
        return self.knows_streams and name not in self.streams


class _Pending:
    """The appends of a publication that wait for the disk."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.error: HoldfastError | None = None
        self._changed = asyncio.Event()

    async def until_below(self, size_bytes: int) -> None:
        """Wait until fewer bytes are pending; raises if an append failed."""
        while self.size_bytes >= size_bytes and self.error is None:
            self._changed.clear()
            await self._changed.wait()
        if self.error is not None:
            raise self.error

    def done(self, context: tuple[str, int], outcome: object) -> None:
        name, size_bytes = context
        self.size_bytes -= size_bytes
        self._changed.set()
        if isinstance(outcome, UnavailableError):
            self.error = outcome
        elif isinstance(outcome, HoldfastError):
            _log.warning("a batch leaves out the stream %r: %s", name, outcome.message)


class Batches:
    """Parts, and the batches that are made of them."""

    def __init__(self, shard: Shard, clock: Clock, limits: LimitSettings) -> None:
        self._shard = shard
        self._clock = clock
        self._limits = limits
        self._under_way: dict[str, BatchPublication] = {}
        self._held: set[str] = set()
        self._sweeper: Timer | None = None

    def start(self) -> None:
        """Continue the batches that an earlier server has decided."""
        for key, value in list(self._shard.documents.items(DOCUMENTS)):
            decision = _decode(value)
            if decision.parts:
                self._continue(key.removeprefix(DOCUMENTS), decision)
        self._sweep()

    def stop(self) -> None:
        """Publish nothing more; the next server continues."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for each in self._under_way.values():
            if each.task is not None:
                each.task.cancel()

    # Parts.

    def stage(self, part: str, seq: int, data: bytes, reply: Reply, context: Any) -> None:
        """Add appends to a part; `seq` numbers its requests from 0."""
        self._check_not_held(part)
        name, producer = PARTS + part, Producer(_WRITER, 0, seq)
        if not seq and not self._shard.exists(name):
            creation = CreateRequest(DEFAULT, body=data, producer=producer, over_quota=True)
            self._shard.create(name, creation, reply, context)
        else:
            append = AppendRequest(data, DEFAULT, producer=producer, over_quota=True)
            self._shard.append(name, append, reply, context)

    def drop(self, part: str, reply: Reply, context: Any) -> None:
        """Delete a part that is not needed."""
        self._check_not_held(part)
        self._shard.delete(PARTS + part, reply, context)

    def _check_not_held(self, part: str) -> None:
        if part in self._held:
            raise BatchConflictError("The part belongs to a batch that is being published.")

    def _drop_all(self, parts: Sequence[str]) -> None:
        """Delete parts; what cannot be deleted now is swept later."""
        for part in parts:
            if part not in self._held:
                with suppress(HoldfastError):
                    self._shard.delete(PARTS + part, _ignore, None)

    def _sweep(self) -> None:
        """Delete parts that their writers have forgotten, and forget idle producers."""
        self._sweeper = self._clock.call_later(_SWEEP_S, self._sweep)
        now_ms, limits = self._clock.now_ms(), self._limits
        oldest_ms = now_ms - limits.part_ttl_s * 1000
        listed = self._shard.listing.streams(PARTS)
        old = [name for name, stream in listed if stream.last_write_ms < oldest_ms]
        self._drop_all([name.removeprefix(PARTS) for name in old])
        known = dict(self._shard.documents.items(DOCUMENTS))
        if limits.producer_idle_s and len(known) > limits.producers_max // 2 > 0:
            idle_ms = now_ms - limits.producer_idle_s * 1000
            decisions = {key: _decode(value) for key, value in known.items()}
            idle = [
                key for key, each in decisions.items() if not each.parts and each.at_ms < idle_ms
            ]
            with suppress(HoldfastError):
                self._shard.documents.commit(dict.fromkeys(idle), _ignore, None)

    # Batches.

    def check_free(self, name: str) -> None:
        """Raise if this stream must not be closed or created now: it has to take a batch."""
        if not all(each.is_free(name) for each in self._under_way.values()):
            raise UnavailableError("A batch is being published to the stream. Try again later.")

    def publish(
        self,
        key: str,
        decision: Decision,
        sizes: Sequence[int],
        may_write: Callable[[str], None],
    ) -> BatchPublication | None:
        """Publish a batch, or go on with it; None if it is published already.

        The key is that of the producer's document, and begins with the holder of the token and a
        slash. `sizes` are those of the parts, and `may_write` raises if the caller may not write to
        a stream. Raises if another batch is under way, or
        was published under the same epoch.
        """
        under_way = self._under_way.get(key)
        document = self._shard.state.documents.get(DOCUMENTS + key)
        last = _decode(document) if document is not None else None
        if under_way is not None:
            last = under_way.decision
        if last is not None:
            if decision.epoch < last.epoch:
                raise ProducerFencedError(last.epoch)
            if decision.epoch == last.epoch:
                _check_same(last, decision)
                self._drop_all(decision.parts)
                if under_way is None and last.parts:
                    return self._continue(key, last)
                return under_way
        if under_way is not None:
            raise UnavailableError(f"The batch {last and last.epoch} is being published.")
        if not self._held.isdisjoint(decision.parts):
            raise BatchConflictError("A part belongs to another batch.")
        if last is None:
            self._check_producers(key)
        return self._begin(BatchPublication(key, decision), sizes, may_write)

    def _check_producers(self, key: str) -> None:
        most, holder = self._limits.producers_max, DOCUMENTS + key[: key.index("/") + 1]
        if most and sum(each.startswith(holder) for each in self._shard.state.documents) >= most:
            raise QuotaExceededError(
                f"{most} producers have published batches, which is the limit (producers_max)."
            )

    def _continue(self, key: str, decision: Decision) -> BatchPublication:
        publication = BatchPublication(key, decision)
        publication.is_decided, publication.knows_streams = True, False
        return self._begin(publication, [], _anything)

    def _begin(
        self, publication: BatchPublication, sizes: Sequence[int], may_write: Callable[[str], None]
    ) -> BatchPublication:
        self._under_way[publication.key] = publication
        self._held.update(publication.decision.parts)
        work = self._run(publication, sizes, may_write)
        publication.task = asyncio.get_running_loop().create_task(work)
        return publication

    async def _run(
        self, publication: BatchPublication, sizes: Sequence[int], may_write: Callable[[str], None]
    ) -> None:
        key, decision = publication.key, publication.decision
        finished = publication.finished
        try:
            if not publication.is_decided:
                await self._check(publication, sizes, may_write)
                failpoint("batch.checked")
                await self._write(key, decision)
                publication.is_decided = True
            failpoint("batch.decided")
            await self._publish_until_done(publication)
            failpoint("batch.published")
            await self._write(key, msgspec.structs.replace(decision, parts=()))
            failpoint("batch.finished")
        except HoldfastError as error:
            finished.set_exception(error)
        except asyncio.CancelledError:
            finished.set_exception(UnavailableError("The server is shutting down."))
            raise
        except Exception:  # noqa: BLE001 (a defect in one batch must not stop others)
            _log.exception("the batch %d of %r failed", decision.epoch, decision.producer_id)
            finished.set_exception(HoldfastError("The server failed; its log says why."))
        else:
            finished.set_result(None)
        finally:
            del self._under_way[key]
            is_published = finished.done() and finished.exception() is None
            if is_published or not publication.is_decided:
                self._held.difference_update(decision.parts)
        if is_published:
            self._drop_all(decision.parts)

    async def _write(self, key: str, decision: Decision) -> None:
        """Make a decision durable, however long the log takes."""
        changes = {DOCUMENTS + key: _encode(decision)}

        def ask(done: Callable[[Any], None]) -> None:
            self._shard.documents.commit(changes, lambda _, outcome: done(outcome), None)

        while True:
            try:
                await result_of(ask)
            except UnavailableError as error:
                _log.warning("a batch waits for the log: %s", error.message)
                await self._pause()
            else:
                return

    async def _pause(self) -> None:
        def ask(done: Callable[[Any], None]) -> None:
            self._clock.call_later(_PAUSE_S, done, None)

        await result_of(ask)

    # Checking.

    async def _check(
        self, publication: BatchPublication, sizes: Sequence[int], may_write: Callable[[str], None]
    ) -> None:
        """Raise unless every stream will take what the batch has for it."""
        decision, streams = publication.decision, publication.streams
        self._check_parts(decision, sizes)
        is_json = media_type(decision.content_type) == JSON
        added_bytes: defaultdict[str, int] = defaultdict(int)
        added_streams: defaultdict[str, int] = defaultdict(int)
        async for append in self._appends(decision.parts):
            name = append.name
            if name not in streams:
                if len(streams) == STREAMS_MAX:
                    raise PayloadTooLargeError(f"A batch has at most {STREAMS_MAX} streams.")
                if sum(len(each.streams) for each in self._under_way.values()) >= NAMES_MAX:
                    raise OverloadedError("The batches under way have too many streams.")
                is_there = await self._check_stream(publication, name, may_write)
                added_streams[name[: name.index("/")]] += not is_there
            if (append.lengths is None) != is_json:
                raise BatchConflictError(f"A part is not staged as {decision.content_type}.")
            streams[name] = streams.get(name, 0) + 1
            added_bytes[name[: name.index("/")]] += len(append.body)
        for bucket, size_bytes in added_bytes.items():
            if self._limits.bucket_bytes_max:
                most = self._limits.bucket_bytes_max
                check_quota(self._shard.state, most, f"{bucket}/", size_bytes)
        for bucket, count in added_streams.items():
            row = self._shard.state.buckets.get(bucket)
            most = self._limits.bucket_streams_max
            if most and count and count + (0 if row is None else row.streams) > most:
                raise QuotaExceededError(f"The bucket {bucket!r} may hold {most} streams.")

    def _check_parts(self, decision: Decision, sizes: Sequence[int]) -> None:
        for part, size_bytes in zip(decision.parts, sizes, strict=True):
            stream = self._shard.state.find(PARTS + part)
            if stream is None or stream.gone or stream.tail != size_bytes:
                raise BatchConflictError(
                    "Nothing of the batch is stored, since a part of it is missing or incomplete. "
                    "Stage it again."
                )

    async def _check_stream(
        self, publication: BatchPublication, name: str, may_write: Callable[[str], None]
    ) -> bool:
        """Whether a stream is there; raises if it would refuse the batch."""
        may_write(name)
        decision = publication.decision
        for other in self._under_way.values():
            closes = decision.closes or other.decision.closes
            if other is not publication and closes and not other.is_free(name):
                raise UnavailableError(f"Another batch is being published to {name!r}.")
        check = partial(
            self._shard.check_first,
            name,
            media_type(decision.content_type),
            publication.producer(0),
        )
        catalog = self._shard.catalog
        try:
            if catalog is not None and catalog.may_wait:
                is_there: bool = await result_of(partial(run, catalog.look_up(check)))
            else:
                is_there = check()
            if not is_there and not decision.creates:
                raise StreamNotFoundError(name)
        except (ConflictError, GoneError, NotFoundError, ProducerFencedError) as error:
            error.message = f"Nothing of the batch is stored. The stream {name!r}: {error.message}"
            raise
        return is_there

    async def _count(self, publication: BatchPublication) -> None:
        """Find out to which streams a batch of an earlier server goes."""
        streams = publication.streams
        streams.clear()
        async for append in self._appends(publication.decision.parts):
            streams[append.name] = streams.get(append.name, 0) + 1
        publication.knows_streams = True

    async def _appends(self, parts: Sequence[str]) -> AsyncIterator[PartAppend]:
        """The appends of parts, in order; lets others run every few milliseconds."""
        reader, monotonic_s = self._shard.reader, self._clock.monotonic_s
        until_s = monotonic_s() + ROUND_S
        for part in parts:
            stream = self._shard.find(PARTS + part)
            at, rest = 0, b""
            while at < stream.tail:
                found = await result_of(partial(run, reader.read(stream, at, _WINDOW_BYTES)))
                at, data = found.end, rest + found.data
                appends, used = split_appends(data)
                rest = data[used:]
                for append in appends:
                    yield append
                    if monotonic_s() > until_s:
                        await asyncio.sleep(0)
                        until_s = monotonic_s() + ROUND_S

    # Publishing.

    async def _publish_until_done(self, publication: BatchPublication) -> None:
        while True:
            try:
                if not publication.knows_streams:
                    await self._count(publication)
                await self._publish(publication)
            except UnavailableError as error:
                _log.warning("a batch is published again from its start: %s", error.message)
                await self._pause()
            else:
                return

    async def _publish(self, publication: BatchPublication) -> None:
        seqs: dict[str, int] = {}
        pending = _Pending()
        async for append in self._appends(publication.decision.parts):
            seq = seqs.get(append.name, 0)
            seqs[append.name] = seq + 1
            await pending.until_below(_PENDING_BYTES_MAX)
            while not self._append(publication, append, seq, pending):
                # Memory has no room for more, and nobody tells when a flush has made some.
                await self._pause()
            failpoint("batch.publishing")
        await pending.until_below(1)

    def _append(
        self, publication: BatchPublication, append: PartAppend, seq: int, pending: _Pending
    ) -> bool:
        """Append to a stream; False if that is not possible now."""
        decision, shard, name = publication.decision, self._shard, append.name
        is_last = seq + 1 == publication.streams[name]
        request = AppendRequest(
            append.body,
            media_type(decision.content_type),
            close=decision.closes and is_last,
            producer=publication.producer(seq),
            over_quota=True,
            lengths=append.lengths,
            is_stored_form=True,
        )
        # At least one byte, so that nothing is pending only if every reply is there.
        context = name, len(append.body) + 1
        pending.size_bytes += context[1]
        try:
            is_new = not seq and decision.creates and name not in publication.begun
            if is_new and not shard.exists(name):
                creation = CreateRequest(decision.content_type, decision.ttl_s, over_quota=True)
                shard.create(name, creation, _ignore, None)
            shard.append(name, request, partial(self._appended, publication, pending), context)
        except UnavailableError:
            pending.size_bytes -= context[1]
            return False
        except HoldfastError as error:
            pending.done(context, error)
        return True

    def _appended(
        self,
        publication: BatchPublication,
        pending: _Pending,
        context: tuple[str, int],
        outcome: object,
    ) -> None:
        if isinstance(outcome, StreamClosedError) and publication.decision.closes:
            staged = self._shard.staged(context[0])
            closer = None if staged is None else staged.closer
            if closer is not None and closer[:2] == publication.producer(0)[:2]:
                # It was closed by this batch, before this start.
                outcome = None
        if isinstance(outcome, StreamAppended):
            publication.begun.add(context[0])
        pending.done(context, outcome)


def _check_same(last: Decision, decision: Decision) -> None:
    if last.digest and decision.digest and last.digest != decision.digest:
        raise BatchConflictError(
            f"The producer {last.producer_id!r} has published other data under the epoch "
            f"{decision.epoch}, and nothing of this is stored. Use another epoch or producer."
        )


def _anything(_name: str) -> None: ...


def _ignore(_context: object, _outcome: object) -> None: ...
