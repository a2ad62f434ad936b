"""The job `archive`, beside Spark's own copy from Parquet to Parquet."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path

from bench.scenario import Plan
from bench.spark.child import Found, alternating, in_child, session
from bench.spark.filling import BUCKET, MESSAGE_BYTES, fill_with_bytes
from bench.storage.figures import MB, Figure, Measured, Sizes, Step
from bench.storage.node import node

STREAMS = 64
OF_COPY = 0.6


def _run(plan: Plan, sizes: Sizes) -> Measured:
    messages = max(1, int(sizes.spark_mb * MB) // MESSAGE_BYTES // STREAMS)
    with node("spark-archive") as made:
        made.start()
        fill_with_bytes(made.port, STREAMS, messages)
        made.flush()
        found = in_child(
            __name__,
            url=made.running.url,
            directory=str(made.data_dir.parent),
            rounds=plan.rounds,
        )
    plan.console.print(f"    {found}", highlight=False)
    megabytes = STREAMS * messages * MESSAGE_BYTES / MB
    archive, copy = (statistics.median(found[name]) for name in ("archive", "copy"))
    what = f"archive of {megabytes:,.0f} MB in 1 KiB messages as Parquet"
    return Measured(
        [
            Figure(f"{what} / Spark's copy of Parquet", copy / archive, "{:.2f}", None, OF_COPY),
            Figure(f"{what}: MB/s", megabytes / archive),
            Figure("Spark's copy of the same rows: MB/s", megabytes / copy),
        ]
    )


def measure(url: str, directory: str, rounds: int) -> Found:
    """Seconds of each copy."""
    from holdfast.spark.connection import Connection  # noqa: PLC0415 (only in the child)
    from holdfast.spark.jobs import run_job  # noqa: PLC0415 (the same)
    from holdfast.spark.jobs.archive import Archive  # noqa: PLC0415 (the same)

    spark = session()
    source, copied, table = (str(Path(directory) / name) for name in ("source", "copy", "table"))
    spark.read.format("holdfast").options(url=url, bucket=BUCKET).load().write.parquet(source)

    def archive() -> None:
        shutil.rmtree(table, ignore_errors=True)
        job = Archive(bucket=BUCKET, to=table, compression="snappy", server=Connection(url=url))
        run_job(spark, job)

    def copy() -> None:
        reading = spark.read.parquet(source)
        reading.write.mode("overwrite").option("compression", "snappy").parquet(copied)

    found: Found = dict(alternating({"archive": archive, "copy": copy}, rounds, warm=1))
    assert spark.read.parquet(table).count() == spark.read.parquet(copied).count()
    spark.stop()
    return found


STEP = Step(
    "archive",
    "The bucket of *scan* to a new table, with Snappy, and Spark's own copy of the same rows from "
    "Parquet to Parquet with the same compression. After a round to warm up, by turns; medians.",
    _run,
)
