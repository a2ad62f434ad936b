"""A clock for code that waits a lot, and a test that does not want to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Timer


class HurriedClock:
    """Timers run in the event loop's next round; time is moved on by what they were to wait.

    `delays_s` has every delay that was asked for, in order. Chance comes from a seed.
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
        """Run `call` in the event loop's next round."""
        asyncio.get_running_loop().call_soon(call, *args)

    def call_later(self, delay_s: float, call: Callable[..., object], *args: Any) -> Timer:
        """Run `call` in the event loop's next round, as if `delay_s` seconds had passed."""
        self.delays_s.append(delay_s)
        return asyncio.get_running_loop().call_soon(self._run, delay_s, call, args)

    def _run(self, delay_s: float, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.advance(delay_s)
        call(*args)
