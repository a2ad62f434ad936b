"""What `spark.read` and `spark.readStream` with the format `holdfast` get: schemas and readers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from holdfast.errors import SettingsError
from holdfast.spark.connection import Options, SparkClient
from holdfast.spark.plain_errors import plain_errors
from holdfast.spark.reading.arrow import columns_of, json_messages, spark_schema
from holdfast.spark.reading.buckets import BucketChoice
from holdfast.spark.reading.filters import PushedFilters, push_filters
from holdfast.spark.reading.planning import ReadPlan, plan_batch
from holdfast.spark.reading.selection import (
    ALL_TIMES,
    EARLIEST,
    LATEST,
    BatchBounds,
    ReadBound,
)
from holdfast.spark.reading.slice_reader import read_batches, read_chunks
from holdfast.spark.reading.source import (
    READ_OPTIONS,
    ReadPartition,
    ReadSource,
    StreamSlice,
    is_typed,
)
from holdfast.spark.reading.stream_reader import LIMITS, StreamReader, no_times
from holdfast.spark.reading.typed_json import json_mode, json_schema, sampled_ddl, typed_schema


def batch_reader(given: Mapping[str, str], schema: StructType) -> BatchReader:
    options = Options(given, READ_OPTIONS)
    for name in LIMITS:
        if name in options:
            raise SettingsError(f"The option {name!r} is for readStream.")
    kind = PushingReader if options.flag("pushdown", default=False) else BatchReader
    bounds = BatchBounds.from_options(options)
    return kind(_source(options, schema), BucketChoice.from_options(options), bounds)


def stream_reader(given: Mapping[str, str], schema: StructType) -> StreamReader:
    options = Options(given, READ_OPTIONS)
    return StreamReader(_source(options, schema), BucketChoice.from_options(options), options)


def _source(options: Options, schema: StructType) -> ReadSource:
    source = ReadSource.from_options(options)
    if is_typed(options):
        return replace(source, typed=json_schema(options, source.columns, schema))
    return replace(source, columns=columns_of(schema))


def read_schema(given: Mapping[str, str]) -> StructType | str:
    """The schema of a read; a typed one as SQL, which Spark parses."""
    options = Options(given, READ_OPTIONS)
    source = ReadSource.from_options(options)
    if not is_typed(options):
        return spark_schema(source.columns)
    ddl = options.text("jsonSchema").strip() or _sampled(options, source)
    return typed_schema(source.columns, ddl, json_mode(options))


def _sampled(options: Options, source: ReadSource) -> str:
    """The schema that fits the object in `jsonSample`, or so many of the first messages."""
    sample = options.text("jsonSample").strip()
    if not (sample.isascii() and sample.isdigit()):
        return sampled_ddl([sample.encode()])
    bounds = BatchBounds(ReadBound(EARLIEST), ReadBound(LATEST), None, None)
    source = replace(source, columns=("payload",))
    reader = BatchReader(source, BucketChoice.from_options(options), bounds)
    messages: Iterator[bytes] = (
        message
        for part in reader.partitions()
        if isinstance(part, ReadPartition)
        for chunk in read_chunks(part.source, part.part)
        for message in json_messages(chunk)
        if message is not None
    )
    return sampled_ddl(islice(messages, int(sample)))


@plain_errors
class BatchReader(DataSourceReader):
    """Reads buckets as they are when the read is planned."""

    def __init__(self, source: ReadSource, buckets: BucketChoice, bounds: BatchBounds) -> None:
        self._source = source
        self._buckets = buckets
        self._bounds = bounds
        self._pushed = PushedFilters()

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read; the driver calls this once."""
        selection = self._pushed.narrow(self._source.selection)
        if selection.is_empty:
            return []
        found: list[InputPartition] = []
        with SparkClient(self._source.connection) as server:
            sources = self._buckets.sources(server, replace(self._source, selection=selection))
            sources = [each for each in sources if self._pushed.wants_bucket(each.bucket)]
            bounds = self._bounds.divided(len(sources))
            for source in sources:
                plan = plan_batch(server, source, bounds)
                self._check_times(server, plan)
                # All buckets are read up to the same moment.
                bounds = bounds.until(plan.until)
                found += plan.partitions()
        return found

    def _check_times(self, server: SparkClient, plan: ReadPlan) -> None:
        is_plain = any(isinstance(each, StreamSlice) for each in plan.slices)
        if is_plain and self._source.selection.times != ALL_TIMES:
            raise no_times(server)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one partition; executors call this."""
        if not isinstance(partition, ReadPartition):
            # If a plan has no partitions, Spark reads an empty one of its own.
            return iter(())
        return read_batches(partition.source, partition.part)


@plain_errors
class PushingReader(BatchReader):
    """Takes over filters of the query; Spark allows this method only where a setting is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Keep the filters that the read applies, and return the others."""
        source = self._source
        self._pushed = push_filters(filters, source.columns, framed=source.framed)
        return self._pushed.left
