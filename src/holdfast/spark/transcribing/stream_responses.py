"""The responses of one stream, from its messages in their order.

Rules:

- A stream whose state was kept is read again from a boundary between frames up to where it was
  read before (`again`); of these frames only those of responses that were open count. What follows
  is new (`take`).
- A message that does not begin where the one before it ended is of another stream of the same name,
  made after the first was deleted, or follows something that is lost: reading begins anew, and what
  was open stays so for ever. Frames of responses that did not begin here are passed over.
- Bytes that are no frames end the reading of a stream for good: nobody can tell where the next
  frame would begin.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import BadAnswerError
from holdfast.protocol.frames import DATA, START, TERMINAL, FrameParser, ResponseOrder
from holdfast.spark.transcribing.collecting import Collected, Response, gone
from holdfast.spark.transcribing.open_streams import OpenStream


@dataclass(frozen=True)
class Damage:
    """A stream whose bytes are no frames: from which of its messages on, and what is wrong."""

    stream_id: str
    offset: str
    why: str


class StreamResponses:
    """Reads a stream message by message; `known` is what an earlier run left of it."""

    def __init__(
        self, stream_id: str, body_bytes_max: int, known: OpenStream | None = None
    ) -> None:
        self._stream_id = stream_id
        self._body_bytes_max = body_bytes_max
        self._known = known
        self._open: dict[int, Collected] = {}
        self._is_damaged = False
        self.damage: Damage | None = None
        if known is None:
            self._begin(-1)
        else:
            self._begin(known.start)
            if known.damaged:
                self._at, self._is_damaged, self._known = known.end, True, None

    @property
    def missing(self) -> tuple[int, int] | None:
        """From where to where the stream has to be read again; None if nothing is missing."""
        return None if self._known is None else (self._at, self._known.end)

    def again(self, payload: bytes) -> None:
        """Take bytes that were read before, from the boundary on."""
        assert self._known is not None
        known = {each.response_id: each for each in self._known.responses}
        self._at += len(payload)
        try:
            for frame in self._parser.feed(payload):
                if frame.response_id not in known:
                    continue
                self._order.take(frame)
                if frame.type == START:
                    one = known[frame.response_id]
                    self._open[frame.response_id] = Collected(
                        frame, one.started_at_ms, one.boundary, self._body_bytes_max
                    )
                elif frame.type == DATA and (found := self._open.get(frame.response_id)):
                    found.add(frame.payload)
        except BadAnswerError:
            # These were frames when they were read the first time.
            self._open = {}

    def take(self, offset: int, next_offset: int, payload: bytes, at_ms: int) -> list[Response]:
        """Take the next message; the responses that are over with it."""
        ended: list[Response] = []
        if self._known is not None:
            if offset != self._known.end or not self._is_the_same(self._known):
                ended += [gone(self._stream_id, each) for each in self._known.responses]
                self._open = {}
                self._begin(-1)
            self._known = None
        if offset != self._at:
            ended += self._left_open()
            self._begin(offset)
        self._at = next_offset
        if not self._is_damaged:
            try:
                self._new(payload, at_ms, ended)
            except BadAnswerError as error:
                self.damage = Damage(self._stream_id, f"{offset:020d}", error.message)
                self._is_damaged = True
                ended += self._left_open()
        return ended

    def left(self) -> OpenStream | None:
        """What the next run has to know; None if that is nothing."""
        if self._known is not None:
            return self._known
        if self._is_damaged:
            return OpenStream(self._stream_id, self._at, self._at, [], damaged=True)
        if not self._open and self._parser.is_between_frames:
            return None
        boundary = self._base + self._parser.boundary
        start = min([boundary, *(each.boundary for each in self._open.values())])
        responses = [each.so_far() for each in self._open.values()]
        return OpenStream(self._stream_id, start, self._at, responses)

    def _is_the_same(self, known: OpenStream) -> bool:
        """Whether what was read again is what was read before, and all of it."""
        found = {each.response_id: each.so_far() for each in self._open.values()}
        return self._at == known.end and found == {x.response_id: x for x in known.responses}

    def _begin(self, offset: int) -> None:
        self._base = self._at = offset
        self._parser = FrameParser()
        self._order = ResponseOrder(is_whole=False)
        self._is_damaged = False

    def _new(self, payload: bytes, at_ms: int, ended: list[Response]) -> None:
        boundary = self._base + self._parser.boundary
        for frame in self._parser.feed(payload):
            self._order.take(frame)
            if frame.type == START:
                self._open[frame.response_id] = Collected(
                    frame, at_ms, boundary, self._body_bytes_max
                )
            elif frame.response_id not in self._open:
                continue
            elif frame.type == DATA:
                self._open[frame.response_id].add(frame.payload)
            elif frame.type in TERMINAL:
                found = self._open.pop(frame.response_id)
                ended.append(found.end(self._stream_id, frame, at_ms))

    def _left_open(self) -> list[Response]:
        """What will never end."""
        found = [each.end(self._stream_id) for each in self._open.values()]
        self._open = {}
        return found
