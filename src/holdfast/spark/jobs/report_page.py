"""The report's page: totals, then one section after the other, in a jinja2 template.

A `Section` is a title, a note and pieces of HTML made by `table`, `legend` and the functions of
`report_plots`; a function of a user's own may return one. The template escapes everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, Template
from markupsafe import Markup

from holdfast.protocol.frames import Outcome
from holdfast.spark.jobs.report_figures import DAY_S, REST, MessageFigures, Ranked, ResponseFigures
from holdfast.spark.jobs.report_plots import (
    PALETTE,
    Axis,
    HistogramBins,
    Series,
    bytes_text,
    count_text,
    histogram,
    line,
    printable,
    seconds_text,
    stacked_bars,
)

_HOUR_S: Final = 3600
_BINS_MAX: Final = 14
_OUTCOME_COLOURS: Final = {"complete": "s0", "aborted": "s1", "failed": "s2", "open": "rest"}


@dataclass(frozen=True)
class Tile:
    """One figure about everything, with a note below it."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page; `anchor`, by default made of the title, is what links name."""

    title: str
    content: Sequence[Markup]
    note: str = ""
    anchor: str = ""


def page(
    title: str, subtitle: str, tiles: Sequence[Tile], sections: Sequence[Section], made: str
) -> str:
    """The whole page as text; it loads nothing from elsewhere."""
    return _template().render(
        title=title, subtitle=subtitle, tiles=tiles, sections=sections, made=made, palette=PALETTE
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], kinds: Sequence[str]) -> Markup:
    """A table; each column's kind is `word`, `number` or `time`."""
    made: Markup = _macros().table(headings, rows, kinds)
    return made


def legend(names: Sequence[tuple[str, str]]) -> Markup:
    """The meaning of each colour: pairs of a name and a colour of the palette."""
    made: Markup = _macros().legend(names)
    return made


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("holdfast.spark.jobs", ""),
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
        keep_trailing_newline=True,
    )
    return environment.get_template("report.html.j2")


def _macros() -> Any:
    return _template().make_module({"palette": PALETTE, "sections": (), "tiles": ()})


def message_tiles(figures: MessageFigures) -> list[Tile]:
    """The totals of the messages."""
    total = figures.totals
    mean = bytes_text(total.bytes / total.messages) if total.messages else "-"
    tiles = [
        _count_tile("Messages", total.messages),
        Tile("Volume", bytes_text(total.bytes), f"{mean} a message"),
        _count_tile("Streams", total.streams),
        _count_tile("Buckets", total.buckets),
    ]
    if total.first_s is not None and total.last_s is not None:
        days = total.last_s // DAY_S - total.first_s // DAY_S + 1
        span_s = total.last_s - total.first_s
        # What came in one burst says nothing about an hour.
        note = f"all within {seconds_text(max(1, span_s))}"
        if span_s >= _HOUR_S:
            note = f"{count_text(round(total.messages / span_s * _HOUR_S, 1))} messages an hour"
        tiles.append(Tile("Period", "1 day" if days == 1 else f"{days:,} days", note))
    return tiles


def response_tiles(figures: ResponseFigures) -> list[Tile]:
    """The totals of the responses."""
    complete = sum(n for (name, _), n in figures.outcomes.items() if name == Outcome.COMPLETE.value)
    share = f"{complete / figures.responses:.1%} complete" if figures.responses else ""
    tiles = [
        Tile("Responses", count_text(figures.responses), share),
        _count_tile("Tokens", figures.tokens),
    ]
    if figures.p50_s is not None:
        tiles.append(Tile("Median time", seconds_text(figures.p50_s), "of a response"))
    return tiles


