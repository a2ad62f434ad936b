"""Content types: what they mean for a stream's messages and its SSE encoding."""

from __future__ import annotations

import re
from typing import Final

from holdfast.errors import InvalidRequestError

DEFAULT: Final = "application/octet-stream"
JSON: Final = "application/json"
CONTENT_TYPE_BYTES_MAX: Final = 255
_MEDIA: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+/[!#$%&'*+.^_`|~0-9a-z-]+")


def parse_content_type(raw: bytes) -> str:
    """A content type as it was sent, checked to be printable and of the form type/subtype."""
    text = raw.decode("latin-1").strip()
    if not _MEDIA.fullmatch(media_type(text)) or not text.isprintable() or not text.isascii():
        raise InvalidRequestError(f"Malformed Content-Type {text[:60]!r}: expected type/subtype.")
    if len(text) > CONTENT_TYPE_BYTES_MAX:
        raise InvalidRequestError(f"Content-Type is longer than {CONTENT_TYPE_BYTES_MAX} bytes.")
    return text


def media_type(content_type: str) -> str:
    """The type alone, lower-cased and without parameters: what appends are compared by."""
    return content_type.partition(";")[0].strip().lower()


def is_text(media: str) -> bool:
    """Whether SSE carries this media type as text rather than base64."""
    return media == JSON or media.startswith("text/")
