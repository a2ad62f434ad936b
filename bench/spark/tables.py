"""A batch read from packs and the job `archive`, beside what Spark does with Parquet files."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

from bench.scenario import Plan
from bench.spark.child import Found, alternating, in_child, session, to_nowhere
from bench.spark.filling import BUCKET, MESSAGE_BYTES, fill_with_bytes
from bench.storage.figures import MB, Figure, Measured, Sizes, Step
from bench.storage.node import node

STREAMS = 64
# A bucket with one stream, as large as so many of the others: one task reads it.
SINGLE, TIMES = "single", 8
OF_PARQUET, OF_HTTP, OF_COPY, OF_ALL = 1.0, 4, 0.6, 20


def _run(plan: Plan, sizes: Sizes) -> Measured:
    messages = max(1, int(sizes.spark_mb * MB) // MESSAGE_BYTES // STREAMS)
    with node("spark-tables") as made:
        made.start()
        fill_with_bytes(made.port, STREAMS, messages)
        fill_with_bytes(made.port, 1, TIMES * messages, SINGLE)
        made.flush()
        directory = str(made.data_dir.parent)
        found = in_child(__name__, url=made.running.url, directory=directory, rounds=plan.rounds)
    plan.console.print(f"    {found}", highlight=False)
    megabytes = STREAMS * messages * MESSAGE_BYTES / MB
    read, scan, some, archive, copy, single = (
        statistics.median(found[name])
        for name in ("read", "scan", "some", "archive", "copy", "http")
    )
    # As if all of it came through that one connection.
    over_http = single * STREAMS / TIMES
    what = f"{megabytes:,.0f} MB in 1 KiB messages"
    batch, table = f"batch read of {what} from packs", f"archive of {what} as Parquet"
    return Measured(
        [
            Figure(f"{batch} / Spark's Parquet scan", scan / read, "{:.2f}", None, OF_PARQUET),
            Figure(f"{batch} / HTTP, 1 connection", over_http / read, "{:.1f}", None, OF_HTTP),
            Figure(f"{batch} / 1 % of its time, by a filter", read / some, "{:.1f}", None, OF_ALL),
            Figure(f"{batch}: MB/s", megabytes / read),
            Figure("Spark's scan of the same rows in Parquet: MB/s", megabytes / scan),
            Figure("the same over HTTP through one connection: MB/s", megabytes / over_http),
            Figure(f"{table} / Spark's Parquet copy", copy / archive, "{:.2f}", None, OF_COPY),
            Figure(f"{table}: MB/s", megabytes / archive),
            Figure("Spark's copy of the same rows: MB/s", megabytes / copy),
        ]
    )


def measure(url: str, directory: str, rounds: int) -> Found:
    """Seconds of each, in every round."""
    from holdfast.spark.connection import SparkConnection  # noqa: PLC0415 (only in the child)
    from holdfast.spark.jobs import run_job  # noqa: PLC0415 (the same)
    from holdfast.spark.jobs.archive import Archive  # noqa: PLC0415 (the same)

    spark = session()
    source, copied, table = (str(Path(directory) / name) for name in ("source", "copy", "table"))
    reading = spark.read.format("holdfast").options(url=url, bucket=BUCKET)
    reading.load().write.option("compression", "snappy").parquet(source)

    def archive() -> None:
        shutil.rmtree(table, ignore_errors=True)
        server = SparkConnection(url=url)
        run_job(spark, Archive(bucket=BUCKET, to=table, compression="snappy", server=server))

    def copy() -> None:
        rows = spark.read.parquet(source)
        rows.write.mode("overwrite").option("compression", "snappy").parquet(copied)

    times = spark.read.parquet(source).selectExpr(
        "min(timestamp) AS first", "(max(timestamp) - min(timestamp)) / 100 AS share"
    )
    ((bound,),) = times.selectExpr("first + share").collect()

    def read_some() -> None:
        rows = reading.option("pushdown", "true").load()
        to_nowhere(rows.where(rows.timestamp < bound))

    reads: dict[str, Callable[[], object]] = {
        "read": lambda: to_nowhere(reading.option("pushdown", "false").load()),
        "scan": lambda: to_nowhere(spark.read.parquet(source)),
        "some": read_some,
    }
    found: Found = dict(alternating(reads, 2 * rounds))
    found |= alternating({"archive": archive, "copy": copy}, rounds, warm=1)
    over_http = spark.read.format("holdfast").options(url=url, bucket=SINGLE, via="http")
    found |= alternating({"http": lambda: to_nowhere(over_http.load())}, rounds)
    # Every byte of every row, not what the files say of themselves.
    seen = "count(*)", "sum(length(payload))", "sum(crc32(payload))", "count(distinct stream_id)"
    sums = [spark.read.parquet(each).selectExpr(*seen).first() for each in (source, copied, table)]
    assert sums[0] == sums[1] == sums[2], sums
    for name, place in (("source", source), ("copy", copied), ("table", table)):
        files = [each for each in Path(place).rglob("*.parquet") if each.is_file()]
        found[f"{name}_files"] = len(files)
        found[f"{name}_mb"] = round(sum(each.stat().st_size for each in files) / MB)
        found[f"{name}_columns"] = spark.read.parquet(place).columns
    spark.stop()
    return found


STEP = Step(
    "tables",
    f"{STREAMS} byte streams of random messages, all in packs in a local directory. Read: every "
    "column, to noop, and the first hundredth of the time by a filter; the Parquet files are "
    "Spark's own copy of the same rows. After two rounds to warm up, by turns; medians. "
    f"Over HTTP: a stream as large as {TIMES} of them with `via=http`, "
    "which is one task and one connection; by MB/s. Archive: to a new table each time, and Spark's "
    "copy from Parquet to Parquet, both with Snappy, after a round to warm up, by turns; medians.",
    _run,
)
