"""Results that arrive later, and coroutines that await them without an event loop.

Reads from packs are written as coroutines. They run under asyncio in a server and on a fake clock
in tests and simulations, so they do not use asyncio's futures and tasks: a coroutine awaits
`Pending` results only, and `run` resumes it whenever one arrives.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Pending(Generic[T]):
    """A result that is set once: a value or an error. Awaiting it returns or raises it."""

    __slots__ = ("_callbacks", "_result")

    def __init__(self) -> None:
        self._callbacks: list[Callable[[T | HoldfastError], object]] | None = []
        self._result: T | HoldfastError | None = None

    @property
    def is_set(self) -> bool:
        return self._callbacks is None

    def set(self, result: T | HoldfastError) -> None:
        """Set the result and pass it on; results after the first one are ignored."""
        callbacks, self._callbacks = self._callbacks, None
        if callbacks is None:
            return
        self._result = result
        for call in callbacks:
            try:
                call(result)
            except Exception:  # noqa: BLE001 (a defect in one reader must not stop the others)
                _log.exception("a read from packs could not continue")

    def then(self, call: Callable[[T | HoldfastError], object]) -> None:
        """Call `call` with the result, at once if it is there."""
        if self._callbacks is None:
            call(cast("T | HoldfastError", self._result))
        else:
            self._callbacks.append(call)

    def __await__(self) -> Generator[Pending[T], None, T]:
        if self._callbacks is not None:
            yield self
        if isinstance(self._result, HoldfastError):
            raise self._result
        return cast("T", self._result)


def ready(result: T) -> Pending[T]:
    pending: Pending[T] = Pending()
    pending.set(result)
    return pending


async def all_of(parts: Sequence[Pending[T]]) -> list[T]:
    """Wait for all results; raises as soon as one of them is an error."""
    missing = len(parts)
    complete: Pending[None] = Pending()

    def arrived(result: T | HoldfastError) -> None:
        nonlocal missing
        missing -= 1
        if isinstance(result, HoldfastError):
            complete.set(result)
        elif not missing:
            complete.set(None)

    for part in parts:
        part.then(arrived)
    if parts:
        await complete
    return [await part for part in parts]


def run(
    coroutine: Coroutine[Pending[Any], None, T], done: Callable[[T | HoldfastError], object]
) -> None:
    """Run a coroutine that awaits `Pending` results; `done` gets its result, perhaps at once."""
    _Run(coroutine, done).resume()


class _Run(Generic[T]):
    __slots__ = ("_coroutine", "_done")

    def __init__(
        self,
        coroutine: Coroutine[Pending[Any], None, T],
        done: Callable[[T | HoldfastError], object],
    ) -> None:
        self._coroutine = coroutine
        self._done = done

    def resume(self, _: object = None) -> None:
        result: T | HoldfastError
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as end:
            result = end.value
        except HoldfastError as error:
            # Without the traceback, which would keep the frames of the read alive.
            result = error.with_traceback(None)
        else:
            awaited.then(self.resume)
            return
        self._done(result)
