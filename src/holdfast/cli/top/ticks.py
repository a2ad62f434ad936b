"""Regular moments on a clock."""

from __future__ import annotations

from holdfast.client.calls import pause
from holdfast.clock import Clock

__all__ = ["Ticks"]


class Ticks:
    """One tick every `interval_s`; those that were missed are not made up for."""

    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._due_s = clock.monotonic_s()

    async def next(self) -> None:
        """Wait for the next one."""
        now_s = self._clock.monotonic_s()
        self._due_s = max(now_s, self._due_s + self._interval_s)
        await pause(self._clock, self._due_s - now_s)
