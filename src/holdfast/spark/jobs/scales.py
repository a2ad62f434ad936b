"""Axes: where their ticks are, and how numbers, sizes and times are written."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

__all__ = [
    "bytes_text",
    "count_text",
    "nice_ticks",
    "seconds_text",
    "size_ticks",
    "time_ticks",
    "whole_text",
]

_SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_COUNT_UNITS: Final = ("", "k", "M", "G", "T")
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
# Steps between the ticks of a time axis; a month and a year are treated apart.
_STEPS_S: Final = (
    *(each * _MINUTE_S for each in (1, 2, 5, 10, 15, 30)),
    *(each * _HOUR_S for each in (1, 2, 3, 6, 12)),
    *(each * _DAY_S for each in (1, 2, 7, 14)),
)


def nice_ticks(largest: float, count_max: int = 5) -> list[float]:
    """From 0 to at least `largest`, in steps of 1, 2 or 5 times a power of ten."""
    if largest <= 0:
        return [0.0, 1.0]
    rough = largest / count_max
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough * (1 - 1e-9))
    # What is counted comes in whole numbers.
    step = max(step, 1.0) if largest >= 1 else step
    return [step * at for at in range(math.ceil(largest / step - 1e-9) + 1)]


def size_ticks(largest: float, count_max: int = 5) -> list[float]:
    """The same for bytes: round numbers of KiB, MiB and so on."""
    unit = 1024.0 ** max(0, math.floor(math.log(max(largest, 1.0), 1024)))
    return [each * unit for each in nice_ticks(largest / unit, count_max)]


def time_ticks(
    first_s: int, last_s: int, count_max: int, least_s: int = 0
) -> list[tuple[int, str]]:
    """Moments between two, at least `least_s` apart, and what to write there (UTC).

    Moments are seconds since the epoch.
    """
    span_s = max(1, last_s - first_s)
    for step_s in _STEPS_S:
        if span_s / step_s <= count_max and step_s >= least_s:
            start_s = -(-first_s // step_s) * step_s
            written = _time_of_day if step_s < _DAY_S else _day
            return [(at_s, written(at_s)) for at_s in range(start_s, last_s + 1, step_s)]
    return _month_ticks(first_s, last_s, count_max)


def _month_ticks(first_s: int, last_s: int, count_max: int) -> list[tuple[int, str]]:
    first, last = _utc(first_s), _utc(last_s)
    months = (last.year - first.year) * 12 + last.month - first.month + 1
    step = next((each for each in (1, 2, 3, 6, 12) if months / each <= count_max), 0)
    step = step or 12 * math.ceil(months / 12 / count_max)
    ticks = []
    for at in range(first.year * 12 + first.month - 1, last.year * 12 + last.month):
        moment = datetime(at // 12, at % 12 + 1, 1, tzinfo=UTC)
        if at % step == 0 and first_s <= moment.timestamp() <= last_s:
            said = f"{moment:%Y}" if step >= 12 else f"{moment:%b %Y}"
            ticks.append((int(moment.timestamp()), said))
    return ticks


def bytes_text(value: float) -> str:
    """A size in binary units, short."""
    return _scaled(value, 1024, _SIZE_UNITS, " ")


def count_text(value: float) -> str:
    """A number, short: 12 k, 3.5 M."""
    return _scaled(value, 1000, _COUNT_UNITS, " ")


def seconds_text(value: float) -> str:
    """A time that something took, short."""
    for least, unit_s, unit in ((7200, _HOUR_S, "h"), (120, _MINUTE_S, "min"), (1, 1, "s")):
        if value >= least:
            return _scaled(value / unit_s, 1000, (unit,), " ")
    return f"{value * 1000:.{0 if value >= 0.01 or not value else 1}f} ms"


def whole_text(value: float) -> str:
    """A number with all its digits."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def _scaled(value: float, base: int, units: tuple[str, ...], space: str) -> str:
    at = 0
    while value >= base - 0.5 and at < len(units) - 1:
        value, at = value / base, at + 1
    digits = 0 if value >= 100 or abs(value - round(value)) < 0.005 else 1
    if 0 < value < 1 and not at:
        digits = 2
    return f"{value:.{digits}f}{space}{units[at]}".rstrip()


def _utc(at_s: int) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)


def _time_of_day(at_s: int) -> str:
    moment = _utc(at_s)
    return f"{moment:%H:%M}" if moment.hour or moment.minute else f"{moment.day} {moment:%b}"


def _day(at_s: int) -> str:
    return f"{_utc(at_s).day} {_utc(at_s):%b}"
