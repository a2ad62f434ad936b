"""Snapshot bodies: from requests to the object store, and back to responses.

A small body is collected in memory and stored with one request. A larger one has a thread of its
own, which asks the event loop for the next part and blocks until it arrives. The number of large
uploads is limited, so memory is bounded; further ones are refused until one ends. Small bodies that
were used recently are cached.

Bodies that are published in one request are stored as one object, the body of that request.

In a directory, small bodies that arrive together are stored together, since syncing several files
costs little more than syncing one. A body that arrives alone does not wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from xxhash import xxh3_64

from holdfast.errors import HoldfastError, OverloadedError, PackCorruptError
from holdfast.failpoints import failpoint
from holdfast.objects.directory_objects import DirectoryObjects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from holdfast.clock import Clock
    from holdfast.format.records import Snapshot
    from holdfast.objects.store import ObjectStore, RangeReader


_log = logging.getLogger(__name__)
SNAPSHOTS_PREFIX: Final = "snapshots/"
# A body up to this size is one request; a larger one goes in parts, of at least what S3 takes.
SMALL_BYTES_MAX: Final = 1024 * 1024
PART_BYTES: Final = 5 * 1024 * 1024
# A body is passed on in pieces, and read in larger parts for so many clients at a time.
PIECE_BYTES: Final = 128 * 1024
READ_BYTES: Final = 1024 * 1024
READ_AHEAD_MAX: Final = 8
_CACHED_BYTES_MAX: Final = 512 * 1024
SMALL_AT_ONCE_MAX: Final = 128
LARGE_AT_ONCE_MAX: Final = 8
_SMALL_THREADS: Final = 4
# The number of directories that snapshots are spread over.
_SHELVES: Final = 256
_GROUP_MAX: Final = 64
# One group is written while the previous one is synced.
_GROUPS_AT_ONCE: Final = 2


class Uploaded(NamedTuple):
    """A snapshot that is durable in the store."""

    name: str
    size_bytes: int
    checksum: int


class SnapshotStore:
    """Writes and reads snapshot bodies on the event loop."""

    def __init__(
        self, store: ObjectStore, ranges: RangeReader, clock: Clock, cache_bytes: int
    ) -> None:
        self._store = store
        self._ranges = ranges
        self._clock = clock
        self._cache_bytes = cache_bytes
        self._cached_bytes = 0
        # By object and place in it.
        self._cache: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._small = ThreadPoolExecutor(_SMALL_THREADS, "snapshot")
        self._large = ThreadPoolExecutor(LARGE_AT_ONCE_MAX, "snapshot-upload")
        self._grouped = (
            GroupedPuts(store, self._small) if isinstance(store, DirectoryObjects) else None
        )
        self._gathering = self._uploading = self._reading_ahead = 0
        # Snapshots that may still be published: garbage collection spares them.
        self.unpublished: set[str] = set()

    async def put(self, stream: int, offset: int, body: AsyncIterator[bytes]) -> Uploaded:
        """Store a body under a new name; an exception of the body stores nothing.

        The name is in `unpublished`, and the caller removes it once the snapshot is published, or
        never will be.
        """
        name = self._name(stream, offset)
        self.unpublished.add(name)
        try:
            first = await self._put_small(name, body)
            checksum = xxh3_64(first)
            size = len(first)
            if size > SMALL_BYTES_MAX:
                size = await self._put_large(name, body, first, checksum)
            failpoint("snapshot.uploaded")
        except BaseException:
            self.unpublished.discard(name)
            raise
        return Uploaded(name, size, checksum.intdigest())

    def reserve(self) -> None:
        """Make room for a large upload, before `put_many` or `release`; raises if there is none."""
        if self._uploading >= LARGE_AT_ONCE_MAX:
            raise OverloadedError("Too many large snapshots are being sent. Try again later.")
        self._uploading += 1

    def release(self) -> None:
        """Give up what was reserved."""
        self._uploading -= 1

    async def put_many(self, stream: int, offset: int, bodies: bytes) -> Uploaded:
        """Store the bodies of many snapshots as one object, named after the first of them.

        As with `put`, the caller removes the name from `unpublished`.
        """
        name = self._name(stream, offset)
        self.unpublished.add(name)
        upload = self._in_thread(self._large, self._store.put, name, bodies)
        upload.add_done_callback(self._uploaded)
        try:
            await asyncio.shield(upload)
            failpoint("snapshot.uploaded")
        except BaseException:
            self.unpublished.discard(name)
            raise
        return Uploaded(name, len(bodies), xxh3_64(bodies).intdigest())

    def _name(self, stream: int, offset: int) -> str:
        shelf = (stream ^ stream >> 20) % _SHELVES
        salt = self._clock.random_u64()
        return f"{SNAPSHOTS_PREFIX}{shelf:02x}/{stream:016x}-{offset:020d}-{salt:016x}"

    async def _put_small(self, name: str, body: AsyncIterator[bytes]) -> bytes:
        """Store the body if it is small; returns the body, or the beginning of a larger one."""
        if self._gathering >= SMALL_AT_ONCE_MAX:
            raise OverloadedError("Too many snapshots are being sent. Try again later.")
        self._gathering += 1
        try:
            first = await _gathered(body, SMALL_BYTES_MAX + 1)
            if len(first) <= SMALL_BYTES_MAX:
                if self._grouped is not None:
                    await self._grouped.put(name, first)
                else:
                    await self._in_thread(self._small, self._store.put, name, first)
                self._keep((name, 0), first)
            return first
        finally:
            self._gathering -= 1

    async def _put_large(
        self, name: str, body: AsyncIterator[bytes], first: bytes, checksum: xxh3_64
    ) -> int:
        """Store a body in parts; returns its size."""
        self.reserve()
        parts = _Parts(asyncio.get_running_loop(), body, first, checksum)
        upload = self._in_thread(self._large, self._store.put_parts, name, parts)
        # If the request ends first, the upload still counts until its thread is done.
        upload.add_done_callback(self._uploaded)
        await asyncio.shield(upload)
        return parts.size_bytes

    def _uploaded(self, upload: asyncio.Future[None]) -> None:
        self.release()
        if not upload.cancelled():
            # The caller got the exception already, unless it is gone.
            upload.exception()

    def _in_thread(
        self, threads: ThreadPoolExecutor, call: Callable[..., None], *arguments: object
    ) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(threads, call, *arguments)

    async def remove(self, name: str) -> None:
        """Remove a snapshot that will not be published; garbage collection is the fallback."""
        try:
            await self._in_thread(self._small, self._store.remove, name)
        except HoldfastError as error:
            _log.warning("a snapshot that was not published stays for now: %s", error.message)

    def cached(self, snapshot: Snapshot) -> bytes | None:
        """The body if it is cached."""
        place = snapshot.object, snapshot.start
        found = self._cache.get(place)
        if found is not None:
            self._cache.move_to_end(place)
        return found

    async def pieces(self, snapshot: Snapshot) -> AsyncIterator[bytes]:
        """The body in pieces; raises before the last one if it is damaged."""
        small = snapshot.size_bytes <= _CACHED_BYTES_MAX
        async for piece in self._small_pieces(snapshot) if small else self._large_pieces(snapshot):
            yield piece

    async def _small_pieces(self, snapshot: Snapshot) -> AsyncIterator[bytes]:
        for at in range(0, snapshot.size_bytes, PIECE_BYTES):
            # Looked up for each piece, so that a client that does not read holds no more than one.
            whole = self.cached(snapshot)
            if whole is None:
                whole = await self._read_part(snapshot, 0, snapshot.size_bytes, xxh3_64())
                self._keep((snapshot.object, snapshot.start), whole)
            piece = whole[at : at + PIECE_BYTES]
            del whole
            yield piece

    async def _large_pieces(self, snapshot: Snapshot) -> AsyncIterator[bytes]:
        checksum, at = xxh3_64(), 0
        while at < snapshot.size_bytes:
            is_ahead = self._reading_ahead < READ_AHEAD_MAX
            self._reading_ahead += is_ahead
            try:
                size = READ_BYTES if is_ahead else PIECE_BYTES
                part = await self._read_part(snapshot, at, size, checksum)
                at += len(part)
                for start in range(0, len(part), PIECE_BYTES):
                    yield part[start : start + PIECE_BYTES]
            finally:
                self._reading_ahead -= is_ahead

    async def _read_part(
        self, snapshot: Snapshot, at: int, bytes_max: int, checksum: xxh3_64
    ) -> bytes:
        """A part of the body; `checksum` has all parts before it."""
        size = min(bytes_max, snapshot.size_bytes - at)
        part = await self._read(snapshot.object, snapshot.start + at, size)
        checksum.update(part)
        is_last = at + size == snapshot.size_bytes
        if len(part) != size or (is_last and checksum.intdigest() != snapshot.checksum):
            raise PackCorruptError(f"The snapshot {snapshot.object} is damaged.")
        return part

    def close(self) -> None:
        """Stop the threads; pending uploads fail with their requests."""
        for threads in (self._small, self._large):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _read(self, name: str, at: int, size: int) -> bytes:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def done(result: bytes | HoldfastError) -> None:
            if future.done():
                return
            if isinstance(result, HoldfastError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self._ranges.read(name, at, size, done)
        return await future

    def _keep(self, place: tuple[str, int], body: bytes) -> None:
        if len(body) > _CACHED_BYTES_MAX or place in self._cache:
            return
        self._cache[place] = body
        self._cached_bytes += len(body)
        while self._cached_bytes > self._cache_bytes:
            _, oldest = self._cache.popitem(last=False)
            self._cached_bytes -= len(oldest)


async def _gathered(body: AsyncIterator[bytes], least: int) -> bytes:
    """The next part of a body: at least `least` bytes, or all that is left."""
    parts: list[bytes] = []
    size = 0
    async for piece in body:
        parts.append(piece)
        size += len(piece)
        if size >= least:
            break
    return b"".join(parts)


class _Parts:
    """A body as parts for an upload in a thread, with its size and checksum."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        body: AsyncIterator[bytes],
        first: bytes,
        checksum: xxh3_64,
    ) -> None:
        self._loop = loop
        self._body = body
        self._first = first
        self._checksum = checksum
        self.size_bytes = len(first)

    def __iter__(self) -> Iterator[bytes]:
        yield self._first
        self._first = b""
        while part := self._next():
            self._checksum.update(part)
            self.size_bytes += len(part)
            yield part

    def _next(self) -> bytes:
        part = asyncio.run_coroutine_threadsafe(_gathered(self._body, PART_BYTES), self._loop)
        return part.result()


