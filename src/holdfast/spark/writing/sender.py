"""Sends requests: those of one stream one after the other, those of many at once.

Rules:

- A request is sent when the one before it on its stream was answered. An answer tells up to which
  number the stream has this batch: requests up to there are not sent at all.
- A stream that is missing is created, then the request is sent again. Only the first request of a
  stream does that: behind a deletion in mid-batch nothing fits.
- Where streams are to be closed, one that is closed already may be so by an earlier attempt. Then
  nothing is sent but the request that closes it, which the server confirms only to the one who
  closed it.
- After the first failure nothing more is sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from holdfast.client.stream import Stream
from holdfast.client.types import Appended, ProducerStamp
from holdfast.errors import (
    ConflictError,
    HoldfastError,
    StreamClosedError,
    StreamExistsError,
    StreamNotFoundError,
)
from holdfast.spark.writing.explaining import explained, other_rows
from holdfast.spark.writing.options import WriteOptions
from holdfast.spark.writing.report import BatchProducer
from holdfast.spark.writing.requests import Request

PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
# For each request that may be under way, so many wait.
_QUEUED: Final = 8


class _Lane:
    """The requests of one stream that are still to be sent."""

    __slots__ = ("closed", "known_seq", "queue", "running")

    def __init__(self) -> None:
        self.queue: deque[Request] = deque()
        self.running = False
        # The highest number that the stream has of this batch, as far as is known.
        self.known_seq = -1
        self.closed = False


class Sender:
    """Sends the requests of one task; made and used inside one event loop."""

    def __init__(self, options: WriteOptions, producer: BatchProducer) -> None:
        self.duplicates = 0
        self._options = options
        self._producer = producer
        self._lanes: dict[str, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(options.concurrency)
        self._client = options.connection.client()
        self._pending = 0
        self._pending_max = options.concurrency * _QUEUED
        self._pending_bytes = 0
        self._progress = asyncio.Event()
        self._error: Exception | None = None
        # Where one stream is missing the next one probably is, too.
        self._expects_new = False

    async def take(self, requests: Iterable[Request]) -> None:
        """Send these when it is their turn; waits while too much is pending."""
        for request in requests:
            await self._until(self._has_room)
            self._pending += 1
            self._pending_bytes += len(request.body)
            lane = self._lanes.get(request.name)
            if lane is None:
                lane = self._lanes[request.name] = _Lane()
            lane.queue.append(request)
            if not lane.running:
                lane.running = True
                task = asyncio.get_running_loop().create_task(self._run(lane))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait until everything is stored, or raise what went wrong."""
        await self._until(lambda: not self._pending)

    async def stop(self) -> None:
        """Give up what is not stored yet, and close all connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()

    def _has_room(self) -> bool:
        return self._pending < self._pending_max and self._pending_bytes < PENDING_BYTES_MAX

    async def _until(self, condition: Callable[[], bool]) -> None:
        while self._error is None and not condition():
            self._progress.clear()
            await self._progress.wait()
        if self._error is not None:
            raise self._error

    async def _run(self, lane: _Lane) -> None:
        while lane.queue and self._error is None:
            request = lane.queue.popleft()
            try:
                await self._send_unless_stored(lane, request)
            except HoldfastError as error:
                self._fail(explained(error, request, self._options, self._producer))
            except Exception as error:  # noqa: BLE001 (raised where somebody waits for it)
                self._fail(error)
            self._pending -= 1
            self._pending_bytes -= len(request.body)
            if request.last:
                del self._lanes[request.name]
            self._progress.set()
        lane.running = False

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error

    async def _send_unless_stored(self, lane: _Lane, request: Request) -> None:
        closes = request.last and self._options.close_streams
        if not closes and (lane.closed or request.seq <= lane.known_seq):
            self.duplicates += 1
        else:
            await self._send_and_learn(lane, request, close=closes)
        if request.last and lane.known_seq > request.seq:
            self._fail(ConflictError(other_rows(request, self._producer, lane.known_seq)))

    async def _send_and_learn(self, lane: _Lane, request: Request, *, close: bool) -> None:
        try:
            async with self._slots:
                stream = self._client.stream(request.name)
                answer = await self._send(stream, request, close=close)
        except StreamClosedError:
            if close or not self._options.close_streams:
                raise
            lane.closed = True
            self.duplicates += 1
            return
        self.duplicates += answer.duplicate
        if answer.producer_seq is not None:
            lane.known_seq = answer.producer_seq

    async def _send(self, stream: Stream, request: Request, *, close: bool) -> Appended:
        may_create = self._options.create_streams and not request.seq
        if may_create and self._expects_new:
            await self._create(stream)
        try:
            return await self._post(stream, request, close=close)
        except StreamNotFoundError:
            if not may_create:
                raise
        self._expects_new = True
        await self._create(stream)
        return await self._post(stream, request, close=close)

    async def _create(self, stream: Stream) -> None:
        try:
            made = await stream.create(self._options.content_type, ttl_s=self._options.ttl_s)
        except StreamExistsError:
            # Configured otherwise: whether that matters is what the append will tell.
            self._expects_new = False
        else:
            self._expects_new = made.created

    async def _post(self, stream: Stream, request: Request, *, close: bool) -> Appended:
        producer = self._producer
        return await stream.post(
            request.body,
            self._options.content_type,
            close=close,
            producer=ProducerStamp(producer.producer_id, producer.epoch, request.seq),
        )
