"""Responses from the messages of the proxy's streams; runs on executors.

Open responses are stored with the table, in a file that is named after the cursor for which it is
true, and that is written before the table is committed at that cursor. So the file exists whenever
the table is at the cursor, and a file without a commit is ignored.

Rules for reading a stream:

- A stream with open responses is read again from a boundary between frames up to where it was read
  before (`again`); of these frames only those of open responses count. Then come new messages
  (`take`).
- A message that does not start where the previous one ended belongs to another stream of the same
  name, which was created after the first was deleted, or follows a loss. Reading starts anew, and
  responses that were open stay open for ever. Frames of responses that began earlier are ignored.
- Bytes that are not frames end the reading of a stream for good: it is unknown where the next frame
  would begin.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import msgspec

from holdfast.errors import BadAnswerError, ObjectMissingError, StoreError
from holdfast.protocol.frames import (
    DATA,
    ERROR,
    OUTCOMES,
    START,
    TERMINAL,
    Frame,
    FrameParser,
    Outcome,
    ResponseOrder,
    StartInfo,
    decode_error,
    decode_start,
)
from holdfast.protocol.llm_events import ModelResponse, response_reader
from holdfast.spark.archiving.layout import CONTROL
from holdfast.spark.archiving.place import TablePlace
from holdfast.spark.archiving.table import BEGINNING

_OPEN: Final = f"{CONTROL}/open/"


class OpenResponse(msgspec.Struct, frozen=True):
    response_id: int
    started_at_ms: int
    status: int | None
    # The boundary between frames from which on it can be read again.
    boundary: int
    # Of the body so far.
    size_bytes: int
    checksum: int


class OpenStream(msgspec.Struct, frozen=True):
    """A stream that has open responses, or ends within a frame."""

    stream_id: str
    # The boundary from which on to read it again, and the end of what was read.
    start: int
    end: int
    responses: list[OpenResponse]
    # From there on its bytes are not frames, and no more responses are found in it.
    damaged: bool = False


_decode: Final = msgspec.json.Decoder(list[OpenStream]).decode


def read_open(place: TablePlace, until: str) -> list[OpenStream]:
    """The streams with open responses at a table's position."""
    if until == BEGINNING:
        return []
    try:
        return _decode(place.objects.read(_name(until)))
    except (ObjectMissingError, msgspec.MsgspecError) as error:
        raise StoreError(
            f"{_name(until)} of the table at {place.name} is missing or damaged: {error}"
        ) from None


def write_open(place: TablePlace, until: str, streams: Iterable[OpenStream]) -> None:
    """Store the streams with open responses at the cursor that is committed next."""
    ordered = sorted(streams, key=lambda each: each.stream_id)
    place.objects.put(_name(until), msgspec.json.encode(ordered))


def forget_before(place: TablePlace, until: str) -> None:
    """Remove the files for earlier cursors. Later ones may belong to another run."""
    for each in list(place.objects.list(_OPEN)):
        if each.name < _name(until):
            place.objects.remove(each.name)


def _name(until: str) -> str:
    return f"{_OPEN}{until}.json"


@dataclass(frozen=True, slots=True)
class TranscribedResponse:
    """A response that has ended, or will never end."""

    stream_id: str
    response_id: int
    started_at_ms: int
    ended_at_ms: int | None
    outcome: Outcome
    # None where the Start frame cannot be read, or is deleted_response.
    status: int | None
    headers: dict[str, str] | None
    size_bytes: int
    # As much as is kept of it; None if it is deleted_response.
    body: bytes | None
    error_code: str | None = None
    error_message: str | None = None
    answer: ModelResponse | None = None

    @property
    def held_bytes(self) -> int:
        """The approximate size in memory."""
        text = self.answer.text if self.answer else ""
        return len(self.body or b"") + len(text) + 1024


class ResponseBuilder:
    """A response in progress."""

    def __init__(
        self, frame: Frame, started_at_ms: int, boundary: int, body_bytes_max: int
    ) -> None:
        self.response_id = frame.response_id
        self.started_at_ms = started_at_ms
        self.boundary = boundary
        self._start = _start_of(frame)
        self._room = body_bytes_max
        self._body: list[bytes] = []
        self._size_bytes = 0
        self._checksum = 0
        self._reader = response_reader(self._start.headers) if self._start else None

    def add(self, data: bytes) -> None:
        self._size_bytes += len(data)
        self._checksum = crc32(data, self._checksum)
        if self._room > 0 and data:
            self._body.append(data[: self._room])
            self._room -= len(self._body[-1])
        if self._reader is not None:
            self._reader.feed(data)

    def so_far(self) -> OpenResponse:
        """What the next run has to know."""
        status = self._start.status if self._start else None
        return OpenResponse(
            self.response_id,
            self.started_at_ms,
            status,
            self.boundary,
            self._size_bytes,
            self._checksum,
        )

    def end(
        self, stream_id: str, frame: Frame | None = None, at_ms: int | None = None
    ) -> TranscribedResponse:
        """The response with its last frame; without one it stays open for ever."""
        outcome = Outcome.OPEN if frame is None else OUTCOMES[frame.type]
        code, message = _error_of(frame)
        return TranscribedResponse(
            stream_id,
            self.response_id,
            self.started_at_ms,
            at_ms,
            outcome,
            self._start.status if self._start else None,
            self._start.headers if self._start else None,
            self._size_bytes,
            b"".join(self._body),
            code,
            message,
            self._reader.response() if self._reader is not None else None,
        )


