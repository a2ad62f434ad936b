"""Offsets: byte positions in the stored form of a stream, printed as 20 zero-padded digits.

So they sort as text, and never equal the sentinels `-1` (the start) and `now` (the tail).
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import InvalidOffsetError

START: Final = "-1"
NOW: Final = "now"
DIGITS: Final = 20
OFFSET_MAX: Final = 2**63 - 1


def format_offset(offset: int) -> bytes:
    """The wire form of a byte position."""
    return b"%020d" % offset


def parse_offset(text: str) -> int:
    """The byte position a client gave back; the sentinels are not for this function."""
    if len(text) != DIGITS or not (text.isascii() and text.isdigit()):
        raise InvalidOffsetError(
            f"Malformed offset {text[:40]!r}: give back a Stream-Next-Offset (20 digits) "
            f"unchanged, or {START} for the start, or {NOW} for the tail."
        )
    offset = int(text)
    if offset > OFFSET_MAX:
        raise InvalidOffsetError(f"Malformed offset {text!r}: larger than any offset can be.")
    return offset
