"""Stream names: a bucket and an id, and how URL paths map to them.

The flat surface takes the first path segment as the bucket and the rest, slashes included, as the
id; a path of one segment lives in the bucket `_default`. `a` and `_default/a` therefore name the
same stream. A name is kept as one string, `bucket/id`: a bucket never holds a slash.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote_to_bytes

from holdfast.errors import InvalidRequestError, NotFoundError

DEFAULT_BUCKET: Final = "_default"
NAME_BYTES_MAX: Final = 1024
# Sub-trees of the flat surface that are not streams.
RESERVED_BUCKETS: Final = frozenset({"__ds", "_proxy"})


def parse_flat_path(raw: bytes) -> str:
    """The stream name behind `/v1/stream/`, from the still percent-encoded rest of the path."""
    text = decode_path(raw)
    bucket, slash, stream_id = text.partition("/")
    if bucket in RESERVED_BUCKETS:
        raise NotFoundError(f"{bucket!r} is reserved and holds no streams of its own.")
    if not slash:
        bucket, stream_id = DEFAULT_BUCKET, text
    if not bucket or not stream_id:
        raise InvalidRequestError(
            "The stream's bucket or id is empty: use /v1/stream/{id} or /v1/stream/{bucket}/{id}."
        )
    return f"{bucket}/{stream_id}"


def decode_path(raw: bytes) -> str:
    """A percent-encoded path as text, checked for length, encoding, NUL and dot segments."""
    decoded = unquote_to_bytes(raw) if b"%" in raw else raw
    if len(decoded) > NAME_BYTES_MAX:
        raise InvalidRequestError(f"The path is longer than {NAME_BYTES_MAX} bytes.")
    try:
        text = decoded.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError("The path is not UTF-8.") from None
    if "\0" in text:
        raise InvalidRequestError("The path holds a NUL character.")
    if "." in text and any(part in {".", ".."} for part in text.split("/")):
        raise InvalidRequestError("The path holds a '.' or '..' segment.")
    return text
