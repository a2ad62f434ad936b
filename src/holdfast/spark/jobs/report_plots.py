"""The report's plots, drawn by matplotlib as inline SVG.

Each plot is drawn twice, for wide and for narrow screens: text in a scaled picture would be too
small on a phone. Colours become CSS variables so that the page can change them in dark mode, and
every mark has a tooltip with its figures. The same figures always give the same bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of each CSS variable the colour in light mode, which matplotlib draws with, and in dark mode.
PALETTE: Final = {
    "ink": ("#1c2230", "#e6e9f0"),
    "soft": ("#5c6575", "#9aa4b5"),
    "rule": ("#dfe3ea", "#303846"),
    "s0": ("#3b6fd4", "#6f9cf2"),
    "s1": ("#e8a013", "#f0b646"),
    "s2": ("#e4604e", "#f2816f"),
    "s3": ("#3fae9a", "#5fcab6"),
    "s4": ("#7a57c9", "#a68bea"),
    "s5": ("#62a336", "#8bc95f"),
    "s6": ("#d8679c", "#ec8fba"),
    "s7": ("#8a6a4f", "#b8957a"),
    "rest": ("#a4abb8", "#687183"),
}
_VARIABLES: Final = {light: f"var(--{name})" for name, (light, _) in PALETTE.items()}
_COLOUR: Final = re.compile("|".join(_VARIABLES))
_ID: Final = re.compile(r' id="tip-(\d+)">| id="[a-z]+\d*_[\d.]+"')
# CSS pixels, which are matplotlib's points here.
_SIZES: Final = {"wide": (860, 300), "narrow": (380, 250)}
_LABEL_WIDTH: Final = 74
_DAY_S: Final = 86_400
# Fewer points than this are drawn as markers too.
_MARKED_MAX: Final = 40
# Labels of years, months, days, hours, minutes and seconds; and of those that begin the next unit.
_TIMES: Final = ["%Y", "%b %Y", "%d %b", "%H:%M", "%H:%M", "%H:%M:%S"]
_MIDNIGHTS: Final = ["%Y", "%Y", "%d %b", "%d %b", "%H:%M", "%H:%M"]
_STYLE: Final[dict[Any, Any]] = {
    "svg.hashsalt": "holdfast",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titlecolor": PALETTE["ink"][0],
    "axes.labelcolor": PALETTE["ink"][0],
    "axes.edgecolor": PALETTE["soft"][0],
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "grid.color": PALETTE["rule"][0],
    "xtick.color": PALETTE["soft"][0],
    "ytick.color": PALETTE["soft"][0],
    "ytick.left": False,
}


@dataclass(frozen=True)
class Axis:
    """The vertical axis; `base` is 1024 for sizes."""

    title: str
    written: Callable[[float], str]
    base: int = 1000


@dataclass(frozen=True)
class Series:
    """The values of one colour, one for each bar; `colour` is a name of the palette."""

    name: str
    values: Sequence[float]
    colour: str = "s0"


@dataclass(frozen=True)
class HistogramBins:
    """Adjacent bins; there is one more edge than there are counts."""

    edges: Sequence[float]
    counts: Sequence[int]
    written: Callable[[float], str]


class _Plot:
    """A figure with one pair of axes, and the tooltips of its marks."""

    def __init__(self, width: int, height: int, axis: Axis, largest: float, below: str) -> None:
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        figure.patch.set_visible(False)
        FigureCanvasSVG(figure)
        self._figure = figure
        self._tips: list[str] = []
        self.labels_max = max(2, (width - 80) // _LABEL_WIDTH)
        self.axes: Axes = figure.add_subplot()
        self.axes.patch.set_visible(False)
        self.axes.set_title(axis.title)
        self.axes.set_xlabel(below)
        self.axes.grid(axis="y")
        ticks = _ticks(largest, axis.base)
        self.axes.set_yticks(ticks, [axis.written(each) for each in ticks])
        self.axes.set_ylim(0, ticks[-1])

    def bar(
        self,
        left: float,
        width: float,
        height: float,
        tip: str,
        *,
        bottom: float = 0.0,
        colour: str = "s0",
        visible: bool = True,
    ) -> None:
        """Draw a bar with a tooltip; one that is not visible only has the tooltip."""
        self.axes.bar(
            [left],
            [height],
            width,
            [bottom],
            align="edge",
            color=PALETTE[colour][0],
            alpha=None if visible else 0,
            gid=f"tip-{len(self._tips)}",
            clip_on=False,
        )
        self._tips.append(tip)

    def svg(self, css_class: str) -> str:
        """The plot as an element for an HTML page: without namespaces, ids and metadata."""
        buffer = StringIO()
        unset = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        self._figure.savefig(buffer, format="svg", metadata=unset)
        text = buffer.getvalue().partition("<svg ")[2]
        text = re.sub(r'\bxmlns(:xlink)?="[^"]*" ?', "", text)
        text = _COLOUR.sub(lambda found: _VARIABLES[found[0]], text)
        text = _ID.sub(self._titled, text)
        label = escape(self.axes.get_title(loc="left"))
        return f'<svg class="{css_class}" role="img" aria-label="{label}" {text}'

    def _titled(self, found: re.Match[str]) -> str:
        if found[1] is None:
            return ""
        return f"><title>{escape(printable(self._tips[int(found[1])]))}</title>"


def stacked_bars(
    starts_s: Sequence[int],
    step_s: int,
    series: Sequence[Series],
    axis: Axis,
    name_of: Callable[[int], str],
) -> Markup:
    """Stacked bars over time, each `step_s` wide; `name_of` names a bar's days."""
    sums = [sum(each.values[at] for each in series) for at in range(len(starts_s))]

    def draw(width: int, height: int) -> _Plot:
        plot = _Plot(width, height, axis, max(sums), "Day (UTC)")
        for at, start_s in enumerate(starts_s):
            below = 0.0
            for each in series:
                if value := each.values[at]:
                    tip = f"{name_of(start_s)}\n{each.name}: {axis.written(value)}"
                    if len(series) > 1:
                        tip += f"\nall: {axis.written(sums[at])}"
                    plot.bar(at - 0.4, 0.8, value, tip, bottom=below, colour=each.colour)
                    below += value
        every = math.ceil(len(starts_s) / plot.labels_max)
        shown = range(0, len(starts_s), every)
        plot.axes.set_xticks(shown, [_bar_label(starts_s[at], step_s) for at in shown])
        # A few bars are no wider than many would be.
        room = max(0.6, (8 - len(starts_s)) / 2)
        plot.axes.set_xlim(-room, len(starts_s) - 1 + room)
        return plot

    return _chart(draw)


