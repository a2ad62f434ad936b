"""How a run comes to its end: by itself, by a key, or by a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

__all__ = ["Stop", "handling", "stopped_by_signals"]


class Stop:
    """Ends work early with an exit code; only the first counts."""

    def __init__(self) -> None:
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(self, code: int) -> None:
        """End the work now."""
        if not self._code.done():
            self._code.set_result(code)

    async def run(self, work: Coroutine[Any, Any, int]) -> int:
        """The exit code of the work, or of what ended it; it has cleaned up by then."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._code}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            return self._code.result()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@contextlib.contextmanager
def stopped_by_signals(stop: Stop, *, on_interrupt: int) -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and the end of the terminal stop the work instead of the process."""

    def end(number: signal.Signals) -> None:
        stop.end(128 + number)

    handlers: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGINT: lambda: stop.end(on_interrupt),
        signal.SIGTERM: lambda: end(signal.SIGTERM),
        signal.SIGHUP: lambda: end(signal.SIGHUP),
    }
    with handling(handlers):
        yield


@contextlib.contextmanager
def handling(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """Call these in the event loop when signals come; afterwards all is as it was."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number, handled in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handled)
