"""One response of an upstream, read from its proxy stream while it is still being written.

async with response.follow() as reading:
    async for event in reading.events():
        print(event.data)
print(reading.outcome)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final, Self

from holdfast.client.failures import error_of_frame
from holdfast.client.proxy_frames import Placed, Position, Saved, number_in, starting_at
from holdfast.client.proxy_reading import FrameReading
from holdfast.client.proxy_source import Source
from holdfast.client.reading import Live
from holdfast.errors import BadAnswerError, InvalidRequestError, ProxyStreamClosedError
from holdfast.protocol.frames import (
    DATA,
    ERROR,
    OUTCOMES,
    START,
    TERMINAL,
    Frame,
    Outcome,
    StartInfo,
    decode_error,
    decode_start,
)
from holdfast.protocol.headers import START as FIRST
from holdfast.protocol.sse import SseEvent, SseParser

# The longest body that is handed out in one piece.
BODY_BYTES_MAX: Final = 1024 * 1024 * 1024


class ResponseReading:
    """A response being read: `bytes()`, `events()`, `read()` or `frames()`, one of them and once.

    It ends with the response. `outcome` says how that was: one that was aborted just ends, and one
    that failed raises its error, both behind everything that had arrived.
    """

    def __init__(
        self,
        source: Source,
        response_id: int,
        *,
        offset: str = FIRST,
        state: str | None = None,
        live: Live = True,
    ) -> None:
        if response_id < 1:
            raise InvalidRequestError(f"response_id is {response_id}: they count from 1.")
        saved = starting_at(offset, state)
        self.response_id = response_id
        self.outcome = Outcome.OPEN
        self._source = source
        self._frames = FrameReading(source, offset=offset, state=state, live=live)
        self._placed = self._frames.placed()
        # A frame that was read before somebody wanted it.
        self._held: Placed | None = None
        self._begun = False
        self._waits = False
        self._start = saved.start
        self._saved = saved

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the read and its connection; leaving the block does the same."""
        await self._frames.aclose()
        # Whoever waits for a frame, in another task, ends it by itself.
        if not self._waits:
            await self._placed.aclose()

    @property
    def state(self) -> str:
        """Exactly behind the last thing handed out: give it back to a later read."""
        return self._saved.text()

    @property
    def offset(self) -> str:
        """The last place between two frames that was passed."""
        return self._frames.offset

    async def start(self) -> StartInfo:
        """How the response begins: its status and headers, once they are there."""
        while self._start is None:
            if self._held is None:
                self._held = await self._next()
            if self._held is None:
                raise InvalidRequestError(
                    f"Response {self.response_id} has not begun: only a live read waits for it."
                )
            if self._held.frame.type != START:
                raise InvalidRequestError("The read has started behind the response's beginning.")
            self._note_start(self._held)
        return self._start

    async def read(self) -> bytes:
        """The whole body."""
        pieces, size_bytes = [], 0
        async for piece in self.bytes():
            size_bytes += len(piece)
            if size_bytes > BODY_BYTES_MAX:
                raise BadAnswerError(f"The response exceeds {BODY_BYTES_MAX} bytes.")
            pieces.append(piece)
        return b"".join(pieces)

    async def bytes(self) -> AsyncGenerator[bytes, None]:
        """The body's bytes as they arrive, in pieces of any size."""
        self._begin()
        try:
            while (placed := await self._data()) is not None:
                self._saved = Saved(placed.position, self._start)
                yield placed.frame.payload
        finally:
            await self.aclose()

    async def frames(self) -> AsyncGenerator[tuple[Frame, str], None]:
        """Its frames, its end included, each with an offset at which a later read can begin."""
        self._begin()
        try:
            while (placed := await self._frame()) is not None:
                if placed.frame.type not in TERMINAL:
                    self._move(placed.position)
                yield placed.frame, placed.offset
                if placed.frame.type in TERMINAL:
                    _check(placed.frame)
                    return
        finally:
            await self.aclose()

    async def events(self) -> AsyncGenerator[SseEvent, None]:
        """The Server-Sent Events of the body, each once it is complete."""
        self._begin()
        before, parser, passed = self._saved, SseParser(), self._saved.events
        parser.feed(before.unfinished)
        try:
            while (placed := await self._data()) is not None:
                found = parser.feed(placed.frame.payload)
                skipped, passed = passed, max(0, passed - len(found))
                after = Saved(placed.position, self._start, parser.unfinished(), passed)
                for number, event in enumerate(found[skipped:], skipped + 1):
                    seen = Saved(before.position, self._start, before.unfinished, number)
                    self._saved = after if number == len(found) else seen
                    yield event
                self._saved = before = after
        finally:
            await self.aclose()

    def _begin(self) -> None:
        if self._begun:
            raise InvalidRequestError("A reading is iterated over once: read on from its state.")
        self._begun = True

    async def _data(self) -> Placed | None:
        """The next piece of the body; None behind the last one."""
        while (placed := await self._frame()) is not None:
            if placed.frame.type == DATA:
                return placed
            if placed.frame.type in TERMINAL:
                _check(placed.frame)
                return None
        return None

    async def _frame(self) -> Placed | None:
        """The next frame of this response, taken note of."""
        placed, self._held = self._held, None
        placed = placed or await self._next()
        if placed is not None:
            if placed.frame.type == START:
                self._note_start(placed)
            elif placed.frame.type in TERMINAL:
                # The state stays before it: whoever goes on there learns of the end again.
                self.outcome = OUTCOMES[placed.frame.type]
                self._source.passed(placed.position)
        return placed

    def _note_start(self, placed: Placed) -> None:
        self._start = decode_start(placed.frame.payload)
        self._held = None
        self._move(placed.position)

    async def _next(self) -> Placed | None:
        """The next frame of this response; None at the tail of a read that is not live."""
        self._waits = True
        try:
            async for placed in self._placed:
                if placed.frame.response_id == self.response_id:
                    return placed
                self._move(placed.position)
        finally:
            self._waits = False
        if self._frames.closed:
            raise ProxyStreamClosedError(
                number_in(self.offset),
                f"The stream is closed, and response {self.response_id} has no end in it.",
            )
        return None

    def _move(self, position: Position) -> None:
        """Take note of a frame behind which the body is as far as it was before."""
        saved = self._saved
        self._saved = Saved(position, self._start, saved.unfinished, saved.events)


def _check(end: Frame) -> None:
    """Raise if this is how a response ends that failed."""
    if end.type == ERROR:
        raise error_of_frame(decode_error(end.payload))


@dataclass(frozen=True, slots=True)
class ProxyResponse:
    """A response that the proxy records: where to read it, now or at any later time."""

    stream_id: str
    response_id: int
    # The upstream's, as it is known before the response is read.
    content_type: str
    # Where its first frame is; `-1` if the server does not tell.
    offset: str
    # Whoever has it may read and abort until it expires.
    url: str = field(repr=False)
    _source: Source = field(repr=False, compare=False)
    # It begins somewhere behind this.
    _position: Position = field(default=Position(), repr=False, compare=False)

    def follow(self, *, state: str | None = None, live: Live = True) -> ResponseReading:
        """Read it from its beginning, or from where an earlier reading's `state` was.

        Without `live` the read ends at what there is so far.
        """
        position = self._position if self.offset == FIRST else Position(self.offset)
        begin = Saved(position).text() if state is None else state
        return ResponseReading(self._source, self.response_id, state=begin, live=live)
