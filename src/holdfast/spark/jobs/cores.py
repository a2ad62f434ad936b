"""How many tasks a Spark session can run at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.spark.jobs.progress import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNKNOWN: Final = 8


def core_count(spark: SparkSession) -> int:
    """As far as is known: a client of Spark Connect is not told."""
    return _UNKNOWN if is_connect(spark) else spark.sparkContext.defaultParallelism
