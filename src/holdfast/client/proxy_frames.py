"""Reading a proxy stream frame by frame.

Rules:

- Underneath is a `Reading`, which catches up, follows live, and survives broken connections.
- An expired signed URL is renewed if there is a session, and the read continues after the last
  byte. Otherwise the caller gets the error.
- A `Position`, saved as `state`, is exact even in the middle of a frame: a read that resumes there
  loses nothing and sees nothing twice. In the middle of a frame it includes the parser's state.
- Where offsets count bytes, every position has its own. Elsewhere only the ends of responses have
  one, and a position is a number of bytes after the start of a response.
- The offset beside a frame is one where a read can start without a state: after the frame, or
  before it as long as the frame is incomplete.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, NamedTuple, Self

import msgspec

from holdfast.client.calls import Calls, value_of
from holdfast.client.failures import parse_number
from holdfast.client.messages import Batch
from holdfast.client.reading import Live, Reading
from holdfast.errors import BadAnswerError, InvalidRequestError, SignatureExpiredError
from holdfast.protocol.frames import HEAD, Frame, FrameParser, ParserState, StartInfo
from holdfast.protocol.headers import START

BETWEEN_FRAMES: Final = ParserState()


class Position(msgspec.Struct, frozen=True, array_like=True):
    """A position in a proxy stream: `skip` bytes after an offset, and the parser's state."""

    offset: str = START
    skip: int = 0
    parser: ParserState = BETWEEN_FRAMES

    @property
    def order(self) -> tuple[str, int]:
        """Sort key of positions that came from the server."""
        return self.offset, self.skip


class ReadingState(msgspec.Struct, frozen=True, array_like=True):
    """The content of a reading's `state`."""

    position: Position = Position()
    # The start of the response, if it was read before.
    start: StartInfo | None = None
    # The beginning of an incomplete event, and how many events after it were returned.
    unfinished: bytes = b""
    events: int = 0

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


_decode_saved = msgspec.json.Decoder(ReadingState).decode


def starting_at(offset: str, state: str | None) -> ReadingState:
    """Where to start: a saved state, or an offset between two frames."""
    if state is None:
        return ReadingState(Position(offset))
    try:
        return _decode_saved(state)
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise InvalidRequestError("This is not the state of a reading of a proxy stream.") from None


class PlacedFrame(NamedTuple):
    """A frame, an offset where a read can start again, and the exact position after it."""

    frame: Frame
    offset: str
    position: Position


class FrameFeed:
    """Cuts the batches of one read into frames, starting at a position."""

    def __init__(self, position: Position) -> None:
        self._parser = FrameParser(position.parser)
        self._skip = position.skip
        # After everything that was fed; `offset` is where a read can start again.
        self.position = position
        is_between = position.parser == BETWEEN_FRAMES and not position.skip
        self.offset = position.offset if is_between else START

    @property
    def is_between_frames(self) -> bool:
        """Whether everything so far was whole frames."""
        return self._parser.is_between_frames

    def feed(self, batch: Batch) -> list[PlacedFrame]:
        """The frames that this batch completes, and the part of an incomplete Data frame."""
        parser, before = self._parser, self._parser.state()
        passed = min(self._skip, len(batch.data))
        self._skip -= passed
        frames = parser.feed(batch.data[passed:])
        ends = _ends(before, frames)
        counts = _counts_bytes(batch)
        placed: list[PlacedFrame] = []
        for frame, end in zip(frames[:-1], ends[:-1], strict=True):
            consumed = passed + end - before.taken
            if counts:
                self.offset = _counted_back(batch, len(batch.data) - consumed)
                position = Position(self.offset)
            else:
                position = Position(batch.offset, consumed)
            placed.append(PlacedFrame(frame, self.offset, position))
        self._note_end(batch, counts=counts)
        if frames:
            placed.append(PlacedFrame(frames[-1], self.offset, self.position))
        return placed

    def _note_end(self, batch: Batch, *, counts: bool) -> None:
        parser = self._parser
        state = BETWEEN_FRAMES if parser.is_between_frames else parser.state()
        self.position = Position(batch.next_offset, self._skip, state)
        if counts:
            self.offset = _counted_back(batch, parser.state().taken - parser.boundary)
        elif parser.is_between_frames and not self._skip:
            self.offset = batch.next_offset


def _ends(before: ParserState, frames: list[Frame]) -> list[int]:
    """Where each frame ends, in the parser's count of bytes."""
    # The first frame may have started in an earlier batch.
    at = before.taken - len(before.held) - (HEAD.size if before.type else 0)
    ends = []
    for frame in frames:
        at += HEAD.size + len(frame.payload)
        ends.append(at)
    return ends


