"""An event loop in a thread of its own, and how blocking code calls into it."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, wait
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

CLOSED: Final = "The client is closed."
OWN_THREAD: Final = (
    "A function or iterator that the client calls back must not wait for the client itself."
)
# Against a hang only: what is cancelled has little left to do.
CANCEL_TIMEOUT_S: Final = 5.0


class LoopThread:
    """Runs coroutines for other threads."""

    def __init__(self) -> None:
        # With a factory it leaves the loop of the thread that makes it alone.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run, name="holdfast-client", daemon=True)
        # The loop ends what was handed over before its end, and nothing is handed over behind it.
        # Signals may arrive in the middle of that, and want the end.
        self._handing_over = threading.RLock()
        self._stopped = False
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        # Ends what other threads still wait for.
        self._runner.close()

    @property
    def is_alive(self) -> bool:
        """Whether coroutines are run."""
        return not self._stopped and self._thread.is_alive()

    def call(self, work: Coroutine[Any, Any, R]) -> R:
        """Wait for a coroutine; whoever is interrupted meanwhile takes it back."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(OWN_THREAD)
        call = _Call(work)
        try:
            self._hand_over(call)
            return call.answer.result()
        except CancelledError:
            raise RuntimeError(CLOSED) from None
        except BaseException:
            if not call.answer.done():
                # It is over before anything else is asked: an iterator can be closed then.
                self._loop.call_soon_threadsafe(call.cancel)
                wait([call.answer], CANCEL_TIMEOUT_S)
            raise

    def _hand_over(self, call: _Call[R]) -> None:
        with self._handing_over:
            if self.is_alive:
                self._loop.call_soon_threadsafe(call.start, self._loop)
            else:
                call.cancel()

    def stop(self) -> None:
        """End the loop and its thread."""
        with self._handing_over:
            if self.is_alive:
                self._stopped = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class _Call(Generic[R]):
    """A coroutine that runs in the loop for another thread."""

    def __init__(self, work: Coroutine[Any, Any, R]) -> None:
        self.answer: Future[R] = Future()
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
            self.answer.cancel()

    def _finish(self, task: asyncio.Task[R]) -> None:
        if task.cancelled():
            self.answer.cancel()
            self.answer.set_running_or_notify_cancel()
        elif (error := task.exception()) is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(task.result())


class Facade:
    """A blocking face: the thread, and what is behind."""

    def __init__(self, thread: LoopThread, inner: Any) -> None:
        self._thread = thread
        self._inner = inner

    def __repr__(self) -> str:
        return f"Sync{self._inner!r}"


F = TypeVar("F", bound=Facade)


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], *, lists: str = ""
) -> Callable[Concatenate[Any, P], R]:
    """The same method of a facade, which waits for the answer.

    `lists` names an argument that can be any iterable. It is gone through in the caller's thread,
    since it may take its time, or wait for the client itself.
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
        answer: R = self._thread.call(made(self._inner, *arguments, **named))
        return answer

    return call


def iterating(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Items[T]]:
    """The same method of a facade, as an ordinary iterator."""

    @wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> Items[T]:
        return Items(self._thread, method(self._inner, *arguments, **named))

    return call


def facing(
    method: Callable[Concatenate[Any, P], Any], face: Callable[[LoopThread, Any], F]
) -> Callable[Concatenate[Any, P], F]:
    """The same method of a facade, whose result gets a face as well."""

    @wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> F:
        return face(self._thread, method(self._inner, *arguments, **named))

    return call


def facing_answer(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]],
    face: Callable[[LoopThread, Any], F],
) -> Callable[Concatenate[Any, P], F]:
    """The same method of a facade, which waits for the answer and gives it a face as well."""

    @wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> F:
        answer = self._thread.call(method(self._inner, *arguments, **named))
        return face(self._thread, answer)

    return call


class Items(Generic[T]):
    """An async iterator seen from outside its loop."""

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
        """Stop, and close what the iterator has open."""
        aclose = getattr(self._items, "aclose", None)
        if aclose is not None:
            self._thread.call(aclose())


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)
