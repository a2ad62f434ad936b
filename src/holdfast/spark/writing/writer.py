"""The writers of the data source: `df.write` and `df.writeStream` with the format `holdfast`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from holdfast.errors import SettingsError
from holdfast.spark.writing.options import WriteOptions
from holdfast.spark.writing.report import check_streams_apart
from holdfast.spark.writing.rows import Columns
from holdfast.spark.writing.task import Task, partition_id


class BatchWriter(DataSourceArrowWriter):
    """A batch write; what is in the streams stays as it is if the batch is aborted."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows; runs on an executor."""
        producer = self._task.producer_of_batch()
        return self._task.write(iterator, producer, partition=partition_id())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Refuse a batch in which two tasks wrote to one stream."""
        check_streams_apart(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """A stream write; a batch that is aborted is done again, and recognised by the streams."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows of a batch; runs on an executor."""
        producer = self._task.producer_of_stream()
        return self._task.write(iterator, producer, partition=partition_id())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Refuse a batch in which two tasks wrote to one stream."""
        check_streams_apart(messages)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of `df.write`."""
    task = _task(options, schema, overwrite=overwrite)
    if not task.options.producer_id:
        raise SettingsError(
            "The option 'producerId' is needed: a name for this write, under which it can be run "
            "again without storing anything twice."
        )
    return BatchWriter(task)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer of `df.writeStream`."""
    task = _task(options, schema, overwrite=overwrite)
    if task.options.producer_epoch is not None:
        raise SettingsError(
            "The option 'producerEpoch' is for batch writes: that of a stream write is its batch."
        )
    return StreamWriter(task)


def _task(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Task:
    if overwrite:
        raise SettingsError(
            "Streams are appended to: use mode('append') for a batch write, "
            "and outputMode('append') or outputMode('update') for a stream write."
        )
    columns = Columns.of(schema)
    return Task(WriteOptions.of(options, columns), columns)
