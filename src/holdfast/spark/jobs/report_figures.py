"""The figures of the report, counted by Spark: a few hundred, however large the tables are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from holdfast.protocol.frames import Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DAY_S: Final = 86_400
# Widths of one point, and of one bar.
_RATE_STEPS_S: Final = (60, 300, 900, 3600, 10_800, 21_600, DAY_S, 7 * DAY_S, 28 * DAY_S)
_BAR_STEPS_S: Final = (DAY_S, 7 * DAY_S, 28 * DAY_S)
_POINTS_MAX: Final = 400
_BARS_MAX: Final = 100
_SHOWN: Final = 7
_BUCKETS_LISTED: Final = 20
REST: Final = "all others"


@dataclass(frozen=True)
class Totals:
    """Totals; times are in seconds since the epoch, or None if no message has one."""

    messages: int
    bytes: int
    streams: int
    buckets: int
    first_s: int | None
    last_s: int | None
    without_time: int


@dataclass(frozen=True)
class Ranked:
    """A stream, or a bucket (without a stream id)."""

    bucket: str
    stream_id: str
    streams: int
    messages: int
    bytes: int
    last_s: int | None


@dataclass(frozen=True)
class Figures:
    totals: Totals
    buckets: Sequence[Ranked]
    busiest: Sequence[Ranked]
    largest: Sequence[Ranked]
    # Streams by the power of two below their size; -1 for empty ones.
    sizes: dict[int, int]
    rate_step_s: int
    rates: dict[int, int]
    volume_step_s: int
    # (bucket or REST, start) → bytes.
    volumes: dict[tuple[str, int], int]

    @property
    def volume_buckets(self) -> list[str]:
        """The buckets with a colour of their own, the largest first, and REST at the end."""
        found = {bucket for bucket, _ in self.volumes}
        named = [each.bucket for each in self.buckets if each.bucket in found]
        return named + ([REST] if REST in found - set(named) else [])


def message_figures(messages: DataFrame, top: int) -> Figures:
    """Count the messages that `open_all` returns."""
    step_s, totals_before = _span(messages)
    rate_step_s = _step(step_s, _RATE_STEPS_S, _POINTS_MAX)
    volume_step_s = _step(step_s, _BAR_STEPS_S, _BARS_MAX)
    seconds = F.unix_seconds("at")
    # Everything else is counted from these aggregates, which are small.
    pieces = (
        messages.groupBy(
            "bucket",
            "stream_id",
            _floored(seconds, rate_step_s).alias("rate_s"),
            _floored(seconds, volume_step_s).alias("volume_s"),
        )
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.coalesce(F.sum("bytes"), F.lit(0)).alias("bytes"),
            F.max(seconds).alias("last_s"),
        )
        .cache()
    )
    try:
        streams = _streams(pieces).cache()
        try:
            return _figures(pieces, streams, totals_before, (rate_step_s, volume_step_s), top)
        finally:
            streams.unpersist()
    finally:
        pieces.unpersist()


def _figures(
    pieces: DataFrame,
    streams: DataFrame,
    span: tuple[int | None, int | None, int],
    steps_s: tuple[int, int],
    top: int,
) -> Figures:
    total = streams.agg(
        F.sum("messages"), F.sum("bytes"), F.count(F.lit(1)), F.count_distinct("bucket")
    ).collect()[0]
    by_bucket = (
        streams.groupBy("bucket")
        .agg(
            F.lit("").alias("stream_id"),
            F.count(F.lit(1)).alias("streams"),
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.max("last_s").alias("last_s"),
        )
        .select(*_RANKED)
    )
    buckets = _ranked(by_bucket, "bytes", _BUCKETS_LISTED)
    shown = [each.bucket for each in buckets[:_SHOWN]]
    dated = pieces.where("rate_s is not null")
    return Figures(
        totals=Totals(total[0] or 0, total[1] or 0, total[2] or 0, total[3] or 0, *span),
        buckets=buckets,
        busiest=_ranked(streams, "messages", top),
        largest=_ranked(streams, "bytes", top),
        sizes=_sizes(streams),
        rate_step_s=steps_s[0],
        rates={
            row.rate_s: row.n
            for row in dated.groupBy("rate_s").agg(F.sum("messages").alias("n")).collect()
        },
        volume_step_s=steps_s[1],
        volumes=_volumes(dated, shown),
    )


_RANKED: Final = ("bucket", "stream_id", "streams", "messages", "bytes", "last_s")


def _span(messages: DataFrame) -> tuple[int, tuple[int | None, int | None, int]]:
    seconds = F.unix_seconds("at")
    first_s, last_s, undated = messages.agg(
        F.min(seconds), F.max(seconds), F.count_if(F.col("at").isNull())
    ).collect()[0]
    return (last_s or 0) - (first_s or 0), (first_s, last_s, undated)


def _streams(pieces: DataFrame) -> DataFrame:
    return (
        pieces.groupBy("bucket", "stream_id")
        .agg(
            F.lit(1).alias("streams"),
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.max("last_s").alias("last_s"),
        )
        .select(*_RANKED)
    )


def _ranked(frame: DataFrame, by: str, count: int) -> list[Ranked]:
    rows = frame.orderBy(F.desc(by), "bucket", "stream_id").limit(count).collect()
    return [Ranked(*row) for row in rows]


def _sizes(streams: DataFrame) -> dict[int, int]:
    power = F.when(F.col("bytes") > 0, F.floor(F.log2("bytes")).cast("int")).otherwise(F.lit(-1))
    rows = streams.groupBy(power.alias("power")).agg(F.count(F.lit(1)).alias("n")).collect()
    return {row.power: row.n for row in rows}


def _volumes(dated: DataFrame, shown: list[str]) -> dict[tuple[str, int], int]:
    bucket = F.when(F.col("bucket").isin(shown), F.col("bucket")).otherwise(F.lit(REST))
    rows = (
        dated.groupBy(bucket.alias("bucket"), "volume_s").agg(F.sum("bytes").alias("n")).collect()
    )
    return {(row.bucket, row.volume_s): row.n for row in rows}


@dataclass(frozen=True)
class ModelFigures:
    """The responses of one model; None stands for those that name none."""

    model: str | None
    responses: int
    complete: int
    prompt_tokens: int
    completion_tokens: int
    p50_s: float | None
    p95_s: float | None


@dataclass(frozen=True)
class ResponseFigures:
    """What the page shows of responses; moments are in seconds since the epoch."""

    # Durations are counted by powers of two; this one stands for everything shorter, too.
    LEAST_POWER: ClassVar = -10

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
    models: Sequence[ModelFigures]
    models_in_all: int


def response_figures(responses: DataFrame, top: int) -> ResponseFigures:
    """Count the responses that `open_all` returns."""
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
    step_s = _step((total[3] or 0) - (total[2] or 0), _BAR_STEPS_S, _BARS_MAX)
    models = [ModelFigures(*row) for row in _by_model(responses).limit(top).collect()]
    shown = [each.model for each in models if each.model is not None][:_SHOWN]
    start = _floored(seconds, step_s).alias("start_s")
    named = F.when(F.col("model").isin(shown), F.col("model")).otherwise(F.lit(REST))
    bars = (
        responses.groupBy(start, "outcome", named.alias("model"))
        .agg(F.count(F.lit(1)).alias("n"), tokens.alias("tokens"))
        .collect()
    )
    outcomes: Counter[tuple[str, int]] = Counter()
    model_tokens: Counter[tuple[str, int]] = Counter()
    for row in bars:
        outcomes[row.outcome, row.start_s] += row.n
        model_tokens[row.model, row.start_s] += row.tokens
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
    power = F.floor(F.log2(F.greatest("seconds", F.lit(2.0**ResponseFigures.LEAST_POWER)))).cast(
        "int"
    )
    rows = (
        responses.where("seconds is not null")
        .groupBy(power.alias("power"))
        .agg(F.count(F.lit(1)).alias("n"))
        .collect()
    )
    return {row.power: row.n for row in rows}


def _floored(seconds: Any, step_s: int) -> Any:
    """The start of the step that contains a moment, as a column."""
    return seconds - F.pmod(seconds, F.lit(step_s))


def _step(span_s: int, steps_s: Sequence[int], count_max: int) -> int:
    """The smallest step of which at most `count_max` make up a span."""
    return next((each for each in steps_s if span_s / each <= count_max), steps_s[-1])
