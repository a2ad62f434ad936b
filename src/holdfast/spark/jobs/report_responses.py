"""What the report shows of responses: how many, how they ended, tokens, and how long they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from holdfast.protocol.frames import Outcome
from holdfast.spark.jobs.charts import Axis, Histogram, Series, histogram, stacked_bars
from holdfast.spark.jobs.report_figures import BAR_STEPS_S, BARS_MAX, REST, fitting, floored
from holdfast.spark.jobs.report_page import Section, Tile, legend, table
from holdfast.spark.jobs.report_sections import bar_name, count_tile, days_text, every_start
from holdfast.spark.jobs.scales import count_text, seconds_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ResponseFigures", "response_figures", "response_sections", "response_tiles"]

# One has no colour of its own: it is rare.
_COLOURS: Final = {Outcome.COMPLETE: 0, Outcome.ABORTED: 1, Outcome.FAILED: 2, Outcome.OPEN: None}
_MODELS_SHOWN: Final = 7
_NO_MODEL: Final = "no model"
_BINS_MAX: Final = 14
# Times are counted by powers of two; this stands for less than that of a millisecond.
_LEAST_POWER: Final = -10


@dataclass(frozen=True)
class OfModel:
    """All responses of one model; None for those that name none."""

    model: str | None
    responses: int
    complete: int
    prompt_tokens: int
    completion_tokens: int
    p50_s: float | None
    p95_s: float | None


@dataclass(frozen=True)
class ResponseFigures:
    """All that the page shows of responses; moments are in seconds since the epoch."""

    responses: int
    streams: int
    first_s: int | None
    last_s: int | None
    tokens: int
    p50_s: float | None
    step_s: int
    # (outcome, start) → responses, and (model or REST, start) → tokens.
    outcomes: Mapping[tuple[str, int], int]
    model_tokens: Mapping[tuple[str, int], int]
    # Responses by the power of two of seconds below the time they took.
    durations: Mapping[int, int]
    # Those with the most tokens, then the most responses.
    models: Sequence[OfModel]
    models_in_all: int


def response_figures(responses: DataFrame, top: int) -> ResponseFigures:
    """Count; `responses` is what `open_all` gives."""
    seconds = F.unix_seconds("started_at")
    tokens = F.coalesce(F.sum("prompt_tokens"), F.lit(0)) + F.coalesce(
        F.sum("completion_tokens"), F.lit(0)
    )
    total = responses.agg(
        F.count(F.lit(1)),
        F.count_distinct("stream_id"),
        F.min(seconds),
        F.max(seconds),
        tokens,
        F.percentile("seconds", 0.5),
        F.count_distinct(F.coalesce("model", F.lit(""))),
    ).collect()[0]
    step_s = fitting((total[3] or 0) - (total[2] or 0), BAR_STEPS_S, BARS_MAX)
    models = [OfModel(*row) for row in _by_model(responses).limit(top).collect()]
    shown = [each.model for each in models if each.model is not None][:_MODELS_SHOWN]
    start = floored(seconds, step_s).alias("start_s")
    named = F.when(F.col("model").isin(shown), F.col("model")).otherwise(F.lit(REST))
    bars = (
        responses.groupBy(start, "outcome", named.alias("model"))
        .agg(F.count(F.lit(1)).alias("n"), tokens.alias("tokens"))
        .collect()
    )
    outcomes: dict[tuple[str, int], int] = {}
    model_tokens: dict[tuple[str, int], int] = {}
    for row in bars:
        _add(outcomes, (row.outcome, row.start_s), row.n)
        _add(model_tokens, (row.model, row.start_s), row.tokens)
    return ResponseFigures(
        responses=total[0],
        streams=total[1],
        first_s=total[2],
        last_s=total[3],
        tokens=total[4],
        p50_s=total[5],
        step_s=step_s,
        outcomes=outcomes,
        model_tokens={key: value for key, value in model_tokens.items() if value},
        durations=_durations(responses),
        models=models,
        models_in_all=total[6],
    )


def _by_model(responses: DataFrame) -> DataFrame:
    prompt, completion = (
        F.coalesce(F.sum(name), F.lit(0)) for name in ("prompt_tokens", "completion_tokens")
    )
    found = responses.groupBy("model").agg(
        F.count(F.lit(1)).alias("responses"),
        F.count_if(F.col("outcome") == Outcome.COMPLETE.value),
        prompt.alias("prompt"),
        completion.alias("completion"),
        F.percentile("seconds", 0.5),
        F.percentile("seconds", 0.95),
    )
    return found.orderBy(
        F.desc(F.col("prompt") + F.col("completion")), F.desc("responses"), "model"
    )


def _durations(responses: DataFrame) -> dict[int, int]:
    power = F.floor(F.log2(F.greatest("seconds", F.lit(2.0**_LEAST_POWER)))).cast("int")
    rows = (
        responses.where("seconds is not null")
        .groupBy(power.alias("power"))
        .agg(F.count(F.lit(1)).alias("n"))
        .collect()
    )
    return {row.power: row.n for row in rows}


def _add(sums: dict[tuple[str, int], int], key: tuple[str, int], count: int) -> None:
    sums[key] = sums.get(key, 0) + count


def response_tiles(figures: ResponseFigures) -> list[Tile]:
    """The figures of the whole."""
    complete = sum(n for (name, _), n in figures.outcomes.items() if name == "complete")
    share = f"{complete / figures.responses:.1%} complete" if figures.responses else ""
    tiles = [
        Tile("Responses", count_text(figures.responses), share),
        count_tile("Tokens", figures.tokens),
    ]
    if figures.p50_s is not None:
        tiles.append(Tile("Median time", seconds_text(figures.p50_s), "of a response"))
    return tiles


def response_sections(figures: ResponseFigures) -> list[Section]:
    """All sections, in their order."""
    if not figures.responses:
        return []
    tokens = [_tokens(figures)] if figures.model_tokens else []
    return [_outcomes(figures), *tokens, _times(figures), _models(figures)]


def _outcomes(figures: ResponseFigures) -> Section:
    found = {name for name, _ in figures.outcomes}
    names = [each for each in Outcome if each.value in found]
    return _bars(
        figures,
        [(each.value, _COLOURS[each]) for each in names],
        figures.outcomes,
        f"Responses per {bar_name(figures.step_s)}",
        "Responses of upstreams by how they ended, on the day on which they began.",
        "responses",
    )


def _tokens(figures: ResponseFigures) -> Section:
    found = {name for name, _ in figures.model_tokens}
    named = [each.model for each in figures.models if each.model in found]
    colours: list[tuple[str, int | None]] = [(name, at) for at, name in enumerate(named)]
    if REST in found - set(named):
        colours.append((REST, None))
    return _bars(
        figures,
        colours,
        figures.model_tokens,
        f"Tokens per {bar_name(figures.step_s)}",
        "Tokens of prompts and answers by model, as far as upstreams tell.",
        "tokens",
    )


def _bars(
    figures: ResponseFigures,
    names: Sequence[tuple[str, int | None]],
    counts: Mapping[tuple[str, int], int],
    title: str,
    note: str,
    anchor: str,
) -> Section:
    # Both charts have the same days below them.
    starts_s = every_start([start for _, start in figures.outcomes], figures.step_s)
    series = [
        Series(name, [counts.get((name, start), 0) for start in starts_s], colour)
        for name, colour in names
    ]
    chart = stacked_bars(
        starts_s, figures.step_s, series, Axis(title), lambda at: days_text(at, figures.step_s)
    )
    return Section(title, [chart, legend(names)], note, anchor)


def _times(figures: ResponseFigures) -> Section:
    powers = list(figures.durations)
    note = "How many responses took how long; a bar ends where the next one starts."
    if not powers:
        return Section("Duration of responses", [], note, "durations")
    low, high = min(powers), max(powers)
    step = -(-(high - low + 1) // _BINS_MAX)
    starts = list(range(low, high + 1, step))
    counts = [
        sum(figures.durations.get(power, 0) for power in range(start, start + step))
        for start in starts
    ]
    edges = [2.0**start for start in (*starts, starts[-1] + step)]
    if low == _LEAST_POWER:
        edges[0] = 0.0
    bins = Histogram(edges, counts, seconds_text)
    chart = histogram(bins, Axis("Responses"), "From the first frame to the last", "responses")
    return Section("Duration of responses", [chart], note, "durations")


def _models(figures: ResponseFigures) -> Section:
    rows = [
        [
            _NO_MODEL if each.model is None else each.model,
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
        *("Median time", "95 of 100 within"),
    ]
    left = figures.models_in_all - len(rows)
    note = f"Those with the most tokens; {left:,} more are not listed." if left else "All of them."
    return Section("Models", [table(headings, rows, ["word", *["number"] * 6])], note)
