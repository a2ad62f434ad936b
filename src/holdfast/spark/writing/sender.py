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
from collections.abc import Iterable
from typing import Final

from holdfast.client import Client
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

    __slots__ = ("closed", "known_seq", "queue", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.queue: deque[Request] = deque()
        # The highest number that the stream has of this batch, as far as is known.
        self.known_seq = -1
        self.closed = False


class Sender:
    """Sends the requests of one task."""

    def __init__(self, client: Client, options: WriteOptions, producer: BatchProducer) -> None:
        self.duplicates = 0
        self._client = client
        self._options = options
        self._producer = producer
        self._lanes: dict[str, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(options.concurrency)
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
                lane = _Lane(self._client.stream(request.name))
                self._lanes[request.name] = lane
                self._start(lane, request)
            elif lane.queue:
                lane.queue.append(request)
            else:
                self._start(lane, request)

    async def finish(self) -> None:
        """Wait until everything is stored."""
        await self._until(lambda: not self._pending)

    async def stop(self) -> None:
        """Give up what is not sent yet."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _has_room(self) -> bool:
        return self._pending < self._pending_max and self._pending_bytes < PENDING_BYTES_MAX

    async def _until(self, condition: Callable[[], bool]) -> None:
        while self._error is None and not condition():
            self._progress.clear()
            await self._progress.wait()
        if self._error is not None:
            raise self._error
