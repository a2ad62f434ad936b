"""Reading through: from packs first, then on from memory, as if there were no difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.reading import end_of_read, read
from holdfast.errors import HoldfastError, StreamNotFoundError
from holdfast.storage.cold import ColdBytes, ColdRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.state import Stream
    from holdfast.storage.cold import ColdReader

    Reply = Callable[[ColdBytes | HoldfastError], None]


def read_through(cold: ColdReader, stream: Stream, start: int, bytes_max: int, done: Reply) -> None:
    """Read from an offset before the stream's `base`; `done` gets the bytes and where they end."""
    _ReadThrough(cold, stream, bytes_max, done).go_on(start)


class _ReadThrough:
    """A read that may take several steps: what is in memory can move to packs meanwhile."""

    def __init__(self, cold: ColdReader, stream: Stream, bytes_max: int, done: Reply) -> None:
        self._cold = cold
        self._stream = stream
        self._left = bytes_max
        self._done = done
        self._parts: list[bytes] = []

    def go_on(self, at: int) -> None:
        """Read from packs up to where memory starts now."""
        stream = self._stream
        must_give = not self._parts
        request = ColdRequest(
            stream.number, stream.media, at, stream.base, self._left, must_give=must_give
        )
        self._cold.read(request, lambda result: self._got(request, result))

    def _got(self, request: ColdRequest, result: ColdBytes | HoldfastError) -> None:
        stream = self._stream
        if stream.gone:
            self._done(StreamNotFoundError(stream.meta.name))
        elif isinstance(result, HoldfastError):
            self._done(result)
        else:
            end, data = result
            if data:
                self._parts.append(data)
            self._left -= len(data)
            if end < request.limit or end == stream.tail or self._left <= 0 or end == request.start:
                self._finish(end)
            elif end < stream.base:
                self.go_on(end)
            else:
                last = end_of_read(stream, end, self._left, must_give=False)
                self._parts.append(read(stream, end, last))
                self._finish(last)

    def _finish(self, end: int) -> None:
        parts = self._parts
        self._done(ColdBytes(end, parts[0] if len(parts) == 1 else b"".join(parts)))
