"""Stream names: a bucket and an id, and how URL paths map to them.

The flat surface takes the first path segment as the bucket and the rest, slashes included, as the
id; a path of one segment lives in the bucket `_default`. `a` and `_default/a` therefore name the
same stream. A name is kept as one string, `bucket/id`: a bucket never holds a slash. The bucketed
surface has rules of its own; a stream whose bucket or id breaks them is on the flat one only.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from holdfast.errors import (
    InvalidBucketError,
    InvalidRequestError,
    InvalidStreamIdError,
    NotFoundError,
    ProxyStreamNotFoundError,
    StreamNotFoundError,
)

DEFAULT_BUCKET: Final = "_default"
SUBSCRIPTIONS: Final = "__ds"
PROXY_BUCKET: Final = "_proxy"
PROXY_STREAMS: Final = f"{PROXY_BUCKET}/"
NAME_BYTES_MAX: Final = 1024
# On the bucketed surface, the bucket's id and the slash included.
BUCKETED_NAME_BYTES_MAX: Final = 122
# Sub-trees of the flat surface that are not streams.
RESERVED_BUCKETS: Final = frozenset({SUBSCRIPTIONS, PROXY_BUCKET})
# Ids that are routes, or whose streams are made by the server.
_NOT_TO_BE_CREATED: Final = RESERVED_BUCKETS | {
    DEFAULT_BUCKET,
    "cluster",
    "healthz",
    "metrics",
    "readyz",
}
_RESERVED_IDS: Final = frozenset({"streams"})
_BUCKET_ID: Final = re.compile(r"[a-z0-9_-]{4,64}")


def parse_flat_path(raw: bytes, *, reserved: str = "") -> str:
    """The stream name behind `/v1/stream/`, from the still percent-encoded rest of the path.

    `reserved` is a reserved bucket whose streams are meant nevertheless.
    """
    return flat_name(decode_path(raw), reserved=reserved)


def flat_name(text: str, *, reserved: str = "") -> str:
    """The stream name of a path below `/v1/stream/`, as it is written in headers and bodies."""
    bucket, slash, stream_id = text.partition("/")
    if bucket in RESERVED_BUCKETS and bucket != reserved:
        raise NotFoundError(f"{bucket!r} is reserved and holds no streams of its own.")
    if not slash:
        bucket, stream_id = DEFAULT_BUCKET, text
    if not bucket or not stream_id:
        raise InvalidRequestError(
            "The stream's bucket or id is empty: use /v1/stream/{id} or /v1/stream/{bucket}/{id}."
        )
    return f"{bucket}/{stream_id}"


def not_found(name: str) -> StreamNotFoundError:
    """There is no stream of this name; the proxy has a code of its own for that."""
    if name.startswith(PROXY_STREAMS):
        return ProxyStreamNotFoundError(name.removeprefix(PROXY_STREAMS))
    return StreamNotFoundError(name)


def check_bucket_id(bucket_id: str, *, creating: bool = False, reserved: str = "") -> None:
    """Raise unless this can be a bucket on the bucketed surface."""
    if not _BUCKET_ID.fullmatch(bucket_id):
        raise InvalidBucketError(
            f"The bucket id {bucket_id[:80]!r} is invalid: 4 to 64 lower-case letters, digits, "
            "'_' and '-'."
        )
    if creating and bucket_id in _NOT_TO_BE_CREATED:
        raise InvalidBucketError(f"The bucket id {bucket_id!r} is reserved.")
    if bucket_id in RESERVED_BUCKETS and bucket_id != reserved:
        raise NotFoundError(f"{bucket_id!r} is reserved and holds no streams of its own.")


def check_stream_id(bucket_id: str, stream_id: str) -> None:
    """Raise unless this can be a stream on the bucketed surface."""
    if not stream_id or ".." in stream_id or stream_id == ".":
        raise InvalidStreamIdError("A stream id must not be empty, '.', or hold '..'.")
    if stream_id in _RESERVED_IDS:
        raise InvalidStreamIdError(f"The stream id {stream_id!r} is reserved.")
    if len(bucket_id) + 1 + len(stream_id.encode()) > BUCKETED_NAME_BYTES_MAX:
        raise InvalidStreamIdError(
            f"The path {{bucket}}/{{stream}} is longer than {BUCKETED_NAME_BYTES_MAX} bytes."
        )


def decode_segment(raw: bytes) -> str:
    """One percent-encoded segment of a path as text, which holds no slash."""
    decoded = unquote_to_bytes(raw) if b"%" in raw else raw
    if b"/" in decoded:
        raise InvalidStreamIdError("An id must not hold a slash, not even an encoded one.")
    return _text(decoded)


def decode_path(raw: bytes) -> str:
    """A percent-encoded path as text, checked for length, encoding, NUL and dot segments."""
    decoded = unquote_to_bytes(raw) if b"%" in raw else raw
    if len(decoded) > NAME_BYTES_MAX:
        raise InvalidRequestError(f"The path is longer than {NAME_BYTES_MAX} bytes.")
    text = _text(decoded)
    if "." in text and any(part in {".", ".."} for part in text.split("/")):
        raise InvalidRequestError("The path holds a '.' or '..' segment.")
    return text


def _text(decoded: bytes) -> str:
    try:
        text = decoded.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError("The path is not UTF-8.") from None
    if "\0" in text:
        raise InvalidRequestError("The path holds a NUL character.")
    return text
