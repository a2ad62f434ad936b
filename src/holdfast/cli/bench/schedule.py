"""When operations are due where a rate is given, and a clock fine enough to keep to it.

Theory of operation: with a rate the schedule is fixed before the first answer comes. An operation
that finds no free connection waits its turn, and its latency counts from when it was due. A server
that stalls is thus charged with everything that it kept waiting, not only with what was under way
(coordinated omission). What never got its turn before the end is counted as unsent.
"""

import asyncio
import sys
from collections.abc import Callable
from math import ceil
from threading import Event, Thread

from holdfast.clock import Clock

__all__ = ["Pacer", "Schedule"]

# Event loops wait in whole milliseconds; a thread can wait more finely. Finer than this the
# waking costs more than it tells.
TICK_S = 0.000_25
SWITCH_S = 0.000_5
# What is due within this of the end is due at the end, whatever the last bits of a float say.
END_SLACK_S = 0.000_001


class Schedule:
    """One share of an even schedule: of `shares` processes, every one is due in turn."""

    def __init__(
        self, start_s: float, end_s: float, per_s: float, share: int = 0, shares: int = 1
    ) -> None:
        assert per_s > 0
        assert 0 <= share < shares
        self.start_s = start_s
        self.end_s = end_s - END_SLACK_S
        self.interval_s = shares / per_s
        self.taken = 0
        self._first_s = start_s + share / per_s
        self.next_s = self._first_s

    def take(self, now_s: float) -> float | None:
        """Take the next operation if it is due: the time since when it is."""
        due_s = self.next_s
        if due_s > now_s or due_s >= self.end_s:
            return None
        self.taken += 1
        # From the first one on, so that no error adds up.
        self.next_s = self._first_s + self.taken * self.interval_s
        return due_s

    def unsent(self, now_s: float) -> int:
        """How many were due and not taken."""
        until_s = min(now_s, self.end_s)
        return max(0, ceil((until_s - self._first_s) / self.interval_s) - self.taken)


class Pacer:
    """Calls `fire` in the event loop's thread, again and again, whenever something may be due."""

    def __init__(self, clock: Clock, fire: Callable[[], None]) -> None:
        self._clock = clock
        self._fire = fire
        self._stopped = Event()
        self._loop = asyncio.get_running_loop()

    def start(self, start_s: float, interval_s: float) -> None:
        """Begin at a time, and then fire at this interval, but no finer than a tick."""
        sys.setswitchinterval(SWITCH_S)
        Thread(
            target=self._run, args=(start_s, max(interval_s, TICK_S)), daemon=True, name="pacer"
        ).start()

    def stop(self) -> None:
        """Fire no more."""
        self._stopped.set()

    def _run(self, due_s: float, interval_s: float) -> None:
        clock = self._clock
        while not self._stopped.wait(max(0.0, due_s - clock.monotonic_s())):
            try:
                self._loop.call_soon_threadsafe(self._fire)
            except RuntimeError:
                return  # The loop is closed: the process is ending.
            now_s = clock.monotonic_s()
            due_s += interval_s
            if due_s < now_s:
                # Late: whoever fires takes everything that is due, so nothing is to catch up on.
                due_s += ((now_s - due_s) // interval_s) * interval_s
