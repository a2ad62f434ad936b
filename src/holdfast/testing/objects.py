"""Object stores that fail and lie on command."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import HoldfastError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.objects.store import ObjectInfo, ObjectStore, RangeReader

T = TypeVar("T")


class StoreFaults:
    """The faults to inject and the calls made; a store and its range reader may share one."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._due: dict[str, list[bool]] = {}
        self._flipped: dict[str, set[int]] = {}

    def fail(self, operation: str, times: int = 1, *, after_effect: bool = False) -> None:
        """Make the next `times` calls raise a StoreError, before or after they take effect."""
        self._due.setdefault(operation, []).extend([after_effect] * times)

    def corrupt(self, name: str, at: int) -> None:
        """Flip the byte `at` of this object in all reads from now on."""
        self._flipped.setdefault(name, set()).add(at)

    def heal(self) -> None:
        """Forget all faults and flips."""
        self._due.clear()
        self._flipped.clear()

    def run(self, operation: str, call: Callable[[], T]) -> T:
        self.calls[operation] += 1
        due = self._due.get(operation)
        if not due:
            return call()
        if due.pop(0):
            call()
        raise StoreError(f"The object store fails at {operation}, as the test wants it.")

    def shown(self, name: str, at: int, data: bytes) -> bytes:
        """The data with flipped bytes; it starts at byte `at` of the object."""
        flips = [each - at for each in self._flipped.get(name, ()) if at <= each < at + len(data)]
        if not flips:
            return data
        changed = bytearray(data)
        for each in flips:
            changed[each] ^= 0xFF
        return bytes(changed)


class _Faulty:
    def __init__(self, faults: StoreFaults | None) -> None:
        self.faults = faults or StoreFaults()
        self.calls = self.faults.calls
        self.fail = self.faults.fail
        self.corrupt = self.faults.corrupt
        self.heal = self.faults.heal


class FaultyObjects(_Faulty):
    """A store around another, with `fail`, `corrupt`, `heal` and `calls` of its faults."""

    def __init__(self, inner: ObjectStore, faults: StoreFaults | None = None) -> None:
        super().__init__(faults)
        self.inner = inner
        self.url = inner.url

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self.faults.run("put", lambda: self.inner.put(name, data))

    def put_parts(self, name: str, parts: Iterable[bytes]) -> None:
        self.faults.run("put_parts", lambda: self.inner.put_parts(name, parts))

    def create(self, name: str, data: bytes) -> bool:
        return self.faults.run("create", lambda: self.inner.create(name, data))

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        data = self.faults.run("read", lambda: self.inner.read(name, at, size))
        return self.faults.shown(name, at, data)

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        found = self.faults.run("read_ranges", lambda: self.inner.read_ranges(name, ranges))
        return [
            memoryview(self.faults.shown(name, at, bytes(part)))
            for (at, _), part in zip(ranges, found, strict=True)
        ]

    def size(self, name: str) -> int:
        return self.faults.run("size", lambda: self.inner.size(name))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self.faults.run("list", lambda: self.inner.list(prefix))

    def remove(self, name: str) -> None:
        self.faults.run("remove", lambda: self.inner.remove(name))

    def remove_unfinished(self, before_ms: int) -> int:
        return self.faults.run("remove_unfinished", lambda: self.inner.remove_unfinished(before_ms))


class FaultyRanges(_Faulty):
    """A range reader around another; its one operation for `fail` is `read`."""

    def __init__(self, inner: RangeReader, faults: StoreFaults | None = None) -> None:
        super().__init__(faults)
        self.inner = inner

    def read(
        self, name: str, at: int, size: int, done: Callable[[bytes | HoldfastError], None]
    ) -> None:
        """Read, or fail, when the inner reader responds."""
        try:
            self.faults.run("read", lambda: None)
        except StoreError as error:
            fault = error
            self.inner.read(name, at, size, lambda _: done(fault))
        else:
            self.inner.read(
                name,
                at,
                size,
                lambda found: done(
                    self.faults.shown(name, at, found) if isinstance(found, bytes) else found
                ),
            )

    def close(self) -> None:
        self.inner.close()