def message_sections(figures: MessageFigures) -> list[Section]:
    """The sections about messages."""
    if not figures.totals.messages:
        return [Section("Nothing yet", [], "The tables hold no messages so far.")]
    dated = [_volume(figures), _rates(figures)] if figures.rates else []
    note = "The number of streams by size; each bar ends where the next one starts."
    if empty := figures.sizes.get(-1, 0):
        note += f" {empty:,} empty streams are left out."
    sizes = {power: count for power, count in figures.sizes.items() if power >= 0}
    plots = _powers(sizes, bytes_text, "Streams", "Size of the stream") if sizes else []
    return [
        *dated,
        Section("Stream sizes", plots, note, "sizes"),
        _ranking("Busiest streams", "The streams with the most messages.", figures.busiest),
        _ranking("Largest streams", "The streams with the most bytes.", figures.largest),
        _buckets(figures),
    ]


def response_sections(figures: ResponseFigures) -> list[Section]:
    """The sections about responses of upstreams."""
    if not figures.responses:
        return []
    durations = figures.durations
    plots = (
        _powers(durations, seconds_text, "Responses", "From the first frame to the last")
        if durations
        else []
    )
    note = "The number of responses by duration; each bar ends where the next one starts."
    return [
        _outcomes(figures),
        *([_tokens(figures)] if figures.model_tokens else []),
        Section("Duration of responses", plots, note, "durations"),
        _models(figures),
    ]


def _volume(figures: MessageFigures) -> Section:
    step_s = figures.volume_step_s
    colours = _coloured(figures.volume_buckets)
    each = _bar_name(step_s)
    note = "Bytes of the messages, by the day on which they were appended."
    if undated := figures.totals.without_time:
        note = f"{undated:,} messages without a time (the server does not tell it) are left out."
    axis = Axis(f"Bytes per {each}", bytes_text, base=1024)
    content = _stacked(
        _every_start(figures.volumes, step_s), step_s, colours, figures.volumes, axis
    )
    return Section(f"Volume by bucket and {each}", content, note, "volume")


def _rates(figures: MessageFigures) -> Section:
    step_s = figures.rate_step_s
    starts_s = list(range(min(figures.rates), max(figures.rates) + 1, step_s))
    values = [figures.rates.get(start, 0) for start in starts_s]
    each = _duration(step_s)
    plot = line(
        starts_s,
        step_s,
        values,
        Axis(f"Messages per {each}", count_text),
        lambda start: _span(start, step_s),
    )
    most = max(range(len(values)), key=values.__getitem__)
    note = f"At most {values[most]:,} per {each}: {_span(starts_s[most], step_s)}."
    return Section("Append rate", [plot], note, "rate")


def _outcomes(figures: ResponseFigures) -> Section:
    seen = {name for name, _ in figures.outcomes}
    colours = [(name, colour) for name, colour in _OUTCOME_COLOURS.items() if name in seen]
    title = f"Responses per {_bar_name(figures.step_s)}"
    note = "Responses of upstreams by how they ended, on the day on which they began."
    return Section(title, _of_days(figures, colours, figures.outcomes, title), note, "responses")


def _tokens(figures: ResponseFigures) -> Section:
    seen = {name for name, _ in figures.model_tokens}
    names = [each.model for each in figures.models if each.model in seen]
    colours = _coloured([*names, *([REST] if REST in seen - set(names) else [])])
    title = f"Tokens per {_bar_name(figures.step_s)}"
    note = "Tokens of prompts and answers by model, as far as upstreams tell."
    return Section(title, _of_days(figures, colours, figures.model_tokens, title), note, "tokens")


def _of_days(
    figures: ResponseFigures,
    colours: Sequence[tuple[str, str]],
    counts: Mapping[tuple[str, int], int],
    title: str,
) -> list[Markup]:
    # Both plots show the same days.
    starts_s = _every_start(figures.outcomes, figures.step_s)
    return _stacked(starts_s, figures.step_s, colours, counts, Axis(title, count_text))


