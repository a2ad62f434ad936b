"""Request bodies while they arrive: what they may hold in memory, and bodies read piece by piece.

A body counts with the bytes that have arrived, so that an announced length reserves nothing. Only
what has to wait counts: incomplete bodies, complete ones behind a request that waits, and pieces
that a handler has not taken yet. A body that arrives together with its head is never counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from holdfast.allocator import KEPT_BYTES
from holdfast.errors import (
    HoldfastError,
    InvalidRequestError,
    OverloadedError,
    PayloadTooLargeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.settings import HttpSettings

BUFFER_BYTES_MAX: Final = 1024 * 1024
# One read is up to 256 kB, which take about a tenth of a millisecond.
_ROUND_READS: Final = 16
_FOLDED_BYTES: Final = 64 * 1024
# Requests without a token may hold the budget divided by this, on servers with access control.
_ANONYMOUS_DIVISOR: Final = 4


class BodyBudget:
    """The memory of all bodies under way."""

    def __init__(self, http: HttpSettings, *, has_access_control: bool = False) -> None:
        self._bytes_max = http.bodies_held_bytes_max
        self._has_access_control = has_access_control
        self.held_bytes = 0
        # The most that was held since `should_trim` was called, and before that.
        self._peak_bytes = 0
        self._earlier_bytes = 0
        self.refusals = 0

    def take(self, size: int, *, is_known: bool = True) -> None:
        """Count bytes that have arrived; raises OverloadedError if they are too many.

        Callers that are not known by a token cannot use up the budget of those that are.
        """
        bytes_max = self._bytes_max
        if self._has_access_control and not is_known:
            bytes_max //= _ANONYMOUS_DIVISOR
        if self.held_bytes + size > bytes_max:
            self.refusals += 1
            raise OverloadedError("Too many request bodies are under way: send this one later.")
        self.held_bytes += size
        self._peak_bytes = max(self._peak_bytes, self.held_bytes)

    def give(self, size: int) -> None:
        """Counted bytes are held no longer."""
        self.held_bytes -= size

    def should_trim(self) -> bool:
        """Whether to return free memory to the kernel; called once a second.

        Only once much less is held than before: a steady stream of large bodies needs the memory
        again at once. The allocator keeps `KEPT_BYTES` in any case.
        """
        lately, self._peak_bytes = self._peak_bytes, self.held_bytes
        if lately > self._earlier_bytes - KEPT_BYTES:
            self._earlier_bytes = max(self._earlier_bytes, lately)
            return False
        self._earlier_bytes = lately
        return True


class BodyPace(NamedTuple):
    """How fast a body has to arrive; times are in any unit."""

    longest_pause: float
    rate_min: float

    def deadline(self, before: float, now: float, received: int) -> float:
        """The deadline for the next bytes, after `received` bytes have arrived.

        Each byte extends the deadline at the smallest rate, up to the longest pause from now. So
        bytes that were sent fast do not make up for a slow rest.
        """
        return min(now + self.longest_pause, before + received / self.rate_min)


class BodyTurns:
    """Connections with large bodies read in turns, a few in each round of the event loop.

    A connection whose client sends fast could be read for as long as it sends, and a hundred of
    them would keep everybody else waiting for seconds.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self._call_soon = call_soon
        self._waiting: deque[Callable[[], None]] = deque()

    def wait(self, read_on: Callable[[], None]) -> None:
        """Call this when it is the connection's turn."""
        if not self._waiting:
            self._call_soon(self._next)
        self._waiting.append(read_on)

    def _next(self) -> None:
        for _ in range(min(len(self._waiting), _ROUND_READS)):
            self._waiting.popleft()()
        if self._waiting:
            self._call_soon(self._next)


class BodyStream:
    """A request body that is read while it arrives, within a bounded buffer.

    `on_want` is called when the first piece is asked for, and whenever the buffer has room again.
    """

    def __init__(self, bytes_max: int, budget: BodyBudget, on_want: Callable[[], None]) -> None:
        self.bytes_max = bytes_max
        self._budget = budget
        self._on_want = on_want
        self._pieces: deque[bytes | bytearray] = deque()
        self._buffered = 0
        self._size = 0
        self._error: HoldfastError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.wanted = False
        self.complete = False

    def __del__(self) -> None:
        """Nobody took the rest: its memory is free from now on."""
        self._budget.give(self._buffered)

    @property
    def full(self) -> bool:
        """Whether the sender has to wait."""
        return self._buffered > BUFFER_BYTES_MAX

    def feed(self, piece: bytes) -> None:
        """Add a piece that has arrived."""
        if self._error is not None:
            return
        self._size += len(piece)
        if self._size > self.bytes_max:
            self.fail(PayloadTooLargeError(f"The body exceeds {self.bytes_max} bytes."))
            return
        try:
            self._budget.take(len(piece))
        except OverloadedError as error:
            self.fail(error)
            return
        last = self._pieces[-1] if self._pieces else b""
        if isinstance(last, bytearray) and len(last) < _FOLDED_BYTES:
            last += piece
        else:
            # Many small objects would take many times their length.
            self._pieces.append(bytearray(piece) if len(piece) < _FOLDED_BYTES else piece)
        self._buffered += len(piece)
        self._wake()

    def finish(self) -> None:
        """The body is complete."""
        self.complete = True
        self._wake()

    def fail(self, error: HoldfastError | None = None) -> None:
        """End an incomplete body with an error: the client disconnected, or sent too much."""
        if not self.complete and self._error is None:
            was_full = self.full
            self._error = error or InvalidRequestError("The body ended before its end.")
            self._pieces.clear()
            self._budget.give(self._buffered)
            self._buffered = 0
            self._wake()
            if was_full:
                # The sender waits for room, and must not wait for ever.
                self._on_want()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while True:
            if self._error is not None:
                raise self._error
            if self._pieces:
                was_full = self.full
                piece = self._pieces.popleft()
                self._buffered -= len(piece)
                self._budget.give(len(piece))
                if was_full and not self.full:
                    self._on_want()
                return bytes(piece)
            if self.complete:
                raise StopAsyncIteration
            if not self.wanted:
                self.wanted = True
                self._on_want()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
