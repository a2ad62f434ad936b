"""Comparing streams with their copies: what has to be copied, and what else is to be done."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Final

from holdfast.client import ProducerStamp, StreamHead
from holdfast.client.stream import Stream
from holdfast.errors import (
    BadAnswerError,
    ContentTypeMismatchError,
    InvalidRequestError,
    OffsetGoneError,
    PreconditionFailedError,
    ProducerFencedError,
    SnapshotConflictError,
    SnapshotNotFoundError,
    StreamClosedError,
    StreamDeletedError,
    StreamExistsError,
    StreamNotFoundError,
)
from holdfast.failpoints import failpoint
from holdfast.spark.connection import SparkConnection

SKIPPED_MAX: Final = 100
# Why streams are skipped.
DELETED: Final = "It was deleted on the target meanwhile."
CLOSED: Final = "It was closed on the target meanwhile."
OTHER_WRITER: Final = "Another writer has written to it on the target."
# A condition that never holds: no stream has the number 0.
_NO_STATE: Final = '"0:0"'


@dataclass(frozen=True)
class ReplayWork:
    """What executors are told about a replay."""

    source: SparkConnection
    bucket: str
    target: SparkConnection
    target_bucket: str
    # Names the source, whichever address it is reached at.
    identity: str
    snapshots: bool
    fail_on_data_loss: bool
    concurrency: int


@dataclass(frozen=True)
class PendingCopy:
    """A stream that has to be copied from `start` to `end`, offsets of its source."""

    stream_id: str
    content_type: str
    producer_id: str
    end: int
    # Of the copy.
    base: int
    tail: int
    etag: str
    # Whether the append that carries the producer with this base is still to come.
    unstamped: bool
    # What is to be done at the end.
    closed: bool
    snapshot_at: int | None

    @property
    def start(self) -> int:
        return self.base + self.tail


@dataclass(frozen=True)
class SkippedCopy:
    """A stream that was left alone, and why."""

    stream_id: str
    why: str


class SkipStreamError(Exception):
    """A stream is not copied any further; the message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass
class ReplayReport:
    """Counts of what was done."""

    streams: int = 0
    # Streams that are equal according to the listings.
    unchanged: int = 0
    created: int = 0
    copied: int = 0
    messages: int = 0
    bytes: int = 0
    closed: int = 0
    snapshots: int = 0
    # Copies that start, or go on, after messages that the source has dropped.
    trimmed: int = 0
    # Copies with smaller offsets than their sources, since this or an earlier run.
    renumbered: int = 0
    left_alone: int = 0
    # The first of those that were left alone.
    left: list[SkippedCopy] = field(default_factory=list)

    def add(self, other: ReplayReport) -> None:
        for each in fields(self):
            if each.name != "left":
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        self.left += other.left[: SKIPPED_MAX - len(self.left)]

    def skip(self, stream_id: str, why: str) -> None:
        self.left_alone += 1
        if len(self.left) < SKIPPED_MAX:
            self.left.append(SkippedCopy(stream_id, why))


@asynccontextmanager
async def stream_pairs(
    work: ReplayWork, report: ReplayReport
) -> AsyncIterator[Callable[[str], StreamPair]]:
    """A function that makes the pair of a stream id, with clients for both servers."""
    async with work.source.client() as source, work.target.client() as target:

        def pair(stream_id: str) -> StreamPair:
            return StreamPair(
                stream_id,
                source.stream(f"{work.bucket}/{stream_id}"),
                target.stream(f"{work.target_bucket}/{stream_id}"),
                work,
                report,
            )

        yield pair


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup that raises the first error itself, not a group of errors."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failures:
        first: BaseException = failures
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


def compare_streams(
    work: ReplayWork, stream_ids: Sequence[str]
) -> tuple[ReplayReport, list[PendingCopy]]:
    """Compare streams with their copies, and do everything that needs no messages.

    Returns what was done, and the streams whose messages are to be copied.
    """
    return asyncio.run(_compare_all(work, stream_ids))


