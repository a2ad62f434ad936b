"""Figures in words: short, and in the units that a person reads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

__all__ = [
    "NOTHING",
    "as_bytes",
    "as_clock_time",
    "as_count",
    "as_duration",
    "as_latency",
    "as_rate",
    "as_share",
    "printable",
]

NOTHING: Final = "-"
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNT_UNITS: Final = ("", "k", "M", "G", "T")


def as_bytes(value: float | None) -> str:
    """Bytes in binary units."""
    return NOTHING if value is None else _scaled(value, 1024, _BYTE_UNITS)


def as_count(value: int | None) -> str:
    """A whole number, with separators."""
    return NOTHING if value is None else f"{value:,}"


def as_rate(value: float | None) -> str:
    """So many a second; small ones with a digit more."""
    if value is None:
        return NOTHING
    if 0 < value < 10:
        return f"{max(value, 0.1):.1f}/s"
    if value < 100_000:
        return f"{value:,.0f}/s"
    return f"{_scaled(value, 1000, _COUNT_UNITS)}/s"


def as_latency(seconds: float | None) -> str:
    """A short duration."""
    if seconds is None:
        return NOTHING
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{_digits(seconds * 1e3)} ms"
    return f"{_digits(seconds)} s"


def as_duration(seconds: float | None) -> str:
    """A long duration, in its two largest units."""
    if seconds is None:
        return NOTHING
    left = int(seconds)
    parts: list[str] = []
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length_s)
        if count or parts or unit == "s":
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def as_share(share: float | None) -> str:
    """A part of a whole."""
    return NOTHING if share is None else f"{share * 100:.0f} %"


def as_clock_time(at_ms: int) -> str:
    """A moment of today, by the local clock."""
    return f"{datetime.fromtimestamp(at_ms // 1000, tz=UTC).astimezone():%H:%M:%S}"


def printable(text: str) -> str:
    """What a server or a stream is called, without what a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    size, at = float(value), 0
    # 1023.99 of a unit is better said as one of the next.
    while size >= base - 0.5 and at < len(units) - 1:
        size /= base
        at += 1
    number = f"{size:.0f}" if at == 0 else _digits(size)
    return f"{number} {units[at]}".rstrip()


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
