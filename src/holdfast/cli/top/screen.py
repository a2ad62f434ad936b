"""Draw the figures, with their last minutes, into a terminal of any size.

Wide terminals get traffic and storage side by side, narrow ones one below the other and without
frames. If there is not enough room, the hottest streams are left out first, then the last rows.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from holdfast.cli.terminal import as_bytes, as_clock_time, as_count, printable
from holdfast.cli.top.measure import Figures, HottestStream
from holdfast.cli.top.rows import (
    Mood,
    Row,
    headline,
    notices,
    storage_rows,
    stream_name,
    traffic_rows,
)

__all__ = ["History", "Screen", "View", "bars"]

SIDE_BY_SIDE_COLUMNS: Final = 72
NAME_COLUMNS: Final = 14
TEXT_COLUMNS: Final = 10
FIGURE_COLUMNS: Final = 11
TAIL_COLUMNS: Final = 16
BARS_COLUMNS_MAX: Final = 60
BANNER_LINES_MAX: Final = 2
FRAME_COLUMNS: Final = 4
FRAME_LINES: Final = 2
# How much time sparklines cover.
WINDOW_S: Final = 120.0
POINTS_MAX: Final = 2000
BARS: Final = "▁▂▃▄▅▆▇█"
ASCII_BARS: Final = "_.-:=+*#"
# How long a restart is mentioned.
RESTART_SHOWN_MS: Final = 30_000
_STYLES: Final = {Mood.USUAL: "", Mood.WARNING: "yellow", Mood.ALARM: "bold red"}
_BANNER_STYLES: Final = {
    Mood.USUAL: "",
    Mood.WARNING: "black on yellow",
    Mood.ALARM: "bold white on red",
}


class History:
    """A figure's values over time; the oldest are forgotten."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=POINTS_MAX)

    def add(self, at_s: float, value: float | None) -> None:
        if value is not None:
            self._points.append((at_s, value))

    def slots(self, count: int, now_s: float, interval_s: float) -> list[float | None]:
        """Return the largest value of each of `count` equal periods of time, the latest last.

        Periods begin at multiples of their length, so that a value stays in its own while the
        sparkline moves on.
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
    steps = ASCII_BARS if ascii_only else BARS
    top = max((value for value in slots if value is not None), default=0.0)
    return "".join(" " if value is None else steps[_step(value, top)] for value in slots)


def _step(value: float, top: float) -> int:
    if top <= 0 or value <= 0:
        return 0
    # Only zero is drawn as zero.
    return max(1, min(len(BARS) - 1, round(value / top * (len(BARS) - 1))))


class View:
    """What the screen shows; if the server goes away, its last figures stay."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.figures: Figures | None = None
        # While paused, the figures on the screen stay, and newer ones are still recorded.
        self.paused_at_ms: int | None = None
        self._latest: Figures | None = None
        self._unreachable: Figures | None = None
        self._waiting_since_ms: int | None = None
        self._restarted_at_ms: int | None = None
        self._histories: defaultdict[str, History] = defaultdict(History)

    def take(self, figures: Figures) -> None:
        self._waiting_since_ms = None
        if not figures.reachable:
            self._unreachable = figures
            return
        self._unreachable = None
        self._latest = figures
        if figures.restarted:
            self._restarted_at_ms = figures.at_ms
        if self.paused_at_ms is None:
            self.figures = figures
        for row in (*traffic_rows(figures), *storage_rows(figures)):
            if row.is_drawn:
                self._histories[row.name].add(figures.at_ms / 1000, row.value)

    def wait(self, since_ms: int) -> None:
        """Note that a response is overdue."""
        self._waiting_since_ms = since_ms

    def toggle_pause(self, now_ms: int) -> None:
        self.paused_at_ms = now_ms if self.paused_at_ms is None else None
        if self.paused_at_ms is None:
            self.figures = self._latest

    def slots(self, row: Row, count: int) -> list[float | None]:
        if self.figures is None:
            return [None] * count
        now_s = self.figures.at_ms / 1000
        return self._histories[row.name].slots(count, now_s, self.interval_s)

    def banners(self) -> list[tuple[str, Mood]]:
        """Return warnings, the worst first."""
        found: list[tuple[str, Mood]] = []
        if self._unreachable is not None:
            since = as_clock_time(self._unreachable.unreachable_since_ms or self._unreachable.at_ms)
            why = printable(self._unreachable.error or "")
            found.append((f"unreachable since {since}, retrying: {why}", Mood.ALARM))
        elif self._waiting_since_ms is not None:
            since = as_clock_time(self._waiting_since_ms)
            found.append((f"unreachable since {since}, retrying: no response yet", Mood.ALARM))
        if self.paused_at_ms is not None:
            at = as_clock_time(self.paused_at_ms)
            found.append((f"paused at {at}: p resumes", Mood.WARNING))
        if self.figures is None:
            return found
        found.extend(notices(self.figures))
        at_ms = self._restarted_at_ms
        if at_ms is not None and 0 <= self.figures.at_ms - at_ms < RESTART_SHOWN_MS:
            found.append((f"the server was restarted before {as_clock_time(at_ms)}", Mood.WARNING))
        return found


