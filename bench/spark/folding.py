"""The job `snapshot`: updates of many streams folded and published."""

from __future__ import annotations

import time

from bench.scenario import Plan
from bench.spark.child import Found, in_child, session
from bench.spark.filling import BUCKET, fill_with_updates
from bench.storage.figures import Figure, Measured, Sizes, Step
from bench.storage.node import node

UPDATES_PER_S = 150_000
WARMING = "warming"


# A snapshot costs its publishing and its updates: few updates a stream, and many.
FOLDS = (1, 3)


def _run(plan: Plan, sizes: Sizes) -> Measured:
    streams = sizes.spark_snapshots
    each = [_fold(plan, streams, times * sizes.spark_updates) for times in FOLDS]
    return Measured([figure for figures in each for figure in figures])


def _fold(plan: Plan, streams: int, updates: int) -> list[Figure]:
    with node("spark-snapshot") as made:
        made.start()
        fill_with_updates(made.port, 200, 20, WARMING)
        fill_with_updates(made.port, streams, updates)
        made.flush()
        found = in_child(__name__, url=made.running.url, updates=updates)
    plan.console.print(f"    {found}", highlight=False)
    what = f"snapshot of {streams:,} streams with {updates} updates each"
    rate = found["messages"] / found["seconds"]
    return [
        Figure(f"{what}: updates/s", rate, at_least=UPDATES_PER_S),
        Figure(f"{what}: seconds", found["seconds"], "{:.1f} s"),
        Figure(f"{what}: snapshots published", found["published"], at_least=streams),
        Figure(f"{what}, all below the threshold: seconds", found["looking"], "{:.1f} s"),
        Figure(f"{what}, the same again: seconds", found["looking_again"], "{:.1f} s"),
        Figure(f"{what}, the same again: streams read", found["read_again"], at_most=0),
    ]


def measure(url: str, updates: int) -> Found:
    """Seconds of the job, in a session that has done it before."""
    from holdfast.spark import pipeline  # noqa: PLC0415 (only in the child)
    from holdfast.spark.connection import SparkConnection  # noqa: PLC0415 (the same)

    spark = session()
    server = SparkConnection(url=url)
    pipeline.snapshot(spark, bucket=WARMING, fold="merge-patch", server=server)
    of_bucket = {"bucket": BUCKET, "fold": "merge-patch", "server": server}
    looked = [pipeline.snapshot(spark, min_messages=updates + 1, **of_bucket) for _ in range(2)]
    started_s = time.perf_counter()
    summary = pipeline.snapshot(spark, **of_bucket)
    seconds = time.perf_counter() - started_s
    spark.stop()
    return {
        "seconds": seconds,
        "published": summary.published,
        "messages": summary.messages,
        "looking": looked[0].seconds,
        "looking_again": looked[1].seconds,
        "read_again": looked[1].streams,
    }


STEP = Step(
    "snapshot",
    "JSON streams of small updates, all in packs, folded by JSON merge patch; the time from the "
    "start of the job to its end, publishing included, in a session that has done it before. Also "
    "twice with a threshold that no stream reaches: the second run has nothing to read.",
    _run,
)