def deleted_response(stream_id: str, response: OpenResponse) -> TranscribedResponse:
    """A response whose stream was deleted before it ended."""
    return TranscribedResponse(
        stream_id,
        response.response_id,
        response.started_at_ms,
        None,
        Outcome.OPEN,
        response.status,
        None,
        response.size_bytes,
        None,
    )


def _start_of(frame: Frame) -> StartInfo | None:
    try:
        return decode_start(frame.payload)
    except BadAnswerError:
        return None


def _error_of(frame: Frame | None) -> tuple[str | None, str | None]:
    if frame is None or frame.type != ERROR:
        return None, None
    try:
        found = decode_error(frame.payload)
    except BadAnswerError:
        return None, None
    return found.code, found.message


@dataclass(frozen=True)
class StreamDamage:
    """A stream whose bytes are not frames, from a message on, and why."""

    stream_id: str
    offset: str
    why: str


class StreamTranscript:
    """Reads a stream message by message; `known` is what an earlier run stored."""

    def __init__(
        self, stream_id: str, body_bytes_max: int, known: OpenStream | None = None
    ) -> None:
        self._stream_id = stream_id
        self._body_bytes_max = body_bytes_max
        self._known = known
        self._open: dict[int, ResponseBuilder] = {}
        self._is_damaged = False
        self.damage: StreamDamage | None = None
        if known is None:
            self._begin(-1)
        else:
            self._begin(known.start)
            if known.damaged:
                self._at, self._is_damaged, self._known = known.end, True, None

    @property
    def missing(self) -> tuple[int, int] | None:
        """The range that has to be read again, or None."""
        return None if self._known is None else (self._at, self._known.end)

    def again(self, payload: bytes) -> None:
        """Take bytes that were read before."""
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
                    self._open[frame.response_id] = ResponseBuilder(
                        frame, one.started_at_ms, one.boundary, self._body_bytes_max
                    )
                elif frame.type == DATA and (found := self._open.get(frame.response_id)):
                    found.add(frame.payload)
        except BadAnswerError:
            # These were frames the first time, so this is another stream.
            self._open = {}

    def take(
        self, offset: int, next_offset: int, payload: bytes, at_ms: int
    ) -> list[TranscribedResponse]:
        """Take the next message; returns the responses that end with it."""
        ended: list[TranscribedResponse] = []
        if self._known is not None:
            if offset != self._known.end or not self._is_the_same(self._known):
                ended += [deleted_response(self._stream_id, each) for each in self._known.responses]
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
                self.damage = StreamDamage(self._stream_id, f"{offset:020d}", error.message)
                self._is_damaged = True
                ended += self._left_open()
        return ended

    def left(self) -> OpenStream | None:
        """What the next run has to know, or None."""
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
        """Whether everything that was read again equals what was read before."""
        found = {each.response_id: each.so_far() for each in self._open.values()}
        return self._at == known.end and found == {x.response_id: x for x in known.responses}

    def _begin(self, offset: int) -> None:
        self._base = self._at = offset
        self._parser = FrameParser()
        self._order = ResponseOrder(is_whole=False)
        self._is_damaged = False

    def _new(self, payload: bytes, at_ms: int, ended: list[TranscribedResponse]) -> None:
        boundary = self._base + self._parser.boundary
        for frame in self._parser.feed(payload):
            self._order.take(frame)
            if frame.type == START:
                self._open[frame.response_id] = ResponseBuilder(
                    frame, at_ms, boundary, self._body_bytes_max
                )
            elif frame.response_id not in self._open:
                continue
            elif frame.type == DATA:
                self._open[frame.response_id].add(frame.payload)
            elif frame.type in TERMINAL:
                found = self._open.pop(frame.response_id)
                ended.append(found.end(self._stream_id, frame, at_ms))

    def _left_open(self) -> list[TranscribedResponse]:
        """Take the open responses, which will never end."""
        found = [each.end(self._stream_id) for each in self._open.values()]
        self._open = {}
        return found
