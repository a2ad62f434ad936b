"""Copying the messages of streams, on executors: many streams at once, append by append.

Rules:

- `at` is the offset of the source up to which the copy is complete. A message is sent only if it
  starts there.
- Each append names the state of the copy that it was made for. If the copy is in another state, or
  the outcome of an append is unknown, the copy is probed again, and `at` becomes its actual state:
  this or another attempt was faster.
- Messages that the planned slices do not hold (those that a fork shares with its source) are read
  from the stream itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from holdfast.client import Appended, ProducerStamp
from holdfast.client.calls import Retry, pause
from holdfast.client.messages import Assembler, request_body
from holdfast.clock import SystemClock
from holdfast.errors import (
    CommitUnknownError,
    HoldfastError,
    NotFoundError,
    OffsetGoneError,
    OutboundError,
    PayloadTooLargeError,
    PreconditionFailedError,
    StreamClosedError,
    StreamDeletedError,
    StreamNotFoundError,
)
from holdfast.failpoints import failpoint
from holdfast.protocol.content import JSON, media_type
from holdfast.spark.connection import SparkClient
from holdfast.spark.reading.selection import Selection
from holdfast.spark.reading.slice_reader import StreamRun, stream_runs
from holdfast.spark.reading.source import ReadSource, Slice
from holdfast.spark.replaying.comparing import (
    CLOSED,
    DELETED,
    OTHER_WRITER,
    PendingCopy,
    ReplayReport,
    ReplayWork,
    SkipStreamError,
    StreamPair,
    probe_target,
    stream_pairs,
    task_group,
)

PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
_PENDING_MAX: Final = 2000
REQUEST_BYTES: Final = 2 * 1024 * 1024
_REQUEST_MESSAGES: Final = 100_000
_ATTEMPTS: Final = 20


@dataclass(frozen=True)
class CopyTask:
    """Streams to be copied, and the slice that holds their messages, or most of them."""

    source: ReadSource
    part: Slice
    todo: Sequence[PendingCopy]


def copy_slice(work: ReplayWork, task: CopyTask) -> ReplayReport:
    """Copy the streams of a task."""
    starts = {each.stream_id: each.start for each in task.todo}
    ends = {each.stream_id: each.end for each in task.todo}
    selection = Selection(frozenset(starts), "", starts, ends)
    source = replace(task.source, selection=selection)
    with SparkClient(source.connection) as server:
        runs = stream_runs(source, server, task.part)
        return asyncio.run(_SliceCopy(work, task.todo).run(runs))


class _SliceCopy:
    """Reads runs of messages and hands them to one task for each stream."""

    def __init__(self, work: ReplayWork, todo: Sequence[PendingCopy]) -> None:
        self._work = work
        self._report = ReplayReport()
        self._todo = {each.stream_id: each for each in todo}
        self._slots = asyncio.Semaphore(work.concurrency)
        self._pending = self._pending_bytes = 0
        self._room = asyncio.Event()

    async def run(self, runs: Iterator[StreamRun]) -> ReplayReport:
        async with stream_pairs(self._work, self._report) as self._pair, task_group() as group:
            name, queue = "", None
            while (run := await asyncio.to_thread(next, runs, None)) is not None:
                if queue is None or run.stream.stream_id != name:
                    if queue is not None:
                        queue.put_nowait(None)
                    name = run.stream.stream_id
                    queue = self._start(group, self._todo.pop(name))
                await self._until_room()
                self._pending += 1
                self._pending_bytes += run.payloads.nbytes
                queue.put_nowait(run)
            if queue is not None:
                queue.put_nowait(None)
            # Forks that have no messages of their own yet.
            for pending in self._todo.values():
                self._start(group, pending).put_nowait(None)
        return self._report

    def _start(
        self, group: asyncio.TaskGroup, pending: PendingCopy
    ) -> asyncio.Queue[StreamRun | None]:
        queue: asyncio.Queue[StreamRun | None] = asyncio.Queue()
        group.create_task(self._copy(pending, queue))
        return queue

    async def _until_room(self) -> None:
        while self._pending_bytes > PENDING_BYTES_MAX or self._pending > _PENDING_MAX:
            self._room.clear()
            await self._room.wait()

    async def _copy(self, pending: PendingCopy, queue: asyncio.Queue[StreamRun | None]) -> None:
        async with self._slots:
            copy = _StreamCopy(self._pair(pending.stream_id), pending)
            try:
                while (run := await self._next(queue)) is not None:
                    await copy.take(run)
                await copy.finish()
            except SkipStreamError as error:
                self._report.skip(pending.stream_id, error.message)
                while await self._next(queue) is not None:
                    pass

    async def _next(self, queue: asyncio.Queue[StreamRun | None]) -> StreamRun | None:
        run = await queue.get()
        if run is not None:
            self._pending -= 1
            self._pending_bytes -= run.payloads.nbytes
            self._room.set()
        return run


class _StreamCopy:
    """Copies one stream."""

    def __init__(self, pair: StreamPair, pending: PendingCopy) -> None:
        self._pair = pair
        self._pending = pending
        self._report = pair.report
        self._media = media_type(pending.content_type)
        self._tail = pending.tail
        self._etag = pending.etag
        self._unstamped = pending.unstamped
        self._has_copied = False
        self._clock = SystemClock()
        self._failures = 0

    @property
    def _at(self) -> int:
        return self._pending.base + self._tail

    async def take(self, run: StreamRun) -> None:
        """Copy messages, and those that are missing before them."""
        first = int(run.offsets[0])
        if first > self._at:
            await self._copy_from_stream(first)
        await self._append(run.payloads.to_pylist(), run.offsets, run.next_offsets)

    async def finish(self) -> None:
        """Copy the remaining messages, then the snapshot and the closure."""
        if self._at < self._pending.end:
            await self._copy_from_stream(self._pending.end)
        pending = replace(self._pending, tail=self._tail)
        await self._pair.publish_snapshot(pending)
        if pending.closed and self._at == pending.end:
            await self._pair.close(self._etag)

    async def _copy_from_stream(self, end: int) -> None:
        """Copy messages up to an offset from the stream itself."""
        assembler = Assembler(None)
        try:
            async for batch in self._pair.source.read(f"{self._at:020d}").batches(lengths=True):
                found = [each for each in assembler.feed(batch) if int(each.next_offset) <= end]
                await self._append(
                    [each.payload for each in found],
                    np.array([int(each.offset) for each in found], dtype=np.int64),
                    np.array([int(each.next_offset) for each in found], dtype=np.int64),
                )
                if int(batch.next_offset) >= end:
                    break
        except (OffsetGoneError, StreamNotFoundError, StreamDeletedError):
            raise SkipStreamError(
                "It was deleted or trimmed on the source while it was copied."
            ) from None
        if self._at < end:
            raise SkipStreamError(f"The source lacks its messages up to offset {end:020d}.")

    async def _append(self, payloads: Sequence[bytes], offsets: Any, next_offsets: Any) -> None:
        """Append those messages that the copy does not have."""
        index = 0
        while True:
            index += int(np.searchsorted(offsets[index:], self._at))
            if index >= len(payloads):
                return
            if int(offsets[index]) != self._at:
                raise SkipStreamError(OTHER_WRITER)
            last = self._request_end(payloads, index)
            body = request_body(payloads[index:last], self._media)
            if await self._post(body, int(next_offsets[last - 1])):
                self._report.messages += last - index

    def _request_end(self, payloads: Sequence[bytes], first: int) -> int:
        """The index after the last message of the request that starts with `first`."""
        if self._media != JSON:
            return first + 1
        size = 0
        end = min(len(payloads), first + _REQUEST_MESSAGES)
        for index in range(first, end):
            size += len(payloads[index]) + 1
            if size > REQUEST_BYTES and index > first:
                return index
        return end

    async def _post(self, body: bytes, end: int) -> bool:
        """Send an append; returns whether it is known to be stored."""
        failpoint("replay.appending")
        stamp = ProducerStamp(self._pending.producer_id, self._pending.base, 0)
        try:
            response = await self._pair.target.post(
                body,
                self._pending.content_type,
                if_match=self._etag,
                producer=stamp if self._unstamped else None,
            )
        except (PreconditionFailedError, OutboundError, CommitUnknownError) as error:
            await self._probe(error)
            return False
        except StreamClosedError:
            raise SkipStreamError(CLOSED) from None
        except PayloadTooLargeError as error:
            raise SkipStreamError(
                f"A message is too large for the target: {error.message}"
            ) from None
        except (NotFoundError, StreamDeletedError):
            raise SkipStreamError(DELETED) from None
        if response.duplicate:
            await self._probe(None)
            return False
        self._advance(response, end)
        return True

    def _advance(self, response: Appended, end: int) -> None:
        failpoint("replay.appended")
        size = end - self._at
        if response.next_offset != f"{self._tail + size:020d}":
            raise SkipStreamError("The target does not count its bytes as the source does.")
        self._report.bytes += size
        self._tail += size
        self._etag = response.etag or ""
        self._unstamped = False
        self._failures = 0
        if not self._has_copied:
            self._has_copied = True
            self._report.copied += 1

    async def _probe(self, error: HoldfastError | None) -> None:
        """Find out how far the copy is after an append whose outcome is unknown."""
        self._failures += 1
        if self._failures > _ATTEMPTS:
            raise error or SkipStreamError("The target accepts no more of it.")
        if isinstance(error, OutboundError) and not error.passing:
            raise error
        if error is not None and not isinstance(error, PreconditionFailedError):
            delay_s = Retry().delay_s(min(self._failures, 8), error, self._clock)
            await pause(self._clock, delay_s or 0.1)
        pending = self._pending
        copy = await probe_target(self._pair.target, pending.content_type, pending.producer_id)
        if copy is None or copy.tail < self._tail:
            raise SkipStreamError(DELETED)
        if copy.closed:
            raise SkipStreamError(CLOSED)
        if copy.tail > self._tail:
            if copy.base != pending.base:
                raise SkipStreamError(OTHER_WRITER)
            self._unstamped = False
        self._tail, self._etag = copy.tail, copy.etag
