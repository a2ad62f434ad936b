"""A batch read from packs, beside a scan of Parquet and a read over HTTP."""

from __future__ import annotations

import statistics

from bench.scenario import Plan
from bench.spark.child import Found, alternating, in_child, session, timed, to_nowhere
from bench.spark.filling import BUCKET, MESSAGE_BYTES, fill_with_bytes
from bench.storage.figures import MB, Figure, Measured, Sizes, Step
from bench.storage.node import node

STREAMS = 64
OF_PARQUET, OF_HTTP = 0.7, 4


def _run(plan: Plan, sizes: Sizes) -> Measured:
    messages = max(1, int(sizes.spark_mb * MB) // MESSAGE_BYTES // STREAMS)
    with node("spark-scan") as made:
        made.start()
        fill_with_bytes(made.port, STREAMS, messages)
        made.flush()
        found = in_child(
            __name__,
            url=made.running.url,
            directory=str(made.data_dir.parent / "parquet"),
            rounds=2 * plan.rounds,
        )
    plan.console.print(f"    {found}", highlight=False)
    megabytes = STREAMS * messages * MESSAGE_BYTES / MB
    holdfast, parquet = (statistics.median(found[name]) for name in ("holdfast", "parquet"))
    what = f"batch read of {megabytes:,.0f} MB in 1 KiB messages from packs, to noop"
    return Measured(
        [
            Figure(
                f"{what} / Spark's scan of Parquet", parquet / holdfast, "{:.2f}", None, OF_PARQUET
            ),
            Figure(
                f"{what} / over HTTP, 1 connection",
                found["http"] / holdfast,
                "{:.1f}",
                None,
                OF_HTTP,
            ),
            Figure(f"{what}: MB/s", megabytes / holdfast),
            Figure("Spark's scan of the same rows in Parquet: MB/s", megabytes / parquet),
            Figure("the same over HTTP through one connection: MB/s", megabytes / found["http"]),
        ]
    )


def measure(url: str, directory: str, rounds: int) -> Found:
    """Seconds of each read."""
    spark = session()
    reading = spark.read.format("holdfast").options(url=url, bucket=BUCKET, via="store")
    reading.load().write.mode("overwrite").parquet(directory)
    actions = {
        "holdfast": lambda: to_nowhere(reading.load()),
        "parquet": lambda: to_nowhere(spark.read.parquet(directory)),
    }
    found: Found = dict(alternating(actions, rounds))
    over_http = spark.read.format("holdfast").options(url=url, bucket=BUCKET, via="http")
    found["http"] = timed(lambda: to_nowhere(over_http.load().coalesce(1)))
    assert reading.load().count() == spark.read.parquet(directory).count()
    spark.stop()
    return found


STEP = Step(
    "scan",
    f"{STREAMS} byte streams of random messages of 1 KiB, all in packs in a local directory; Spark "
    "with two cores. Every column, written to noop; the Parquet files are Spark's own copy of the "
    "same rows. After two rounds each to warm up, by turns; medians. Over HTTP: the same streams "
    "with `via=http` in one task, one after the other.",
    _run,
)
