"""Objects in memory, for tests, demos and the simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError
from holdfast.objects.store import ObjectInfo, closing, cut_short, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.clock import Clock
    from holdfast.objects.store import ObjectStore


class MemoryObjects:
    """An object store that ends with the process. `objects` is all there is."""

    url = "memory://"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.objects: dict[str, tuple[bytes, int]] = {}

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        """Keep a copy."""
        self.objects[name] = (bytes(data), self._clock.now_ms())

    def put_parts(self, name: str, parts: Iterable[bytes]) -> None:
        """Keep the whole; nothing is stored before the last part is there."""
        self.put(name, b"".join(parts))

    def create(self, name: str, data: bytes) -> bool:
        """Keep a copy unless there is an object of that name."""
        if name in self.objects:
            return False
        self.put(name, data)
        return True

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        """A slice of the object."""
        data = self._find(name)
        return data[at:] if size is None else data[at : at + size]

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        """Slices of the object."""
        if not ranges:
            return []
        whole = memoryview(self._find(name))
        if any(at + size > len(whole) for at, size in ranges):
            raise cut_short(self.url, name)
        return [whole[at : at + size] for at, size in ranges]

    def size(self, name: str) -> int:
        """The object's length in bytes."""
        return len(self._find(name))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The objects as they are when the first is asked for."""
        for name, (data, modified_ms) in sorted(self.objects.items()):
            if name.startswith(prefix):
                yield ObjectInfo(name, len(data), modified_ms)

    def remove(self, name: str) -> None:
        """Forget the object."""
        self.objects.pop(name, None)

    def remove_unfinished(self, before_ms: int) -> int:
        """Nothing is ever left behind."""
        return 0

    def _find(self, name: str) -> bytes:
        if name not in self.objects:
            raise missing(self.url, name)
        return self.objects[name][0]


class PostedRanges:
    """A range reader over a store that answers at once; `post` is a clock's `call_soon`."""

    def __init__(self, store: ObjectStore, post: Callable[..., object]) -> None:
        self._store = store
        self._post = post
        self._closed = False

    def read(
        self, name: str, at: int, size: int, done: Callable[[bytes | HoldfastError], None]
    ) -> None:
        """Read now, answer later."""
        self._post(self._answer, self._outcome(name, at, size), done)

    def close(self) -> None:
        """Answer whatever was not answered yet with an error."""
        self._closed = True

    def _outcome(self, name: str, at: int, size: int) -> bytes | HoldfastError:
        try:
            return self._store.read(name, at, size)
        except HoldfastError as error:
            return error

    def _answer(
        self, outcome: bytes | HoldfastError, done: Callable[[bytes | HoldfastError], None]
    ) -> None:
        done(closing(self._store.url) if self._closed else outcome)
