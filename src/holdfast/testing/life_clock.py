"""A clock for one life of a simulated process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock, Timer


class LifeClock:
    """Another clock's time and chance; once the life has ended nothing it scheduled is run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ended = False
        self.now_ms = clock.now_ms
        self.monotonic_s = clock.monotonic_s
        self.random_int = clock.random_int
        self.random_u64 = clock.random_u64
        self.random_bytes = clock.random_bytes

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        """Run `call` after what is running now, unless the life has ended by then."""
        self._clock.call_soon(self._run, call, args)

    def call_later(self, delay_s: float, call: Callable[..., object], *args: Any) -> Timer:
        """Run `call` after `delay_s` seconds, unless the life has ended by then."""
        return self._clock.call_later(delay_s, self._run, call, args)

    def end(self) -> None:
        """As kill -9 does it: whatever was to come does not."""
        self.ended = True

    def _run(self, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self.ended:
            call(*args)