def line(
    starts_s: Sequence[int],
    step_s: int,
    values: Sequence[float],
    axis: Axis,
    name_of: Callable[[int], str],
) -> Markup:
    """A line over time with its area; a value stands for `step_s` seconds."""
    days = [(start_s + step_s / 2) / _DAY_S for start_s in starts_s]
    step = step_s / _DAY_S

    def draw(width: int, height: int) -> _Plot:
        plot = _Plot(width, height, axis, max(values), "Time (UTC)")
        colour = PALETTE["s0"][0]
        marker = "o" if len(values) <= _MARKED_MAX else ""
        plot.axes.fill_between(days, values, color=colour, alpha=0.15, linewidth=0, clip_on=False)
        plot.axes.plot(days, values, color=colour, marker=marker, markersize=7, clip_on=False)
        top = plot.axes.get_ylim()[1]
        for start_s, day, value in zip(starts_s, days, values, strict=True):
            tip = f"{name_of(start_s)}\n{axis.written(value)} {axis.title.lower()}"
            plot.bar(day - step / 2, step, top, tip, visible=False)
        # Few points stand in the middle, with some time before and after them.
        room = max(0.5, (12 - len(values)) / 2) * step
        plot.axes.set_xlim(days[0] - room, days[-1] + room)
        # With fewer than five labels it finds no interval for some spans.
        locator = AutoDateLocator(  # type: ignore[no-untyped-call]
            tz=UTC, minticks=2, maxticks=max(5, plot.labels_max)
        )
        plot.axes.xaxis.set_major_locator(locator)
        plot.axes.xaxis.set_major_formatter(
            ConciseDateFormatter(  # type: ignore[no-untyped-call]
                locator, tz=UTC, formats=_TIMES, zero_formats=_MIDNIGHTS, show_offset=False
            )
        )
        return plot

    return _chart(draw)


def histogram(bins: HistogramBins, axis: Axis, title: str, unit: str) -> Markup:
    """Adjacent bars, with the edges of the bins below them."""

    def draw(width: int, height: int) -> _Plot:
        plot = _Plot(width, height, axis, max(bins.counts), title)
        for at, count in enumerate(bins.counts):
            low, high = (bins.written(each) for each in bins.edges[at : at + 2])
            plot.bar(at + 0.02, 0.96, count, f"{low} to {high}\n{count:,} {unit}")
        shown = range(0, len(bins.edges), math.ceil(len(bins.edges) / plot.labels_max))
        plot.axes.set_xticks(shown, [bins.written(bins.edges[at]) for at in shown])
        room = max(0.0, (5 - len(bins.counts)) / 2)
        plot.axes.set_xlim(-room, len(bins.counts) + room)
        return plot

    return _chart(draw)


def _chart(draw: Callable[[int, int], _Plot]) -> Markup:
    with mpl.rc_context(_STYLE):
        plots = [draw(*size).svg(name) for name, size in _SIZES.items()]
    return Markup('<div class="chart">{}</div>').format(Markup("").join(map(Markup, plots)))


def _ticks(largest: float, base: int) -> list[float]:
    """Round numbers of the unit that suits the largest value, up to at least that."""
    if largest <= 0:
        return [0.0, 1.0]
    unit = float(base ** max(0, math.floor(math.log(largest, base))))
    ticks = MaxNLocator(5, integer=unit == 1).tick_values(0, largest / unit * 1.02)
    return [float(each) * unit for each in ticks]


def _bar_label(start_s: int, step_s: int) -> str:
    start = datetime.fromtimestamp(start_s, UTC)
    return f"{start.day} {start:%b}" if step_s <= 7 * _DAY_S else f"{start:%b %Y}"


def bytes_text(value: float) -> str:
    """A size in binary units: 1.5 KiB."""
    return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))


def count_text(value: float) -> str:
    """A number in three digits or so: 12 k, 3.5 M."""
    return _scaled(value, 1000, ("", "k", "M", "G", "T"))


def seconds_text(value: float) -> str:
    """A duration: 16 ms, 2.3 s, 4.3 min."""
    for least, unit_s, unit in ((7200, 3600, "h"), (120, 60, "min"), (1, 1, "s")):
        if value >= least:
            return _scaled(value / unit_s, 1000, (unit,))
    return f"{value * 1000:.{0 if value >= 0.01 or not value else 1}f} ms"


def printable(text: str) -> str:
    """Text without the characters that HTML forbids: names of streams may hold anything."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for each in text
    )


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    at = 0
    while value >= base - 0.5 and at < len(units) - 1:
        value, at = value / base, at + 1
    digits = 0 if value >= 100 or abs(value - round(value)) < 0.005 else 1
    if 0 < value < 1 and not at:
        digits = 2
    return f"{value:.{digits}f} {units[at]}".rstrip()
