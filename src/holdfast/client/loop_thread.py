"""An event loop in its own thread, and the means to build a blocking API on it."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, wait
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

CLOSED: Final = "The client is closed."
OWN_THREAD: Final = (
    "A function or iterator that the client calls back must not wait for the client itself."
)
# Against hangs only: cancelled work ends quickly.
CANCEL_TIMEOUT_S: Final = 5.0


class LoopThread:
    """Runs coroutines for other threads."""

    def __init__(self) -> None:
        # With a factory it does not replace the current thread's loop.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run, name="holdfast-client", daemon=True)
        # Nothing may be handed over once the loop has been told to stop. Reentrant, because a
        # signal handler may call `stop` while this thread holds it.
        self._handing_over = threading.RLock()
        self._stopped = False
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        # Cancels the work that other threads still wait for.
        self._runner.close()

    @property
    def is_alive(self) -> bool:
        """Whether the loop still runs coroutines."""
        return not self._stopped and self._thread.is_alive()

    def call(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine and wait for its result; an interrupted caller cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(OWN_THREAD)
        call = _Call(work)
        try:
            self._hand_over(call)
            return call.result.result()
        except CancelledError:
            raise RuntimeError(CLOSED) from None
        except BaseException:
            if not call.result.done():
                # Wait for its end, so that the caller can close an iterator safely.
                self._loop.call_soon_threadsafe(call.cancel)
                wait([call.result], CANCEL_TIMEOUT_S)
            raise

    def _hand_over(self, call: _Call[R]) -> None:
        with self._handing_over:
            if self.is_alive:
                self._loop.call_soon_threadsafe(call.start, self._loop)
            else:
                call.cancel()

    def stop(self) -> None:
        with self._handing_over:
            if self.is_alive:
                self._stopped = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class _Call(Generic[R]):
    """A coroutine that runs in the loop for another thread."""

    def __init__(self, work: Coroutine[Any, Any, R]) -> None:
        self.result: Future[R] = Future()
        self._work = work
        self._task: asyncio.Task[R] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = loop.create_task(self._work)
        self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            # Interrupted before it was handed over.
            self._work.close()
            self.result.cancel()

    def _finish(self, task: asyncio.Task[R]) -> None:
        if task.cancelled():
            self.result.cancel()
            self.result.set_running_or_notify_cancel()
        elif (error := task.exception()) is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(task.result())


class Facade:
    """A blocking object in front of an async one."""

    def __init__(self, thread: LoopThread, inner: Any) -> None:
        self._thread = thread
        self._inner = inner

    def __repr__(self) -> str:
        return f"Sync{self._inner!r}"


class ClosingFacade(Facade):
    """A facade that is a context manager; leaving the block calls `close`."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


F = TypeVar("F", bound=Facade)


class Attribute(Generic[T]):
    """A read-only attribute of the same name of the async object."""

    def __set_name__(self, owner: type[Facade], name: str) -> None:
        self._name = name

    def __get__(self, facade: Any, owner: type[Facade]) -> T:
        value: Any = self if facade is None else getattr(facade._inner, self._name)
        return value  # type: ignore[no-any-return]


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], *, lists: str = ""
) -> Callable[Concatenate[Any, P], R]:
    """The blocking version of an async method.

    `lists` names an argument that can be any iterable. It is consumed in the caller's thread,
    since it may be slow, or wait for the client itself.
    """
    signature = inspect.signature(method)

    def work(inner: Any, /, *arguments: P.args, **named: P.kwargs) -> Coroutine[Any, Any, R]:
        given = signature.bind(inner, *arguments, **named)
        if lists in given.arguments:
            given.arguments[lists] = list(given.arguments[lists])
        return method(*given.args, **given.kwargs)

    made = work if lists else method

    @wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> R:
        result: R = self._thread.call(made(self._inner, *arguments, **named))
        return result

    return call


def iterating(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], BlockingIterator[T]]:
    """The blocking version of a method that returns an async iterator."""

    @wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> BlockingIterator[T]:
        return BlockingIterator(self._thread, method(self._inner, *arguments, **named))

    return call


def wrapping(
    method: Callable[Concatenate[Any, P], Any], facade: Callable[[LoopThread, Any], F]
) -> Callable[Concatenate[Any, P], F]:
    """The blocking version of a method whose result gets a facade, too."""

    @wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> F:
        return facade(self._thread, method(self._inner, *arguments, **named))

    return call


def wrapping_result(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]],
    facade: Callable[[LoopThread, Any], F],
) -> Callable[Concatenate[Any, P], F]:
    """The blocking version of an async method whose result gets a facade, too."""

    @wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> F:
        return facade(self._thread, self._thread.call(method(self._inner, *arguments, **named)))

    return call


class BlockingIterator(Generic[T]):
    """An async iterator as an ordinary one."""

    def __init__(self, thread: LoopThread, items: AsyncIterator[T]) -> None:
        self._thread = thread
        self._items = items

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return self._thread.call(_next(self._items))
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """Close the async iterator, if it can be closed."""
        aclose = getattr(self._items, "aclose", None)
        if aclose is not None:
            self._thread.call(aclose())


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)
