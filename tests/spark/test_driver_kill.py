"""A real driver, killed with its JVM and workers between writing a batch and saying so."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.server_process import ServerProcess
from tests.spark.copying import Copy, Driver, expected, start
from tests.spark.filled import TEXT, Filled
from tests.spark.reading_back import messages

DEADLINE_S = 60


@pytest.mark.slow
def test_nothing_is_lost_or_doubled(spark: SparkSession, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", flush_age=3600) as server:
        bucket = Filled(server.url, "source")
        for number in range(120):
            bucket.append(f"s{number % 7}", f"message {number};", content_type=TEXT)
            if number == 70:
                bucket.flush()
        copy = Copy(server.url, "source", "target", str(tmp_path / "checkpoint"))
        with Driver(copy) as driver:
            driver.wait_for("written 1")
            driver.kill()
        half = messages(server.url, "target")
        assert 50 < sum(map(len, half.values())) < 120
        bucket.append("s0", "after the kill;", content_type=TEXT)
        # Somebody else goes on from the same checkpoint, with another number of tasks.
        again = start(spark, Copy(server.url, "source", "target", copy.checkpoint, partitions=3))
        assert again.awaitTermination(DEADLINE_S)
        assert messages(server.url, "target") == expected(server.url, "source")
