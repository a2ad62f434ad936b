"""Clocks for tests: one moves only when told to, the other never waits."""

from __future__ import annotations

import asyncio
import heapq
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Timer


class _Entry:
    def __init__(self, at_s: float, order: int, call: Callable[..., object], args: Any) -> None:
        self.at_s = at_s
        self.order = order
        self.call = call
        self.args = args
        self.cancelled = False

    def __lt__(self, other: _Entry) -> bool:
        return (self.at_s, self.order) < (other.at_s, other.order)

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """Time, timers and randomness from a seed: the same calls give the same run."""

    def __init__(self, *, start_ms: int = 1_800_000_000_000, seed: int = 0) -> None:
        self._start_ms = start_ms
        self._elapsed_s = 0.0
        self._random = random.Random(seed)  # noqa: S311 (tests want repeatable numbers)
        self._heap: list[_Entry] = []
        self._order = 0

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return self._start_ms + round(self._elapsed_s * 1000)

    def monotonic_s(self) -> float:
        """Seconds that this clock was advanced."""
        return self._elapsed_s

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        """Run `call` at the next `run` or `advance`."""
        self.call_later(0, call, *args)

    def call_later(self, delay_s: float, call: Callable[..., object], *args: Any) -> _Entry:
        """Run `call` once the clock was advanced that far."""
        self._order += 1
        entry = _Entry(self._elapsed_s + delay_s, self._order, call, args)
        heapq.heappush(self._heap, entry)
        return entry

    def random_int(self, low: int, high: int) -> int:
        """A number from `low` to `high`, both included."""
        return self._random.randint(low, high)

    def random_u64(self) -> int:
        return self._random.getrandbits(64)

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def run(self) -> None:
        """Run everything that is due, without advancing the clock."""
        self.advance(0)

    def advance(self, seconds: float) -> None:
        """Advance the clock, running what becomes due on the way, in order."""
        until_s = self._elapsed_s + seconds
        while self._heap and self._heap[0].at_s <= until_s:
            entry = heapq.heappop(self._heap)
            self._elapsed_s = max(self._elapsed_s, entry.at_s)
            if not entry.cancelled:
                entry.call(*entry.args)
        self._elapsed_s = until_s


class HurriedClock:
    """A clock whose timers run in the event loop's next round, advancing it by their delay.

    `delays_s` has every requested delay, in order. Randomness comes from a seed.
    """

    def __init__(self, *, seed: int = 0) -> None:
        clock = FakeClock(seed=seed)
        self.delays_s: list[float] = []
        self.now_ms = clock.now_ms
        self.monotonic_s = clock.monotonic_s
        self.random_int = clock.random_int
        self.random_u64 = clock.random_u64
        self.random_bytes = clock.random_bytes
        self.advance = clock.advance

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        asyncio.get_running_loop().call_soon(call, *args)

    def call_later(self, delay_s: float, call: Callable[..., object], *args: Any) -> Timer:
        self.delays_s.append(delay_s)
        return asyncio.get_running_loop().call_soon(self._run, delay_s, call, args)

    def _run(self, delay_s: float, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.advance(delay_s)
        call(*args)
