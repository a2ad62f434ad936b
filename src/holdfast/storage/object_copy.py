"""Copying objects from one store to another, several at a time, each whole or not at all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.objects.store import ObjectStore

    Advance = Callable[[int], object]

PIECE_BYTES: Final = 8 * 1024 * 1024
# A store far away is slow to answer, not slow to send.
_AT_ONCE: Final = 4


class Copied(Protocol):
    """An object that a backup needs."""

    @property
    def name(self) -> str:
        """The same in every store."""

    @property
    def size_bytes(self) -> int:
        """How large it is."""


Each = TypeVar("Each", bound=Copied)


class _StoppedError(Exception):
    """Another object could not be copied, so this one need not be either."""


def missing_objects(target: ObjectStore, prefix: str, objects: Sequence[Each]) -> list[Each]:
    """Those that the target does not have yet; names are unique, so size and name suffice."""
    if not objects:
        return []
    there = {info.name: info.size_bytes for info in target.list(prefix)}
    return [each for each in objects if there.get(each.name) != each.size_bytes]


def copy_objects(
    target: ObjectStore,
    objects: Sequence[Each],
    pieces: Callable[[Each], Iterator[bytes]],
    copied: Callable[[], object],
    advance: Advance,
) -> None:
    """Copy some objects at a time; `copied` is called for each, here, `advance` in any thread.

    `pieces` gives the verified bytes of an object, and raises before the last of them if they are
    not what was stored.
    """
    stopping = threading.Event()
    with ThreadPoolExecutor(_AT_ONCE, "object-copy") as pool:
        futures = [pool.submit(_copy, target, each, pieces, stopping, advance) for each in objects]
        try:
            for future in as_completed(futures):
                error = future.exception()
                if error is None:
                    copied()
                elif not isinstance(error, _StoppedError):
                    raise error
        finally:
            stopping.set()


def _copy(
    target: ObjectStore,
    each: Each,
    pieces: Callable[[Each], Iterator[bytes]],
    stopping: threading.Event,
    advance: Advance,
) -> None:
    def watched() -> Iterator[bytes]:
        for piece in pieces(each):
            if stopping.is_set():
                raise _StoppedError
            yield piece
            advance(len(piece))

    if stopping.is_set():
        raise _StoppedError
    try:
        if each.size_bytes <= PIECE_BYTES:
            target.put(each.name, b"".join(watched()))
        else:
            target.put_parts(each.name, watched())
    except BaseException:
        stopping.set()
        raise
