"""The object store interface, the marker that says who owns a store, and a store in memory.

Rules for every implementation:

- Names are relative paths of plain segments, such as `packs/0001`. Objects are never changed.
- A put is all or nothing, and durable once it returns. If it raises, the object may or may not be
  there, but never in part.
- Only `read`, `read_ranges` and `size` raise `ObjectMissingError`. Every other failure is a
  `StoreError`, with `advice` if a setting or a permission has to change first.
- Error messages are one line, name the store and the object, and never contain a credential.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from holdfast.errors import HoldfastError, ObjectMissingError, StoreError, UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.clock import Clock

    RangeReply = Callable[[bytes | HoldfastError], None]

MARKER: Final = "holdfast-store.json"
FORMAT_VERSION: Final = 1


class ObjectInfo(NamedTuple):
    """An object as it is listed."""

    name: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """Objects by name. Calls block: for the storage process and the command line."""

    @property
    def url(self) -> str:
        """Where it is, for messages."""

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        """Store the object in one request, replacing an object of the same name."""

    def put_parts(self, name: str, parts: Iterable[bytes]) -> None:
        """Store a large object in bounded memory; if `parts` raises, nothing appears."""

    def create(self, name: str, data: bytes) -> bool:
        """Store a small object unless the name is taken; returns whether it was stored."""

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        """At most `size` bytes from byte `at` on; fewer if the object ends first."""

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        """The bytes of each (at, size), in few requests; a StoreError if the object ends first.

        Ranges are in ascending order and not empty. All results are in memory at once, perhaps
        together with the bytes between two ranges that are close.
        """

    def size(self, name: str) -> int:
        """The object's length in bytes."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The objects below a prefix such as `packs/`, sorted by name."""

    def remove(self, name: str) -> None:
        """Remove the object if it exists."""

    def remove_unfinished(self, before_ms: int) -> int:
        """Remove what interrupted puts left behind before then; returns how many there were."""


class RangeReader(Protocol):
    """Reads parts of objects without blocking the event loop."""

    def read(self, name: str, at: int, size: int, done: RangeReply) -> None:
        """Read as `ObjectStore.read` does; `done` is called once, later, on the event loop."""

    def close(self) -> None:
        """Fail pending and later reads with a StoreError, and release threads."""


class FutureRanges:
    """A range reader over reads that are asyncio futures; subclasses start and explain them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pending: set[asyncio.Future[bytes]] = set()
        self._closed = False

    def _start(self, name: str, at: int, size: int) -> asyncio.Future[bytes]:
        raise NotImplementedError

    def _explain(self, name: str, error: BaseException) -> HoldfastError:
        if isinstance(error, HoldfastError):
            return error
        return HoldfastError(f"Reading {name!r} from {self._url} failed: {error!r}.")

    def read(self, name: str, at: int, size: int, done: RangeReply) -> None:
        if self._closed:
            asyncio.get_running_loop().call_soon(done, closing(self._url))
            return
        future = self._start(name, at, size)
        self._pending.add(future)
        future.add_done_callback(partial(self._finish, name, done))

    def close(self) -> None:
        self._closed = True
        for future in self._pending:
            future.cancel()

    def _finish(self, name: str, done: RangeReply, future: asyncio.Future[bytes]) -> None:
        self._pending.discard(future)
        if future.cancelled():
            done(closing(self._url))
            return
        error = future.exception()
        done(future.result() if error is None else self._explain(name, error))


def missing(url: str, name: str) -> ObjectMissingError:
    return ObjectMissingError(f"The object store {url} has no object {name!r}.")


def cut_short(url: str, name: str) -> StoreError:
    """The error for an object that ends before a requested range does."""
    return StoreError(f"The object store {url} fails at {name!r}: it ends too early.")


def closing(url: str) -> StoreError:
    """The error for reads that are pending when their reader is closed."""
    return StoreError(f"The object store {url} is being closed.")


class _Marker(msgspec.Struct):
    """The marker's content. Later formats may add fields, which are ignored."""

    format: int
    id: str = ""


def encode_marker(identity: str) -> bytes:
    return msgspec.json.encode(_Marker(FORMAT_VERSION, identity))


def read_marker(store: ObjectStore) -> str:
    """The identity of the store's owner; an ObjectMissingError if there is no marker."""
    try:
        marker = msgspec.json.decode(store.read(MARKER), type=_Marker)
    except msgspec.DecodeError:
        marker = _Marker(0)
    if marker.format > FORMAT_VERSION:
        raise UnknownFormatError(
            f"{store.url} is in format {marker.format}; this version knows {FORMAT_VERSION}."
        )
    if marker.format != FORMAT_VERSION or not marker.id:
        raise UnknownFormatError(f"{MARKER} in {store.url} is not a marker of Holdfast.")
    return marker.id


def store_owner(store: ObjectStore) -> str:
    """The identity of the store's owner; empty if the store has no marker."""
    try:
        return read_marker(store)
    except ObjectMissingError:
        return ""


class MemoryObjects:
    """An object store in memory, in the dictionary `objects`: for tests and demos."""

    url = "memory://"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.objects: dict[str, tuple[bytes, int]] = {}

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self.objects[name] = (bytes(data), self._clock.now_ms())

    def put_parts(self, name: str, parts: Iterable[bytes]) -> None:
        self.put(name, b"".join(parts))

    def create(self, name: str, data: bytes) -> bool:
        if name in self.objects:
            return False
        self.put(name, data)
        return True

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        data = self._find(name)
        return data[at:] if size is None else data[at : at + size]

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        if not ranges:
            return []
        whole = memoryview(self._find(name))
        if any(at + size > len(whole) for at, size in ranges):
            raise cut_short(self.url, name)
        return [whole[at : at + size] for at, size in ranges]

    def size(self, name: str) -> int:
        return len(self._find(name))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for name, (data, modified_ms) in sorted(self.objects.items()):
            if name.startswith(prefix):
                yield ObjectInfo(name, len(data), modified_ms)

    def remove(self, name: str) -> None:
        self.objects.pop(name, None)

    def remove_unfinished(self, before_ms: int) -> int:
        return 0

    def _find(self, name: str) -> bytes:
        if name not in self.objects:
            raise missing(self.url, name)
        return self.objects[name][0]


class PostedRanges:
    """A range reader over a store that responds at once; `post` is a clock's `call_soon`."""

    def __init__(self, store: ObjectStore, post: Callable[..., object]) -> None:
        self._store = store
        self._post = post
        self._closed = False

    def read(self, name: str, at: int, size: int, done: RangeReply) -> None:
        try:
            result: bytes | HoldfastError = self._store.read(name, at, size)
        except HoldfastError as error:
            result = error
        self._post(lambda: done(closing(self._store.url) if self._closed else result))

    def close(self) -> None:
        self._closed = True
