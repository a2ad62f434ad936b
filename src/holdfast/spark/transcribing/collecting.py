"""One response: its frames in, what the table says of it out."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from holdfast.errors import BadAnswerError
from holdfast.protocol.frames import (
    ERROR,
    OUTCOMES,
    Frame,
    Outcome,
    StartInfo,
    decode_error,
    decode_start,
)
from holdfast.protocol.llm_events import ModelResponse, response_reader
from holdfast.spark.transcribing.open_streams import OpenResponse


@dataclass(frozen=True, slots=True)
class Response:
    """A response that is over, or of which nothing more can come."""

    stream_id: str
    response_id: int
    started_at_ms: int
    ended_at_ms: int | None
    outcome: Outcome
    # None where the Start frame cannot be read, or is gone.
    status: int | None
    headers: dict[str, str] | None
    size_bytes: int
    # As much as is kept of it; None if it is gone.
    body: bytes | None
    error_code: str | None = None
    error_message: str | None = None
    answer: ModelResponse | None = None

    @property
    def held_bytes(self) -> int:
        """What it takes in memory, about."""
        text = self.answer.text if self.answer else ""
        return len(self.body or b"") + len(text) + 1024


class Collected:
    """A response as far as it came."""

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
        """Take the next part of the body."""
        self._size_bytes += len(data)
        self._checksum = crc32(data, self._checksum)
        if self._room > 0 and data:
            self._body.append(data[: self._room])
            self._room -= len(self._body[-1])
        if self._reader is not None:
            self._reader.feed(data)

    def so_far(self) -> OpenResponse:
        """What the next run has to know of it."""
        status = self._start.status if self._start else None
        return OpenResponse(
            self.response_id,
            self.started_at_ms,
            status,
            self.boundary,
            self._size_bytes,
            self._checksum,
        )

    def end(self, stream_id: str, frame: Frame | None = None, at_ms: int | None = None) -> Response:
        """What became of it, by its last frame; without one it stays open for ever."""
        outcome = Outcome.OPEN if frame is None else OUTCOMES[frame.type]
        code, message = _error_of(frame)
        return Response(
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


def gone(stream_id: str, response: OpenResponse) -> Response:
    """A response whose stream was deleted before it ended."""
    return Response(
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
