"""Copying the messages of one stream: append by append, each of them conditional.

Rules:

- `at` is the offset of the source up to which the copy is. A message is sent only if it starts
  there.
- An append names the state that it was made for. If the copy is in another one, or nobody knows
  what became of an append, the copy is looked at again, and `at` is where it is then: this or
  another attempt was quicker.
- What does not come with the messages that were planned (what a fork shares with its source) is
  read from the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from holdfast.client.messages import Assembler
from holdfast.client.payloads import request_body
from holdfast.client.retry import Retry, pause
from holdfast.client.stream import Stream
from holdfast.client.types import Appended, ProducerStamp
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
from holdfast.spark.reading.slice_reader import StreamRun
from holdfast.spark.replaying.comparing import (
    ReplayReport,
    ReplayWork,
    Todo,
    close,
    publish_snapshot,
)
from holdfast.spark.replaying.endings import LeftError, look_at

REQUEST_BYTES: Final = 2 * 1024 * 1024
_REQUEST_MESSAGES: Final = 100_000
_ATTEMPTS: Final = 20


class StreamCopy:
    """One stream on its way."""

    def __init__(
        self, work: ReplayWork, todo: Todo, source: Stream, target: Stream, report: ReplayReport
    ) -> None:
        self._work = work
        self._todo = todo
        self._source = source
        self._target = target
        self._report = report
        self._media = media_type(todo.content_type)
        self._at = todo.start
        self._tail = todo.tail
        self._etag = todo.etag
        self._unstamped = todo.unstamped
        self._has_copied = False
        self._clock = SystemClock()
        self._failures = 0

    async def take(self, run: StreamRun) -> None:
        """Copy messages, and what is missing before them."""
        first = int(run.offsets[0])
        if first > self._at:
            await self._read_up_to(first)
        await self._append(run.payloads.to_pylist(), run.offsets, run.next_offsets)

    async def finish(self) -> None:
        """Copy what is left of it, and do what is to be done at the end."""
        if self._at < self._todo.end:
            await self._read_up_to(self._todo.end)
        todo = replace(self._todo, tail=self._tail)
        if self._work.snapshots and todo.snapshot_at is not None:
            await publish_snapshot(self._source, self._target, todo, self._report)
        if todo.closed and self._at == todo.end:
            await close(self._target, self._etag, self._report)

    async def _read_up_to(self, end: int) -> None:
        """Copy from the stream itself, whatever it shares with others."""
        assembler = Assembler(None)
        try:
            async for batch in self._source.read(f"{self._at:020d}").batches(lengths=True):
                found = [each for each in assembler.feed(batch) if int(each.next_offset) <= end]
                await self._append(
                    [each.payload for each in found],
                    np.array([int(each.offset) for each in found], dtype=np.int64),
                    np.array([int(each.next_offset) for each in found], dtype=np.int64),
                )
                if int(batch.next_offset) >= end:
                    break
        except (OffsetGoneError, StreamNotFoundError, StreamDeletedError):
            raise LeftError(
                "It was deleted or trimmed at the source while it was copied."
            ) from None
        if self._at < end:
            raise LeftError(f"The source does not have its messages up to offset {end:020d}.")

    async def _append(self, payloads: Sequence[bytes], offsets: Any, next_offsets: Any) -> None:
        """Append those that the copy does not have."""
        count = len(payloads)
        index = 0
        while True:
            index += int(np.searchsorted(offsets[index:], self._at))
            if index >= count:
                return
            if int(offsets[index]) != self._at:
                raise LeftError("Somebody else has written to it on the target.")
            last = self._cut(payloads, index)
            body = request_body(payloads[index:last], self._media)
            end = int(next_offsets[last - 1])
            if await self._post(body, end):
                self._report.messages += last - index

    def _cut(self, payloads: Sequence[bytes], first: int) -> int:
        """Where the request ends that starts with this message."""
        if self._media != JSON:
            return first + 1
        size = 0
        for index in range(first, min(len(payloads), first + _REQUEST_MESSAGES)):
            size += len(payloads[index]) + 1
            if size > REQUEST_BYTES and index > first:
                return index
        return min(len(payloads), first + _REQUEST_MESSAGES)

    async def _post(self, body: bytes, end: int) -> bool:
        """Send an append; whether it was stored, as far as is known."""
        failpoint("replay.appending")
        stamp = ProducerStamp(self._todo.producer_id, self._todo.base, 0)
        try:
            answer = await self._target.post(
                body,
                self._todo.content_type,
                if_match=self._etag,
                producer=stamp if self._unstamped else None,
            )
        except (PreconditionFailedError, OutboundError, CommitUnknownError) as error:
            await self._look_again(error)
            return False
        except StreamClosedError:
            raise LeftError("It was closed on the target meanwhile.") from None
        except PayloadTooLargeError as error:
            raise LeftError(f"A message is too large for the target: {error.message}") from None
        except (NotFoundError, StreamDeletedError):
            raise LeftError("It was deleted on the target meanwhile.") from None
        if answer.duplicate:
            await self._look_again(None)
            return False
        self._stored(answer, end)
        return True

    def _stored(self, answer: Appended, end: int) -> None:
        failpoint("replay.appended")
        size = end - self._at
        if answer.next_offset != f"{self._tail + size:020d}":
            raise LeftError("The target does not count its bytes as the source does.")
        self._report.bytes += size
        self._at, self._tail = end, self._tail + size
        self._etag = answer.etag or ""
        self._unstamped = False
        self._failures = 0
        if not self._has_copied:
            self._has_copied = True
            self._report.copied += 1

    async def _look_again(self, error: HoldfastError | None) -> None:
        """See how far the copy is, after an append of which nobody knows."""
        self._failures += 1
        if self._failures > _ATTEMPTS:
            raise error or LeftError("The target takes no more of it.")
        if isinstance(error, OutboundError) and not error.passing:
            raise error
        if error is not None and not isinstance(error, PreconditionFailedError):
            delay_s = Retry().delay_s(min(self._failures, 8), error, self._clock)
            await pause(self._clock, delay_s or 0.1)
        todo = self._todo
        copy = await look_at(self._target, todo.content_type, todo.producer_id)
        if copy is None or copy.tail < self._tail:
            raise LeftError("It was deleted on the target meanwhile.")
        if copy.closed:
            raise LeftError("It was closed on the target meanwhile.")
        if copy.base != todo.base and copy.tail > self._tail:
            raise LeftError("Somebody else has written to it on the target.")
        if copy.tail > self._tail:
            self._unstamped = False
        self._tail, self._etag = copy.tail, copy.etag
        self._at = todo.base + copy.tail
