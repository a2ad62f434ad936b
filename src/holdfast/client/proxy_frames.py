"""The batches of a proxy stream cut into frames, each with the place to go on behind it.

Rules:

- A `Position` is exact: whoever goes on there loses nothing of what had not been handed out, and
  sees nothing again. In the middle of a frame that takes the parser's state as well.
- Where the server counts offsets in bytes every place has one of its own. Elsewhere only the ends
  of answers have: then a position is so many bytes behind the beginning of an answer.
- The offset beside a frame is one at which a read can begin with nothing else known: behind the
  frame, or before it as long as it is not complete.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from holdfast.client.messages import Batch
from holdfast.errors import InvalidRequestError
from holdfast.protocol.frames import HEAD, Frame, FrameParser, ParserState, StartInfo
from holdfast.protocol.headers import START

BETWEEN_FRAMES: Final = ParserState()
DIGITS_MAX: Final = 40


class Position(msgspec.Struct, frozen=True, array_like=True):
    """A place in a proxy stream: bytes behind an offset, and what the parser was in the middle of.

    Before it so many bytes of an answer from this offset on were taken.
    """

    offset: str = START
    skip: int = 0
    parser: ParserState = BETWEEN_FRAMES

    @property
    def order(self) -> tuple[str, int]:
        """By this, positions that the server has told of sort."""
        return self.offset, self.skip


class Saved(msgspec.Struct, frozen=True, array_like=True):
    """What `state` of a reading holds, as text that can be kept."""

    position: Position = Position()
    # Of one response: how it began, if that was read before.
    start: StartInfo | None = None
    # Of its events: the beginning of one, and how many behind it were handed out.
    unfinished: bytes = b""
    events: int = 0

    def text(self) -> str:
        """As text."""
        return msgspec.json.encode(self).decode()


_decode_saved = msgspec.json.Decoder(Saved).decode


def starting_at(offset: str, state: str | None) -> Saved:
    """Where to begin: a state that was saved, or an offset between two frames."""
    if state is None:
        return Saved(Position(offset))
    try:
        return _decode_saved(state)
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise InvalidRequestError(
            "This is no state that a reading of a proxy stream has given out."
        ) from None


class Placed(NamedTuple):
    """A frame, an offset at which a read can begin again, and exactly where it leaves off."""

    frame: Frame
    offset: str
    position: Position


class FrameFeed:
    """Takes the batches of one read, in order, from a position on."""

    def __init__(self, position: Position) -> None:
        self._parser = FrameParser(position.parser)
        self._skip = position.skip
        # Behind everything that was fed; `offset` is where a read can begin again.
        self.position = position
        is_between = position.parser == BETWEEN_FRAMES and not position.skip
        self.offset = position.offset if is_between else START

    @property
    def is_between_frames(self) -> bool:
        """Whether everything so far was whole frames."""
        return self._parser.is_between_frames

    def feed(self, batch: Batch) -> list[Placed]:
        """The frames that this batch completes, and the part of a Data frame that it holds."""
        parser, before = self._parser, self._parser.state()
        passed = min(self._skip, len(batch.data))
        self._skip -= passed
        frames = parser.feed(batch.data[passed:])
        ends = _ends(before, frames)
        counts = _counts_bytes(batch)
        placed: list[Placed] = []
        for frame, end in zip(frames[:-1], ends[:-1], strict=True):
            consumed = passed + end - before.taken
            if counts:
                self.offset = _counted_back(batch, len(batch.data) - consumed)
                position = Position(self.offset)
            else:
                position = Position(batch.offset, consumed)
            placed.append(Placed(frame, self.offset, position))
        self._note_end(batch, counts=counts)
        if frames:
            placed.append(Placed(frames[-1], self.offset, self.position))
        return placed

    def _note_end(self, batch: Batch, *, counts: bool) -> None:
        """Everything of the batch was taken."""
        parser = self._parser
        state = BETWEEN_FRAMES if parser.is_between_frames else parser.state()
        self.position = Position(batch.next_offset, self._skip, state)
        if counts:
            self.offset = _counted_back(batch, parser.state().taken - parser.boundary)
        elif parser.is_between_frames and not self._skip:
            self.offset = batch.next_offset


def _ends(before: ParserState, frames: list[Frame]) -> list[int]:
    """Where each frame ends, counted as the parser counts."""
    # What was held of the first one lies before; its head does, too, if it was read.
    at = before.taken - len(before.held) - (HEAD.size if before.type else 0)
    ends = []
    for frame in frames:
        at += HEAD.size + len(frame.payload)
        ends.append(at)
    return ends


def _counts_bytes(batch: Batch) -> bool:
    """Whether this batch's offsets are as far apart as its bytes; frames are longer than one."""
    start = 0 if batch.offset == START else number_in(batch.offset)
    return (
        bool(batch.data) and start >= 0 and number_in(batch.next_offset) == start + len(batch.data)
    )


def number_in(offset: str) -> int:
    """The number that an offset is; -1 if it is none."""
    is_number = offset and len(offset) <= DIGITS_MAX and offset.isascii() and offset.isdigit()
    return int(offset) if is_number else -1


def _counted_back(batch: Batch, size_bytes: int) -> str:
    """The offset so many bytes before where the batch ends."""
    width = len(batch.next_offset)
    return f"{max(0, int(batch.next_offset) - size_bytes):0{width}d}"
