"""Names that a collation takes for the same are streams of their own."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from holdfast.spark.writing.writers import write_to_streams
from tests.server_process import ServerProcess
from tests.spark.reading_back import messages, new_bucket


@pytest.mark.slow
def test_names_in_a_collation_without_case(spark: SparkSession, tmp_path: Path) -> None:
    case = sql.when(sql.col("id") % 2 == 0, "s").otherwise("S")
    rows = spark.range(40).select(
        sql.collate(sql.concat(case, sql.col("id") % 4), "UTF8_LCASE").alias("stream_id"),
        sql.collate(sql.col("id").cast("string"), "UTF8_LCASE").alias("value"),
        sql.col("id").alias("at"),
    )
    bucket = new_bucket()
    with ServerProcess(tmp_path / "data") as server:
        told = {"url": server.url, "bucket": bucket, "order_by": "at", "partitions": 1}
        report = write_to_streams(rows, producer_id="load", batch_id=0, **told)
        assert (report.rows, report.duplicates, report.streams) == (40, 0, 4)
        expected = {
            f"{'sS'[n % 2]}{n % 4}": [str(each) for each in range(n, 40, 4)] for n in range(4)
        }
        assert messages(server.url, bucket) == expected
