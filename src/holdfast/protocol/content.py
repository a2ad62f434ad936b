r"""Content types, and how messages are laid out in a stream's bytes.

JSON streams store each message as its exact source bytes followed by 0x1E, which cannot occur in
JSON text because control characters must be escaped. A read only replaces the separators, and an
offset is a message boundary exactly if the byte before it is 0x1E. Numbers of any size (`1e999`)
and escaped UTF-16 pairs are accepted; lone surrogate escapes and bodies that are not UTF-8 are
rejected.

Length-prefixed messages (four bytes, big-endian) are a convention between the clients of a byte
stream. The server does not know it: an append or a response may hold several messages, or a part
of one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, TypeVar

import msgspec

from holdfast.errors import (
    BadAnswerError,
    HoldfastError,
    InvalidJsonError,
    InvalidRequestError,
    PayloadTooLargeError,
)

T = TypeVar("T")
DEFAULT: Final = "application/octet-stream"
JSON: Final = "application/json"
CONTENT_TYPE_BYTES_MAX: Final = 255
CHARACTER_BYTES_MAX: Final = 4
_MEDIA: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+/[!#$%&'*+.^_`|~0-9a-z-]+")

SEPARATOR: Final = b"\x1e"
SEPARATOR_BYTE: Final = 0x1E
MESSAGES_MAX: Final = 200_000
_WHITE_SPACE: Final = b" \t\r\n"

PREFIX_BYTES: Final = 4
# A longer length means that the stream is not length-prefixed at all.
MESSAGE_BYTES_MAX: Final = 256 * 1024 * 1024

_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_value = msgspec.json.Decoder(msgspec.Raw).decode


# There are few content types and many streams: streams of one type share one string.
@lru_cache(maxsize=1024)
def parse_content_type(raw: bytes) -> str:
    """Check a Content-Type header and return it unchanged, parameters included."""
    text = raw.decode("latin-1").strip()
    if not _MEDIA.fullmatch(media_type(text)) or not text.isprintable() or not text.isascii():
        raise InvalidRequestError(f"Malformed Content-Type {text[:60]!r}: expected type/subtype.")
    if len(text) > CONTENT_TYPE_BYTES_MAX:
        raise InvalidRequestError(f"Content-Type is longer than {CONTENT_TYPE_BYTES_MAX} bytes.")
    return text


@lru_cache(maxsize=1024)
def media_type(content_type: str) -> str:
    """The lower-case type without parameters, by which appends are compared."""
    return content_type.partition(";")[0].strip().lower()


def is_text(media: str) -> bool:
    """Whether SSE carries this media type as text rather than base64."""
    return media == JSON or media.startswith("text/")


def cut_text(data: bytes, at: int, bytes_max: int) -> int:
    """Where to cut UTF-8 text that starts at byte `at`, between characters, after at least one.

    CR LF counts as one character: cut in two, it would be two line ends in Server-Sent Events.
    """
    cut = min(at + max(bytes_max, CHARACTER_BYTES_MAX), len(data))
    if cut == len(data):
        return cut
    for shorter in range(cut, max(cut - CHARACTER_BYTES_MAX, at), -1):
        if data[shorter] & 0xC0 != 0x80 and data[shorter - 1 : shorter + 1] != b"\r\n":
            return shorter
    return cut


def decode_request(decode: Callable[[bytes], T], body: bytes, failure: type[HoldfastError]) -> T:
    """Decode the JSON body of a request; raises `failure` whatever is wrong with the body."""
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise failure(f"Malformed request: {error}.") from None


def store_form(body: bytes) -> bytes:
    """Turn a JSON request body into stored bytes; the elements of an array become messages.

    An empty array gives empty bytes; the caller decides whether that is allowed.
    """
    try:
        if not body.isascii():
            body.decode()
        stripped = body.lstrip(_WHITE_SPACE)
        if stripped[:1] != b"[":
            return bytes(_decode_value(body)) + SEPARATOR
        messages = _decode_array(body)
    except UnicodeDecodeError as error:
        raise InvalidJsonError(f"The body is not UTF-8: {error}.") from None
    except RecursionError:
        raise InvalidJsonError("The JSON is nested too deeply.") from None
    except msgspec.DecodeError as error:
        raise InvalidJsonError(f"The body is not valid JSON: {error}.") from None
    if not messages:
        return b""
    if len(messages) > MESSAGES_MAX:
        raise PayloadTooLargeError(
            f"The array has {len(messages)} messages; one append takes at most {MESSAGES_MAX}."
        )
    return SEPARATOR.join([bytes(message) for message in messages]) + SEPARATOR


def array_form(stored: bytes) -> bytes:
    """Turn stored messages into the JSON array of a response."""
    return b"[" + stored[:-1].replace(SEPARATOR, b",") + b"]"


def frame(message: bytes) -> bytes:
    """Prefix a message with its length."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise InvalidRequestError(f"A framed message has at most {MESSAGE_BYTES_MAX} bytes.")
    return len(message).to_bytes(PREFIX_BYTES, "big") + message


def frame_all(messages: Iterable[bytes]) -> bytes:
    return b"".join([frame(message) for message in messages])


class Unframer:
    """Splits length-prefixed bytes, fed in pieces of any size, into messages."""

    __slots__ = ("_needed", "_rest", "pending_bytes")

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        # Bytes held of an unfinished message, and the number at which parsing can continue.
        self.pending_bytes = 0
        self._needed = PREFIX_BYTES

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the messages that this piece completes."""
        self.pending_bytes += len(piece)
        self._rest.append(piece)
        if self.pending_bytes < self._needed:
            return []
        buffer = piece if len(self._rest) == 1 else b"".join(self._rest)
        self._needed = PREFIX_BYTES
        messages = []
        at, size = 0, len(buffer)
        while size - at >= PREFIX_BYTES:
            length = int.from_bytes(buffer[at : at + PREFIX_BYTES], "big")
            if length > MESSAGE_BYTES_MAX:
                raise BadAnswerError(
                    f"A message of {length} bytes: the stream is not framed by lengths, "
                    "or the read started in the middle of a message."
                )
            end = at + PREFIX_BYTES + length
            if end > size:
                self._needed = end - at
                break
            messages.append(buffer[at + PREFIX_BYTES : end])
            at = end
        self._rest = [buffer[at:]]
        self.pending_bytes = size - at
        return messages
