"""`spark.readStream.format("holdfast")`: micro-batches between two cursors of a bucket.

Spark keeps the cursors in its checkpoint and asks for the same pair again after a failure, so a
batch holds the same rows however often it is run. A server without cursors is followed stream by
stream instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holdfast.errors import DataLossError, HoldfastError, InvalidRequestError, SettingsError
from holdfast.spark.connection import Options, SparkClient
from holdfast.spark.reading.columns import columns_of
from holdfast.spark.reading.losses import lost
from holdfast.spark.reading.planning import is_of_another_make, plan_between, plan_streams
from holdfast.spark.reading.rows import read_rows
from holdfast.spark.reading.selection import EARLIEST, LATEST, Bound, parse_bound
from holdfast.spark.reading.slices import Slice, StreamSlice
from holdfast.spark.reading.source import READ_OPTIONS, Source
from holdfast.spark.reading.sourced import Sourced

_CURSOR = "cursor"
_STREAMS = "streams"
# Cursors count in one log: the store tells which.
_STORE = "store"
_BEGINNING = f"{0:020d}"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a bucket."""

    def __init__(self, source: Source, options: Options) -> None:
        self._source = source
        self._starting = parse_bound(options, "startingOffsets", EARLIEST)
        if "endingOffsets" in options:
            raise SettingsError("A stream has no end: 'endingOffsets' is for batch reads.")
        self._min_partitions = options.count("minPartitions")
        self._partition_bytes = options.size("partitionBytes")
        self._max_bytes = options.size("maxBytesPerTrigger")
        self._max_rows = options.count("maxRowsPerTrigger")
        if self._max_bytes and self._max_rows:
            raise SettingsError(
                "Give either 'maxBytesPerTrigger' or 'maxRowsPerTrigger', not both."
            )
        self._last: Mapping[str, Any] | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """How much a micro-batch takes."""
        if self._max_bytes:
            return ReadMaxBytes(self._max_bytes)
        return ReadMaxRows(self._max_rows) if self._max_rows else ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Where a query without a checkpoint begins."""
        with SparkClient(self._source.connection) as server:
            return _Feed(server, self._source).initial(self._starting)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Fix the end: what comes later is for the next run."""
        with SparkClient(self._source.connection) as server:
            self._last = _Feed(server, self._source).latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends."""
        with SparkClient(self._source.connection) as server:
            return _Feed(server, self._source).reach(start, limit, self._last)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 (Spark's name)
        """Where the bucket ends, for Spark's metrics."""
        with SparkClient(self._source.connection) as server:
            return _Feed(server, self._source).latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The slices between two places, with the source that they are of."""
        with SparkClient(self._source.connection) as server:
            if _STREAMS in end:
                slices = _between(self._source, start[_STREAMS], end[_STREAMS])
                return [Sourced(self._source, each) for each in slices]
            source, planned = self._planned(server, start[_CURSOR], end[_CURSOR])
            if planned and source.store_id != end.get(_STORE, ""):
                raise _unknown(server, "its store is another one")
            return [Sourced(source, each) for each in planned]

    def _planned(
        self, server: SparkClient, after: str, until: str
    ) -> tuple[Source, Sequence[Slice | StreamSlice]]:
        if after == until:
            return self._source, ()
        source = self._source
        if self._starting.offsets:
            starts = self._starting.offsets
            source = replace(source, selection=replace(source.selection, starts=starts))
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
            raise _unknown(server, error.message) from None
        return plan.source, plan.slices

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one slice."""
        assert isinstance(partition, Sourced)
        return read_rows(partition.source, partition.part)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is to be told to the server."""


class _Feed:
    """How far a bucket goes."""

    def __init__(self, server: SparkClient, source: Source) -> None:
        self._server = server
        self._source = source

    def initial(self, starting: Bound) -> dict[str, Any]:
        latest = self.latest()
        if starting.cursor == LATEST:
            return latest
        if _STREAMS in latest:
            if starting.cursor not in {EARLIEST, ""}:
                raise SettingsError(
                    f"{self._server.url} cannot tell what came after a cursor; give offsets of "
                    "streams instead."
                )
            known = {stream: f"{offset:020d}" for stream, offset in starting.offsets.items()}
            return {_STREAMS: known}
        return latest | {
            _CURSOR: _BEGINNING if starting.cursor in {EARLIEST, ""} else starting.cursor
        }

    def latest(self) -> dict[str, Any]:
        if self._source.via == "http":
            return self._ends()
        try:
            # Nothing came after the end: all this asks for is where that is.
            found = self._until(None, None, after="now")
        except HoldfastError as error:
            if self._source.via != "auto" or not is_of_another_make(error):
                raise
            return self._ends()
        return {_CURSOR: found.latest, _STORE: found.store_id}

    def _ends(self) -> dict[str, Any]:
        slices = plan_streams(self._server, self._source)
        return {_STREAMS: {each.stream_id: each.end for each in slices}}

    def reach(
        self, start: dict[str, Any], limit: ReadLimit, last: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        if _STREAMS in start:
            return dict(last) if last is not None else self._ends()
        found = self._reached(start, limit, last)
        if found[_STORE] != start.get(_STORE, ""):
            raise _unknown(self._server, "its store is another one")
        return found

    def _reached(
        self, start: dict[str, Any], limit: ReadLimit, last: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if max_bytes is None and max_rows is None:
            return dict(last) if last is not None else self.latest()
        try:
            found = self._until(max_bytes, max_rows, after=start[_CURSOR])
        except InvalidRequestError as error:
            raise _unknown(self._server, error.message) from None
        until = found.until if last is None else min(found.until, last[_CURSOR])
        return {_CURSOR: until, _STORE: found.store_id}

    def _until(self, max_bytes: int | None, max_rows: int | None, *, after: str) -> Any:
        source = self._source
        return self._server.run(
            lambda client: client.bucket(source.bucket).until(
                after, bytes=max_bytes, messages=max_rows, prefix=source.selection.prefix
            )
        )


def _unknown(server: SparkClient, reason: str) -> DataLossError:
    return DataLossError(
        f"{server.url} does not know the cursor in the checkpoint ({reason.rstrip('.')}): is it "
        "another server, or was its data removed? Start again with a new checkpoint."
    )


def _between(source: Source, start: Mapping[str, str], end: Mapping[str, str]) -> list[StreamSlice]:
    """What the streams of a server without cursors have gained; new ones from their beginning.

    One that ends before where it was read to is new as well: the one that was read is gone.
    """
    begins = {stream: start.get(stream, "-1") for stream in end}
    anew = sorted(stream for stream, tail in end.items() if begins[stream] > tail)
    if anew and source.fail_on_data_loss:
        raise lost(source.bucket, anew)
    begins |= dict.fromkeys(anew, "-1")
    return [
        StreamSlice(stream, begins[stream], tail)
        for stream, tail in sorted(end.items())
        if begins[stream] != tail
    ]


def stream_reader(given: Mapping[str, str], schema: StructType) -> StreamReader:
    """The reader of a stream read with these options."""
    options = Options(given, READ_OPTIONS)
    return StreamReader(replace(Source.of(options), columns=columns_of(schema)), options)
