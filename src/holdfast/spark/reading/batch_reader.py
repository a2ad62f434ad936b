"""`spark.read.format("holdfast")`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.errors import SettingsError
from holdfast.spark.connection import Options, SparkClient
from holdfast.spark.reading.columns import columns_of
from holdfast.spark.reading.planning import plan_batch
from holdfast.spark.reading.rows import read_rows
from holdfast.spark.reading.source import READ_OPTIONS, Extent, Source
from holdfast.spark.reading.sourced import Sourced


class BatchReader(DataSourceReader):
    """Reads a bucket as it is when the read is planned."""

    def __init__(self, source: Source, extent: Extent) -> None:
        self._source = source
        self._extent = extent

    def partitions(self) -> Sequence[InputPartition]:
        """The slices of the bucket; called once, by the driver, before anything is read."""
        with SparkClient(self._source.connection) as server:
            plan = plan_batch(server, self._source, self._extent)
        return [Sourced(plan.source, each) for each in plan.slices]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one slice."""
        if not isinstance(partition, Sourced):
            # A plan without slices is one with an empty slice of Spark's own.
            return iter(())
        return read_rows(partition.source, partition.part)


def batch_reader(given: Mapping[str, str], schema: StructType) -> BatchReader:
    """The reader of a batch read with these options."""
    options = Options(given, READ_OPTIONS)
    for name in ("maxBytesPerTrigger", "maxRowsPerTrigger"):
        if name in options:
            raise SettingsError(f"The option {name!r} is for readStream.")
    source = replace(Source.of(options), columns=columns_of(schema))
    return BatchReader(source, Extent.of(options))
