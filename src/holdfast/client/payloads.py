"""What applications append, as the bytes that go into a request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from holdfast.errors import InvalidJsonError, InvalidRequestError
from holdfast.protocol.content import JSON, frame

Framing = Literal["length-prefixed"]
LENGTH_PREFIXED: Final = "length-prefixed"

_encode = msgspec.json.Encoder().encode
_decode_value = msgspec.json.Decoder(msgspec.Raw).decode


def check_framing(framing: str | None) -> None:
    """Raise unless this is a framing that is known."""
    if framing not in {None, LENGTH_PREFIXED}:
        raise InvalidRequestError(f"Unknown framing {framing!r}: use {LENGTH_PREFIXED!r} or None.")


def message_bytes(value: Any, media: str, framing: Framing | None) -> bytes:
    """One message: on a JSON stream any value (bytes are JSON text already), else bytes or str."""
    if framing is not None and media == JSON:
        raise InvalidRequestError("A JSON stream has messages by itself: it cannot be framed.")
    if isinstance(value, bytes | bytearray | memoryview):
        encoded = bytes(value)
        if media == JSON:
            return _one_value(encoded)
    elif media == JSON:
        try:
            return _encode(value)
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise InvalidJsonError(f"The message cannot be written as JSON: {error}.") from None
    elif isinstance(value, str):
        encoded = value.encode()
    else:
        raise TypeError(
            f"A message of a {media or 'byte'} stream is bytes or str, not {type(value).__name__}."
        )
    return encoded if framing is None else frame(encoded)


def _one_value(text: bytes) -> bytes:
    """JSON text, which is to be one value: `1,2` would become two messages."""
    try:
        return bytes(_decode_value(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidJsonError(f"The message is not JSON: {error}.") from None


def request_body(messages: Iterable[bytes], media: str) -> bytes:
    """The body of one append that holds these messages.

    On a JSON stream always an array: the server takes one level of it away, so that a message that
    is an array itself stays one message.
    """
    if media == JSON:
        return b"[" + b",".join(messages) + b"]"
    return b"".join(messages)
