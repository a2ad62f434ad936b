"""Cursors: interval numbers that keep a CDN from serving one cached live answer for ever."""

from __future__ import annotations

from typing import Final

EPOCH_MS: Final = 1_728_432_000_000  # 2024-10-09T00:00:00Z
INTERVAL_S: Final = 20
JITTER_S_MAX: Final = 3600
_DIGITS_MAX: Final = 18


def interval_at(now_ms: int) -> int:
    """The number of the 20-second interval that `now_ms` falls into."""
    return (now_ms - EPOCH_MS) // (INTERVAL_S * 1000)


def parse_cursor(text: str | None) -> int | None:
    """The cursor a client echoed; anything that is not one of ours counts as none."""
    if text and len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit():
        return int(text)
    return None


def next_cursor(echoed: int | None, now_ms: int, jitter_s: int) -> int:
    """The cursor to answer with: the current interval, or strictly past the echoed one."""
    current = interval_at(now_ms)
    if echoed is None or echoed < current:
        return current
    return echoed + max(1, -(-jitter_s // INTERVAL_S))
