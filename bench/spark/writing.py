"""Small rows written into many streams: with `write_to_streams`, and with the sink."""

from __future__ import annotations

from bench.scenario import Plan
from bench.spark.child import Found, alternating, in_child, session
from bench.storage.figures import Figure, Measured, Sizes, Step
from bench.storage.node import node

STREAMS = 1000
ROW_BYTES = 100
ROWS_PER_S = 200_000


def _run(plan: Plan, sizes: Sizes) -> Measured:
    with node("spark-write") as made:
        made.start()
        url = made.running.url
        found = in_child(__name__, url=url, rows=sizes.spark_rows, rounds=plan.rounds)
    plan.console.print(f"    {found}", highlight=False)
    what = f"{sizes.spark_rows:,} rows of {ROW_BYTES} bytes into {STREAMS:,} streams"
    return Measured(
        [
            Figure(f"{what}: rows/s", _rate(sizes, found["write_to_streams"]), at_least=ROWS_PER_S),
            Figure(f"{what}, by the sink: rows/s", _rate(sizes, found["sink"])),
        ]
    )


def _rate(sizes: Sizes, seconds: list[float]) -> float:
    return sizes.spark_rows / sorted(seconds)[len(seconds) // 2]


def measure(url: str, rows: int, rounds: int) -> Found:
    """Seconds of each write, in a session that has done both before."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 (only in the child)

    from holdfast.spark import write_to_streams  # noqa: PLC0415 (the same)

    spark = session()
    number = sql.lpad(sql.col("id").cast("string"), 9, "0")
    begin, end = '{"id": 1', f', "text": "{"x" * (ROW_BYTES - 30)}"}}'
    frame = spark.range(rows).select(
        sql.format_string("s%04d", sql.col("id") % STREAMS).alias("stream_id"),
        sql.concat(sql.lit(begin), number, sql.lit(end)).alias("value"),
        sql.col("id").alias("at"),
    )
    frame = frame.cache()
    assert frame.selectExpr("max(length(value))").first()[0] == ROW_BYTES
    epochs = iter(range(1000))

    def direct() -> None:
        write_to_streams(
            frame,
            producer_id="bench",
            batch_id=next(epochs),
            order_by="at",
            url=url,
            bucket="direct",
        )

    def by_sink() -> None:
        writer = frame.drop("at").write.format("holdfast").mode("append")
        writer.options(url=url, bucket="staged").save()

    found: Found = alternating({"write_to_streams": direct, "sink": by_sink}, rounds)
    spark.stop()
    return found


STEP = Step(
    "write",
    "JSON rows that are in Spark's memory, written into streams that exist; the median of the "
    "rounds, in a session that has done it before. `write_to_streams` sorts them by stream first, "
    "and the sink stages and publishes them.",
    _run,
)