class Screen:
    def __init__(self, view: View) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.size.height
        yield _Drawing(self._view, options.max_width, height, options.ascii_only).all()


class _Drawing:
    def __init__(self, view: View, width: int, height: int, ascii_only: bool) -> None:
        self._view = view
        self._width = width
        self._height = height
        self._ascii_only = ascii_only

    def all(self) -> RenderableType:
        figures = self._view.figures
        top = [*self._banners()]
        if figures is None:
            return Group(*top[: self._height])
        top = [*self._headline(figures), *top][: max(1, self._height - 1)]
        left = self._height - len(top) - 1
        parts: list[RenderableType] = [*top]
        for part, lines in self._body(figures, left):
            parts.append(part)
            left -= lines
        parts.extend(Text("") for _ in range(left))
        if self._height > len(top):
            parts.append(self._footer())
        return Group(*parts)

    def _headline(self, figures: Figures) -> list[Text]:
        """Return as many facts as fit into two lines, or into one on a small screen."""
        separator = " | " if self._ascii_only else " · "
        lines = [""]
        for fact in headline(figures):
            longer = f"{lines[-1]}{separator}{fact}" if lines[-1] else fact
            if cell_len(longer) <= self._width or not lines[-1]:
                lines[-1] = longer
            else:
                lines.append(fact)
        return [self._line(line, "bold") for line in lines[: 2 if self._height > 12 else 1]]

    def _banners(self) -> list[Text]:
        return [
            self._line(line.ljust(self._width), _BANNER_STYLES[mood])
            for text, mood in self._view.banners()
            for line in textwrap.wrap(
                text, self._width, max_lines=BANNER_LINES_MAX, placeholder=" ..."
            )
        ]

    def _footer(self) -> Text:
        at = as_clock_time(self._view.figures.at_ms) if self._view.figures else ""
        keys = f"q quit  p {'resume' if self._view.paused_at_ms is not None else 'pause'}"
        every = f"every {self._view.interval_s:g} s  {at}"
        gap = self._width - len(keys) - len(every)
        return self._line(f"{keys}{' ' * gap}{every}" if gap > 1 else keys, "dim")

    def _body(self, figures: Figures, lines: int) -> Iterable[tuple[RenderableType, int]]:
        """Yield the parts below the headline with their heights, at most `lines` in all."""
        minutes = f"{WINDOW_S / 60:g} min"
        traffic = (f"traffic, last {minutes}", traffic_rows(figures))
        storage = ("storage", storage_rows(figures))
        if self._width >= SIDE_BY_SIDE_COLUMNS:
            height = min(max(len(traffic[1]), len(storage[1])) + FRAME_LINES, lines)
            if height <= FRAME_LINES:
                return
            pair = Table.grid(expand=True)
            pair.add_column(width=self._width // 2)
            pair.add_column(width=self._width - self._width // 2)
            pair.add_row(
                self._framed(*traffic, self._width // 2, height),
                self._framed(*storage, self._width - self._width // 2, height),
            )
            yield pair, height
            lines -= height
        else:
            for title, rows in (traffic, storage):
                shown = self._rows(rows, self._width)[: max(0, lines - 1)]
                if shown:
                    yield Group(self._rule(title), *shown), len(shown) + 1
                    lines -= len(shown) + 1
        yield from self._hottest(figures.hottest, lines)

    def _framed(self, title: str, rows: list[Row], width: int, height: int) -> Panel:
        lines = self._rows(rows, width - FRAME_COLUMNS)[: height - FRAME_LINES]
        return Panel(
            Group(*lines),
            title=self._line(title, "bold"),
            title_align="left",
            border_style="dim",
            height=height,
            width=width,
        )

    def _rule(self, title: str) -> Text:
        dash = "-" if self._ascii_only else "─"
        return self._line(f"{title} {dash * max(0, self._width - len(title) - 1)}", "bold")

    def _rows(self, rows: list[Row], width: int) -> list[Text]:
        return [self._row(row, width) for row in rows]

    def _row(self, row: Row, width: int) -> Text:
        text = self._safe(row.text)
        line = Text(row.name.ljust(NAME_COLUMNS), style="dim", no_wrap=True)
        if not row.is_drawn:
            line.append(self._clip(text, width - NAME_COLUMNS), _STYLES[row.mood] or "not dim")
            return line
        text = self._clip(text, width - NAME_COLUMNS).ljust(TEXT_COLUMNS)
        line.append(text, _STYLES[row.mood] or "bold not dim")
        count = min(BARS_COLUMNS_MAX, width - NAME_COLUMNS - len(text) - 1)
        if count > 1:
            slots = self._view.slots(row, count)
            line.append(" " + bars(slots, ascii_only=self._ascii_only), "cyan not dim")
        return line

    def _hottest(
        self, streams: tuple[HottestStream, ...], lines: int
    ) -> Iterable[tuple[RenderableType, int]]:
        """Yield the streams with the most bytes in memory, if there is room for two of them."""
        is_framed = self._width >= SIDE_BY_SIDE_COLUMNS
        around = FRAME_LINES + 1 if is_framed else 2
        shown = streams[: max(0, lines - around)]
        if not shown or lines < around + min(2, len(streams)):
            return
        title = "hottest streams"
        width = self._width - FRAME_COLUMNS if is_framed else self._width
        table = Group(*self._stream_lines(shown, width))
        if is_framed:
            yield (
                Panel(
                    table,
                    title=self._line(title, "bold"),
                    title_align="left",
                    border_style="dim",
                    width=self._width,
                ),
                len(shown) + around,
            )
        else:
            yield Group(self._rule(title), table), len(shown) + around

    def _stream_lines(self, streams: tuple[HottestStream, ...], width: int) -> Iterable[Text]:
        with_tail = width >= SIDE_BY_SIDE_COLUMNS - FRAME_COLUMNS
        figures_width = 2 * FIGURE_COLUMNS + (TAIL_COLUMNS if with_tail else 0)
        head = ["hot", "in/s", *(["tail"] if with_tail else [])]
        yield self._stream_line("stream", head, width - figures_width, "dim")
        for each in streams:
            cells = [as_bytes(each.hot_bytes), as_bytes(each.bytes_per_s)]
            if with_tail:
                cells.append(as_count(each.tail))
            yield self._stream_line(stream_name(each.stream), cells, width - figures_width, "")

    def _stream_line(self, name: str, cells: list[str], name_width: int, style: str) -> Text:
        widths = (FIGURE_COLUMNS, FIGURE_COLUMNS, TAIL_COLUMNS)
        figures = "".join(cell.rjust(columns) for cell, columns in zip(cells, widths, strict=False))
        named = set_cell_size(self._clip(self._safe(name), name_width), name_width)
        return Text(named + figures, style=style, no_wrap=True)

    def _line(self, text: str, style: str) -> Text:
        return Text(self._clip(self._safe(text), self._width), style=style, no_wrap=True)

    def _clip(self, text: str, width: int) -> str:
        """Cut a text to a width, with an ellipsis if it is cut."""
        if cell_len(text) <= width:
            return text
        sign = ">" if self._ascii_only else "…"
        return set_cell_size(text, max(0, width - 1)) + sign if width > 0 else ""

    def _safe(self, text: str) -> str:
        """Replace characters that the terminal's encoding does not have."""
        if not self._ascii_only:
            return text
        return text.replace("µ", "u").encode("ascii", "replace").decode()
