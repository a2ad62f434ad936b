"""The writers: `df.write` and `df.writeStream` with the format `holdfast`, and `write_to_streams`.

A data source cannot ask Spark to lay out its rows, so the sink stages them as they are, and
publishes them by one request. `write_to_streams` lays them out: the rows of a stream go to one
task, chosen by the stream's name, are sorted there, and are appended at once. It uses only the
DataFrame API, so it also works with Spark Connect and inside foreachBatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from holdfast.errors import SettingsError
from holdfast.spark.jobs.progress import is_connect
from holdfast.spark.plain_errors import plain_errors
from holdfast.spark.reading.arrow import COLUMN_NAMES
from holdfast.spark.session import as_holdfast_error
from holdfast.spark.tables import insert_options
from holdfast.spark.writing.options import BUCKET, STREAM, WriteColumns, WriteOptions
from holdfast.spark.writing.requests import Placement
from holdfast.spark.writing.staging import drop, publish
from holdfast.spark.writing.task import (
    COUNTS,
    WriteReport,
    WriteTask,
    partition_id,
    total,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_REPORT_SCHEMA: Final = ", ".join(f"{name} long" for name in COUNTS)
_PARTITIONS: Final = "spark.sql.shuffle.partitions"


@plain_errors
class BatchWriter(DataSourceArrowWriter):
    """A batch write: all its rows are published, or none."""

    def __init__(self, task: WriteTask) -> None:
        self._task = task
        # Without a name every write is one of its own.
        self._default_id = f"spark-{uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        producer = self._task.producer_of_batch(self._default_id)
        # A query's id does not tell apart the writes inside one foreachBatch.
        return self._task.stage(
            iterator, producer, is_named=producer.producer_id != self._default_id
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        publish(self._task.options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        drop(self._task.options, messages)


@plain_errors
class StreamWriter(DataSourceStreamArrowWriter):
    """A stream write: each batch is published once, as it was when it was first staged."""

    def __init__(self, task: WriteTask) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = self._task
        is_named = bool(task.options.producer_id)
        return task.stage(iterator, task.producer_of_stream(), is_named=is_named)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        publish(self._task.options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        drop(self._task.options, messages)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    return BatchWriter(_sink_task(options, schema, overwrite=overwrite))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    task = _sink_task(options, schema, overwrite=overwrite)
    if task.options.producer_epoch is not None:
        raise SettingsError(
            "The option 'producerEpoch' is for batch writes: a stream write takes the batch id."
        )
    return StreamWriter(task)


def _sink_task(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> WriteTask:
    if overwrite:
        raise SettingsError(
            "Streams can only be appended to: use mode('append') for a batch write, "
            "and outputMode('append') or outputMode('update') for a stream write."
        )
    table = insert_options(options, schema)
    # Into a table one may leave out what the server fills in: then it is null.
    columns = WriteColumns.of(schema, empty=() if table is None else COLUMN_NAMES)
    return WriteTask(WriteOptions.of(options if table is None else table, columns), columns)


def write_to_streams(
    df: DataFrame,
    *,
    producer_id: str,
    batch_id: int,
    order_by: str | Sequence[str],
    partitions: int | None = None,
    **options: object,
) -> WriteReport:
    """Append the rows to their streams, each of them exactly once, and report what was written.

    `producer_id` names this write: two writes of one batch need two. `batch_id` is what
    foreachBatch gives; in a batch job it is a number that grows with every batch of new rows, and
    is the same for a batch that is run again. `order_by` names the columns by which the rows of a
    stream are sorted; they are not written. Rows that are equal in them are sorted by content, and
    with `()` all rows are. `options` are those of the data source:

        frame.writeStream.foreachBatch(
            lambda batch, batch_id: write_to_streams(
                batch, producer_id="clicks", batch_id=batch_id, order_by="time", bucket="demo"
            )
        )
    """
    by = [order_by] if isinstance(order_by, str) else list(order_by)
    given = {name: _text(value) for name, value in options.items() if value is not None}
    given |= {"producerId": producer_id, "producerEpoch": str(batch_id)}
    task = _sorted_task(df, by, given)
    count = partitions or _partitions(df.sparkSession)
    written = _laid_out(df, task, by, count).mapInArrow(_writer(task, count), _REPORT_SCHEMA)
    try:
        rows = written.collect()
    except Exception as error:
        raise as_holdfast_error(error) from error
    return total(WriteReport(**row.asDict()) for row in rows)


def _partitions(session: SparkSession) -> int:
    count = int(session.conf.get(_PARTITIONS) or 1)
    if is_connect(session) or not (session.sparkContext.master or "").startswith("local"):
        return count
    # A task costs as much as some ten thousand rows, and here more of them gain nothing.
    return min(count, 2 * session.sparkContext.defaultParallelism)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sorted_task(df: DataFrame, order_by: list[str], given: Mapping[str, str]) -> WriteTask:
    missing = [name for name in order_by if name not in df.columns]
    if missing:
        raise SettingsError(
            f"There is no column {missing[0]!r} to order by; there are {', '.join(df.columns)}."
        )
    columns = WriteColumns.of(df.schema, dropped=order_by)
    task = WriteTask(WriteOptions.of(given, columns), columns)
    if not task.options.producer_id:
        raise SettingsError("The producer_id must not be empty: it is the name of this write.")
    return task


def _laid_out(df: DataFrame, task: WriteTask, order_by: list[str], partitions: int) -> DataFrame:
    name = _stream_name(task)
    own = (sql.crc32(name.cast("binary")) % partitions).cast("int")
    return (
        df.repartitionById(partitions, own)
        # By their bytes: under a collation, different names or contents may be equal.
        .sortWithinPartitions(
            name.cast("binary"), *order_by, sql.col(task.columns.content).cast("binary")
        )
        .select(*task.columns.names)
    )


def _stream_name(task: WriteTask) -> Column:
    """The stream as `bucket/id`, as tasks compute it from the rows as well."""
    bucket = sql.lit(task.options.bucket)
    if task.columns.has_bucket:
        given = sql.col(BUCKET)
        bucket = sql.when(given.isNull() | (given == ""), bucket).otherwise(given)
    stream = sql.col(STREAM) if task.columns.has_stream else sql.lit(task.options.stream)
    # A row without a stream is refused by the task that gets it.
    return sql.concat(bucket, sql.lit("/"), sql.coalesce(stream, sql.lit("")))


def _writer(
    task: WriteTask, partitions: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        placement = Placement(partitions, partition_id())
        report = task.write(batches, task.producer_of_batch(), placement)
        counts: list[Any] = [pa.array([getattr(report, name)], pa.int64()) for name in COUNTS]
        yield pa.record_batch(counts, names=list(COUNTS))

    return write