def _stacked(
    starts_s: Sequence[int],
    step_s: int,
    colours: Sequence[tuple[str, str]],
    counts: Mapping[tuple[str, int], int],
    axis: Axis,
) -> list[Markup]:
    """Stacked bars and their legend; `counts` is by name and start of the bar."""
    series = [
        Series(name, [counts.get((name, start), 0) for start in starts_s], colour)
        for name, colour in colours
    ]
    plot = stacked_bars(starts_s, step_s, series, axis, lambda start: _days_text(start, step_s))
    return [plot, legend(colours)]


def _powers(
    counts: Mapping[int, int], written: Callable[[float], str], title: str, below: str
) -> list[Markup]:
    """A histogram of counts by powers of two, of which several may share a bar."""
    low, high = min(counts), max(counts)
    step = -(-(high - low + 1) // _BINS_MAX)
    starts = list(range(low, high + 1, step))
    sums = [sum(counts.get(start + at, 0) for at in range(step)) for start in starts]
    edges = [2.0**start for start in (*starts, starts[-1] + step)]
    if low == ResponseFigures.LEAST_POWER:
        edges[0] = 0.0
    bins = HistogramBins(edges, sums, written)
    return [histogram(bins, Axis(title, count_text), below, title.lower())]


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


def _buckets(figures: MessageFigures) -> Section:
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


def _models(figures: ResponseFigures) -> Section:
    rows = [
        [
            "no model" if each.model is None else each.model,
            f"{each.responses:,}",
            f"{each.complete / each.responses:.1%}",
            f"{each.prompt_tokens:,}",
            f"{each.completion_tokens:,}",
            "-" if each.p50_s is None else seconds_text(each.p50_s),
            "-" if each.p95_s is None else seconds_text(each.p95_s),
        ]
        for each in figures.models
    ]
    headings = [
        *("Model", "Responses", "Complete", "Prompt tokens", "Answer tokens"),
        *("Median time", "95th percentile"),
    ]
    left = figures.models_in_all - len(rows)
    note = f"Those with the most tokens; {left:,} more are not listed." if left else "All of them."
    return Section("Models", [table(headings, rows, ["word", *["number"] * 6])], note)


def _coloured(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, "rest" if name == REST else f"s{at}") for at, name in enumerate(names)]


def _count_tile(name: str, count: int) -> Tile:
    short, whole = count_text(count), f"{count:,}"
    return Tile(name, short, whole if whole != short else "")


def _every_start(counts: Mapping[tuple[str, int], int], step_s: int) -> list[int]:
    """The starts of all bars from the first to the last, empty ones too."""
    starts = [start for _, start in counts]
    return list(range(min(starts), max(starts) + 1, step_s))


def moment_text(at_s: int | None) -> str:
    """A moment to the minute, UTC."""
    return "-" if at_s is None else f"{_utc(at_s):%Y-%m-%d %H:%M}"


def _bar_name(step_s: int) -> str:
    weeks = step_s // (7 * DAY_S)
    return {0: "day", 1: "week"}.get(weeks, f"{weeks} weeks")


def _days_text(start_s: int, step_s: int) -> str:
    if step_s == DAY_S:
        return f"{_utc(start_s):%a %Y-%m-%d}"
    return f"{_utc(start_s):%Y-%m-%d} to {_utc(start_s + step_s - 1):%Y-%m-%d}"


def _span(start_s: int, step_s: int) -> str:
    if step_s >= DAY_S:
        return _days_text(start_s, step_s)
    return f"{_utc(start_s):%Y-%m-%d %H:%M} to {_utc(start_s + step_s):%H:%M}"


def _duration(step_s: int) -> str:
    for unit_s, unit in ((7 * DAY_S, "week"), (DAY_S, "day"), (_HOUR_S, "hour")):
        if step_s >= unit_s:
            return unit if step_s == unit_s else f"{step_s // unit_s} {unit}s"
    return "minute" if step_s == 60 else f"{step_s // 60} minutes"


def _utc(at_s: int) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
