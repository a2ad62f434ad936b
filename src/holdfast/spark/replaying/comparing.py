"""Which streams have to be copied, from where, and what else there is to do about each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from holdfast.client import Client
from holdfast.client.stream import Stream
from holdfast.client.types import StreamHead
from holdfast.errors import (
    HoldfastError,
    InvalidRequestError,
    OffsetGoneError,
    PreconditionFailedError,
    SnapshotConflictError,
    SnapshotNotFoundError,
    StreamClosedError,
    StreamDeletedError,
    StreamExistsError,
    StreamNotFoundError,
)
from holdfast.failpoints import failpoint
from holdfast.spark.connection import SparkConnection
from holdfast.spark.replaying.endings import (
    Copy,
    LeftError,
    look_at,
    producer_name,
    snapshot_offset,
)
from holdfast.spark.replaying.groups import together

LEFT_MAX: Final = 100


@dataclass(frozen=True)
class ReplayWork:
    """What executors are told of a copy."""

    source: SparkConnection
    bucket: str
    target: SparkConnection
    target_bucket: str
    # Of the source: what it is, wherever it is reached.
    identity: str
    snapshots: bool
    fail_on_data_loss: bool
    concurrency: int


@dataclass(frozen=True)
class Todo:
    """A stream that has to be copied from an offset of its source to another."""

    stream_id: str
    content_type: str
    producer_id: str
    start: int
    end: int
    # Of the copy.
    base: int
    tail: int
    etag: str
    # Whether its first append, or the first under this base, is still to come.
    unstamped: bool
    # What is to be done at the end.
    closed: bool
    snapshot_at: int | None


@dataclass(frozen=True)
class Left:
    """A stream that was left alone, and why."""

    stream_id: str
    why: str


@dataclass
class ReplayReport:
    """What was found and done."""

    streams: int = 0
    created: int = 0
    copied: int = 0
    messages: int = 0
    bytes: int = 0
    closed: int = 0
    snapshots: int = 0
    # Begun, or gone on with, behind messages that the source has forgotten.
    trimmed: int = 0
    left_alone: int = 0
    left: list[Left] = field(default_factory=list)
    todo: list[Todo] = field(default_factory=list)

    def leave(self, stream_id: str, why: str) -> None:
        """Note that a stream was left alone."""
        self.left_alone += 1
        if len(self.left) < LEFT_MAX:
            self.left.append(Left(stream_id, why))


class Ends:
    """A client of each server; use it as an async context manager."""

    def __init__(self, work: ReplayWork) -> None:
        self._work = work
        self._source = work.source.client()
        self._target = work.target.client()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._source.aclose()
        await self._target.aclose()

    def streams(self, stream_id: str) -> tuple[Stream, Stream]:
        """A stream and its copy."""
        return (
            self._source.stream(f"{self._work.bucket}/{stream_id}"),
            self._target.stream(f"{self._work.target_bucket}/{stream_id}"),
        )


def compare_streams(work: ReplayWork, stream_ids: Sequence[str]) -> ReplayReport:
    """Compare streams with their copies, and do what is done without their messages."""
    return asyncio.run(_compare_all(work, stream_ids))


async def _compare_all(work: ReplayWork, stream_ids: Sequence[str]) -> ReplayReport:
    report = ReplayReport()
    async with Ends(work) as ends:
        waiting = iter(stream_ids)

        async def worker() -> None:
            for stream_id in waiting:
                try:
                    await Comparison(work, ends, report, stream_id).run()
                except LeftError as error:
                    report.leave(stream_id, error.message)

        async with together() as group:
            for _ in range(min(work.concurrency, len(stream_ids))):
                group.create_task(worker())
    return report


class Comparison:
    """One stream and its copy."""

    def __init__(self, work: ReplayWork, ends: Ends, report: ReplayReport, stream_id: str) -> None:
        self._work = work
        self._report = report
        self._stream_id = stream_id
        self._source, self._target = ends.streams(stream_id)

    async def run(self) -> None:
        """See what is to be done; what needs no messages is done at once."""
        try:
            head = await self._source.head()
        except (StreamNotFoundError, StreamDeletedError):
            return
        self._report.streams += 1
        producer_id = producer_name(self._work.identity, head)
        try:
            copy = await look_at(self._target, head.content_type, producer_id)
            if copy is None:
                copy = await self._create(head, producer_id)
        except StreamDeletedError:
            raise LeftError("On the target it was deleted, and lives on in its forks.") from None
        if self._work.snapshots and head.snapshot_offset is not None and copy.snapshot_at is None:
            copy = replace(copy, snapshot_at=await snapshot_offset(self._target))
        todo = self._todo(head, copy, producer_id)
        if todo is None:
            return
        # At the place where messages are missing it comes before those that follow.
        if self._work.snapshots and todo.snapshot_at is not None:
            todo = await publish_snapshot(self._source, self._target, todo, self._report)
        if todo.start < todo.end:
            self._report.todo.append(todo)
        elif todo.closed and not copy.closed:
            await close(self._target, todo.etag, self._report)

    async def _create(self, head: StreamHead, producer_id: str) -> Copy:
        try:
            made = await self._target.create(
                head.content_type, ttl_s=head.ttl_s, expires_at=head.expires_at
            )
        except StreamExistsError as error:
            raise LeftError(f"It cannot be created on the target: {error.message}") from None
        failpoint("replay.created")
        if not made.created:
            # Another attempt was quicker.
            found = await look_at(self._target, head.content_type, producer_id)
            if found is None:
                raise LeftError("It was deleted on the target meanwhile.")
            return found
        self._report.created += 1
        return Copy(0, made.etag or "", made.closed, None)

    def _todo(self, head: StreamHead, copy: Copy, producer_id: str) -> Todo | None:
        """What is to be done; None if nothing is."""
        earliest = int(head.earliest_offset or 0)
        end = int(head.next_offset)
        base = self._base(head, copy, earliest, end)
        if base is None:
            return None
        start = base + copy.tail
        unstamped = copy.tail == 0
        if start > end:
            raise LeftError("On the target there is more of it than at the source.")
        if start < earliest:
            if not self._work.snapshots and self._work.fail_on_data_loss:
                raise LeftError(
                    f"Its messages from offset {start:020d} to {earliest:020d} were replaced by a "
                    "snapshot before they were copied."
                )
            base, start, unstamped = earliest - copy.tail, earliest, True
            self._report.trimmed += 1
        elif base and not copy.tail:
            self._report.trimmed += 1
        snapshot_at = int(head.snapshot_offset) if head.snapshot_offset is not None else None
        if snapshot_at is not None and snapshot_at - base == copy.snapshot_at:
            snapshot_at = None
        return Todo(
            self._stream_id,
            head.content_type,
            producer_id,
            start,
            end,
            base,
            copy.tail,
            copy.etag,
            unstamped,
            head.closed,
            snapshot_at,
        )

    def _base(self, head: StreamHead, copy: Copy, earliest: int, end: int) -> int | None:
        """Which offset of the source the copy begins with; None if the copy is complete."""
        if copy.closed:
            if not head.closed:
                raise LeftError("It is closed on the target, and not at the source.")
            if copy.tail > end or (copy.tail < end and not earliest):
                raise LeftError("It is closed on the target, and not the same as at the source.")
            # Its producer cannot be asked for any more; but it is complete, since it was closed.
            return end - copy.tail
        if copy.base is not None:
            return copy.base
        if copy.tail:
            raise LeftError(
                "On the target there is a stream of this name that is no copy of this one."
            )
        return earliest


async def publish_snapshot(
    source: Stream, target: Stream, todo: Todo, report: ReplayReport
) -> Todo:
    """Publish the source's snapshot on the copy, if that is as far; what is left to do."""
    assert todo.snapshot_at is not None
    at = todo.snapshot_at - todo.base
    if not 0 <= at <= todo.tail:
        return todo
    done = replace(todo, snapshot_at=None)
    try:
        snapshot = await source.snapshots.get(f"{todo.snapshot_at:020d}")
    except (SnapshotNotFoundError, StreamNotFoundError, StreamDeletedError):
        # There is a later one by now, which the next run copies.
        return done
    try:
        await target.snapshots.publish(
            f"{at:020d}", snapshot.payload, content_type=snapshot.content_type
        )
    except (OffsetGoneError, SnapshotConflictError):
        # The copy has a later one.
        return done
    except InvalidRequestError as error:
        raise LeftError(
            f"Its snapshot cannot be published on the target: {error.message}"
        ) from None
    report.snapshots += 1
    return done


async def close(target: Stream, etag: str, report: ReplayReport) -> None:
    """Close the copy, which is complete in this state."""
    try:
        await target.close(if_match=etag)
    except (PreconditionFailedError, StreamClosedError):
        head = await target.head()
        # Another attempt may have been quicker.
        if not head.closed:
            raise LeftError("Somebody else has written to it on the target.") from None
    failpoint("replay.closed")
    report.closed += 1


async def list_streams(client: Client, bucket: str, prefix: str) -> dict[str, tuple[int, str, int]]:
    """Tail, status and time of creation of every stream of a bucket; none if it is not there."""
    found: dict[str, tuple[int, str, int]] = {}
    try:
        async for each in client.bucket(bucket).streams(prefix=prefix):
            found[each.stream_id] = (each.tail_offset, each.status, each.created_at_ms)
    except HoldfastError as error:
        if error.code != "bucket_not_found":
            raise
    return found
