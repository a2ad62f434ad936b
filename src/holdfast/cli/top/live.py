"""The live view on a terminal.

Rules:

- Whatever ends the view (a key, a signal, an error), the normal screen, the cursor and the
  terminal's settings are restored.
- Drawing never waits for the server: a slow server gets a banner, not a frozen screen.
- While the view is suspended (Ctrl-Z) the terminal belongs to the shell.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from typing import Any, Final

from rich.console import Console
from rich.live import Live

from holdfast.cli.top.measure import Figures
from holdfast.cli.top.run import ServerSource, Stopper, Ticks, handling
from holdfast.cli.top.screen import Screen, View
from holdfast.clock import Clock

__all__ = ["LiveView", "can_show"]

# A response that takes longer gets a banner.
SLOW_S: Final = 2.0
KEYS_AT_ONCE_MAX: Final = 64


def can_show(console: Console) -> bool:
    return console.file.isatty() and not console.is_dumb_terminal


class _Keyboard:
    """Calls `on_key` with every key, if stdin is a terminal."""

    def __init__(self, on_key: Callable[[str], None], on_gone: Callable[[], None]) -> None:
        self._on_key = on_key
        self._on_gone = on_gone
        self._descriptor = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None
        self._before: list[Any] | None = None

    def take(self) -> None:
        """Receive single keys, without echo."""
        if self._descriptor is None:
            return
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor, termios.TCSADRAIN)
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def give_back(self) -> None:
        """Restore the terminal's settings; does nothing if they were not changed."""
        if self._descriptor is None or self._before is None:
            return
        before, self._before = self._before, None
        asyncio.get_running_loop().remove_reader(self._descriptor)
        # The terminal may have been closed.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, before)

    def _read(self) -> None:
        assert self._descriptor is not None, "only a terminal is read from"
        try:
            keys = os.read(self._descriptor, KEYS_AT_ONCE_MAX)
        except OSError:
            keys = b""
        if not keys:
            self._on_gone()
        for key in keys.decode("ascii", "ignore"):
            self._on_key(key)


class LiveView:
    def __init__(
        self, source: ServerSource, clock: Clock, interval_s: float, stopper: Stopper
    ) -> None:
        self._source = source
        self._clock = clock
        self._interval_s = interval_s
        self._stopper = stopper
        self._view = View(interval_s)
        # We know that this is a terminal; environment variables about colours must not override it.
        console = Console(force_terminal=True, force_interactive=True)
        self._live = Live(
            Screen(self._view),
            console=console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._keyboard = _Keyboard(self._on_key, lambda: stopper.end(128 + signal.SIGHUP))

    async def show(self, count: int | None) -> int:
        """Show the figures of `count` intervals, or of all to come."""
        self._view.take(await self._source.begin())
        with self._on_screen():
            ticks = Ticks(self._clock, self._interval_s)
            while count is None or count > 0:
                await ticks.next()
                self._view.take(await self._next())
                self._live.refresh()
                count = None if count is None else count - 1
        return 0

    async def _next(self) -> Figures:
        requested_ms = self._clock.now_ms()
        late = self._clock.call_later(max(SLOW_S, self._interval_s), self._wait, requested_ms)
        try:
            return await self._source.next()
        finally:
            late.cancel()

    def _wait(self, since_ms: int) -> None:
        self._view.wait(since_ms)
        self._live.refresh()

    @contextlib.contextmanager
    def _on_screen(self) -> Iterator[None]:
        handlers = {signal.SIGWINCH: self._live.refresh, signal.SIGTSTP: self._suspend}
        with handling(handlers):
            try:
                self._enter()
                yield
            finally:
                self._leave()

    def _enter(self) -> None:
        self._keyboard.take()
        self._live.start(refresh=True)

    def _leave(self) -> None:
        # The terminal may have been closed.
        with contextlib.suppress(OSError):
            self._live.stop()
        self._keyboard.give_back()

    def _suspend(self) -> None:
        """Restore the terminal and stop, as Ctrl-Z should; draw again when continued."""
        self._leave()
        ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, ours)
        self._enter()

    def _on_key(self, key: str) -> None:
        if key in "qQ":
            self._stopper.end(0)
        elif key in "pP":
            self._view.toggle_pause(self._clock.now_ms())
            self._live.refresh()
        elif key == "\x0c":
            # Ctrl-L redraws whatever was written over the view.
            self._live.refresh()
