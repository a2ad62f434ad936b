"""When a request is sent again, and how long to wait before that."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from holdfast.clock import Clock
from holdfast.errors import (
    BadAnswerError,
    CommitUnknownError,
    HoldfastError,
    InvalidRequestError,
    OutboundError,
    OverloadedError,
    RateLimitedError,
)

# A live request that brings nothing sooner than this was not kept waiting by the server.
LIVE_S_MIN: Final = 0.1
# Answers after which the same request can succeed.
RETRIED: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
# Of these, the ones after which a write was not carried out. A gateway's 502 and 504 leave open
# whether it was; so does a request that timed out.
_NOT_CARRIED_OUT: Final = frozenset({425, 429, 500, 503})


_FOREVER: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Retry:
    """Waits double from `first_s` to `max_s`, each of them shortened by chance by up to a half."""

    attempts: int = 10
    first_s: float = 0.1
    max_s: float = 5.0
    # A server that asks for a longer pause is not waited for.
    retry_after_max_s: float = 60.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidRequestError(f"attempts is {self.attempts}: there is at least one.")
        if self.first_s <= 0:
            raise InvalidRequestError(f"first_s is {self.first_s:g}: a pause takes time.")
        if self.max_s < self.first_s:
            raise InvalidRequestError(f"max_s is {self.max_s:g}: less than first_s.")

    def for_ever(self) -> Retry:
        """The same without an end to the attempts."""
        return replace(self, attempts=_FOREVER)

    def delay_s(self, failures: int, error: HoldfastError, clock: Clock) -> float | None:
        """How long to wait after so many failures in a row; None to give up."""
        if failures >= self.attempts:
            return None
        backoff_s = min(self.max_s, self.first_s * 2.0 ** min(failures - 1, 30))
        backoff_s *= clock.random_int(500, 1000) / 1000
        asked_s = float(getattr(error, "retry_after_s", 0) or 0)
        if asked_s > self.retry_after_max_s:
            return None
        return max(backoff_s, asked_s)


NO_RETRY: Final = Retry(attempts=1)


def may_repeat(error: HoldfastError, *, repeatable: bool) -> bool:
    """Whether a request that failed so may be sent again.

    `repeatable` requests do no harm if they are carried out twice. Others are sent again only if
    they were not carried out.
    """
    if isinstance(error, OutboundError):
        return error.passing and (repeatable or not error.sent)
    if error.status not in RETRIED or isinstance(error, BadAnswerError):
        return False
    if error.status == 500 and type(error) is not HoldfastError:
        # A defect that has a name of its own, such as a damaged pack, does not pass.
        return False
    if repeatable:
        return True
    return error.status in _NOT_CARRIED_OUT and not isinstance(error, CommitUnknownError)


def was_refused(error: HoldfastError) -> bool:
    """Whether a request that failed so was certainly not even begun.

    For requests that cost something: no other status says so, whoever it comes from.
    """
    if isinstance(error, OutboundError):
        return error.passing and not error.sent
    return isinstance(error, OverloadedError | RateLimitedError)


async def pause(clock: Clock, seconds: float) -> None:
    """Wait on this clock."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        if not over.done():
            over.set_result(None)

    timer = clock.call_later(seconds, end)
    try:
        await over
    finally:
        timer.cancel()


class Pacing:
    """Waits between live requests, where the server does not: it is not asked all the time.

    `hasty` is how many in a row were over at once and brought nothing.
    """

    def __init__(self, clock: Clock, retry: Retry) -> None:
        self.hasty = 0
        self._clock = clock
        self._retry = retry
        self._began_s = 0.0

    def begin(self) -> None:
        """A request is made."""
        self._began_s = self._clock.monotonic_s()

    async def end(self, *, brought: bool) -> None:
        """It is over, and brought something or nothing."""
        if brought or self._clock.monotonic_s() - self._began_s >= LIVE_S_MIN:
            self.hasty = 0
            return
        self.hasty += 1
        longer_s = self._retry.first_s * 2.0 ** min(self.hasty - 1, 30)
        await pause(self._clock, min(self._retry.max_s, longer_s))
