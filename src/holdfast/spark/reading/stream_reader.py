"""The reader that follows buckets: `spark.readStream` with the format `holdfast`.

A stream read is made of micro-batches between two cursors, which are valid for all buckets of a
server. Spark keeps them in its checkpoint and asks for the same pair again after a failure, so a
batch holds the same rows however often it is run. On a server without cursors the position is an
offset for each stream.

Spark shows positions in the progress of a query. The latest one, which it only shows, also has the
lag: what is left after the present micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from holdfast.client import ScanEnd
from holdfast.clock import SystemClock
from holdfast.errors import DataLossError, HoldfastError, InvalidRequestError, SettingsError
from holdfast.spark.connection import Options, SparkClient
from holdfast.spark.plain_errors import plain_errors
from holdfast.spark.reading.buckets import BucketChoice
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
    plan_between,
    plan_streams,
)
from holdfast.spark.reading.selection import (
    ALL_TIMES,
    EARLIEST,
    LATEST,
    parse_bound,
)
from holdfast.spark.reading.slice_reader import read_batches
from holdfast.spark.reading.source import ReadPartition, ReadSource, StreamSlice

# The keys of a position in a checkpoint: a cursor with the store that it counts in, or offsets.
_CURSOR: Final = "cursor"
_STORE: Final = "store"
_STREAMS: Final = "streams"
# The end of the log when the query began, which stays the same.
_BEGAN: Final = "began"
LAG: Final = "lag"
_BEGINNING: Final = f"{0:020d}"
LIMITS: Final = ("maxBytesPerTrigger", "maxRowsPerTrigger", "maxTimePerTrigger")
_BYTES_MAX: Final = 2**60

Position = dict[str, Any]


@plain_errors
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows buckets."""

    def __init__(self, source: ReadSource, buckets: BucketChoice, options: Options) -> None:
        self._source = source
        self._buckets = buckets
        self._starting = parse_bound(options, "startingOffsets", EARLIEST)
        for name in ("endingOffsets", "endingTimestamp"):
            if name in options:
                raise SettingsError(f"A stream has no end: {name!r} is for batch reads.")
        if "pushdown" in options:
            raise SettingsError("Spark hands over filters of batch reads only: omit 'pushdown'.")
        check_limits(options, LIMITS)
        self._min_partitions = options.count("minPartitions")
        self._partition_bytes = options.size("partitionBytes")
        self._max_bytes = options.size("maxBytesPerTrigger")
        self._max_rows = options.count("maxRowsPerTrigger")
        self._max_ms = options.duration_ms("maxTimePerTrigger")
        # The end of a query with the trigger availableNow.
        self._end: Position | None = None
        # The end of the present micro-batch, and what is known to come after it.
        self._reached: Position | None = None
        self._backlog: _Backlog | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """One of the limits, by which `latestOffset` sees that they apply; it knows all of them."""
        if self._max_rows:
            return ReadMaxRows(self._max_rows)
        if self._max_bytes or self._max_ms:
            return ReadMaxBytes(self._max_bytes or _BYTES_MAX)
        return ReadAllAvailable()

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
        with SparkClient(self._source.connection) as server:
            self._end = self._latest(server)

    def reportLatestOffset(self) -> Position:  # noqa: N802 (Spark's name)
        """The end of the log, for Spark's metrics, and how far the query is behind."""
        with SparkClient(self._source.connection) as server:
            reached = self._reached
            if reached is None or _STREAMS in reached:
                return self._latest(server)
            cursor, backlog = reached[_CURSOR], self._backlog
            if backlog is None or backlog.until <= cursor:
                backlog = _Backlog.none(cursor)
            ends = self._scan_ends(server, backlog.until)
            self._backlog = backlog = backlog.with_more(ends)
            first = ends
            if backlog.after != ends[0].after and backlog.messages >= 1:
                first = self._scan_ends(server, cursor, ScanLimit(messages=1))
        times = [each.first_ms for each in first if each.first_ms is not None]
        lag = {
            "bytes": round(backlog.bytes),
            "messages": round(backlog.messages),
            "ms": max(SystemClock().now_ms() - min(times), 0) if times else 0,
        }
        return {_CURSOR: ends[0].latest, _STORE: ends[0].store_id, LAG: lag}

    def latestOffset(  # noqa: N802 (Spark's name)
        self, start: Position | None = None, limit: ReadLimit | None = None
    ) -> Position:
        """Where the next micro-batch ends; PySpark 4.1 passes neither its start nor a limit."""
        with SparkClient(self._source.connection) as server:
            if start is None:
                return self._latest(server)
            if _STREAMS in start:
                return self._end or self._stream_ends(server)
            end = self._next_cursor(server, start, limit or ReadAllAvailable())
            if end.get(_STORE) != start.get(_STORE, ""):
                raise _unknown_cursor(server, "its store is another one")
        self._reached = end
        return end | ({_BEGAN: start[_BEGAN]} if _BEGAN in start else {})

    def _next_cursor(self, server: SparkClient, start: Position, given: ReadLimit) -> Position:
        if isinstance(given, ReadAllAvailable):
            return self._end or self._latest(server)
        try:
            limit = ScanLimit(self._max_bytes, self._max_rows, self._max_ms)
            ends = self._scan_ends(server, start[_CURSOR], limit)
        except InvalidRequestError as error:
            raise _unknown_cursor(server, error.message) from None
        until = min(each.until for each in ends)
        if self._end is not None:
            until = min(until, self._end[_CURSOR])
        if self._backlog is not None and self._backlog.after == start[_CURSOR]:
            self._backlog = self._backlog.without(ends, until)
        return {_CURSOR: until, _STORE: ends[0].store_id}

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        """Plan the micro-batch between two positions."""
        if _STREAMS in end:
            slices = _slices_between(self._source, start[_STREAMS], end[_STREAMS])
            return ReadPlan(self._only(), slices, "").partitions()
        if start[_CURSOR] == end[_CURSOR]:
            return []
        found: list[InputPartition] = []
        with SparkClient(self._source.connection) as server:
            began = replace(self._source, began=start.get(_BEGAN, ""))
            sources = self._buckets.sources(server, began)
            for source in sources:
                plan = self._plan(server, source, start, end, len(sources))
                if plan.slices and plan.source.store_id != end.get(_STORE, ""):
                    raise _unknown_cursor(server, "its store is another one")
                found += plan.partitions()
        return found

    def _plan(
        self, server: SparkClient, source: ReadSource, start: Position, end: Position, buckets: int
    ) -> ReadPlan:
        """Plan the part of a micro-batch that is in one of so many buckets."""
        if self._starting.offsets:
            selection = replace(source.selection, starts=self._starting.offsets)
            source = replace(source, selection=selection)
        after, least = start[_CURSOR], self._min_partitions
        try:
            return plan_between(
                server,
                source,
                "" if after == _BEGINNING else after,
                end[_CURSOR],
                min_partitions=least and -(-least // buckets),
                slice_bytes=self._partition_bytes,
            )
        except InvalidRequestError as error:
            raise _unknown_cursor(server, error.message) from None

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one partition; executors call this."""
        assert isinstance(partition, ReadPartition)
        return read_batches(partition.source, partition.part)

    def commit(self, end: Position) -> None:
        """Do nothing: the server keeps no state of a query."""

    def _latest(self, server: SparkClient) -> Position:
        if self._source.via == "http":
            return self._stream_ends(server)
        bucket = self._buckets.find(server)[0]
        try:
            scanned = server.bucket(bucket).until("now")
        except HoldfastError as error:
            if self._source.via != "auto" or not lacks_scans(error):
                raise
            return self._stream_ends(server)
        return {_CURSOR: scanned.latest, _STORE: scanned.store_id}

    def _stream_ends(self, server: SparkClient) -> Position:
        source = self._only()
        if source.selection.times != ALL_TIMES:
            raise no_times(server)
        slices = plan_streams(server, source)
        return {_STREAMS: {each.stream_id: each.end for each in slices}}

    def _only(self) -> ReadSource:
        """The source of the only bucket; offsets of streams of several would be mixed up."""
        if not self._buckets.is_one:
            raise SettingsError("Without scans, only one bucket can be followed by a query.")
        return replace(self._source, bucket=self._buckets.ids[0])

    def _scan_ends(
        self, server: SparkClient, after: str, limit: ScanLimit | None = None
    ) -> list[ScanEnd]:
        """What each bucket has after a cursor, and how far its share of a limit goes."""
        selection, buckets = self._source.selection, self._buckets.find(server)
        limit = limit or ScanLimit()

        def share(of: int | None) -> int | None:
            return max(of // len(buckets), 1) if of else None

        return [
            server.bucket(bucket).until(
                after,
                bytes=share(limit.bytes),
                messages=share(limit.messages),
                ms=limit.ms,
                from_ms=selection.scan_times["from_ms"],
                prefix=selection.prefix,
            )
            for bucket in buckets
        ]


class ScanLimit(NamedTuple):
    """How much a micro-batch may hold."""

    bytes: int | None = None
    messages: int | None = None
    ms: int | None = None


class _Backlog(NamedTuple):
    """What was appended between two cursors.

    Counting it takes time for each extent, so it is counted once, when a query starts. Then what
    micro-batches take is subtracted, and what is appended is added.
    """

    after: str
    until: str
    bytes: float = 0
    messages: float = 0

    @classmethod
    def none(cls, cursor: str) -> _Backlog:
        return cls(cursor, cursor)

    def with_more(self, ends: Sequence[ScanEnd]) -> _Backlog:
        """With what each bucket has after this."""
        return _Backlog(
            self.after,
            ends[0].latest,
            self.bytes + sum(each.bytes for each in ends),
            self.messages + sum(each.messages for each in ends),
        )

    def without(self, ends: Sequence[ScanEnd], until: str) -> _Backlog:
        """Without what a micro-batch takes, which may end before the ends of some buckets."""
        parts = [
            (int(until) - int(each.after)) / max(int(each.until) - int(each.after), 1)
            for each in ends
        ]
        of_bytes = sum(each.bytes * part for each, part in zip(ends, parts, strict=True))
        of_messages = sum(each.messages * part for each, part in zip(ends, parts, strict=True))
        return _Backlog(
            until,
            self.until,
            max(self.bytes - of_bytes, 0),
            max(self.messages - of_messages, 0),
        )


def no_times(server: SparkClient) -> SettingsError:
    return SettingsError(
        f"{server.url} does not tell when messages were written: leave out 'startingTimestamp' and "
        "'endingTimestamp'."
    )


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
