"""Where a few messages are: the first ones from an offset on, or the last ones of a stream.

Both look at a window of bytes first, and at twice as many each time that this did not do. So they
cost about as much as the messages asked for, however many there are besides.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.engine.boundaries import message_ends
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.boundaries import Ends
    from holdfast.engine.read_through import Reader
    from holdfast.engine.stream import Stream

WINDOW_BYTES: Final = 64 * 1024


def first_ends(
    reader: Reader, stream: Stream, start: int, end: int, enough: int, done: Ends
) -> None:
    """The offsets behind `start`, up to `end`, where messages end.

    Where there are many it may be only the first ones of them, but at least `enough`.
    """
    _Forth(reader, stream, end, enough, done).go_on(start)


def last_start(
    reader: Reader, stream: Stream, count: int, done: Callable[[int | HoldfastError], None]
) -> None:
    """The offset where the last so many messages start; the earliest one if there are fewer."""
    _Back(reader, stream, count, done).go_on()


class _Forth:
    """Goes from an offset to another, until it has enough."""

    def __init__(self, reader: Reader, stream: Stream, end: int, enough: int, done: Ends) -> None:
        self._reader = reader
        self._stream = stream
        self._end = end
        self._enough = enough
        self._done = done
        self._window_bytes = WINDOW_BYTES
        self._found: list[int] = []

    def go_on(self, at: int) -> None:
        """Look at the window that starts here."""
        if at >= self._end or len(self._found) >= self._enough:
            self._done(self._found)
            return
        until = min(self._end, at + self._window_bytes)
        message_ends(self._reader, self._stream, at, until, partial(self._got, until))

    def _got(self, until: int, ends: list[int] | HoldfastError) -> None:
        if isinstance(ends, HoldfastError):
            self._done(ends)
            return
        self._found += ends
        self._window_bytes *= 2
        self.go_on(until)


class _Back:
    """Goes from the tail backwards: messages start where the one before them ends."""

    def __init__(
        self,
        reader: Reader,
        stream: Stream,
        count: int,
        done: Callable[[int | HoldfastError], None],
    ) -> None:
        self._reader = reader
        self._stream = stream
        # The tail is where the last message ends, so one more has to be found.
        self._missing = count + 1
        self._at = stream.tail
        self._done = done
        self._window_bytes = WINDOW_BYTES

    def go_on(self) -> None:
        """Look at the window that ends here."""
        earliest = self._stream.earliest
        if self._at <= earliest:
            self._done(earliest)
            return
        start = max(earliest, self._at - self._window_bytes)
        message_ends(self._reader, self._stream, start, self._at, partial(self._got, start))

    def _got(self, start: int, ends: list[int] | HoldfastError) -> None:
        if isinstance(ends, HoldfastError):
            if start < self._stream.earliest:
                # A snapshot was published meanwhile: there is less to look at.
                self.go_on()
            else:
                self._done(ends)
        elif len(ends) >= self._missing:
            self._done(ends[-self._missing])
        else:
            self._missing -= len(ends)
            self._window_bytes *= 2
            self._at = start
            self.go_on()
