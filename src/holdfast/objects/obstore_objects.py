"""Objects in a cloud's bucket, through obstore.

Each use has its own patience. An upload of a large pack may take a minute, while a client's read
that waits on the event loop is better answered with 503 than not at all. obstore retries inside
these bounds; nothing here retries again.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError

from holdfast.errors import HoldfastError, ObjectMissingError
from holdfast.objects.obstore_errors import explained, is_past_the_end
from holdfast.objects.store import ObjectInfo, closing, cut_short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from obstore.store import AzureStore, ClientConfig, GCSStore, RetryConfig, S3Store

    Bucket = S3Store | GCSStore | AzureStore

_PART_BYTES: Final = 32 << 20
# One part is sent while the next is gathered; more would only take more memory.
_PARTS_AT_ONCE: Final = 2
_LIST_CHUNK: Final = 1000
# Reading so much that nobody asked for is cheaper than another request.
_GAP_BYTES_MAX: Final = 1 << 20


class Patience(NamedTuple):
    """How long to wait for a store. `whole_s` is when no further attempt is made."""

    connect_s: float
    attempt_s: float
    whole_s: float

    def client_options(self) -> ClientConfig:
        """The bounds of one attempt, as obstore takes them."""
        return {
            "connect_timeout": timedelta(seconds=self.connect_s),
            "timeout": timedelta(seconds=self.attempt_s),
        }

    def retry_config(self) -> RetryConfig:
        """The bounds of all attempts, as obstore takes them."""
        return {
            "max_retries": 100,  # the time is the limit
            "retry_timeout": timedelta(seconds=self.whole_s),
            "backoff": {
                "init_backoff": timedelta(seconds=0.1),
                "max_backoff": timedelta(seconds=5),
                "base": 2,
            },
        }


# One attempt may take long, as packs are large. Whoever flushes repeats failed ones, and says so.
UPLOADS: Final = Patience(connect_s=5, attempt_s=60, whole_s=10)
READS: Final = Patience(connect_s=2, attempt_s=5, whole_s=8)
# What the last attempt of a read may take beyond that.
_LAST_ATTEMPT_S: Final = 2.0
PROBING: Final = Patience(connect_s=2, attempt_s=3, whole_s=3)


class ObstoreObjects:
    """An object store in a bucket; `connect` opens it with the patience that is asked for."""

    def __init__(
        self,
        url: str,
        connect: Callable[[Patience], Bucket],
        patience: Patience = UPLOADS,
        part_bytes: int = _PART_BYTES,
    ) -> None:
        self.url = url
        self._connect = connect
        self._bucket = connect(patience)
        self._part_bytes = part_bytes

    def with_patience(self, patience: Patience) -> ObstoreObjects:
        """The same store for another use."""
        return ObstoreObjects(self.url, self._connect, patience, self._part_bytes)

    def with_parts(self, part_bytes: int) -> ObstoreObjects:
        """The same store for uploads that hold less in memory."""
        return ObstoreObjects(self.url, self._connect, UPLOADS, part_bytes)

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        """Send everything in one request."""
        with self._explained(name):
            obstore.put(self._bucket, name, data, use_multipart=False)

    def put_parts(self, name: str, parts: Iterable[bytes]) -> None:
        """Send a multipart upload, which obstore aborts if `parts` raises."""
        with self._explained(name):
            obstore.put(
                self._bucket,
                name,
                _made_elsewhere(parts),
                use_multipart=True,
                chunk_size=self._part_bytes,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def create(self, name: str, data: bytes) -> bool:
        """Send it on the condition that the name is free."""
        with self._explained(name):
            try:
                obstore.put(self._bucket, name, data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        """Ask for a range."""
        with self._explained(name, reading=True):
            if size == 0:
                obstore.head(self._bucket, name)
                return b""
            try:
                if size is None:
                    return self._read_rest(name, at)
                return obstore.get_range(self._bucket, name, start=at, length=size).to_bytes()
            except BaseError as error:
                if is_past_the_end(error):
                    return b""
                raise

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        """Ask for several ranges at once."""
        if not ranges:
            return []
        fetches = _fetches(ranges)
        starts, ends = zip(*fetches, strict=True)
        with self._explained(name, reading=True):
            try:
                found = obstore.get_ranges(self._bucket, name, starts=starts, ends=ends, coalesce=0)
            except BaseError as error:
                if is_past_the_end(error):
                    raise cut_short(self.url, name) from None
                raise
        # Nothing is copied here, so what is close to a part that is kept is kept with it.
        data = [memoryview(each) for each in found]
        if any(len(each) != end - start for each, (start, end) in zip(data, fetches, strict=True)):
            raise cut_short(self.url, name)
        return list(_parts(ranges, fetches, data))

    def _read_rest(self, name: str, at: int) -> bytes:
        if at == 0:
            return obstore.get(self._bucket, name).bytes().to_bytes()
        found = obstore.get(self._bucket, name, options={"range": {"offset": at}})
        return found.bytes().to_bytes()

    def size(self, name: str) -> int:
        """Ask for the object's metadata."""
        with self._explained(name, reading=True):
            return obstore.head(self._bucket, name)["size"]

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Page through the bucket, which lists in the order of names."""
        with self._explained(prefix):
            for page in obstore.list(self._bucket, prefix or None, chunk_size=_LIST_CHUNK):
                for each in page:
                    modified_ms = int(each["last_modified"].timestamp() * 1000)
                    yield ObjectInfo(each["path"], each["size"], modified_ms)

    def remove(self, name: str) -> None:
        """Delete the object; not every store says whether it was there."""
        with suppress(ObjectMissingError), self._explained(name, reading=True):
            obstore.delete(self._bucket, name)

    def remove_unfinished(self, before_ms: int) -> int:
        """Nothing: uploads cut short by a kill are for the bucket's lifecycle rule to abort."""
        return 0

    @contextmanager
    def _explained(self, name: str, *, reading: bool = False) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            raise explained(error, self.url, name, reading=reading) from None


