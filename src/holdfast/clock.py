"""Time, timers and randomness: the only module that reads them.

Everything else takes a `Clock` as an argument, so that a test can run a whole server on
`holdfast.testing.FakeClock` and reproduce a run from its seed.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


_DRAW: Final = Struct("<64Q")


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call, unless it has run."""


class Clock(Protocol):
    """The source of time and randomness."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes backwards."""

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        """Run `call` after the current callback."""

    def call_later(self, delay_s: float, call: Callable[..., object], *args: Any) -> Timer:
        """Run `call` after `delay_s` seconds unless the timer is cancelled."""

    def random_int(self, low: int, high: int) -> int:
        """A number from `low` to `high`, both included; not for secrets."""

    def random_u64(self) -> int:
        """64 unpredictable bits."""

    def random_bytes(self, count: int) -> bytes:
        """Unpredictable bytes for tokens, keys and secrets."""


class SystemClock:
    """The machine's clock, the running event loop's timers, the system's randomness."""

    def __init__(self) -> None:
        self._random = random.Random()  # noqa: S311 (jitter, not secrets)
        # Drawn many at a time: a system call releases the GIL, which takes long to get back.
        self._drawn: list[int] = []

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Called twice per request, so without a Python frame in between.
    monotonic_s = staticmethod(time.monotonic)

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        asyncio.get_running_loop().call_soon(call, *args)

    def call_later(self, delay_s: float, call: Callable[..., object], *args: Any) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, call, *args)

    def random_int(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def random_u64(self) -> int:
        try:
            return self._drawn.pop()
        except IndexError:
            value, *rest = _DRAW.unpack(secrets.token_bytes(_DRAW.size))
            self._drawn.extend(rest)
            return int(value)

    def random_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)


class SteadyClock(SystemClock):
    """A clock that is set once: later changes of the machine's time do not move it."""

    def __init__(self) -> None:
        super().__init__()
        self._set_ms = super().now_ms() - int(self.monotonic_s() * 1000)

    def now_ms(self) -> int:
        return self._set_ms + int(self.monotonic_s() * 1000)
