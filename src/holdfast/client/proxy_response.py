"""An upstream's response, read from its proxy stream while it is still being written.

async with response.follow() as reading:
    async for event in reading.events():
        print(event.data)
print(reading.outcome)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final, Self

from holdfast.client.failures import error_of_frame, parse_number
from holdfast.client.proxy_frames import (
    FrameReading,
    PlacedFrame,
    Position,
    ProxySource,
    ReadingState,
    starting_at,
)
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

# The longest body that is returned in one piece.
BODY_BYTES_MAX: Final = 1024 * 1024 * 1024


class ResponseReading:
    """A response being read: call one of `bytes()`, `events()`, `read()` and `frames()`, once.

    It ends with the response, and `outcome` says how. An aborted response just ends, a failed one
    raises its error; in both cases everything that arrived comes first.
    """

    def __init__(
        self,
        source: ProxySource,
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
        # A frame that was read ahead by `start`.
        self._held: PlacedFrame | None = None
        self._begun = False
        self._waits = False
        self._start = saved.start
        self._saved = saved

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the read and close its connection; leaving the block does the same."""
        await self._frames.aclose()
        # Another task that waits for a frame closes the iterator itself.
        if not self._waits:
            await self._placed.aclose()

    @property
    def state(self) -> str:
        """The exact position after the last item returned, for a later read."""
        return self._saved.text()

    @property
    def offset(self) -> str:
        """The last offset between two frames."""
        return self._frames.offset

    async def start(self) -> StartInfo:
        """The response's status and headers, once they are there."""
        while self._start is None:
            if self._held is None:
                self._held = await self._next()
            if self._held is None:
                raise InvalidRequestError(
                    f"Response {self.response_id} has not begun; use a live read to wait for it."
                )
            if self._held.frame.type != START:
                raise InvalidRequestError("The read started after the response's beginning.")
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
        """The body as it arrives, in pieces of any size."""
        self._begin()
        try:
            while (placed := await self._data()) is not None:
                self._saved = ReadingState(placed.position, self._start)
                yield placed.frame.payload
        finally:
            await self.aclose()

    async def frames(self) -> AsyncGenerator[tuple[Frame, str], None]:
        """The response's frames up to its end, each with an offset where a later read can start."""
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
                after = ReadingState(placed.position, self._start, parser.unfinished(), passed)
                for number, event in enumerate(found[skipped:], skipped + 1):
                    seen = ReadingState(before.position, self._start, before.unfinished, number)
                    self._saved = after if number == len(found) else seen
                    yield event
                self._saved = before = after
        finally:
            await self.aclose()

    def _begin(self) -> None:
        if self._begun:
            raise InvalidRequestError("Iterate over a reading only once; resume from its state.")
        self._begun = True

    async def _data(self) -> PlacedFrame | None:
        """The next piece of the body; None after the last one."""
        while (placed := await self._frame()) is not None:
            if placed.frame.type == DATA:
                return placed
            if placed.frame.type in TERMINAL:
                _check(placed.frame)
                return None
        return None

    async def _frame(self) -> PlacedFrame | None:
        """The next frame of this response, noting its start and end."""
        placed, self._held = self._held, None
        placed = placed or await self._next()
        if placed is not None:
            if placed.frame.type == START:
                self._note_start(placed)
            elif placed.frame.type in TERMINAL:
                # The state stays before the end, so that a resumed read sees the end again.
                self.outcome = OUTCOMES[placed.frame.type]
                self._source.passed(placed.position)
        return placed

    def _note_start(self, placed: PlacedFrame) -> None:
        self._start = decode_start(placed.frame.payload)
        self._held = None
        self._move(placed.position)

    async def _next(self) -> PlacedFrame | None:
        """The next frame of this response; None at the tail if the read is not live."""
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
                parse_number(self.offset),
                f"The stream was closed before the end of response {self.response_id}.",
            )
        return None

    def _move(self, position: Position) -> None:
        """Move past a frame that adds nothing to the body."""
        saved = self._saved
        self._saved = ReadingState(position, self._start, saved.unfinished, saved.events)


def _check(end: Frame) -> None:
    if end.type == ERROR:
        raise error_of_frame(decode_error(end.payload))


@dataclass(frozen=True, slots=True)
class ProxyResponse:
    """A response that the proxy records, to be read now or at any later time."""

    stream_id: str
    response_id: int
    # The upstream's content type, known before the response is read.
    content_type: str
    # The offset of its first frame; `-1` if the server does not say.
    offset: str
    # A credential: it allows reading and aborting until it expires.
    url: str = field(repr=False)
    _source: ProxySource = field(repr=False, compare=False)
    # The response begins somewhere after this.
    _position: Position = field(default=Position(), repr=False, compare=False)

    def follow(self, *, state: str | None = None, live: Live = True) -> ResponseReading:
        """Read the response from its beginning, or from the `state` of an earlier reading.

        Without `live` the read ends at the present tail.
        """
        position = self._position if self.offset == FIRST else Position(self.offset)
        begin = ReadingState(position).text() if state is None else state
        return ResponseReading(self._source, self.response_id, state=begin, live=live)
