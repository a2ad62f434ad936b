"""What an object store is, whoever keeps it: a directory, a bucket in a cloud, or memory.

Rules every implementation keeps:

- Names are relative paths of plain segments, such as `packs/0001`. Objects are never changed.
- A put is all or nothing, and durable once it returns. If it raises, the object may be there or
  not, but never in part.
- Only `read`, `read_ranges` and `size` raise `ObjectMissingError`. Whatever else goes wrong is a
  `StoreError`, with `advice` if a setting or a permission has to change before it can work.
- What these errors say names the store and the object, in one line, and never a credential.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from holdfast.errors import HoldfastError, ObjectMissingError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


class ObjectInfo(NamedTuple):
    """An object as it is listed."""

    name: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """Objects by name. Calls block: for the child process and the command line."""

    @property
    def url(self) -> str:
        """Where it is, for messages."""

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        """Store the object in one request, however large; one of that name is replaced."""

    def put_parts(self, name: str, parts: Iterable[bytes]) -> None:
        """Store a large object in bounded memory; if `parts` raises, nothing appears."""

    def create(self, name: str, data: bytes) -> bool:
        """Store a small object unless there is one of that name; whether it was stored."""

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        """At most `size` bytes from byte `at` on; fewer if the object ends first."""

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        """The bytes of each (at, size), in few requests; a StoreError if the object ends first.

        They come in ascending order, and none is empty. All are in memory together, and with them
        perhaps what lies between two that are close.
        """

    def size(self, name: str) -> int:
        """The object's length in bytes."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The objects below a prefix such as `packs/`, in the order of their names."""

    def remove(self, name: str) -> None:
        """Remove the object; harmless if it is not there."""

    def remove_unfinished(self, before_ms: int) -> int:
        """Remove what puts that were cut short before then left behind; how many there were."""


class RangeReader(Protocol):
    """Reads of parts of objects that do not block the event loop."""

    def read(
        self, name: str, at: int, size: int, done: Callable[[bytes | HoldfastError], None]
    ) -> None:
        """Read as `ObjectStore.read` does; `done` is called once, later, on the event loop."""

    def close(self) -> None:
        """Answer reads under way, and later ones, with a StoreError; let go of threads."""


def missing(url: str, name: str) -> ObjectMissingError:
    """The error for an object that is not there, in the same words for every store."""
    return ObjectMissingError(f"The object store {url} has no object {name!r}.")


def cut_short(url: str, name: str) -> StoreError:
    """The error for an object that ends before a part that was asked for does."""
    return StoreError(f"The object store {url} fails at {name!r}: it ends too early.")


def closing(url: str) -> StoreError:
    """What reads under way are told when their reader is closed."""
    return StoreError(f"The object store {url} is being closed.")
