"""Charts as inline SVG: stacked bars over time, a line over time, a histogram.

Each is drawn twice, for wide and for narrow screens, since text in a scaled picture would be too
small on a phone; the page's CSS shows one of them. Colours are classes (`s0` to `s7`, `rest`), so
that the page can change them in the dark. Every mark says its figures when the pointer is on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.spark.jobs.markup import Node, node
from holdfast.spark.jobs.scales import count_text, nice_ticks, time_ticks

__all__ = ["COLOURS", "Axis", "Histogram", "Series", "chart", "histogram", "line", "stacked_bars"]

COLOURS: Final = 8
_WIDE: Final = (860, 300)
_NARROW: Final = (380, 250)
_TOP: Final = 28
_BOTTOM: Final = 46
_LEFT: Final = 64
_RIGHT: Final = 14
_TICK_LABEL_WIDTH: Final = 74
_BAR_WIDTH_MAX: Final = 72.0


@dataclass(frozen=True)
class Axis:
    """The vertical axis: what it counts, and how that is written."""

    title: str
    written: Callable[[float], str] = count_text
    ticks: Callable[[float, int], list[float]] = nice_ticks


@dataclass(frozen=True)
class Series:
    """What is drawn in one colour: a value for each moment; `colour` None is that of the rest."""

    name: str
    values: Sequence[float]
    colour: int | None = 0


@dataclass(frozen=True)
class Histogram:
    """Bins next to one another: their edges, one more than there are counts."""

    edges: Sequence[float]
    counts: Sequence[int]
    written: Callable[[float], str] = count_text


@dataclass
class _Frame:
    """The place of a drawing inside its axes."""

    width: int
    height: int
    largest: float
    svg: Node = field(repr=False)

    def x(self, share: float) -> float:
        """From 0 at the left to 1 at the right."""
        return _LEFT + share * (self.width - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """The height of a value."""
        room = self.height - _TOP - _BOTTOM
        return _TOP + room * (1 - (value / self.largest if self.largest else 0))


def chart(draw: Callable[[int, int], Node]) -> Node:
    """A drawing for wide screens and one for narrow ones."""
    wide, narrow = draw(*_WIDE), draw(*_NARROW)
    wide.set("class", "wide")
    narrow.set("class", "narrow")
    return node("div", wide, narrow, class_="chart")


def stacked_bars(
    starts_s: Sequence[int],
    step_s: int,
    series: Sequence[Series],
    axis: Axis,
    name_of: Callable[[int], str],
) -> Node:
    """Bars over time, one upon the other; `name_of` says what a bar's moment is called."""
    sums = [sum(each.values[at] for each in series) for at in range(len(starts_s))]

    def draw(width: int, height: int) -> Node:
        frame = _framed(width, height, max(sums, default=0), axis, "Day (UTC)")
        first_s, last_s = starts_s[0], starts_s[-1] + step_s
        slot = (frame.x(1) - frame.x(0)) * step_s / (last_s - first_s)
        gap = max(min(6.0, slot * 0.2), slot - _BAR_WIDTH_MAX)
        for at, start_s in enumerate(starts_s):
            left = frame.x((start_s - first_s) / (last_s - first_s)) + gap / 2
            below = 0.0
            for each in series:
                value = each.values[at]
                if value <= 0:
                    continue
                top, bottom = frame.y(below + value), frame.y(below)
                said = f"{name_of(start_s)}\n{each.name}: {axis.written(value)}"
                if len(series) > 1:
                    said += f"\nall: {axis.written(sums[at])}"
                frame.svg.append(
                    node(
                        "rect",
                        node("title", said),
                        class_=_class(each.colour),
                        x=left,
                        y=top,
                        width=max(slot - gap, 0.5),
                        height=max(bottom - top, 0.5),
                    )
                )
                below += value
        # A label stands in the middle of its bar, not at the bar's edge.
        _time_axis(frame, first_s, last_s, least_s=step_s, shift=slot / 2)
        return frame.svg

    return chart(draw)


