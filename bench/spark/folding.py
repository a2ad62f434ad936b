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
        found = in_child(__name__, url=made.running.url)
    plan.console.print(f"    {found}", highlight=False)
    what = f"snapshot of {streams:,} streams with {updates} updates each"
    rate = found["messages"] / found["seconds"]
    return [
        Figure(f"{what}: updates/s", rate, at_least=UPDATES_PER_S),
        Figure(f"{what}: seconds", found["seconds"], "{:.1f} s"),
        Figure(f"{what}: snapshots published", found["published"], at_least=streams),
    ]


def measure(url: str) -> Found:
    """Seconds of the job, in a session that has done it before."""
    from holdfast.spark.connection import SparkConnection  # noqa: PLC0415 (only in the child)
    from holdfast.spark.jobs import run_job  # noqa: PLC0415 (the same)
    from holdfast.spark.jobs.snapshot import Snapshot  # noqa: PLC0415 (the same)

    spark = session()
    server = SparkConnection(url=url)
    run_job(spark, Snapshot(bucket=WARMING, fold="merge-patch", server=server))
    started_s = time.perf_counter()
    summary = run_job(spark, Snapshot(bucket=BUCKET, fold="merge-patch", server=server))
    seconds = time.perf_counter() - started_s
    spark.stop()
    return {"seconds": seconds, "published": summary.published, "messages": summary.messages}


STEP = Step(
    "snapshot",
    "JSON streams of small updates, all in packs, folded by JSON merge patch; the time from the "
    "start of the job to its end, publishing included, in a session that has done it before.",
    _run,
)
