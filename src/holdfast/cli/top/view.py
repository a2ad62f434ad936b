"""What a screen knows: the last figures, their history, and what is the matter now."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from holdfast.cli.terminal import as_clock_time, printable
from holdfast.cli.top.figures import Figures
from holdfast.cli.top.history import History
from holdfast.cli.top.rows import Mood, Row, notices, storage_rows, traffic_rows

__all__ = ["View"]

# How long the screen says that there was a restart: nobody looks at every single interval.
RESTART_SHOWN_MS: Final = 30_000


class View:
    """Takes figures as they come; a server that goes away leaves its last ones on the screen."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.figures: Figures | None = None
        # Since when a pause shows what was there then, while figures go on being taken.
        self.paused_at_ms: int | None = None
        self._latest: Figures | None = None
        self._unreachable: Figures | None = None
        self._waiting_since_ms: int | None = None
        self._restarted_at_ms: int | None = None
        self._histories: defaultdict[str, History] = defaultdict(History)

    def take(self, figures: Figures) -> None:
        """The next figures, or that there are none."""
        self._waiting_since_ms = None
        if not figures.reachable:
            self._unreachable = figures
            return
        self._unreachable = None
        self._latest = figures
        if figures.restarted:
            self._restarted_at_ms = figures.at_ms
        if self.paused_at_ms is None:
            self.figures = figures
        for row in (*traffic_rows(figures), *storage_rows(figures)):
            if row.is_drawn:
                self._histories[row.name].add(figures.at_ms / 1000, row.value)

    def wait(self, since_ms: int) -> None:
        """The server takes its time to answer."""
        self._waiting_since_ms = since_ms

    def toggle_pause(self, now_ms: int) -> None:
        """Hold the figures, or let them go on."""
        self.paused_at_ms = now_ms if self.paused_at_ms is None else None
        if self.paused_at_ms is None:
            self.figures = self._latest

    def slots(self, row: Row, count: int) -> list[float | None]:
        """A row's last minutes in so many pieces."""
        if self.figures is None:
            return [None] * count
        now_s = self.figures.at_ms / 1000
        return self._histories[row.name].slots(count, now_s, self.interval_s)

    def banners(self) -> list[tuple[str, Mood]]:
        """Everything that somebody should know at once, the worst first."""
        found: list[tuple[str, Mood]] = []
        if self._unreachable is not None:
            since = as_clock_time(self._unreachable.unreachable_since_ms or self._unreachable.at_ms)
            why = printable(self._unreachable.error or "")
            found.append((f"unreachable since {since}, retrying: {why}", Mood.ALARM))
        elif self._waiting_since_ms is not None:
            since = as_clock_time(self._waiting_since_ms)
            found.append((f"unreachable since {since}, retrying: no answer yet", Mood.ALARM))
        if self.paused_at_ms is not None:
            at = as_clock_time(self.paused_at_ms)
            found.append((f"paused at {at}: p goes on", Mood.WARNING))
        if self.figures is None:
            return found
        found.extend(notices(self.figures))
        at_ms = self._restarted_at_ms
        if at_ms is not None and 0 <= self.figures.at_ms - at_ms < RESTART_SHOWN_MS:
            found.append((f"the server was restarted before {as_clock_time(at_ms)}", Mood.WARNING))
        return found