def line(
    starts_s: Sequence[int],
    step_s: int,
    values: Sequence[float],
    axis: Axis,
    name_of: Callable[[int], str],
) -> Node:
    """A line over time with its area; a value stands for the time until the next one."""

    def draw(width: int, height: int) -> Node:
        frame = _framed(width, height, max(values, default=0), axis, "Time (UTC)")
        first_s, last_s = starts_s[0], starts_s[-1] + step_s

        def x(at_s: float) -> float:
            return frame.x((at_s - first_s) / (last_s - first_s))

        points = [
            (x(start_s + step_s / 2), frame.y(value))
            for start_s, value in zip(starts_s, values, strict=True)
        ]
        path = "L".join(f"{across:.1f} {up:.1f}" for across, up in points)
        ground = frame.y(0)
        area = f"M{points[0][0]:.1f} {ground:.1f}L{path}L{points[-1][0]:.1f} {ground:.1f}Z"
        frame.svg.append(node("path", d=area, class_="area"))
        frame.svg.append(node("path", d=f"M{path}", class_="line"))
        slot = x(first_s + step_s) - x(first_s)
        for start_s, value, (across, up) in zip(starts_s, values, points, strict=True):
            said = f"{name_of(start_s)}\n{axis.written(value)} {axis.title.lower()}"
            hit = node(
                "rect",
                class_="hit",
                x=across - slot / 2,
                y=_TOP,
                width=slot,
                height=ground - _TOP,
            )
            dot = node("circle", class_="dot", cx=across, cy=up, r=3.5)
            frame.svg.append(node("g", node("title", said), hit, dot, class_="point"))
        _time_axis(frame, first_s, last_s)
        return frame.svg

    return chart(draw)


def histogram(bins: Histogram, axis: Axis, title: str, unit: str) -> Node:
    """Bars without gaps; the edges are written below them."""

    def draw(width: int, height: int) -> Node:
        frame = _framed(width, height, max(bins.counts, default=0), axis, title)
        slot = (frame.x(1) - frame.x(0)) / len(bins.counts)
        for at, count in enumerate(bins.counts):
            low, high = (bins.written(each) for each in bins.edges[at : at + 2])
            top = frame.y(count)
            said = f"{low} to {high}\n{count:,} {unit}"
            frame.svg.append(
                node(
                    "rect",
                    node("title", said),
                    class_="s0",
                    x=frame.x(0) + at * slot + 1,
                    y=min(top, frame.y(0) - (1 if count else 0)),
                    width=max(slot - 2, 0.5),
                    height=max(frame.y(0) - top, 1 if count else 0),
                )
            )
        every = -(-len(bins.edges) * _TICK_LABEL_WIDTH // (width - _LEFT - _RIGHT))
        for at, edge in enumerate(bins.edges):
            if at % every == 0:
                _label_below(frame, frame.x(0) + at * slot, bins.written(edge))
        return frame.svg

    return chart(draw)


def _framed(width: int, height: int, largest: float, axis: Axis, below: str) -> _Frame:
    """The axes, their lines and titles."""
    ticks = axis.ticks(largest, 5)
    svg = node("svg", view_box=f"0 0 {width} {height}", role="img", aria_label=axis.title)
    frame = _Frame(width, height, ticks[-1], svg)
    svg.append(node("text", axis.title, class_="title", x=4, y=14))
    for tick in ticks:
        up = frame.y(tick)
        kind = "ground" if not tick else "grid"
        svg.append(node("line", class_=kind, x1=_LEFT, x2=width - _RIGHT, y1=up, y2=up))
        svg.append(node("text", axis.written(tick), x=_LEFT - 8, y=up + 4, text_anchor="end"))
    middle = (_LEFT + width - _RIGHT) / 2
    svg.append(node("text", below, class_="title", x=middle, y=height - 6, text_anchor="middle"))
    return frame


def _time_axis(
    frame: _Frame, first_s: int, last_s: int, *, least_s: int = 0, shift: float = 0.0
) -> None:
    count_max = max(2, (frame.width - _LEFT - _RIGHT) // _TICK_LABEL_WIDTH)
    for at_s, said in time_ticks(first_s, last_s - 1, count_max, least_s):
        across = frame.x((at_s - first_s) / (last_s - first_s)) + shift
        _label_below(frame, across, said)


def _label_below(frame: _Frame, across: float, said: str) -> None:
    ground = frame.y(0)
    frame.svg.append(node("line", class_="ground", x1=across, x2=across, y1=ground, y2=ground + 4))
    # Near an edge the label would be cut off.
    half = len(said) * 3.4
    placed = min(max(across, half), frame.width - half)
    frame.svg.append(node("text", said, x=placed, y=ground + 18, text_anchor="middle"))


def _class(colour: int | None) -> str:
    return "rest" if colour is None else f"s{colour % COLOURS}"
