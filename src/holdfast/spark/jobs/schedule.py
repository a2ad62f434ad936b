"""When the jobs of a file run.

Rules:

- A job without a timing runs once, at the start; one with `every` at the start as well, then again
  whenever so much time has passed since it was last due; one with `at` daily at that time, UTC.
- Jobs run one after the other: the one that is due the longest first, those that are due together
  in the order of the file. So one that takes longer than its interval does not starve the others.
- What was due while another job ran is done after it, once, however often it was due.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from holdfast.clock import Clock
from holdfast.errors import SettingsError

if TYPE_CHECKING:
    from holdfast.spark.jobs.run_file import Entry

__all__ = ["Schedule", "Timing", "parse_duration", "parse_time_of_day"]

_DAY_S: Final = 86_400
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": _DAY_S}


@dataclass(frozen=True)
class Timing:
    """How often a job runs: every so many seconds, or daily so many seconds after midnight UTC."""

    every_s: int | None = None
    at_s: int | None = None

    def __post_init__(self) -> None:
        if self.every_s is not None and self.at_s is not None:
            raise SettingsError("give either 'every' or 'at', not both.")

    @property
    def repeats(self) -> bool:
        """Whether it runs more than once."""
        return self.every_s is not None or self.at_s is not None

    def first_ms(self, now_ms: int) -> int:
        """When it runs for the first time."""
        return now_ms if self.at_s is None else self._next_day_ms(now_ms - 1, self.at_s)

    def next_ms(self, due_ms: int, now_ms: int) -> int | None:
        """When it runs after it was due at `due_ms`; None if it does not."""
        if self.every_s is not None:
            missed = max(0, now_ms - due_ms) // (self.every_s * 1000)
            return due_ms + (missed + 1) * self.every_s * 1000
        return None if self.at_s is None else self._next_day_ms(now_ms, self.at_s)

    @staticmethod
    def _next_day_ms(after_ms: int, at_s: int) -> int:
        midnight_ms = after_ms // (_DAY_S * 1000) * _DAY_S * 1000
        today_ms = midnight_ms + at_s * 1000
        return today_ms if today_ms > after_ms else today_ms + _DAY_S * 1000


class Schedule:
    """Which job is next, and how long until then."""

    def __init__(self, entries: Sequence[Entry], clock: Clock) -> None:
        self._entries = entries
        self._clock = clock
        now_ms = clock.now_ms()
        self._due_ms: dict[str, int | None] = {
            each.name: each.timing.first_ms(now_ms) for each in entries
        }

    def take(self) -> Entry | None:
        """The job that is due now, which then is due later; None if none is."""
        now_ms = self._clock.now_ms()
        due = [(at_ms, each) for each in self._entries if (at_ms := self._at(each)) <= now_ms]
        if not due:
            return None
        entry = min(due, key=itemgetter(0))[1]
        self._due_ms[entry.name] = entry.timing.next_ms(self._due_ms[entry.name] or 0, now_ms)
        return entry

    def wait_s(self) -> float | None:
        """Seconds until a job is due; None if none will ever be."""
        due_ms = min(map(self._at, self._entries), default=math.inf)
        return None if due_ms == math.inf else max(0, due_ms - self._clock.now_ms()) / 1000

    def _at(self, entry: Entry) -> float:
        due_ms = self._due_ms[entry.name]
        return math.inf if due_ms is None else due_ms


def parse_duration(text: object) -> int:
    """Seconds from `90s`, `15m`, `2h` or `1d`."""
    found = re.fullmatch(r"\s*([0-9]{1,6})\s*([smhd])\s*", text) if isinstance(text, str) else None
    if found is None or not int(found[1]):
        raise SettingsError(f"'every' is a duration such as 90s, 15m, 2h or 1d, not {text!r}.")
    return int(found[1]) * _UNITS_S[found[2]]


def parse_time_of_day(text: object) -> int:
    """Seconds after midnight from `03:00`."""
    found = re.fullmatch(r"([0-9]{2}):([0-9]{2})", text) if isinstance(text, str) else None
    if found is None or int(found[1]) > 23 or int(found[2]) > 59:
        raise SettingsError(f"'at' is a time such as 03:00 (UTC), not {text!r}.")
    return int(found[1]) * 3600 + int(found[2]) * 60
