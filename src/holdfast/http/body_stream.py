"""A request body that is worked on while it arrives, within a bounded buffer."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Self

from holdfast.errors import HoldfastError, InvalidRequestError, PayloadTooLargeError

if TYPE_CHECKING:
    from collections.abc import Callable

BUFFER_BYTES_MAX: Final = 1024 * 1024
_FOLDED_BYTES: Final = 64 * 1024


class BodyStream:
    """The pieces of a body as they come; whoever sends them is told when to wait.

    `on_want` is called when the first piece is asked for and whenever the buffer has room again.
    """

    def __init__(self, bytes_max: int, on_want: Callable[[], None]) -> None:
        self.bytes_max = bytes_max
        self._on_want = on_want
        self._pieces: deque[bytes | bytearray] = deque()
        self._buffered = 0
        self._size = 0
        self._error: HoldfastError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.wanted = False
        self.complete = False

    @property
    def full(self) -> bool:
        """Whether no more should come for now."""
        return self._buffered > BUFFER_BYTES_MAX

    def feed(self, piece: bytes) -> None:
        """A piece has arrived."""
        if self._error is not None:
            return
        self._size += len(piece)
        if self._size > self.bytes_max:
            self.fail(PayloadTooLargeError(f"The body exceeds {self.bytes_max} bytes."))
            return
        last = self._pieces[-1] if self._pieces else b""
        if isinstance(last, bytearray) and len(last) < _FOLDED_BYTES:
            last += piece
        else:
            # Many small pieces would take many times their length.
            self._pieces.append(bytearray(piece) if len(piece) < _FOLDED_BYTES else piece)
        self._buffered += len(piece)
        self._wake()

    def finish(self) -> None:
        """The body is complete."""
        self.complete = True
        self._wake()

    def fail(self, error: HoldfastError | None = None) -> None:
        """No more will come, or none that is wanted: the client went away, or sends too much."""
        if not self.complete and self._error is None:
            was_full = self.full
            self._error = error or InvalidRequestError("The body ended before its end.")
            self._pieces.clear()
            self._buffered = 0
            self._wake()
            if was_full:
                # Whoever sends it waits for room, and must not wait for ever.
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