def _fetches(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Where to fetch from and to: ranges that lie close together are one request.

    obstore would do this too, but panics if an object ends before the last of several that it has
    joined starts.
    """
    fetches: list[tuple[int, int]] = []
    for at, size in ranges:
        if fetches and at <= fetches[-1][1] + _GAP_BYTES_MAX:
            start, end = fetches[-1]
            fetches[-1] = (start, max(end, at + size))
        else:
            fetches.append((at, at + size))
    return fetches


def _parts(
    ranges: Iterable[tuple[int, int]], fetches: list[tuple[int, int]], data: list[memoryview]
) -> Iterator[memoryview]:
    """Each range, cut out of what was fetched for it."""
    index = 0
    for at, size in ranges:
        while at >= fetches[index][1]:
            index += 1
        inside = at - fetches[index][0]
        yield data[index][inside : inside + size]


def _made_elsewhere(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same parts, made in a thread of their own.

    obstore takes them from inside its runtime, where nothing can be asked of obstore; and a merge
    reads from the same store what it writes.
    """
    remaining = iter(parts)
    with ThreadPoolExecutor(1, "upload") as thread:
        while (part := thread.submit(next, remaining, None).result()) is not None:
            yield part


class AsyncRanges:
    """A range reader over a bucket: one task per read, which is given up in time."""

    def __init__(
        self, url: str, connect: Callable[[Patience], Bucket], patience: Patience = READS
    ) -> None:
        self._url = url
        self._bucket = connect(patience)
        self._timeout_s = patience.whole_s + _LAST_ATTEMPT_S
        self._tasks: set[asyncio.Task[bytes]] = set()
        self._closed = False

    def read(
        self, name: str, at: int, size: int, done: Callable[[bytes | HoldfastError], None]
    ) -> None:
        """Start a task for the read."""
        loop = asyncio.get_running_loop()
        if self._closed:
            loop.call_soon(done, closing(self._url))
            return
        task = loop.create_task(self._fetch(name, at, size))
        self._tasks.add(task)
        task.add_done_callback(partial(self._finish, name, done))

    def close(self) -> None:
        """Cancel the tasks, whose reads are then answered with an error."""
        self._closed = True
        for task in self._tasks:
            task.cancel()

    async def _fetch(self, name: str, at: int, size: int) -> bytes:
        async with asyncio.timeout(self._timeout_s):
            if size == 0:
                await obstore.head_async(self._bucket, name)
                return b""
            try:
                found = await obstore.get_range_async(self._bucket, name, start=at, length=size)
            except BaseError as error:
                if is_past_the_end(error):
                    return b""
                raise
            return found.to_bytes()

    def _finish(
        self,
        name: str,
        done: Callable[[bytes | HoldfastError], None],
        task: asyncio.Task[bytes],
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            done(closing(self._url))
            return
        error = task.exception()
        if error is None:
            done(task.result())
        elif isinstance(error, (BaseError, OSError)):
            done(explained(error, self._url, name, reading=True))
        else:
            done(HoldfastError(f"Reading {name!r} from {self._url} failed: {error!r}."))
