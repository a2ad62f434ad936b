"""Sends requests: those of one stream one after the other, those of many streams at once.

Rules:

- A request is sent after the response to the one before it on its stream. A response tells the
  highest number that the stream has of this batch: requests up to there are not sent at all.
- Requests carry a digest of all requests of their stream so far, so a stream that has other rows of
  this batch refuses them. Where requests are not sent, the digest in the response is compared.
- A missing stream is created, then the request is sent again. Only the first request of a stream
  does that: after a deletion during the batch, later requests cannot follow.
- If streams are to be closed, a stream that is closed already may have been by an earlier attempt.
  Then only the request that closes it is sent, which the server confirms only to the producer that
  closed it.
- After the first failure nothing more is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from holdfast.client import Appended, Client, ProducerStamp, chained_digest
from holdfast.client.stream import Stream
from holdfast.errors import (
    ConflictError,
    ContentTypeMismatchError,
    HoldfastError,
    PayloadTooLargeError,
    ProducerDigestError,
    ProducerFencedError,
    ProducerGapError,
    StreamClosedError,
    StreamExistsError,
    StreamNotFoundError,
)
from holdfast.spark.session import rebuild_error
from holdfast.spark.writing.options import WriteOptions
from holdfast.spark.writing.requests import WriteRequest

PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
# Requests that may wait for each one under way.
_QUEUED: Final = 8


@dataclass(frozen=True)
class BatchProducer:
    """The producer id and epoch under which the requests of one batch are numbered."""

    producer_id: str
    epoch: int


class _StreamState:
    """What is known of a stream that is written to."""

    __slots__ = ("closed", "digest", "known_digest", "known_seq", "turn")

    def __init__(self) -> None:
        # Requests get it in the order in which they came.
        self.turn = asyncio.Lock()
        # The highest number that the stream is known to have of this batch.
        self.known_seq = -1
        # The digest that came with it, and that of the requests so far.
        self.known_digest: str | None = None
        self.digest = ""
        self.closed = False


class Sender:
    """Sends the requests of one task, and counts them. `stop` has to be called at the end."""

    def __init__(self, client: Client, options: WriteOptions, producer: BatchProducer) -> None:
        self.rows = self.bytes = self.requests = self.duplicates = self.streams = 0
        self._client = client
        self._options = options
        self._producer = producer
        self._streams: dict[str, _StreamState] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(options.concurrency)
        self._pending = 0
        self._pending_max = options.concurrency * _QUEUED
        self._pending_bytes = 0
        self._progress = asyncio.Event()
        self._error: Exception | None = None
        # If one stream is missing, the next one probably is, too.
        self._expects_new = False

    async def take(self, requests: Iterable[WriteRequest]) -> None:
        """Start sending requests; waits while too many are pending."""
        for request in requests:
            await self._until(self._has_room)
            self.rows += request.rows
            self.bytes += len(request.body)
            self.requests += 1
            self.streams += request.last
            self._pending += 1
            self._pending_bytes += len(request.body)
            state = self._streams.setdefault(request.name, _StreamState())
            task = asyncio.create_task(self._send_in_turn(state, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait until everything is stored; raise the first error."""
        await self._until(lambda: not self._pending)

    async def stop(self) -> None:
        """Drop what is not stored yet."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _has_room(self) -> bool:
        return self._pending < self._pending_max and self._pending_bytes < PENDING_BYTES_MAX

    async def _until(self, condition: Callable[[], bool]) -> None:
        while self._error is None and not condition():
            self._progress.clear()
            await self._progress.wait()
        if self._error is not None:
            raise self._error

    async def _send_in_turn(self, state: _StreamState, request: WriteRequest) -> None:
        async with state.turn:
            if self._error is not None:
                return
            try:
                await self._send_unless_stored(state, request)
            except HoldfastError as error:
                self._fail(_explained(error, request, self._options, self._producer))
            except Exception as error:  # noqa: BLE001 (raised by take() or finish())
                self._fail(error)
            if request.last:
                del self._streams[request.name]
        self._pending -= 1
        self._pending_bytes -= len(request.body)
        self._progress.set()

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error

    async def _send_unless_stored(self, state: _StreamState, request: WriteRequest) -> None:
        closes = request.last and self._options.close_streams
        state.digest = chained_digest(state.digest, request.body)
        if not closes and (state.closed or request.seq <= state.known_seq):
            if request.seq == state.known_seq and state.known_digest not in {None, state.digest}:
                raise ProducerDigestError(self._producer.epoch, request.seq, state.digest)
            self.duplicates += 1
        else:
            await self._send(state, request, close=closes)
        if request.last and state.known_seq > request.seq:
            self._fail(_too_few_rows(request, self._producer, state.known_seq))

    async def _send(self, state: _StreamState, request: WriteRequest, *, close: bool) -> None:
        try:
            async with self._slots:
                response = await self._post_creating(request, state.digest, close=close)
        except StreamClosedError:
            if close or not self._options.close_streams:
                raise
            state.closed = True
            self.duplicates += 1
            return
        self.duplicates += response.duplicate
        if response.producer_seq is not None:
            state.known_seq = response.producer_seq
            state.known_digest = response.producer_digest

    async def _post_creating(self, request: WriteRequest, digest: str, *, close: bool) -> Appended:
        stream = self._client.stream(request.name)
        may_create = self._options.create_streams and not request.seq
        if may_create and self._expects_new:
            await self._create(stream)
        try:
            return await self._post(stream, request, digest, close=close)
        except StreamNotFoundError:
            if not may_create:
                raise
        self._expects_new = True
        await self._create(stream)
        return await self._post(stream, request, digest, close=close)

    async def _create(self, stream: Stream) -> None:
        try:
            made = await stream.create(self._options.content_type, ttl_s=self._options.ttl_s)
        except StreamExistsError:
            # It is configured differently; the append shows whether that matters.
            self._expects_new = False
        else:
            self._expects_new = made.created

    async def _post(
        self, stream: Stream, request: WriteRequest, digest: str, *, close: bool
    ) -> Appended:
        producer = self._producer
        return await stream.post(
            request.body,
            self._options.content_type,
            close=close,
            lengths=request.lengths,
            producer=ProducerStamp(producer.producer_id, producer.epoch, request.seq, digest),
        )


def _explained(
    error: HoldfastError, request: WriteRequest, options: WriteOptions, producer: BatchProducer
) -> HoldfastError:
    """The same error with the stream, and what to do about it, in its message."""
    stream = f"the stream {request.name!r}"
    rows = "a row" if request.rows == 1 else f"{request.rows} rows"
    match error:
        case ProducerFencedError():
            message = (
                f"The producer {producer.producer_id!r} has written to {stream} under the epoch "
                f"{error.epoch}, and this is {producer.epoch}: another query has the same "
                "producerId, or the checkpoint was started anew; choose another producerId."
            )
        case ProducerDigestError():
            message = (
                f"The producer {producer.producer_id!r} has written other rows to {stream} under "
                f"the epoch {producer.epoch}, or the same rows in another order or other requests: "
                "these were not stored. New rows need another producerEpoch or producerId; rows "
                "that are written again need the same order, requestBytes and framing."
            )
        case StreamClosedError():
            message = f"The stream {request.name!r} is closed: {rows} cannot be appended."
        case ContentTypeMismatchError():
            message = (
                f"The stream {request.name!r} does not hold {options.content_type}: give its own "
                f"type as the option 'contentType'. ({error.message})"
            )
        case StreamNotFoundError() if request.seq:
            message = (
                f"The stream {request.name!r} was deleted while it was written to: {rows} cannot "
                "follow those that were deleted with it."
            )
        case StreamNotFoundError():
            message = (
                f"There is no stream {request.name!r}: create it first, "
                "or leave the option createStreams at true."
            )
        case PayloadTooLargeError():
            message = (
                f"{rows.capitalize()} of {stream}, {len(request.body)} bytes, exceed what the "
                "server accepts in one request: raise its setting body_bytes_max."
            )
        case ProducerGapError():
            message = (
                f"The server knows fewer requests of the producer {producer.producer_id!r} to "
                f"{stream} than were stored: was the stream deleted, or the server restored from "
                f"a backup? ({error.message})"
            )
        case _:
            message = f"Writing to {stream}: {error.message}"
    return rebuild_error(type(error), message)


def _too_few_rows(request: WriteRequest, producer: BatchProducer, seq: int) -> ConflictError:
    """The error for a stream that has more requests of this batch than its rows make."""
    return ConflictError(
        f"The stream {request.name!r} has {seq + 1} requests of the producer "
        f"{producer.producer_id!r} with the epoch {producer.epoch}, and these rows make "
        f"{request.seq + 1}: they are not the rows that were written under it. New rows need "
        "another batch_id or producer_id."
    )