class _Waiting(NamedTuple):
    name: str
    data: bytes
    stored: asyncio.Future[None]


class GroupedPuts:
    """Stores objects in a directory from the event loop, in the threads of an executor."""

    def __init__(self, store: DirectoryObjects, threads: Executor) -> None:
        self._store = store
        self._threads = threads
        self._waiting: list[_Waiting] = []
        self._under_way = 0

    async def put(self, name: str, data: bytes) -> None:
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(name, data, stored))
        self._go_on()
        await stored

    def _go_on(self) -> None:
        while self._waiting and self._under_way < _GROUPS_AT_ONCE:
            # Cancelled puts are not stored.
            alive = [each for each in self._waiting if not each.stored.done()]
            group, self._waiting = alive[:_GROUP_MAX], alive[_GROUP_MAX:]
            if not group:
                return
            objects = [(each.name, each.data) for each in group]
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._threads, self._store.put_many, objects)
            self._under_way += 1
            work.add_done_callback(partial(self._done, group))

    def _done(self, group: list[_Waiting], work: asyncio.Future[None]) -> None:
        self._under_way -= 1
        error = asyncio.CancelledError() if work.cancelled() else work.exception()
        for each in group:
            if each.stored.done():
                continue
            if error is None:
                each.stored.set_result(None)
            elif work.cancelled():
                each.stored.cancel()
            else:
                each.stored.set_exception(error)
        if not work.cancelled():
            self._go_on()
