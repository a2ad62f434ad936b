"""A slice together with the source that it is of.

Spark pickles a reader before it asks for partitions, so what planning finds out, such as where the
store is, travels with each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from holdfast.spark.reading.slices import Slice, StreamSlice
from holdfast.spark.reading.source import Source


@dataclass(frozen=True)
class Sourced(InputPartition):
    """What an executor is given."""

    source: Source
    part: Slice | StreamSlice