async def _compare_all(
    work: ReplayWork, stream_ids: Sequence[str]
) -> tuple[ReplayReport, list[PendingCopy]]:
    report = ReplayReport()
    todo: list[PendingCopy] = []
    async with stream_pairs(work, report) as pair:
        waiting = iter(stream_ids)

        async def worker() -> None:
            for stream_id in waiting:
                try:
                    pending = await pair(stream_id).compare()
                    if pending is not None:
                        todo.append(pending)
                except SkipStreamError as error:
                    report.skip(stream_id, error.message)

        async with task_group() as group:
            for _ in range(min(work.concurrency, len(stream_ids))):
                group.create_task(worker())
    return report, todo


@dataclass(frozen=True)
class StreamPair:
    """A stream of the source and its copy on the target."""

    stream_id: str
    source: Stream
    target: Stream
    work: ReplayWork
    report: ReplayReport

    async def compare(self) -> PendingCopy | None:
        """Do what needs no messages; return what has to be copied, if anything."""
        try:
            head = await self.source.head()
        except (StreamNotFoundError, StreamDeletedError):
            return None
        self.report.streams += 1
        producer_id = _producer_id(self.work.identity, head)
        try:
            copy = await probe_target(self.target, head.content_type, producer_id)
            if copy is None:
                copy = await self._create(head, producer_id)
        except StreamDeletedError:
            raise SkipStreamError(
                "It was deleted on the target, but its forks still need it."
            ) from None
        if self.work.snapshots and head.snapshot_offset is not None and copy.snapshot_at is None:
            current = _state_of(await self.target.head(), None)
            copy = replace(copy, snapshot_at=current.snapshot_at)
        pending = self._pending(head, copy, producer_id)
        self.report.renumbered += pending.base > 0
        # If messages are missing, the snapshot has to come before those that follow.
        pending = await self.publish_snapshot(pending)
        if pending.start < pending.end:
            return pending
        if pending.closed and not copy.closed:
            await self.close(pending.etag)
        return None

    async def publish_snapshot(self, pending: PendingCopy) -> PendingCopy:
        """Publish the source's snapshot if the copy is far enough; return what is left to do."""
        if pending.snapshot_at is None or not self.work.snapshots:
            return pending
        at = pending.snapshot_at - pending.base
        if not 0 <= at <= pending.tail:
            return pending
        done = replace(pending, snapshot_at=None)
        try:
            snapshot = await self.source.snapshots.get(f"{pending.snapshot_at:020d}")
        except (SnapshotNotFoundError, StreamNotFoundError, StreamDeletedError):
            # There is a later one by now, which the next run copies.
            return done
        try:
            await self.target.snapshots.publish(
                f"{at:020d}", snapshot.payload, content_type=snapshot.content_type
            )
        except (OffsetGoneError, SnapshotConflictError):
            # The copy has a later one.
            return done
        except InvalidRequestError as error:
            raise SkipStreamError(
                f"Its snapshot cannot be published on the target: {error.message}"
            ) from None
        self.report.snapshots += 1
        return done

    async def close(self, etag: str) -> None:
        """Close the copy, which is complete in the state `etag`."""
        try:
            await self.target.close(if_match=etag)
        except (PreconditionFailedError, StreamClosedError):
            head = await self.target.head()
            # Another attempt may have been faster.
            if not head.closed:
                raise SkipStreamError(OTHER_WRITER) from None
        failpoint("replay.closed")
        self.report.closed += 1

    async def _create(self, head: StreamHead, producer_id: str) -> TargetState:
        try:
            made = await self.target.create(
                head.content_type, ttl_s=head.ttl_s, expires_at=head.expires_at
            )
        except StreamExistsError as error:
            raise SkipStreamError(f"It cannot be created on the target: {error.message}") from None
        failpoint("replay.created")
        if not made.created:
            # Another attempt was faster.
            copy = await probe_target(self.target, head.content_type, producer_id)
            if copy is None:
                raise SkipStreamError(DELETED)
            return copy
        self.report.created += 1
        return TargetState(0, made.etag or "", made.closed, None)

    def _pending(self, head: StreamHead, copy: TargetState, producer_id: str) -> PendingCopy:
        earliest, end = int(head.earliest_offset or 0), int(head.next_offset)
        base = _base(head, copy, earliest, end)
        start = base + copy.tail
        unstamped = copy.tail == 0
        if start > end:
            raise SkipStreamError("The target has more of it than the source.")
        if start < earliest:
            if not self.work.snapshots and self.work.fail_on_data_loss:
                raise SkipStreamError(
                    f"Its messages from offset {start:020d} to {earliest:020d} were replaced by a "
                    "snapshot before they were copied."
                )
            base, unstamped = earliest - copy.tail, True
            self.report.trimmed += 1
        elif base and not copy.tail:
            self.report.trimmed += 1
        snapshot_at = int(head.snapshot_offset) if head.snapshot_offset is not None else None
        if snapshot_at is not None and snapshot_at - base == copy.snapshot_at:
            snapshot_at = None
        return PendingCopy(
            self.stream_id,
            head.content_type,
            producer_id,
            end,
            base,
            copy.tail,
            copy.etag,
            unstamped,
            head.closed,
            snapshot_at,
        )