def _counts_bytes(batch: Batch) -> bool:
    """Whether the batch's offsets differ by the number of its bytes."""
    start = 0 if batch.offset == START else parse_number(batch.offset)
    return (
        bool(batch.data)
        and start >= 0
        and parse_number(batch.next_offset) == start + len(batch.data)
    )


def _counted_back(batch: Batch, size_bytes: int) -> str:
    """The offset this many bytes before the end of the batch."""
    width = len(batch.next_offset)
    return f"{max(0, int(batch.next_offset) - size_bytes):0{width}d}"


# Returns a fresh signed URL; async or not.
Renew = Callable[[], str | Awaitable[str]]


class ProxySource:
    """A proxy stream: its newest signed URL and `renew`, which gets a fresh one.

    All readers of a session share one. A session renews only URLs that the server calls renewable.
    """

    def __init__(
        self, calls: Calls, url: str, renew: Renew | None = None, *, of_session: bool = False
    ) -> None:
        self.calls = calls
        self.url = url
        # How far the stream was read; responses requested later start after it.
        self.position = Position()
        self._renew = renew
        self._of_session = of_session
        self._renewing = asyncio.Lock()

    def can_renew(self, error: SignatureExpiredError) -> bool:
        return self._renew is not None and (error.renewable or not self._of_session)

    async def renew(self, expired: str) -> str:
        """Replace an expired URL, once for all readers that found it expired."""
        assert self._renew is not None, "can_renew was not checked"
        async with self._renewing:
            if self.url == expired:
                self.url = await value_of(self._renew)
        return self.url

    def passed(self, position: Position) -> None:
        """Note how far a reader has come."""
        if position.order > self.position.order:
            self.position = position


class FrameReading:
    """All frames of a proxy stream as they arrive: iterate over it once.

    Each comes with an offset where a later read can start. A Data frame comes in as many parts as
    it arrived in; all but the last have the offset of the frame's beginning.
    """

    def __init__(
        self,
        source: ProxySource,
        *,
        offset: str = START,
        state: str | None = None,
        live: Live = True,
    ) -> None:
        start = starting_at(offset, state).position
        self.closed = False
        self.offset = start.offset
        self._source = source
        self._url = source.url
        self._live = live
        self._feed = FrameFeed(start)
        self._position = start
        self._begun = False
        self._closing = False
        # Created here, so that wrong arguments are reported at once.
        self._reading = Reading(source.calls, self._url, offset=start.offset, live=live)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the read and close its connection; leaving the block does the same."""
        self._closing = True
        await self._reading.aclose()

    @property
    def state(self) -> str:
        """The exact position after the last frame returned, for a later read."""
        return ReadingState(self._position).text()

    async def __aiter__(self) -> AsyncIterator[tuple[Frame, str]]:
        async with aclosing(self.placed()) as frames:
            async for placed in frames:
                yield placed.frame, placed.offset

    async def placed(self) -> AsyncGenerator[PlacedFrame, None]:
        """The frames with their exact positions."""
        if self._begun:
            raise InvalidRequestError("Iterate over a reading only once; resume from its state.")
        self._begun = True
        async with aclosing(self._batches()) as batches:
            async for batch in batches:
                for placed in self._feed.feed(batch):
                    # Before the yield: a caller that stops here has had this frame.
                    self._position, self.offset = placed.position, placed.offset
                    yield placed
                self._position, self.offset = self._feed.position, self._feed.offset
        if self._reading.closed and not self._feed.is_between_frames:
            raise BadAnswerError("The stream is closed in the middle of a frame.")
        self.closed = self._reading.closed

    async def _batches(self) -> AsyncGenerator[Batch, None]:
        """The stream's batches, renewing its URL when needed."""
        calls, failures = self._source.calls, 0
        while not self._closing:
            reading = self._reading
            try:
                async with aclosing(reading.batches()) as batches:
                    async for batch in batches:
                        failures = 0
                        yield batch
                return
            except SignatureExpiredError as error:
                if not self._source.can_renew(error):
                    raise
                failures += 1
                if failures > 1:
                    # The URL was fresh: the clocks of the servers may differ.
                    await calls.wait(failures - 1, error)
            self._url = await self._source.renew(self._url)
            self._reading = Reading(
                calls, self._url, offset=reading.offset, live=self._live, cursor=reading.cursor
            )
