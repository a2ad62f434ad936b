"""Content types: what they mean for a stream's messages and its SSE encoding."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from holdfast.errors import InvalidRequestError

DEFAULT: Final = "application/octet-stream"
JSON: Final = "application/json"
CONTENT_TYPE_BYTES_MAX: Final = 255
CHARACTER_BYTES_MAX: Final = 4
_MEDIA: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+/[!#$%&'*+.^_`|~0-9a-z-]+")


# There are few content types and many streams: those of one type share the same text.
@lru_cache(maxsize=1024)
def parse_content_type(raw: bytes) -> str:
    """A content type as it was sent, checked to be printable and of the form type/subtype."""
    text = raw.decode("latin-1").strip()
    if not _MEDIA.fullmatch(media_type(text)) or not text.isprintable() or not text.isascii():
        raise InvalidRequestError(f"Malformed Content-Type {text[:60]!r}: expected type/subtype.")
    if len(text) > CONTENT_TYPE_BYTES_MAX:
        raise InvalidRequestError(f"Content-Type is longer than {CONTENT_TYPE_BYTES_MAX} bytes.")
    return text


@lru_cache(maxsize=1024)
def media_type(content_type: str) -> str:
    """The type alone, lower-cased and without parameters: what appends are compared by."""
    return content_type.partition(";")[0].strip().lower()


def is_text(media: str) -> bool:
    """Whether SSE carries this media type as text rather than base64."""
    return media == JSON or media.startswith("text/")


def cut_text(data: bytes, at: int, bytes_max: int) -> int:
    """Where to cut text from byte `at` so that characters stay whole: at least one is given."""
    cut = min(at + max(bytes_max, CHARACTER_BYTES_MAX), len(data))
    if cut == len(data):
        return cut
    for shorter in range(cut, max(cut - CHARACTER_BYTES_MAX, at), -1):
        if data[shorter] & 0xC0 != 0x80:
            return shorter
    return cut
