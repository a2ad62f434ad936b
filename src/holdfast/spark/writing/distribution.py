"""`write_to_streams`: rows laid out by stream and in order, then written exactly once.

A data source cannot ask Spark for how its rows are laid out, so this does it: the rows of a stream
go to one task, by the stream's name, and are sorted there. Only the DataFrame API is used, so it
runs in Spark Connect and inside of foreachBatch as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as sql

from holdfast.errors import SettingsError
from holdfast.spark.session import as_holdfast_error
from holdfast.spark.writing.options import WriteOptions
from holdfast.spark.writing.placement import Placement
from holdfast.spark.writing.report import WriteReport, total
from holdfast.spark.writing.rows import BUCKET, STREAM, Columns
from holdfast.spark.writing.task import Task, partition_id

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_COUNTS: Final = ("rows", "bytes", "requests", "duplicates", "streams")
_REPORT_SCHEMA: Final = ", ".join(f"{name} long" for name in _COUNTS)
_PARTITIONS: Final = "spark.sql.shuffle.partitions"


def write_to_streams(
    df: DataFrame,
    *,
    producer_id: str,
    batch_id: int,
    order_by: str | Sequence[str],
    partitions: int | None = None,
    **options: object,
) -> WriteReport:
    """Append the rows to their streams, each of them exactly once, and tell what was written.

    `producer_id` names this write: two writes of one batch need two. `batch_id` is what
    foreachBatch gives; in a batch job it is a number that is higher for every batch of new rows,
    and the same for one that is run again. `order_by` names the columns that say in which order the
    rows of a stream are appended; those are not written. Rows that are equal in them are in the
    order of what is appended, and with `()` all of them are. `options` are the data source's:

        frame.writeStream.foreachBatch(
            lambda batch, batch_id: write_to_streams(
                batch, producer_id="clicks", batch_id=batch_id, order_by="time", bucket="demo"
            )
        )
    """
    by = [order_by] if isinstance(order_by, str) else list(order_by)
    task = _task(df, by, producer_id, batch_id, options)
    count = partitions or int(df.sparkSession.conf.get(_PARTITIONS) or 1)
    written = _laid_out(df, task, by, count).mapInArrow(_writing(task, count), _REPORT_SCHEMA)
    try:
        found = written.collect()
    except Exception as error:
        raise as_holdfast_error(error) from error
    return total(WriteReport(**row.asDict()) for row in found)


def _task(
    df: DataFrame,
    order_by: list[str],
    producer_id: str,
    batch_id: int,
    options: dict[str, object],
) -> Task:
    missing = [name for name in order_by if name not in df.columns]
    if missing:
        raise SettingsError(
            f"There is no column {missing[0]!r} to order by; there are {', '.join(df.columns)}."
        )
    given = {name: _text(value) for name, value in options.items() if value is not None}
    given |= {"producerId": producer_id, "producerEpoch": str(batch_id)}
    columns = Columns.of(df.schema, dropped=order_by)
    task = Task(WriteOptions.of(given, columns), columns)
    if not task.options.producer_id:
        raise SettingsError("The producer_id must not be empty: it is the name of this write.")
    return task


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _laid_out(df: DataFrame, task: Task, order_by: list[str], partitions: int) -> DataFrame:
    name = _name(task)
    own = (sql.crc32(name.cast("binary")) % partitions).cast("int")
    return (
        df.repartitionById(partitions, own)
        # By their bytes: a collation may take different names, or rows, for the same.
        .sortWithinPartitions(
            name.cast("binary"), *order_by, sql.col(task.columns.content).cast("binary")
        )
        .select(*task.columns.names)
    )


def _name(task: Task) -> Column:
    """The stream as `bucket/id`, which the tasks compute from the rows as well."""
    bucket = sql.lit(task.options.bucket)
    if task.columns.has_bucket:
        given = sql.col(BUCKET)
        bucket = sql.when(given.isNull() | (given == ""), bucket).otherwise(given)
    stream = sql.col(STREAM) if task.columns.has_stream else sql.lit(task.options.stream)
    # A row without a stream goes somewhere, and is refused there.
    return sql.concat(bucket, sql.lit("/"), sql.coalesce(stream, sql.lit("")))


def _writing(
    task: Task, partitions: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        own = partition_id()
        report = task.write(
            batches,
            task.producer_of_batch(),
            partition=own,
            placement=Placement(partitions, own),
        )
        counts: list[Any] = [pa.array([getattr(report, name)], pa.int64()) for name in _COUNTS]
        yield pa.record_batch(counts, names=list(_COUNTS))

    return write
