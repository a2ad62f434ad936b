"""Names of streams and object stores, and how URL paths map to stream names.

A stream's name is one string, `bucket/id`; buckets contain no slash. On the flat surface the first
path segment is the bucket and the rest, slashes included, the id; a path of one segment is in the
bucket `_default`, so `a` and `_default/a` name the same stream. The bucketed surface has stricter
rules; a stream whose bucket or id breaks them can be reached on the flat surface only.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

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
# Where the proxy is mounted.
PROXY_PATH: Final = b"/v1/proxy"
PROXY_STREAMS: Final = f"{PROXY_BUCKET}/"
# The parts of batches that are not published yet.
PARTS_BUCKET: Final = "__parts"
PARTS: Final = f"{PARTS_BUCKET}/"
# Streams that no pattern matches.
HIDDEN_STREAMS: Final = (PROXY_STREAMS, PARTS)
NAME_BYTES_MAX: Final = 1024
# For names on the bucketed surface, including bucket and slash.
BUCKETED_NAME_BYTES_MAX: Final = 122
# Subtrees of the flat surface that are not streams.
RESERVED_BUCKETS: Final = frozenset({SUBSCRIPTIONS, PROXY_BUCKET, PARTS_BUCKET})
# Bucket ids that are routes, or whose streams the server creates.
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
    """Parse the percent-encoded path after `/v1/stream/`.

    `reserved` is a reserved bucket that is allowed here.
    """
    return flat_name(decode_path(raw), reserved=reserved)


def flat_name(text: str, *, reserved: str = "") -> str:
    """Parse the decoded path after `/v1/stream/`, as it appears in headers and bodies."""
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
    """The error for a missing stream; proxy streams have their own error code."""
    if name.startswith(PROXY_STREAMS):
        return ProxyStreamNotFoundError(name.removeprefix(PROXY_STREAMS))
    return StreamNotFoundError(name)


def check_bucket_id(bucket_id: str, *, creating: bool = False, reserved: str = "") -> None:
    """Raise unless this is a valid bucket id on the bucketed surface."""
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
    """Raise unless this is a valid stream id on the bucketed surface."""
    if not stream_id or ".." in stream_id or stream_id == ".":
        raise InvalidStreamIdError("A stream id must not be empty, '.', or hold '..'.")
    if stream_id in _RESERVED_IDS:
        raise InvalidStreamIdError(f"The stream id {stream_id!r} is reserved.")
    if len(bucket_id) + 1 + len(stream_id.encode()) > BUCKETED_NAME_BYTES_MAX:
        raise InvalidStreamIdError(
            f"The path {{bucket}}/{{stream}} is longer than {BUCKETED_NAME_BYTES_MAX} bytes."
        )


def decode_segment(raw: bytes) -> str:
    """Decode one percent-encoded path segment, which must not contain a slash."""
    decoded = unquote_to_bytes(raw) if b"%" in raw else raw
    if b"/" in decoded:
        raise InvalidStreamIdError("An id must not hold a slash, not even an encoded one.")
    return _text(decoded)


def decode_path(raw: bytes) -> str:
    """Decode a percent-encoded path; check its length, encoding, NULs and dot segments."""
    return check_path(unquote_to_bytes(raw) if b"%" in raw else raw)


def check_path(decoded: bytes) -> str:
    """Check a path that is not percent-encoded, as `decode_path` does."""
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


def clean_store(text: str) -> str:
    """Normalise an object store's address: a path, or a URL of a known scheme without secrets."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text) is None:
        return text
    url = urlsplit(text)
    if url.scheme == "file" and url.netloc in {"", "localhost"} and url.path.startswith("/"):
        return text
    plain = re.fullmatch(r"(s3|gs|az)://[\w.-]+(/[^?#\s]*)?", text, re.ASCII)
    if plain is None or re.search(r"/\.{0,2}/", f"{url.path.rstrip('/')}/"):
        raise ValueError(
            "expected a path, file:///path, s3://bucket/prefix, gs://bucket/prefix "
            "or az://container/prefix"
        )
    return text.rstrip("/")


def clean_endpoint(text: str) -> str:
    """Normalise the URL of an S3 server; it may be empty."""
    if not text:
        return text
    try:
        url = urlsplit(text)
        valid = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:  # the port is not a number
        valid = False
    if not valid or not re.fullmatch(r"https?://[\w.:\[\]-]+(/[\w./-]*)?", text, re.ASCII):
        raise ValueError("expected http://HOST[:PORT] or https://HOST[:PORT]")
    return text.rstrip("/")
