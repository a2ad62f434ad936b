"""Requests that are passed on to others: their methods, and fields as they are on the wire."""

from __future__ import annotations

import re
from typing import Final

# What an upstream may be asked with.
UPSTREAM_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# HTTP/2 would carry them, and whoever turns it into HTTP/1.1 would see another header.
CONTROL_CHARACTERS: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def text_of(value: bytes) -> str:
    """A field's value: text where it is UTF-8, else the bytes one by one."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def value_of(text: str) -> bytes:
    """Somebody else's text as a value of ours: it must not begin another field."""
    return CONTROL_CHARACTERS.sub(b" ", text.encode("utf-8", "replace"))
