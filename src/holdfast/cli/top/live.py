"""The live view on a terminal: samples, keys, the size of the window, and leaving it tidy.

Rules:

- Whatever ends the view (a key, a signal, an error), the other screen comes back, the cursor is
  shown, and the terminal's settings are those from before.
- Drawing never waits for the server: a slow one gets a banner, not a frozen screen.
- While the view is suspended (Ctrl-Z) the terminal belongs to the shell.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.live import Live

from holdfast.cli.top.figures import Figures
from holdfast.cli.top.keyboard import Keyboard
from holdfast.cli.top.screen import Screen
from holdfast.cli.top.source import Source
from holdfast.cli.top.stopping import Stop, handling
from holdfast.cli.top.ticks import Ticks
from holdfast.cli.top.view import View
from holdfast.clock import Clock

__all__ = ["LiveView", "can_show"]

# An answer that takes longer is worth a banner.
SLOW_S: Final = 2.0


def can_show(console: Console) -> bool:
    """Whether this is a terminal that can be drawn on."""
    return console.file.isatty() and not console.is_dumb_terminal


class LiveView:
    """Shows a server until somebody has seen enough."""

    def __init__(self, source: Source, clock: Clock, interval_s: float, stop: Stop) -> None:
        self._source = source
        self._clock = clock
        self._interval_s = interval_s
        self._stop = stop
        self._view = View(interval_s)
        # That this is a terminal was looked at before; here variables of the environment that
        # are about colours must not decide otherwise.
        console = Console(force_terminal=True, force_interactive=True)
        self._live = Live(
            Screen(self._view),
            console=console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._keyboard = Keyboard(self._on_key, lambda: stop.end(128 + signal.SIGHUP))

    async def show(self, first: Figures, count: int | None) -> int:
        """Show these figures and then those of so many intervals, or of all to come."""
        self._view.take(first)
        with self._on_screen():
            ticks = Ticks(self._clock, self._interval_s)
            while count is None or count > 0:
                await ticks.next()
                self._view.take(await self._next())
                self._live.refresh()
                count = None if count is None else count - 1
        return 0

    async def _next(self) -> Figures:
        asked_ms = self._clock.now_ms()
        late = self._clock.call_later(max(SLOW_S, self._interval_s), self._wait, asked_ms)
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
        # A terminal that was closed takes no more output, and needs none.
        with contextlib.suppress(OSError):
            self._live.stop()
        self._keyboard.give_back()

    def _suspend(self) -> None:
        """Give the terminal back and stop, as Ctrl-Z is meant; go on where we are continued."""
        self._leave()
        ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, ours)
        self._enter()

    def _on_key(self, key: str) -> None:
        if key in "qQ":
            self._stop.end(0)
        elif key in "pP":
            self._view.toggle_pause(self._clock.now_ms())
            self._live.refresh()
        elif key == "\x0c":
            # Ctrl-L: whatever was written over the view goes away.
            self._live.refresh()
