"""Reading what is in memory: up to a limit, from any valid offset to a valid one.

A read ends behind the last whole message that fits: an append, or an element of a JSON stream. A
message that does not fit alone is given whole if it is JSON, and cut otherwise: text between
characters, other bytes anywhere. `storage.cold` cuts what it reads from packs in the same places.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import HoldfastError, InvalidOffsetError, OffsetGoneError, StreamDeletedError
from holdfast.protocol.content import JSON, SEPARATOR, SEPARATOR_BYTE, cut_text, is_text
from holdfast.protocol.names import not_found
from holdfast.storage.cold import ColdBytes, ColdRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.state import State
    from holdfast.engine.stream import Stream
    from holdfast.storage.cold import ColdReader

    Reply = Callable[[ColdBytes | HoldfastError], None]
    Ends = Callable[[list[int] | HoldfastError], None]


def check_offset(stream: Stream, offset: int) -> None:
    """Raise unless a read may start here: what is retained, and between JSON messages.

    Whether a cold offset is between messages shows when the bytes are read.
    """
    if offset > stream.tail:
        raise InvalidOffsetError(
            f"Offset {offset:020d} is past the tail of the stream, {stream.tail:020d}."
        )
    if offset < stream.earliest:
        raise OffsetGoneError(stream.earliest)
    if stream.media == JSON and stream.base < offset < stream.tail:
        index = bisect_right(stream.ends, offset)
        chunk = stream.chunks[index]
        inside = offset - (stream.ends[index] - len(chunk))
        if inside and chunk[inside - 1] != SEPARATOR_BYTE:
            raise InvalidOffsetError(f"Offset {offset:020d} is inside a JSON message.")


def end_of_read(
    stream: Stream,
    offset: int,
    bytes_max: int,
    *,
    must_give: bool = True,
    limit: int | None = None,
) -> int:
    """Where a read from `offset`, which is in memory, ends.

    `must_give` is whether a first message that does not fit is given all the same; `limit` is
    where a fork leaves this stream.
    """
    target = offset + bytes_max
    if limit is None:
        limit = stream.tail
    if target >= limit:
        return limit
    ends = stream.ends
    first = bisect_right(ends, offset)
    last = bisect_right(ends, target, first)
    whole = ends[last - 1] if last > first else offset
    if stream.media != JSON:
        if whole > offset or not must_give:
            return whole
        chunk, start = _chunk(stream, first)
        return min(limit, start + _cut(chunk, offset - start, bytes_max, stream.media))
    if whole == target:
        return whole
    # Some messages of the append that does not fit may fit.
    chunk, start = _chunk(stream, last)
    at = max(offset - start, 0)
    fitting = chunk.rfind(SEPARATOR, at, target - start)
    if fitting >= 0:
        return start + fitting + 1
    if whole > offset or not must_give:
        return whole
    return start + chunk.index(SEPARATOR, at) + 1


def _chunk(stream: Stream, index: int) -> tuple[bytes, int]:
    """A chunk and the offset it starts at."""
    chunk = stream.chunks[index]
    return chunk, stream.ends[index] - len(chunk)


def _cut(chunk: bytes, at: int, bytes_max: int, media: str) -> int:
    """Where to cut a chunk that is too long, counting from its start."""
    return cut_text(chunk, at, bytes_max) if is_text(media) else at + bytes_max


def read(stream: Stream, offset: int, end: int) -> bytes:
    """The stored bytes from `offset` to `end`, which `end_of_read` gave."""
    if offset >= end:
        return b""
    ends = stream.ends
    first = bisect_right(ends, offset)
    last = bisect_left(ends, end, first)
    chunks = stream.chunks[first : last + 1]
    if end < ends[last]:
        chunks[-1] = chunks[-1][: end - ends[last]]
    inside = offset - (ends[first] - len(stream.chunks[first]))
    if inside:
        chunks[0] = chunks[0][inside:]
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class Stretch(NamedTuple):
    """The bytes of a stream from somewhere up to `end` are the owner's."""

    owner: Stream
    end: int


def stretch_at(state: State, stream: Stream, offset: int) -> Stretch:
    """Who has the byte at an offset, and up to where that is so."""
    owner, end = stream, stream.tail
    while True:
        fork = owner.meta.fork
        if fork is None or offset >= fork.offset:
            return Stretch(owner, end)
        end = min(end, fork.offset)
        source = state.find_number(fork.source)
        if source is None:
            # A source stays as long as its forks: this one is gone itself.
            raise not_found(stream.meta.name)
        owner = source


