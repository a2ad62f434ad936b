"""Frames: the format in which a proxy stream stores the responses of upstream servers.

A frame is `type u8 | response id u32 | payload length u32 | payload`, big-endian. `S`tart and
`E`rror carry JSON, `D`ata carries bytes of the body, `C`omplete and `A`bort carry nothing. The
frames of one response are S, any number of D, then one of C, A or E. Frames of several responses
may be interleaved.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from holdfast.errors import BadAnswerError

START: Final = b"S"
DATA: Final = b"D"
COMPLETE: Final = b"C"
ABORT: Final = b"A"
ERROR: Final = b"E"
TERMINAL: Final = frozenset({COMPLETE, ABORT, ERROR})

HEAD: Final = Struct(">cII")
RESPONSE_ID_MAX: Final = 2**32 - 1
# The parser buffers Start and Error frames; a longer one means that the stream is damaged.
JSON_BYTES_MAX: Final = 1024 * 1024
_TYPES: Final = frozenset({START, DATA, *TERMINAL})


class Frame(NamedTuple):
    """A frame; the parser returns a Data frame in as many parts as it arrived in."""

    type: bytes
    response_id: int
    payload: bytes = b""


class StartInfo(msgspec.Struct, frozen=True):
    """The payload of a Start frame; header names are lower-case."""

    status: int
    headers: dict[str, str]


class ErrorInfo(msgspec.Struct, frozen=True):
    """The payload of an Error frame."""

    code: str
    message: str


_encode = msgspec.json.Encoder().encode
_decode_start = msgspec.json.Decoder(StartInfo).decode
_decode_error = msgspec.json.Decoder(ErrorInfo).decode


def encode_frame(kind: bytes, response_id: int, payload: bytes = b"") -> bytes:
    assert kind in _TYPES, kind
    assert 0 < response_id <= RESPONSE_ID_MAX, response_id
    return HEAD.pack(kind, response_id, len(payload)) + payload


def encode_start(response_id: int, status: int, headers: Mapping[str, str]) -> bytes:
    return encode_frame(START, response_id, _encode(StartInfo(status, dict(headers))))


def encode_error(response_id: int, code: str, message: str) -> bytes:
    return encode_frame(ERROR, response_id, _encode(ErrorInfo(code, message)))


def decode_start(payload: bytes) -> StartInfo:
    try:
        return _decode_start(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadAnswerError("A Start frame does not hold status and headers.") from None


def decode_error(payload: bytes) -> ErrorInfo:
    try:
        return _decode_error(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadAnswerError("An Error frame does not hold code and message.") from None


class ParserState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a parser, from which another one can continue with the next byte."""

    # Bytes parsed so far, and up to the last boundary between frames.
    taken: int = 0
    boundary: int = 0
    # An incomplete frame head or JSON payload.
    held: bytes = b""
    # The frame whose payload is being read, and how many bytes of it are missing.
    type: bytes = b""
    response_id: int = 0
    left: int = 0


class FrameParser:
    """Parses a stream fed in pieces of any size, from a frame boundary or a saved state on."""

    __slots__ = ("_boundary", "_held", "_left", "_response_id", "_taken", "_type")

    def __init__(self, state: ParserState | None = None) -> None:
        start = state or ParserState()
        self._taken = start.taken
        self._boundary = start.boundary
        self._held = bytearray(start.held)
        self._type = start.type
        self._response_id = start.response_id
        self._left = start.left

    @property
    def boundary(self) -> int:
        """The length of all complete frames: the position where a read can resume."""
        return self._boundary

    @property
    def is_between_frames(self) -> bool:
        return self._taken == self._boundary

    def state(self) -> ParserState:
        return ParserState(
            self._taken,
            self._boundary,
            bytes(self._held),
            self._type,
            self._response_id,
            self._left,
        )

    def feed(self, piece: bytes) -> list[Frame]:
        """Return the frames that this piece completes, and its part of an unfinished Data frame."""
        self._taken += len(piece)
        held = self._held
        if len(held) + len(piece) < self._needed():
            held += piece
            return []
        data = bytes(held + piece) if held else piece
        start = self._taken - len(data)
        frames: list[Frame] = []
        at, size = 0, len(data)
        while True:
            if not self._type:
                if size - at < HEAD.size:
                    break
                self._begin(*HEAD.unpack_from(data, at))
                at += HEAD.size
            if size - at < self._needed():
                break
            end = min(size, at + self._left)
            frames.append(Frame(self._type, self._response_id, data[at:end]))
            self._left -= end - at
            at = end
            if self._left:
                break
            self._type = b""
            self._boundary = start + at
        self._held = bytearray(data[at:])
        return frames

    def _needed(self) -> int:
        """The number of bytes that must be there before parsing can advance."""
        if not self._type:
            return HEAD.size
        # Body bytes are passed on at once, other payloads only whole.
        return min(self._left, 1) if self._type == DATA else self._left

    def _begin(self, kind: bytes, response_id: int, length: int) -> None:
        if kind not in _TYPES:
            raise BadAnswerError(
                f"Byte {kind!r} begins no frame: the stream is not a proxy's, or the read started "
                "in the middle of a frame."
            )
        if not response_id:
            raise BadAnswerError("A frame belongs to response 0, but they count from 1.")
        if kind in {COMPLETE, ABORT} and length:
            raise BadAnswerError(f"A frame {kind!r} has a payload, but must have none.")
        if kind in {START, ERROR} and length > JSON_BYTES_MAX:
            raise BadAnswerError(f"A frame {kind!r} holds more than {JSON_BYTES_MAX} bytes.")
        self._type, self._response_id, self._left = kind, response_id, length


class Outcome(Enum):
    """How a response ended."""

    COMPLETE = "complete"
    ABORTED = "aborted"
    FAILED = "failed"
    OPEN = "open"  # it has not ended


OUTCOMES = {COMPLETE: Outcome.COMPLETE, ABORT: Outcome.ABORTED, ERROR: Outcome.FAILED}


class ResponseOrder:
    """Checks that every response begins once, ends once, and has its data in between.

    With `is_whole` the stream is read from its very start; otherwise a read may begin in the
    middle of a response.
    """

    def __init__(self, *, is_whole: bool = True) -> None:
        self._is_whole = is_whole
        self.open: set[int] = set()
        self._ended: set[int] = set()

    def take(self, frame: Frame) -> None:
        """Raise BadAnswerError if this frame must not come next."""
        response_id = frame.response_id
        if frame.type == START:
            if response_id in self.open or response_id in self._ended:
                raise BadAnswerError(f"Response {response_id} has two Start frames.")
            self.open.add(response_id)
        elif response_id in self._ended:
            raise BadAnswerError(f"Response {response_id} has a frame after its end.")
        elif response_id not in self.open and self._is_whole:
            raise BadAnswerError(f"Response {response_id} has a frame before its Start frame.")
        if frame.type in TERMINAL:
            self.open.discard(response_id)
            self._ended.add(response_id)
