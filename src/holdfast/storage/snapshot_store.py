"""Snapshot bodies: from a request to the object store, and from there to answers.

An upload goes through a bounded buffer and a thread, whatever the store: the thread asks the event
loop for the next part and blocks until there is one. A small body is one request to the store.
Small bodies that were used last are kept in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from xxhash import xxh3_64

from holdfast.errors import HoldfastError, PackCorruptError
from holdfast.failpoints import failpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from holdfast.clock import Clock
    from holdfast.format.records import Snapshot
    from holdfast.storage.objects import ObjectStore, RangeReader

_log = logging.getLogger(__name__)
SNAPSHOTS_PREFIX: Final = "snapshots/"
# A body up to this size is one request, and one larger comes in parts of about this size.
PART_BYTES: Final = 8 * 1024 * 1024
PIECE_BYTES: Final = 1024 * 1024
_CACHED_BYTES_MAX: Final = 512 * 1024
_UPLOADS_AT_ONCE: Final = 4


class Uploaded(NamedTuple):
    """An object that is in the store and durable."""

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
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._threads = ThreadPoolExecutor(_UPLOADS_AT_ONCE, "snapshot-upload")

    async def put(self, stream: int, offset: int, body: AsyncIterator[bytes]) -> Uploaded:
        """Store a body under a name of its own; raises what the body raises, storing nothing."""
        name = f"{SNAPSHOTS_PREFIX}{stream:016x}/{offset:020d}-{self._clock.random_u64():016x}"
        loop = asyncio.get_running_loop()
        first = await _gathered(body)
        checksum = xxh3_64(first)
        size = len(first)
        if size < PART_BYTES:
            await loop.run_in_executor(self._threads, self._store.put, name, first)
            self._keep(name, first)
        else:
            parts = _Parts(loop, body, first, checksum)
            await loop.run_in_executor(self._threads, self._store.put_parts, name, parts)
            size = parts.size_bytes
        failpoint("snapshot.uploaded")
        return Uploaded(name, size, checksum.intdigest())

    async def remove(self, name: str) -> None:
        """Remove an object that will never be published; garbage collection finds what is left."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._threads, self._store.remove, name)
        except HoldfastError as error:
            _log.warning("a snapshot that was not published stays for now: %s", error.message)

    def cached(self, snapshot: Snapshot) -> bytes | None:
        """The body if it is in memory."""
        found = self._cache.get(snapshot.object)
        if found is not None:
            self._cache.move_to_end(snapshot.object)
        return found

    async def pieces(self, snapshot: Snapshot) -> AsyncIterator[bytes]:
        """The body piece by piece; the last one only if all of it is what was stored."""
        cached = self.cached(snapshot)
        if cached is not None:
            yield cached
            return
        checksum = xxh3_64()
        for at in range(0, snapshot.size_bytes, PIECE_BYTES):
            size = min(PIECE_BYTES, snapshot.size_bytes - at)
            piece = await self._read(snapshot.object, at, size)
            checksum.update(piece)
            whole = at + size == snapshot.size_bytes
            if len(piece) != size or (whole and checksum.intdigest() != snapshot.checksum):
                raise PackCorruptError(f"The snapshot {snapshot.object} is damaged.")
            if size == snapshot.size_bytes:
                self._keep(snapshot.object, piece)
            yield piece

    def close(self) -> None:
        """Let go of threads; uploads under way fail with their requests."""
        self._threads.shutdown(wait=False, cancel_futures=True)

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

    def _keep(self, name: str, body: bytes) -> None:
        if len(body) > _CACHED_BYTES_MAX or name in self._cache:
            return
        self._cache[name] = body
        self._cached_bytes += len(body)
        while self._cached_bytes > self._cache_bytes:
            _, oldest = self._cache.popitem(last=False)
            self._cached_bytes -= len(oldest)


async def _gathered(body: AsyncIterator[bytes]) -> bytes:
    """The next part of a body: all of it, or at least so many bytes."""
    parts: list[bytes] = []
    size = 0
    async for piece in body:
        parts.append(piece)
        size += len(piece)
        if size >= PART_BYTES:
            break
    return b"".join(parts)


class _Parts:
    """A body as the parts that a thread uploads, counted and summed on the way."""

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
        while part := asyncio.run_coroutine_threadsafe(_gathered(self._body), self._loop).result():
            self._checksum.update(part)
            self.size_bytes += len(part)
            yield part
