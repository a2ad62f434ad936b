"""Where messages end: an append of a byte stream, an element of a JSON stream.

Snapshots, forks and bootstrap go by these. In memory the boundaries are known; of what is in packs
they are in the packs' message indexes. A fork may start inside a message of its source: then that
message ends there, for the fork.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from holdfast.engine.read_through import stretch_at
from holdfast.errors import HoldfastError, OffsetGoneError, StreamDeletedError
from holdfast.protocol.content import JSON, SEPARATOR
from holdfast.protocol.names import not_found

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.read_through import Reader
    from holdfast.engine.stream import Stream

    Ends = Callable[[list[int] | HoldfastError], None]


def message_ends(reader: Reader, stream: Stream, start: int, end: int, done: Ends) -> None:
    """The offsets behind `start`, up to `end`, where messages end; `done` perhaps at once."""
    _Walk(reader, stream, end, done).go_on(start)


def is_boundary(
    reader: Reader, stream: Stream, offset: int, done: Callable[[bool | HoldfastError], None]
) -> None:
    """Whether a message ends at this offset of the stream, or the stream starts there."""
    if offset in {0, stream.tail, stream.earliest}:
        done(True)
        return

    def ended(ends: list[int] | HoldfastError) -> None:
        if offset == stream.earliest:
            # A snapshot was published there meanwhile.
            done(True)
        else:
            done(ends if isinstance(ends, HoldfastError) else offset in ends)

    message_ends(reader, stream, offset - 1, offset, ended)


class _Walk:
    """Collects boundaries stretch by stretch."""

    def __init__(self, reader: Reader, stream: Stream, end: int, done: Ends) -> None:
        self._reader = reader
        self._stream = stream
        self._end = end
        self._done = done
        self._found: list[int] = []

    def go_on(self, at: int) -> None:
        """Go on from here, until something has to be waited for."""
        while at < self._end:
            try:
                owner, stretch_end = stretch_at(self._reader.state, self._stream, at)
            except HoldfastError as error:
                self._done(error)
                return
            limit = min(self._end, stretch_end)
            if at < owner.base:
                self._ask_cold(owner, at, min(limit, owner.base), stretch_end)
                return
            self._take(ends_in_memory(owner, at, limit), limit, stretch_end)
            at = limit
        self._done(self._found)

    def _take(self, ends: list[int], limit: int, stretch_end: int) -> None:
        self._found += ends
        if limit == stretch_end and (not self._found or self._found[-1] != limit):
            self._found.append(limit)

    def _ask_cold(self, owner: Stream, at: int, limit: int, stretch_end: int) -> None:
        cold = self._reader.cold
        assert cold is not None, "only storage makes bytes cold"

        def got(ends: list[int] | HoldfastError) -> None:
            stream = self._stream
            if stream.gone:
                name = stream.meta.name
                self._done(StreamDeletedError(name) if stream.deleted else not_found(name))
            elif isinstance(ends, HoldfastError):
                # A snapshot may have been published meanwhile, and the packs be swept already.
                self._done(OffsetGoneError(stream.earliest) if at < stream.earliest else ends)
            else:
                self._take(ends, limit, stretch_end)
                self.go_on(limit)

        cold.message_ends(owner.number, at, limit, got)


def ends_in_memory(owner: Stream, start: int, end: int) -> list[int]:
    """The boundaries in (start, end] of what is in memory."""
    first, last = bisect_right(owner.ends, start), bisect_left(owner.ends, end)
    if owner.media != JSON:
        return [each for each in owner.ends[first : last + 1] if each <= end]
    found: list[int] = []
    for index in range(first, min(last + 1, len(owner.ends))):
        chunk = owner.chunks[index]
        chunk_start = owner.ends[index] - len(chunk)
        at = chunk.find(SEPARATOR, max(0, start - chunk_start))
        while at >= 0 and chunk_start + at + 1 <= end:
            if chunk_start + at + 1 > start:
                found.append(chunk_start + at + 1)
            at = chunk.find(SEPARATOR, at + 1)
    return found
