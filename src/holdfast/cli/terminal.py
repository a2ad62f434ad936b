"""What commands write for people: numbers with units, failures, progress bars and log lines."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, Task, TaskID
    from rich.text import Text

    from holdfast.settings import LogSettings

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141

NOTHING: Final = "-"
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNT_UNITS: Final = ("", "k", "M", "G", "T")


def failure_line(code: str, message: str, *, as_json: bool) -> str:
    """The error on a single line, as text or as a JSON document."""
    text = " ".join(message.split())
    if not as_json:
        return f"holdfast: {text}"
    return json.dumps({"error": {"code": code, "message": text}}, ensure_ascii=False)


def say(line: str) -> None:
    """Print a line on stderr. If stderr is closed, the command continues without it."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        give_up(sys.stderr)


def give_up(stream: TextIO) -> None:
    """Send the rest of a stream's buffer, and all later output, to /dev/null.

    Otherwise Python flushes again at exit, fails again, and changes the exit code.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def as_bytes(value: float | None) -> str:
    """A size in binary units."""
    return NOTHING if value is None else _scaled(value, 1024, _BYTE_UNITS)


def as_count(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def as_rate(value: float | None) -> str:
    """A number per second; small ones keep one decimal."""
    if value is None:
        return NOTHING
    if 0 < value < 10:
        return f"{max(value, 0.1):.1f}/s"
    if value < 100_000:
        return f"{value:,.0f}/s"
    return f"{_scaled(value, 1000, _COUNT_UNITS)}/s"


def as_latency(seconds: float | None) -> str:
    """A short duration in µs, ms or s."""
    if seconds is None:
        return NOTHING
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{_digits(seconds * 1e3)} ms"
    return f"{_digits(seconds)} s"


def as_duration(seconds: float | None) -> str:
    """A long duration in its two largest units."""
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
    return NOTHING if share is None else f"{share * 100:.0f} %"


def as_clock_time(at_ms: int) -> str:
    """The time of day in the local time zone."""
    return f"{datetime.fromtimestamp(at_ms // 1000, tz=UTC).astimezone():%H:%M:%S}"


def printable(text: str) -> str:
    """The text without control characters that a terminal would interpret."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    size, at = float(value), 0
    # 1023.99 of a unit would be rounded to 1024: print it as 1 of the next unit.
    while size >= base - 0.5 and at < len(units) - 1:
        size /= base
        at += 1
    number = f"{size:.0f}" if at == 0 else _digits(size)
    return f"{number} {units[at]}".rstrip()


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


# Advances a progress bar by a number of bytes; any thread may call it.
Advance = Callable[[int], object]


@contextmanager
def progress(what: str, total_bytes: int | None, *, enabled: bool = True) -> Iterator[Advance]:
    """Show a progress bar on stderr if that is a terminal; None is an unknown total.

    with progress("copying packs", total_bytes) as advance:
        advance(len(piece))
    """
    if not enabled or not sys.stderr.isatty():
        yield lambda _: None
        return
    # rich takes a tenth of a second to load.
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    with _shown(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    ) as shown:
        yield partial(shown.advance, shown.add_task(what, total=total_bytes))


class Steps:
    """One bar for the steps of a job, each with its own name and unit."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._task: TaskID | None = None
        self._what = ""

    def start(self, what: str, total: int | None = None, unit: str = "") -> None:
        """Begin a step; naming the current step again restarts it with the new total."""
        if self._task is not None and what == self._what:
            self._shown.reset(self._task, start=True, total=total, unit=unit)
            return
        self.done()
        self._what = what
        self._task = self._shown.add_task(what, total=total, unit=unit)

    def advance(self, n: int) -> None:
        if self._task is not None:
            self._shown.advance(self._task, n)

    def done(self) -> None:
        if self._task is not None:
            self._shown.remove_task(self._task)
            self._task = None


@contextmanager
def steps() -> Iterator[Steps]:
    """Show the steps of a job on stderr, which must be a terminal."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 (slow)

    class Counts(TextColumn):
        def render(self, task: Task) -> Text:
            if task.total is not None:
                self.text_format = "{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"
            elif task.completed:
                self.text_format = "{task.completed:,.0f} {task.fields[unit]}"
            else:
                self.text_format = ""
            return super().render(task)

    columns = (TextColumn("{task.description}"), BarColumn(), Counts(""), TimeElapsedColumn())
    with _shown(*columns) as shown:
        yield Steps(shown)


def _shown(*columns: ProgressColumn) -> Progress:
    from rich.console import Console  # noqa: PLC0415 (slow)
    from rich.progress import Progress  # noqa: PLC0415

    # Transient: the command's own last line is what remains on the screen.
    return Progress(*columns, console=Console(stderr=True), transient=True)


# The attributes of every log record; any others came from `extra`.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """Log lines for people: time in UTC, level, logger, message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 (named by logging)
        return _timestamp(record)


class JsonFormatter(logging.Formatter):
    """Log lines for programs: one JSON object each, including the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        return json.dumps(line, ensure_ascii=False, default=str)


def set_up_logging(settings: LogSettings) -> None:
    """Send this process's log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
