"""Snapshots to and from the server, many at once, for a thread that folds meanwhile.

Rules:

- The folding thread hands over what is to be published and goes on; it waits only while too many
  snapshots, or too many bytes of them, are under way.
- Snapshots are fetched in the order in which they are asked for. How many are held at once depends
  on the largest seen, so that large ones come one by one.
- A server takes few large bodies at once: one at a time from here.
- The first failure that is no answer about one stream ends it all, and is raised to whoever waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Self

import uvloop

from holdfast.client.snapshots import Snapshot
from holdfast.errors import (
    HoldfastError,
    InvalidOffsetError,
    InvalidRequestError,
    OffsetGoneError,
    PayloadTooLargeError,
    SnapshotConflictError,
    SnapshotNotFoundError,
    StreamDeletedError,
    StreamNotFoundError,
)
from holdfast.failpoints import failpoint
from holdfast.spark.connection import SparkConnection
from holdfast.spark.folding.folds import Body

CONCURRENCY: Final = 16
PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
# What the server takes for a large body.
_LARGE_BYTES: Final = 1024 * 1024
# For each request under way, so many wait.
_QUEUED: Final = 4
# The stream is gone, or somebody has published a later snapshot: there is nothing to do any more.
_OVERTAKEN: Final = (
    InvalidOffsetError,
    OffsetGoneError,
    SnapshotConflictError,
    StreamDeletedError,
    StreamNotFoundError,
)


@dataclass(frozen=True)
class Published:
    """What became of a snapshot."""

    stream_id: str
    offset: int
    messages: int
    message_bytes: int
    snapshot_bytes: int
    # It was not needed any more.
    overtaken: bool = False
    # Why the server does not take it.
    refused: str = ""


@dataclass(frozen=True)
class Publication:
    """A snapshot to be published: the state of a stream at an offset, and what is new in it."""

    stream_id: str
    offset: int
    body: Body
    messages: int
    message_bytes: int

    def outcome(self, *, overtaken: bool = False, refused: str = "") -> Published:
        """What became of it."""
        size = len(self.body.data)
        return Published(
            self.stream_id,
            self.offset,
            self.messages,
            self.message_bytes,
            size,
            overtaken,
            refused,
        )


class Publisher:
    """Fetches and publishes snapshots in a thread of its own; use it as a context manager."""

    def __init__(
        self,
        connection: SparkConnection,
        bucket: str,
        concurrency: int,
        report: Callable[[Published], None],
    ) -> None:
        self._bucket = bucket
        self._report = report
        self._concurrency = concurrency
        self._client = connection.client()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="holdfast-publisher", daemon=True)
        # Shared by the two threads.
        self._changed = threading.Condition()
        self._pending = self._pending_bytes = 0
        self._error: BaseException | None = None
        # Of the loop.
        self._slots = asyncio.Semaphore(concurrency)
        self._large = asyncio.Semaphore(1)
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
        """The snapshot that the stream has; None if there is none. `offset`: where it should be.

        Every result must be let go of with `fetched`, in the order of the calls.
        """
        found: Future[Snapshot | None] = Future()
        self._loop.call_soon_threadsafe(self._start, self._fetch(stream_id, offset, found))
        return found

    def fetched(self, snapshot: Snapshot | None) -> None:
        """A snapshot that was fetched is used up."""
        size = 0 if snapshot is None else len(snapshot.payload)
        self._loop.call_soon_threadsafe(self._fetches.release, size)

    def publish(self, publication: Publication) -> None:
        """Publish it; waits while too much is under way."""
        size = len(publication.body.data)
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._has_room(size))
            self._check()
            self._pending += 1
            self._pending_bytes += size
        self._loop.call_soon_threadsafe(self._start, self._publish(publication))

    def finish(self) -> None:
        """Wait until all is published."""
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

    async def _publish(self, publication: Publication) -> None:
        size = len(publication.body.data)
        try:
            if size > _LARGE_BYTES:
                async with self._large, self._slots:
                    outcome = await self._put(publication)
            else:
                async with self._slots:
                    outcome = await self._put(publication)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 (raised in the folding thread)
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
            return
        with self._changed:
            self._report(outcome)
            self._pending -= 1
            self._pending_bytes -= size
            self._changed.notify_all()

    async def _put(self, publication: Publication) -> Published:
        stream = self._client.stream(f"{self._bucket}/{publication.stream_id}")
        body = publication.body
        failpoint("snapshot_job.folded")
        try:
            await stream.snapshots.publish(
                f"{publication.offset:020d}", body.data, content_type=body.content_type
            )
        except _OVERTAKEN:
            return publication.outcome(overtaken=True)
        except (PayloadTooLargeError, InvalidRequestError) as error:
            # Too large, or a stream whose id cannot have snapshots.
            return publication.outcome(refused=error.message)
        failpoint("snapshot_job.published")
        return publication.outcome()

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


async def _get(
    get: Callable[[str | None], Coroutine[Any, Any, Snapshot]], offset: int | None
) -> Snapshot | None:
    """The visible snapshot; at the offset where it should be it takes one request."""
    if offset is not None:
        try:
            return await get(f"{offset:020d}")
        except SnapshotNotFoundError:
            # At another offset, or there is none: a fork starts at an offset without one.
            pass
    try:
        return await get(None)
    except SnapshotNotFoundError:
        return None


class _Fetches:
    """Who may fetch: as many at once as fit into memory, going by the largest that was seen."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._largest = _LARGE_BYTES
        self._waiting: list[asyncio.Future[None]] = []

    async def acquire(self) -> None:
        """Wait for a turn; turns are given in the order in which they are asked for."""
        if self._held < self._room and not self._waiting:
            self._held += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def saw(self, size: int) -> None:
        """One of this size has come."""
        self._largest = max(self._largest, size)

    def release(self, size: int) -> None:
        """One of this size is used up."""
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
    """Whether this says that the stream, or what was to be folded, is gone."""
    return isinstance(error, _OVERTAKEN)
