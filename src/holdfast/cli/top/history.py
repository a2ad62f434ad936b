"""The last minutes of a figure, as a line of small bars."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["WINDOW_S", "History", "bars"]

WINDOW_S: Final = 120.0
POINTS_MAX: Final = 2000
BARS: Final = "▁▂▃▄▅▆▇█"
ASCII_BARS: Final = "_.-:=+*#"


class History:
    """A figure's values over time; the oldest are forgotten."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=POINTS_MAX)

    def add(self, at_s: float, value: float | None) -> None:
        """One more value; where there is none there will be a gap."""
        if value is not None:
            self._points.append((at_s, value))

    def slots(self, count: int, now_s: float, interval_s: float) -> list[float | None]:
        """The largest value of each of so many equal stretches of time, the latest last.

        Stretches begin at multiples of their length, so that a value stays in its own while the
        picture moves on.
        """
        slot_s = max(WINDOW_S / max(count, 1), interval_s)
        latest = int(now_s / slot_s)
        slots: list[float | None] = [None] * count
        for at_s, value in self._points:
            index = count - 1 - (latest - int(at_s / slot_s))
            if 0 <= index < count:
                held = slots[index]
                slots[index] = value if held is None or value > held else held
        return slots


def bars(slots: list[float | None], *, ascii_only: bool = False) -> str:
    """One character for each slot, from zero to the largest of them."""
    steps = ASCII_BARS if ascii_only else BARS
    top = max((value for value in slots if value is not None), default=0.0)
    return "".join(" " if value is None else steps[_step(value, top)] for value in slots)


def _step(value: float, top: float) -> int:
    if top <= 0 or value <= 0:
        return 0
    # What is not nothing is never drawn as nothing.
    return max(1, min(len(BARS) - 1, round(value / top * (len(BARS) - 1))))