def _base(head: StreamHead, copy: TargetState, earliest: int, end: int) -> int:
    """The offset of the source at which the copy begins."""
    if copy.closed:
        if not head.closed:
            raise SkipStreamError("It is closed on the target, but not on the source.")
        if copy.tail > end or (copy.tail < end and not earliest):
            raise SkipStreamError("It is closed on the target, and differs from the source.")
        # A closed stream does not tell its producer. But it is complete, since it was closed.
        return end - copy.tail
    if copy.base is not None:
        return copy.base
    if copy.tail:
        raise SkipStreamError("The target has a stream of this name that is no copy of this one.")
    return earliest


def _producer_id(identity: str, head: StreamHead) -> str:
    """The producer id for copies of a stream; a later stream of the same name gets another."""
    number = (head.etag or "").strip('W/"').partition(":")[0]
    if not number:
        raise BadAnswerError("The source does not send ETags, which identify its streams.")
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return f"holdfast-replay-{digest}-{number}"


@dataclass(frozen=True)
class TargetState:
    """The state of a stream on the target."""

    tail: int
    etag: str
    closed: bool
    # None: the stream is empty, closed, or no copy of this source.
    base: int | None
    snapshot_at: int | None = None


async def probe_target(stream: Stream, content_type: str, producer_id: str) -> TargetState | None:
    """Find out how far the copy is; None if there is no such stream."""
    probe = ProducerStamp(producer_id, 0, 0)
    try:
        response = await stream.post(b"0", content_type, if_match=_NO_STATE, producer=probe)
    except StreamNotFoundError:
        return None
    except (PreconditionFailedError, StreamClosedError):
        return _state_of(await stream.head(), None)
    except ContentTypeMismatchError:
        raise SkipStreamError(f"On the target it does not hold {content_type}.") from None
    except ProducerFencedError:
        # The tail is read first: if an append finds it unchanged, the base is right as well.
        head = await stream.head()
        return _state_of(head, await _base_of(stream, content_type, probe))
    if not response.duplicate:
        raise BadAnswerError("The target ignores If-Match, so streams cannot be copied safely.")
    return TargetState(_number(response.next_offset), response.etag or "", response.closed, 0)


async def _base_of(stream: Stream, content_type: str, probe: ProducerStamp) -> int | None:
    try:
        await stream.post(b"0", content_type, if_match=_NO_STATE, producer=probe)
    except ProducerFencedError as error:
        return error.epoch
    except (PreconditionFailedError, StreamClosedError):
        pass
    return None


def _state_of(head: StreamHead, base: int | None) -> TargetState:
    snapshot_at = None if head.snapshot_offset is None else _number(head.snapshot_offset)
    return TargetState(_number(head.next_offset), head.etag or "", head.closed, base, snapshot_at)


def _number(offset: str) -> int:
    if not offset.isdigit():
        raise BadAnswerError("The target is no Holdfast server: its offsets are no numbers.")
    return int(offset)