class ShardReader:
    """Reads streams of one shard."""

    def __init__(self, state: State) -> None:
        self.state = state
        # Set where there is storage.
        self.cold: ColdReader | None = None

    def read(self, stream: Stream, start: int, bytes_max: int, done: Reply) -> None:
        """Read from any offset; `done` gets the bytes and where they end, perhaps at once."""
        _Read(self, stream, bytes_max, done).go_on(start)


class _Read:
    """A read that may take several steps: what is in memory can move to packs meanwhile."""

    def __init__(self, reader: ShardReader, stream: Stream, bytes_max: int, done: Reply) -> None:
        self._reader = reader
        self._stream = stream
        self._left = bytes_max
        self._done = done
        self._parts: list[bytes] = []

    def go_on(self, at: int) -> None:
        """Read on from here, until something has to be waited for or enough is there."""
        stream = self._stream
        if stream.gone:
            self._done(not_found(stream.meta.name))
            return
        while True:
            if at < stream.earliest:
                self._done(OffsetGoneError(stream.earliest))
                return
            try:
                owner, end = stretch_at(self._reader.state, stream, at)
            except HoldfastError as error:
                self._done(error)
                return
            if at < owner.base:
                self._ask_cold(owner, at, min(end, owner.base))
                return
            last = end_of_read(owner, at, self._left, must_give=not self._parts, limit=end)
            if at == last:
                self._finish(at)
                return
            if not self._parts and not _starts_message(owner, at):
                self._done(InvalidOffsetError(f"Offset {at:020d} is inside a JSON message."))
                return
            self._take(read(owner, at, last))
            if last < end or last == stream.tail or self._left <= 0:
                self._finish(last)
                return
            at = last

    def _ask_cold(self, owner: Stream, at: int, limit: int) -> None:
        cold = self._reader.cold
        assert cold is not None, "only storage makes bytes cold"
        must_give = not self._parts
        request = ColdRequest(owner.number, owner.media, at, limit, self._left, must_give=must_give)
        cold.read(request, lambda result: self._got(request, result))

    def _got(self, request: ColdRequest, result: ColdBytes | HoldfastError) -> None:
        stream = self._stream
        if stream.gone:
            self._done(not_found(stream.meta.name))
        elif isinstance(result, HoldfastError):
            self._fail(request, result)
        else:
            end, data = result
            self._take(data)
            if end < request.limit or end == stream.tail or self._left <= 0 or end == request.start:
                self._finish(end)
            else:
                self.go_on(end)

    def _fail(self, request: ColdRequest, error: HoldfastError) -> None:
        if request.start < self._stream.earliest:
            # A snapshot was published meanwhile, and the packs are swept already.
            error = OffsetGoneError(self._stream.earliest)
        self._done(error)

    def _take(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
        self._left -= len(data)

    def _finish(self, end: int) -> None:
        parts = self._parts
        self._done(ColdBytes(end, parts[0] if len(parts) == 1 else b"".join(parts)))


def _starts_message(owner: Stream, at: int) -> bool:
    """Whether a read from memory may start here; what lies before it need not be in memory."""
    if owner.media != JSON or at <= owner.base or at >= owner.tail:
        return True
    return read(owner, at - 1, at)[0] == SEPARATOR_BYTE


def message_ends(reader: ShardReader, stream: Stream, start: int, end: int, done: Ends) -> None:
    """The offsets behind `start`, up to `end`, where messages end; `done` perhaps at once."""
    _Walk(reader, stream, end, done).go_on(start)


def is_boundary(
    reader: ShardReader, stream: Stream, offset: int, done: Callable[[bool | HoldfastError], None]
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

    def __init__(self, reader: ShardReader, stream: Stream, end: int, done: Ends) -> None:
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


WINDOW_BYTES: Final = 64 * 1024


def first_ends(
    reader: ShardReader, stream: Stream, start: int, end: int, enough: int, done: Ends
) -> None:
    """The offsets behind `start`, up to `end`, where messages end.

    Where there are many it may be only the first ones of them, but at least `enough`.
    """
    _Forth(reader, stream, end, enough, done).go_on(start)


def last_start(
    reader: ShardReader, stream: Stream, count: int, done: Callable[[int | HoldfastError], None]
) -> None:
    """The offset where the last so many messages start; the earliest one if there are fewer."""
    _Back(reader, stream, count, done).go_on()


class _Forth:
    """Goes from an offset to another, until it has enough."""

    def __init__(
        self, reader: ShardReader, stream: Stream, end: int, enough: int, done: Ends
    ) -> None:
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
        reader: ShardReader,
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
