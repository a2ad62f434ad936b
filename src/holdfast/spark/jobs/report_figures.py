"""The figures of the report, counted by Spark: a few hundred, however large the tables are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

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
class MessageTotals:
    """Counts of all messages. Times are seconds since the epoch, None if no message has one."""

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
class MessageFigures:
    totals: MessageTotals
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


def message_figures(messages: DataFrame, top: int) -> MessageFigures:
    """Count the messages that `open_all` returns."""
    sql = messages.sparkSession.sql
    first_s, last_s, undated = sql(
        "select unix_seconds(min(at)), unix_seconds(max(at)), count_if(at is null) from {messages}",
        messages=messages,
    ).collect()[0]
    span_s = (last_s or 0) - (first_s or 0)
    rate_step_s = _step(span_s, _RATE_STEPS_S, _POINTS_MAX)
    volume_step_s = _step(span_s, _BAR_STEPS_S, _BARS_MAX)
    # Everything else is counted from these aggregates, which are small.
    pieces = sql(
        """
        select bucket, stream_id, count(*) as messages, coalesce(sum(bytes), 0) as bytes,
            unix_seconds(max(at)) as last_s,
            unix_seconds(at) - pmod(unix_seconds(at), :rate_step_s) as rate_s,
            unix_seconds(at) - pmod(unix_seconds(at), :volume_step_s) as volume_s
        from {messages} group by bucket, stream_id, rate_s, volume_s
        """,
        args={"rate_step_s": rate_step_s, "volume_step_s": volume_step_s},
        messages=messages,
    ).cache()
    streams = sql(
        """
        select bucket, stream_id, 1 as streams, sum(messages) as messages, sum(bytes) as bytes,
            max(last_s) as last_s
        from {pieces} group by bucket, stream_id
        """,
        pieces=pieces,
    ).cache()
    try:
        total = sql(
            "select coalesce(sum(messages), 0) as messages, coalesce(sum(bytes), 0) as bytes, "
            "count(*) as streams, count(distinct bucket) as buckets from {streams}",
            streams=streams,
        ).collect()[0]
        buckets = _ranked(
            sql(
                """
                select bucket, '' as stream_id, count(*) as streams, sum(messages) as messages,
                    sum(bytes) as bytes, max(last_s) as last_s
                from {streams} group by bucket
                """,
                streams=streams,
            ),
            "bytes",
            _BUCKETS_LISTED,
        )
        sizes = sql(
            "select if(bytes > 0, int(floor(log2(bytes))), -1) as power, count(*) from {streams} "
            "group by power",
            streams=streams,
        )
        rates = sql(
            "select rate_s, sum(messages) from {pieces} where rate_s is not null group by rate_s",
            pieces=pieces,
        )
        volumes = sql(
            """
            select if(array_contains(:shown, bucket), bucket, :rest) as name, volume_s, sum(bytes)
            from {pieces} where rate_s is not null group by name, volume_s
            """,
            args={"shown": [each.bucket for each in buckets[:_SHOWN]] or [""], "rest": REST},
            pieces=pieces,
        )
        return MessageFigures(
            totals=MessageTotals(
                **total.asDict(), first_s=first_s, last_s=last_s, without_time=undated
            ),
            buckets=buckets,
            busiest=_ranked(streams, "messages", top),
            largest=_ranked(streams, "bytes", top),
            sizes=dict(sizes.collect()),
            rate_step_s=rate_step_s,
            rates=dict(rates.collect()),
            volume_step_s=volume_step_s,
            volumes={(name, start_s): size for name, start_s, size in volumes.collect()},
        )
    finally:
        streams.unpersist()
        pieces.unpersist()


def _ranked(frame: DataFrame, by: str, count: int) -> list[Ranked]:
    return [
        Ranked(*row)
        for row in frame.orderBy(by, "bucket", "stream_id", ascending=[False, True, True])
        .limit(count)
        .collect()
    ]


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
    sql = partial(responses.sparkSession.sql, responses=responses)
    total = sql(
        """
        select count(*) as responses, count(distinct stream_id) as streams,
            unix_seconds(min(started_at)) as first_s, unix_seconds(max(started_at)) as last_s,
            coalesce(sum(prompt_tokens), 0) + coalesce(sum(completion_tokens), 0) as tokens,
            percentile(seconds, 0.5) as p50_s, count(distinct coalesce(model, '')) as models_in_all
        from {responses}
        """
    ).collect()[0]
    by_model = sql(
        """
        select model, count(*) as n, count_if(outcome = 'complete') as complete,
            coalesce(sum(prompt_tokens), 0) as prompt,
            coalesce(sum(completion_tokens), 0) as completion,
            percentile(seconds, 0.5) as p50, percentile(seconds, 0.95) as p95
        from {responses} group by model
        order by prompt + completion desc, n desc, model limit :top
        """,
        args={"top": top},
    )
    models = [ModelFigures(*row) for row in by_model.collect()]
    step_s = _step((total.last_s or 0) - (total.first_s or 0), _BAR_STEPS_S, _BARS_MAX)
    bars = sql(
        """
        select unix_seconds(started_at) - pmod(unix_seconds(started_at), :step_s) as start_s,
            outcome, if(array_contains(:shown, model), model, :rest) as name, count(*) as n,
            coalesce(sum(prompt_tokens), 0) + coalesce(sum(completion_tokens), 0) as tokens
        from {responses} group by start_s, outcome, name
        """,
        args={
            "step_s": step_s,
            "shown": [each.model for each in models if each.model is not None][:_SHOWN] or [""],
            "rest": REST,
        },
    )
    outcomes: Counter[tuple[str, int]] = Counter()
    model_tokens: Counter[tuple[str, int]] = Counter()
    for row in bars.collect():
        outcomes[row.outcome, row.start_s] += row.n
        model_tokens[row.name, row.start_s] += row.tokens
    durations = sql(
        """
        select int(floor(log2(greatest(seconds, power(2, :least))))) as power, count(*)
        from {responses} where seconds is not null group by power
        """,
        args={"least": ResponseFigures.LEAST_POWER},
    )
    return ResponseFigures(
        **total.asDict(),
        step_s=step_s,
        outcomes=outcomes,
        model_tokens={key: value for key, value in model_tokens.items() if value},
        durations=dict(durations.collect()),
        models=models,
    )


def _step(span_s: int, steps_s: Sequence[int], count_max: int) -> int:
    """The smallest step of which at most `count_max` make up a span."""
    return next((each for each in steps_s if span_s / each <= count_max), steps_s[-1])
