"""The plan of a micro-batch over a bucket with many streams, few of which changed."""

from __future__ import annotations

import statistics

from bench.scenario import Plan
from bench.servers import PREFIX
from bench.spark.child import Found, in_child, timed
from bench.spark.filling import change
from bench.storage.figures import Figure, Measured, Sizes, Step
from bench.storage.node import create_streams, node

SECONDS_MAX = 2
EVERY = 100
MESSAGE_BYTES = 100


def _run(plan: Plan, sizes: Sizes) -> Measured:
    streams = sizes.spark_streams
    with node("spark-planning") as made:
        made.start()
        create_streams(made, streams, MESSAGE_BYTES)
        made.flush()
        start = in_child(__name__, url=made.running.url)["end"]
        changed = change(made.port, PREFIX, streams, EVERY)
        hot = in_child(__name__, url=made.running.url, start=start, rounds=plan.rounds)
        made.flush()
        packed = in_child(__name__, url=made.running.url, start=start, rounds=plan.rounds)
    plan.console.print(f"    {hot} {packed}", highlight=False)
    what = f"planning a micro-batch: {streams:,} streams, {changed:,} changed"
    return Measured(
        [
            Figure(f"{what}, not in packs yet", _median(hot), "{:.3f} s", SECONDS_MAX),
            Figure(f"{what}, in packs", _median(packed), "{:.3f} s", SECONDS_MAX),
            Figure(f"{what}: rows of them", packed["rows"], at_least=changed, at_most=changed),
        ]
    )


def _median(found: Found) -> float:
    return statistics.median(found["seconds"])


def measure(url: str, start: dict[str, str] | None = None, rounds: int = 1) -> Found:
    """Where the bucket ends, and what it takes to plan a batch up to there."""
    from holdfast.spark.reading.arrow import DEFAULT_COLUMNS, spark_schema  # noqa: PLC0415 (in the child)
    from holdfast.spark.reading.readers import stream_reader  # noqa: PLC0415 (the same)
    from holdfast.spark.reading.slice_reader import read_batches  # noqa: PLC0415 (the same)

    bucket = PREFIX.strip("/").rpartition("/")[2]
    reader = stream_reader({"url": url, "bucket": bucket}, spark_schema(DEFAULT_COLUMNS))
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(start or reader.initialOffset(), limit)
    if start is None:
        return {"end": end}
    parts = reader.partitions(start, end)
    rows = sum(len(batch) for each in parts for batch in read_batches(each.source, each.part))
    seconds = [
        timed(lambda: reader.partitions(start, reader.latestOffset(start, limit)))
        for _ in range(rounds)
    ]
    return {"seconds": seconds, "rows": rows, "parts": len(parts), "end": end}


STEP = Step(
    "planning",
    f"Streams of {MESSAGE_BYTES} B, all in packs; then one in {EVERY} is appended to. What Spark "
    "waits for before it can start a micro-batch's tasks: `latestOffset` and `partitions`.",
    _run,
)
