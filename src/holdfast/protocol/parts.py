"""The content of a part: appends to many streams, which a batch publishes together.

A part is a sequence of appends, in the order in which they are to be published:

    name length u16, messages u32, body length u32, name, lengths, body

For a byte stream `lengths` has a u32 for each message. A JSON append has none, and 0 as the number
of its messages: in a request its body is JSON, and in a stored part what the stream will store.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from sys import maxsize
from typing import Final, NamedTuple

from holdfast.errors import InvalidRequestError

# In a request, which the server checks in one go.
APPENDS_MAX: Final = 10_000
_HEAD: Final = Struct(">HII")
_LENGTH_BYTES: Final = 4


class PartAppend(NamedTuple):
    """An append to one stream; `lengths` is None for JSON."""

    name: str
    body: bytes
    lengths: Sequence[int] | None = None


def encode_append(append: PartAppend) -> bytes:
    name, lengths = append.name.encode(), append.lengths or ()
    packed = b"" if not lengths else b"".join([each.to_bytes(_LENGTH_BYTES) for each in lengths])
    return b"".join(
        [_HEAD.pack(len(name), len(lengths), len(append.body)), name, packed, append.body]
    )


def split_appends(data: bytes, most: int = maxsize) -> tuple[list[PartAppend], int]:
    """The whole appends at the beginning of the data, up to so many, and where the rest begins."""
    appends: list[PartAppend] = []
    at, size = 0, len(data)
    while size - at >= _HEAD.size and len(appends) < most:
        name_bytes, messages, body_bytes = _HEAD.unpack_from(data, at)
        start = at + _HEAD.size + name_bytes
        body_at = start + messages * _LENGTH_BYTES
        end = body_at + body_bytes
        if end > size:
            break
        lengths = Struct(f">{messages}I").unpack_from(data, start) if messages else None
        if lengths is not None and (sum(lengths) != body_bytes or 0 in lengths):
            raise InvalidRequestError("The lengths of an append do not add up to its body.")
        try:
            name = data[start - name_bytes : start].decode()
        except UnicodeDecodeError:
            raise InvalidRequestError("The name of a stream is not UTF-8.") from None
        appends.append(PartAppend(name, data[body_at:end], lengths))
        at = end
    return appends, at
