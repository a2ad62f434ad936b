"""Reading through: from packs or memory, from the source or the fork, as if it were all one.

The bytes of a fork before the place where it starts are its source's, which may be a fork as well.
A read therefore goes through *stretches*: bytes that one stream owns, up to where the next begins.
Of each stretch what is in packs comes first, and what is in memory after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.engine.reading import end_of_read, read
from holdfast.errors import HoldfastError, InvalidOffsetError, OffsetGoneError
from holdfast.protocol.content import JSON, SEPARATOR_BYTE
from holdfast.protocol.names import not_found
from holdfast.storage.cold import ColdBytes, ColdRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.state import State
    from holdfast.engine.stream import Stream
    from holdfast.storage.cold import ColdReader

    Reply = Callable[[ColdBytes | HoldfastError], None]


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


class Reader:
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

    def __init__(self, reader: Reader, stream: Stream, bytes_max: int, done: Reply) -> None:
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
