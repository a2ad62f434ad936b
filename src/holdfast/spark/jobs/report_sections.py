"""The sections of the report, drawn from its figures."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from holdfast.spark.jobs.charts import Axis, Histogram, Series, histogram, line, stacked_bars
from holdfast.spark.jobs.report_figures import REST, Figures, Ranked
from holdfast.spark.jobs.report_page import Section, Tile, legend, table
from holdfast.spark.jobs.scales import bytes_text, count_text, size_ticks, whole_text

__all__ = [
    "bar_name",
    "count_tile",
    "days_text",
    "every_start",
    "moment_text",
    "sections_of",
    "tiles_of",
]

_DAY_S: Final = 86_400
_HOUR_S: Final = 3600
_BINS_MAX: Final = 14


def tiles_of(figures: Figures) -> list[Tile]:
    """The figures of the whole."""
    total = figures.totals
    mean = bytes_text(total.bytes / total.messages) if total.messages else "-"
    tiles = [
        count_tile("Messages", total.messages),
        Tile("Volume", bytes_text(total.bytes), f"{mean} a message"),
        count_tile("Streams", total.streams),
        count_tile("Buckets", total.buckets),
    ]
    if total.first_s is not None and total.last_s is not None:
        days = total.last_s // _DAY_S - total.first_s // _DAY_S + 1
        said = "1 day" if days == 1 else f"{days:,} days"
        rate = total.messages / max(1, total.last_s - total.first_s) * _HOUR_S
        tiles.append(Tile("Period", said, f"{count_text(rate)} messages an hour"))
    return tiles


def sections_of(figures: Figures) -> list[Section]:
    """All sections, in their order."""
    if not figures.totals.messages:
        return [Section("Nothing yet", [], "The tables hold no messages so far.")]
    dated = [_volume(figures), _rates(figures)] if figures.rates else []
    return [
        *dated,
        _sizes(figures),
        _ranking("Busiest streams", "Those with the most messages.", figures.busiest),
        _ranking("Largest streams", "Those with the most bytes.", figures.largest),
        _buckets(figures),
    ]


def moment_text(at_s: int | None) -> str:
    """A moment to the minute, UTC."""
    return "-" if at_s is None else f"{_utc(at_s):%Y-%m-%d %H:%M}"


def count_tile(name: str, count: int) -> Tile:
    """A number, short, and with all its digits below if there are more."""
    short, whole = count_text(count), f"{count:,}"
    return Tile(name, short, whole if whole != short else "")


def _volume(figures: Figures) -> Section:
    step_s = figures.volume_step_s
    starts_s = every_start([start for _, start in figures.volumes], step_s)
    names = figures.volume_buckets
    series = [
        Series(
            name,
            [figures.volumes.get((name, start), 0) for start in starts_s],
            None if name == REST else at,
        )
        for at, name in enumerate(names)
    ]
    each = bar_name(step_s)
    chart = stacked_bars(
        starts_s,
        step_s,
        series,
        Axis(f"Bytes per {each}", bytes_text, size_ticks),
        lambda start: days_text(start, step_s),
    )
    colours = legend([(one.name, one.colour) for one in series])
    return Section(
        f"Volume by bucket and {each}",
        [chart, colours],
        _undated(figures) or "Bytes of the messages, by the day on which they were appended.",
        "volume",
    )


def _rates(figures: Figures) -> Section:
    step_s = figures.rate_step_s
    unit_s, unit = (_HOUR_S, "hour") if step_s >= _HOUR_S else (60, "minute")
    starts_s = every_start(list(figures.rates), step_s)
    values = [figures.rates.get(start, 0) * unit_s / step_s for start in starts_s]
    chart = line(
        starts_s,
        step_s,
        values,
        Axis(f"Messages per {unit}", lambda value: count_text(round(value, 1))),
        lambda start: _span(start, step_s),
    )
    busiest = max(range(len(values)), key=values.__getitem__)
    note = (
        f"Each point is the mean of {_duration(step_s)}. At the most "
        f"{whole_text(values[busiest])} per {unit}, {_span(starts_s[busiest], step_s)}."
    )
    return Section("Append rate", [chart], note, "rate")


def _sizes(figures: Figures) -> Section:
    powers = [each for each in figures.sizes if each >= 0]
    empty = figures.sizes.get(-1, 0)
    note = "How many streams there are of each size; a bar ends where the next one starts."
    if empty:
        note += f" {empty:,} without any bytes are left out."
    if not powers:
        return Section("Stream sizes", [], note, "sizes")
    low, high = min(powers), max(powers)
    step = -(-(high - low + 1) // _BINS_MAX)
    starts = list(range(low, high + 1, step))
    counts = [
        sum(figures.sizes.get(power, 0) for power in range(start, start + step)) for start in starts
    ]
    edges = [2.0**start for start in (*starts, starts[-1] + step)]
    bins = Histogram(edges, counts, bytes_text)
    chart = histogram(bins, Axis("Streams"), "Size of the stream", "streams")
    return Section("Stream sizes", [chart], note, "sizes")


def _ranking(title: str, note: str, streams: Sequence[Ranked]) -> Section:
    rows = [
        [
            f"{each.bucket}/{each.stream_id}",
            f"{each.messages:,}",
            bytes_text(each.bytes),
            moment_text(each.last_s),
        ]
        for each in streams
    ]
    headings = ["Stream", "Messages", "Bytes", "Last message"]
    return Section(title, [table(headings, rows, ["word", "number", "number", "time"])], note)


def _buckets(figures: Figures) -> Section:
    rows = [
        [
            each.bucket,
            f"{each.streams:,}",
            f"{each.messages:,}",
            bytes_text(each.bytes),
            moment_text(each.last_s),
        ]
        for each in figures.buckets
    ]
    headings = ["Bucket", "Streams", "Messages", "Bytes", "Last message"]
    left = figures.totals.buckets - len(rows)
    note = f"The largest; {left:,} more are not listed." if left else "All of them, by size."
    kinds = ["word", "number", "number", "number", "time"]
    return Section("Buckets", [table(headings, rows, kinds)], note)


def _undated(figures: Figures) -> str:
    count = figures.totals.without_time
    if not count:
        return ""
    return f"{count:,} messages have no time (the server does not tell it) and are left out."


def bar_name(step_s: int) -> str:
    """What one bar stands for."""
    weeks = step_s // (7 * _DAY_S)
    return {0: "day", 1: "week"}.get(weeks, f"{weeks} weeks")


def every_start(found: Sequence[int], step_s: int) -> list[int]:
    """Every moment between the first and the last, whether something was there or not."""
    return list(range(min(found), max(found) + 1, step_s))


def days_text(start_s: int, step_s: int) -> str:
    """What a bar of one or more days is called."""
    if step_s == _DAY_S:
        return f"{_utc(start_s):%a %Y-%m-%d}"
    return f"{_utc(start_s):%Y-%m-%d} to {_utc(start_s + step_s - 1):%Y-%m-%d}"


def _span(start_s: int, step_s: int) -> str:
    if step_s >= _DAY_S:
        return days_text(start_s, step_s)
    return f"{_utc(start_s):%Y-%m-%d %H:%M} to {_utc(start_s + step_s):%H:%M}"


def _duration(step_s: int) -> str:
    for unit_s, unit in ((7 * _DAY_S, "week"), (_DAY_S, "day"), (_HOUR_S, "hour"), (60, "minute")):
        count, rest = divmod(step_s, unit_s)
        if count and not rest:
            return f"one {unit}" if count == 1 else f"{count} {unit}s"
    return f"{step_s} seconds"


def _utc(at_s: int) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
