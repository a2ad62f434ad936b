"""The readers that Spark calls: `spark.read` and `spark.readStream` with the format `holdfast`.

A stream read is made of micro-batches between two cursors of a bucket. Spark keeps the cursors in
its checkpoint and asks for the same pair again after a failure, so a batch holds the same rows
however often it is run. On a server without cursors the position is an offset for each stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from holdfast.client import ScanEnd
from holdfast.errors import DataLossError, HoldfastError, InvalidRequestError, SettingsError
from holdfast.spark.connection import Options, SparkClient
from holdfast.spark.plain_errors import plain_errors
from holdfast.spark.reading.arrow import columns_of, json_messages, spark_schema
from holdfast.spark.reading.buckets import BucketChoice
from holdfast.spark.reading.filters import PushedFilters, push_filters
from holdfast.spark.reading.limits import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    check_limits,
)
from holdfast.spark.reading.planning import (
    ReadPlan,
    lacks_scans,
    no_cursors,
    plan_batch,
    plan_between,
    plan_streams,
)
from holdfast.spark.reading.selection import (
    ALL_TIMES,
    EARLIEST,
    LATEST,
    BatchBounds,
    ReadBound,
    parse_bound,
)
from holdfast.spark.reading.slice_reader import read_batches, read_chunks
from holdfast.spark.reading.source import (
    READ_OPTIONS,
    ReadPartition,
    ReadSource,
    Slice,
    StreamSlice,
    is_typed,
)
from holdfast.spark.reading.typed_json import json_mode, json_schema, sampled_ddl, typed_schema

# The keys of a position in a checkpoint: a cursor with the store that it counts in, or offsets.
_CURSOR: Final = "cursor"
_STORE: Final = "store"
_STREAMS: Final = "streams"
# The end of the log when the query began, which stays the same.
_BEGAN: Final = "began"
_BEGINNING: Final = f"{0:020d}"
_LIMITS: Final = ("maxBytesPerTrigger", "maxRowsPerTrigger")

Position = dict[str, Any]


def batch_reader(given: Mapping[str, str], schema: StructType) -> BatchReader:
    options = Options(given, READ_OPTIONS)
    for name in _LIMITS:
        if name in options:
            raise SettingsError(f"The option {name!r} is for readStream.")
    kind = PushingReader if options.flag("pushdown", default=False) else BatchReader
    bounds = BatchBounds.from_options(options)
    return kind(_source(options, schema), BucketChoice.from_options(options), bounds)


def stream_reader(given: Mapping[str, str], schema: StructType) -> StreamReader:
    options = Options(given, READ_OPTIONS)
    return StreamReader(_source(options, schema), options)


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
    if not sample.isdigit():
        try:
            return sampled_ddl([sample.encode()])
        except msgspec.DecodeError:
            raise SettingsError(
                "The option 'jsonSample' is a JSON object, or a number of messages to look at, not "
                f"{sample!r}."
            ) from None
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
                found += _partitions(plan)
        return found

    def _check_times(self, server: SparkClient, plan: ReadPlan) -> None:
        is_plain = any(isinstance(each, StreamSlice) for each in plan.slices)
        if is_plain and self._source.selection.times != ALL_TIMES:
            raise SettingsError(
                f"{server.url} does not tell when messages were written: leave out "
                "'startingTimestamp' and 'endingTimestamp'."
            )

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


@plain_errors
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a bucket."""

    def __init__(self, source: ReadSource, options: Options) -> None:
        self._source = source
        self._starting = parse_bound(options, "startingOffsets", EARLIEST)
        if "endingOffsets" in options:
            raise SettingsError("A stream has no end: 'endingOffsets' is for batch reads.")
        check_limits(options, _LIMITS)
        self._min_partitions = options.count("minPartitions")
        self._partition_bytes = options.size("partitionBytes")
        self._max_bytes = options.size("maxBytesPerTrigger")
        self._max_rows = options.count("maxRowsPerTrigger")
        if self._max_bytes and self._max_rows:
            raise SettingsError(
                "Give either 'maxBytesPerTrigger' or 'maxRowsPerTrigger', not both."
            )
        # The end of a query with the trigger availableNow.
        self._end: Position | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        if self._max_bytes:
            return ReadMaxBytes(self._max_bytes)
        return ReadMaxRows(self._max_rows) if self._max_rows else ReadAllAvailable()

    def initialOffset(self) -> Position:  # noqa: N802 (Spark's name)
        """Where a query without a checkpoint starts."""
        starting = self._starting
        is_earliest = starting.cursor in {EARLIEST, ""}
        with SparkClient(self._source.connection) as server:
            latest = self._latest(server)
            if starting.cursor == LATEST:
                return latest
            if _STREAMS not in latest:
                begin = _BEGINNING if is_earliest else starting.cursor
                return latest | {_CURSOR: begin, _BEGAN: latest[_CURSOR]}
            if not is_earliest:
                raise no_cursors(server)
        return {_STREAMS: {stream: f"{offset:020d}" for stream, offset in starting.offsets.items()}}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Fix the end of the query: later messages are for the next run."""
        self._end = self.reportLatestOffset()

    def reportLatestOffset(self) -> Position:  # noqa: N802 (Spark's name)
        """The end of the bucket, for Spark's metrics."""
        with SparkClient(self._source.connection) as server:
            return self._latest(server)

    def latestOffset(  # noqa: N802 (Spark's name)
        self, start: Position | None = None, limit: ReadLimit | None = None
    ) -> Position:
        """Where the next micro-batch ends; PySpark 4.1 passes neither its start nor a limit."""
        if start is None:
            return self.reportLatestOffset()
        with SparkClient(self._source.connection) as server:
            if _STREAMS in start:
                return self._end or self._stream_ends(server)
            end = self._next_cursor(server, start, limit or ReadAllAvailable())
            if end.get(_STORE) != start.get(_STORE, ""):
                raise _unknown_cursor(server, "its store is another one")
        return end | ({_BEGAN: start[_BEGAN]} if _BEGAN in start else {})

    def _next_cursor(self, server: SparkClient, start: Position, limit: ReadLimit) -> Position:
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if max_bytes is None and max_rows is None:
            return self._end or self._latest(server)
        try:
            scanned = self._scan_end(server, start[_CURSOR], max_bytes, max_rows)
        except InvalidRequestError as error:
            raise _unknown_cursor(server, error.message) from None
        until = scanned.until if self._end is None else min(scanned.until, self._end[_CURSOR])
        return {_CURSOR: until, _STORE: scanned.store_id}

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        """Plan the micro-batch between two positions."""
        if _STREAMS in end:
            slices = _slices_between(self._source, start[_STREAMS], end[_STREAMS])
            return _partitions(ReadPlan(self._source, slices, ""))
        after, until = start[_CURSOR], end[_CURSOR]
        if after == until:
            return []
        source = replace(self._source, began=start.get(_BEGAN, ""))
        if self._starting.offsets:
            selection = replace(source.selection, starts=self._starting.offsets)
            source = replace(source, selection=selection)
        with SparkClient(source.connection) as server:
            try:
                plan = plan_between(
                    server,
                    source,
                    "" if after == _BEGINNING else after,
                    until,
                    min_partitions=self._min_partitions,
                    slice_bytes=self._partition_bytes,
                )
            except InvalidRequestError as error:
                raise _unknown_cursor(server, error.message) from None
            if plan.slices and plan.source.store_id != end.get(_STORE, ""):
                raise _unknown_cursor(server, "its store is another one")
        return _partitions(plan)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one partition; executors call this."""
        assert isinstance(partition, ReadPartition)
        return read_batches(partition.source, partition.part)

    def commit(self, end: Position) -> None:
        """Do nothing: the server keeps no state of a query."""

    def _latest(self, server: SparkClient) -> Position:
        if self._source.via == "http":
            return self._stream_ends(server)
        try:
            scanned = self._scan_end(server, "now")
        except HoldfastError as error:
            if self._source.via != "auto" or not lacks_scans(error):
                raise
            return self._stream_ends(server)
        return {_CURSOR: scanned.latest, _STORE: scanned.store_id}

    def _stream_ends(self, server: SparkClient) -> Position:
        slices = plan_streams(server, self._source)
        return {_STREAMS: {each.stream_id: each.end for each in slices}}

    def _scan_end(
        self,
        server: SparkClient,
        after: str,
        max_bytes: int | None = None,
        max_rows: int | None = None,
    ) -> ScanEnd:
        return server.bucket(self._source.bucket).until(
            after, bytes=max_bytes, messages=max_rows, prefix=self._source.selection.prefix
        )


def _partitions(plan: ReadPlan) -> list[ReadPartition]:
    includes = plan.source.selection.intersects
    return [
        ReadPartition(plan.source, each)
        for each in plan.slices
        if not isinstance(each, Slice) or includes(each.first, each.last)
    ]


def _unknown_cursor(server: SparkClient, reason: str) -> DataLossError:
    return DataLossError(
        f"{server.url} does not know the cursor in the checkpoint ({reason.rstrip('.')}): is it "
        "another server, or was its data removed? Start again with a new checkpoint."
    )


def _slices_between(
    source: ReadSource, start: Mapping[str, str], end: Mapping[str, str]
) -> list[StreamSlice]:
    """What streams have gained; new streams are read from their beginning.

    A stream that ends before the offset it was read to is new as well: the old one was deleted.
    """
    begins = {stream: start.get(stream, "-1") for stream in end}
    recreated = sorted(stream for stream, tail in end.items() if begins[stream] > tail)
    if recreated and source.fail_on_data_loss:
        raise source.data_loss(recreated)
    begins |= dict.fromkeys(recreated, "-1")
    return [
        StreamSlice(stream, begins[stream], tail)
        for stream, tail in sorted(end.items())
        if begins[stream] != tail
    ]
