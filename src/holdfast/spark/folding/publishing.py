"""Fetch and publish many snapshots at once, while another thread folds.

Rules:

- The folding thread hands over a snapshot and goes on; it waits only while too many snapshots, or
  too many bytes of them, are in flight.
- Small snapshots are published together, so many in one request as fit.
- Snapshots are fetched in the order of the calls. How many are held at once depends on the largest
  seen so far, so large ones are fetched one by one.
- A server accepts few large bodies at once, so only one at a time is sent from here.
- The first failure that does not concern a single stream ends the publisher, and is raised in the
  folding thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Self

import uvloop

from holdfast.client.snapshots import NewSnapshot, Snapshot
from holdfast.errors import (
    HoldfastError,
    InvalidOffsetError,
    InvalidRequestError,
    OffsetGoneError,
    PayloadTooLargeError,
    QuotaExceededError,
    SnapshotConflictError,
    SnapshotNotFoundError,
    StreamDeletedError,
    StreamNotFoundError,
)
from holdfast.failpoints import failpoint
from holdfast.spark.connection import SparkConnection
from holdfast.spark.folding.folds import SnapshotBody

CONCURRENCY: Final = 16
PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
# What a request holds: few requests are under way at once, since the server takes few large ones.
_GROUP_SNAPSHOTS: Final = 250
_GROUP_BYTES: Final = 2 * 1024 * 1024
_GROUPS_AT_ONCE: Final = 3
# From this size on the server counts a body as large.
_LARGE_BYTES: Final = 1024 * 1024
# How many snapshots may wait for each request in flight.
_QUEUED: Final = 4
# The stream is gone, or another run has published a later snapshot: nothing is left to do.
_OVERTAKEN: Final = (
    InvalidOffsetError,
    OffsetGoneError,
    SnapshotConflictError,
    StreamDeletedError,
    StreamNotFoundError,
)


@dataclass(frozen=True)
class Publication:
    """A snapshot to publish: the state of a stream at an offset, and how much of it is new."""

    stream_id: str
    offset: int
    body: SnapshotBody
    messages: int
    message_bytes: int

    def as_new(self) -> NewSnapshot:
        return NewSnapshot(
            self.stream_id, f"{self.offset:020d}", self.body.data, self.body.content_type
        )


@dataclass(frozen=True)
class PublishResult:
    publication: Publication
    # The snapshot was no longer needed.
    overtaken: bool = False
    # Why the server refused it.
    refused: str = ""


class Publisher:
    """Fetches and publishes snapshots in a thread of its own. A context manager."""

    def __init__(
        self,
        connection: SparkConnection,
        bucket: str,
        concurrency: int,
        report: Callable[[PublishResult], None],
        *,
        prefix: str = "",
        created_until: str = "",
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._created_until = created_until
        self._report = report
        self._concurrency = concurrency
        self._client = connection.client()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="holdfast-publisher", daemon=True)
        # Shared by both threads.
        self._changed = threading.Condition()
        self._pending = self._pending_bytes = 0
        # Used by the folding thread only: snapshots that are not under way yet.
        self._group: list[Publication] = []
        self._group_bytes = 0
        self._error: BaseException | None = None
        # Used by the loop's thread only.
        self._slots = asyncio.Semaphore(concurrency)
        self._large = asyncio.Semaphore(1)
        self._groups = asyncio.Semaphore(_GROUPS_AT_ONCE)
        self._fetches = _Fetches(concurrency)
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    def fetch(self, stream_id: str, offset: int | None) -> Future[Snapshot | None]:
        """Fetch a stream's snapshot, or None; `offset` is where it is expected.

        Every result needs a call of `release`, in the order of the calls.
        """
        found: Future[Snapshot | None] = Future()
        self._loop.call_soon_threadsafe(self._start, self._fetch(stream_id, offset, found))
        return found

    def release(self) -> None:
        """Release a fetched snapshot, so that others can be fetched."""
        self._loop.call_soon_threadsafe(self._fetches.release)

    def publish(self, publication: Publication) -> None:
        """Publish a snapshot; waits while too much is in flight."""
        size = len(publication.body.data)
        if size > _LARGE_BYTES:
            self._hand_over([publication], size)
            return
        if self._group and self._group_bytes + size > _GROUP_BYTES:
            self._hand_over_group()
        self._group.append(publication)
        self._group_bytes += size
        if len(self._group) == _GROUP_SNAPSHOTS:
            self._hand_over_group()

    def _hand_over_group(self) -> None:
        group, size = self._group, self._group_bytes
        self._group, self._group_bytes = [], 0
        self._hand_over(group, size)

    def _hand_over(self, group: list[Publication], size: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._has_room(size))
            self._check()
            self._pending += 1
            self._pending_bytes += size
        self._loop.call_soon_threadsafe(self._start, self._publish(group, size))

    def finish(self) -> None:
        """Wait until everything is published."""
        if self._group:
            self._hand_over_group()
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not self._pending)
            self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _has_room(self, size: int) -> bool:
        if not self._pending:
            return True
        return (
            self._pending < self._concurrency * (1 + _QUEUED)
            and self._pending_bytes + size <= PENDING_BYTES_MAX
        )

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, group: list[Publication], size: int) -> None:
        try:
            if size > _LARGE_BYTES and len(group) == 1:
                async with self._large:
                    results = [await self._put(group[0])]
            else:
                async with self._groups:
                    results = await self._put_all(group)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 (raised in the folding thread)
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
            return
        with self._changed:
            for result in results:
                self._report(result)
            self._pending -= 1
            self._pending_bytes -= size
            self._changed.notify_all()

    async def _put_all(self, group: list[Publication]) -> list[PublishResult]:
        failpoint("snapshot_job.folded")
        bucket = self._client.bucket(self._bucket)
        errors = await bucket.publish_snapshots(
            [each.as_new() for each in group],
            prefix=self._prefix,
            created_until=self._created_until,
        )
        failpoint("snapshot_job.published")
        return [_result_of(each, error) for each, error in zip(group, errors, strict=True)]

    async def _put(self, publication: Publication) -> PublishResult:
        stream = self._client.stream(f"{self._bucket}/{publication.stream_id}")
        body = publication.body
        failpoint("snapshot_job.folded")
        try:
            await stream.snapshots.publish(
                f"{publication.offset:020d}",
                body.data,
                content_type=body.content_type,
                created_until=self._created_until,
            )
        except HoldfastError as error:
            return _result_of(publication, error)
        failpoint("snapshot_job.published")
        return PublishResult(publication)

    async def _fetch(
        self, stream_id: str, offset: int | None, found: Future[Snapshot | None]
    ) -> None:
        await self._fetches.acquire()
        snapshots = self._client.stream(f"{self._bucket}/{stream_id}").snapshots
        try:
            async with self._slots:
                snapshot = await _get(snapshots.get, offset)
        except asyncio.CancelledError:
            found.cancel()
            raise
        except BaseException as error:  # noqa: BLE001 (raised in the folding thread)
            found.set_exception(error)
        else:
            self._fetches.saw(0 if snapshot is None else len(snapshot.payload))
            found.set_result(snapshot)


def _result_of(publication: Publication, error: HoldfastError | None) -> PublishResult:
    """What became of a snapshot; raises an error that does not concern its stream alone."""
    if error is None:
        return PublishResult(publication)
    if is_overtaken(error):
        return PublishResult(publication, overtaken=True)
    if isinstance(error, PayloadTooLargeError | QuotaExceededError | InvalidRequestError):
        # Too large, or a stream whose id cannot have snapshots.
        return PublishResult(publication, refused=error.message)
    raise error


async def _get(
    get: Callable[[str | None], Coroutine[Any, Any, Snapshot]], offset: int | None
) -> Snapshot | None:
    """The visible snapshot; one request suffices if it is at the expected offset."""
    if offset is not None:
        try:
            return await get(f"{offset:020d}")
        except SnapshotNotFoundError:
            # It is at another offset, or there is none: a fork starts without one.
            pass
    try:
        return await get(None)
    except SnapshotNotFoundError:
        return None


class _Fetches:
    """Limits fetches to as many as fit into memory, judged by the largest seen so far."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._largest = _LARGE_BYTES
        self._waiting: list[asyncio.Future[None]] = []

    async def acquire(self) -> None:
        """Wait for a turn, in the order of the calls."""
        if self._held < self._room and not self._waiting:
            self._held += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def saw(self, size: int) -> None:
        self._largest = max(self._largest, size)

    def release(self) -> None:
        self._held -= 1
        while self._waiting and self._held < self._room:
            turn = self._waiting.pop(0)
            if not turn.done():
                self._held += 1
                turn.set_result(None)

    @property
    def _room(self) -> int:
        return max(1, min(self._limit * _QUEUED, PENDING_BYTES_MAX // self._largest))


def is_overtaken(error: HoldfastError) -> bool:
    """Whether the stream, or the part to be folded, is gone."""
    return isinstance(error, _OVERTAKEN)
