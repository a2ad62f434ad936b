r"""JSON streams: messages in, arrays out, nothing parsed twice.

Each message is stored as its exact source bytes followed by 0x1E, which can occur nowhere in JSON
text (control characters must be escaped in strings). So a read only replaces the separators, and
an offset is a message boundary exactly if the byte before it is 0x1E.

What the validator accepts is accepted: numbers of any size (`1e999`) and any escaped UTF-16
pairs; lone surrogate escapes are refused, and so is a body that is not UTF-8.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.errors import InvalidJsonError, PayloadTooLargeError

SEPARATOR: Final = b"\x1e"
SEPARATOR_BYTE: Final = 0x1E
MESSAGES_MAX: Final = 200_000
_WHITE_SPACE: Final = b" \t\r\n"

_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_value = msgspec.json.Decoder(msgspec.Raw).decode


def store_form(body: bytes) -> bytes:
    """The stored form of one request's body: one level of array flattened into messages.

    An empty array gives empty bytes; whether that is allowed is the caller's business.
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
    """The JSON array that a read of these stored bytes answers with."""
    return b"[" + stored[:-1].replace(SEPARATOR, b",") + b"]"
