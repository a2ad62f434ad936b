"""What one Spark task of a write does: rows in, requests out, and a report of what was written."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from holdfast.errors import SettingsError
from holdfast.spark.connection import SparkClient
from holdfast.spark.writing.options import WriteColumns, WriteOptions
from holdfast.spark.writing.requests import Placement, RequestBuilder, read_rows
from holdfast.spark.writing.sender import BatchProducer, Sender

# Internal properties of Spark. A write fails if they are missing, and tests check for them.
QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class WriteReport(WriterCommitMessage):
    """What was written by a task, or by all of them."""

    rows: int = 0
    bytes: int = 0
    requests: int = 0
    # Requests that streams had already: from another attempt, or another run.
    duplicates: int = 0
    streams: int = 0


COUNTS: Final = tuple(each.name for each in fields(WriteReport))


@dataclass(frozen=True)
class TaskReport(WriteReport):
    """What one task has written, and to which streams."""

    partition: int = 0
    packed_names: bytes = b""

    def names(self) -> list[str]:
        """The streams, as `bucket/id`."""
        return zlib.decompress(self.packed_names).decode().split("\0") if self.streams else []


def packed(names: Iterable[str]) -> bytes:
    """Pack stream names for a report. No path may contain NUL, so it separates them."""
    return zlib.compress("\0".join(names).encode(), 1)


def total(reports: Iterable[WriteReport]) -> WriteReport:
    found = list(reports)
    return WriteReport(*(sum(getattr(each, name) for each in found) for name in COUNTS))


def check_streams_apart(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    """Return the reports of all tasks; raise if two have written to the same stream."""
    reports = [each for each in messages if isinstance(each, TaskReport)]
    owners: dict[str, int] = {}
    for report in reports:
        for name in report.names():
            owner = owners.setdefault(name, report.partition)
            if owner != report.partition:
                raise SettingsError(
                    f"Rows of the stream {name!r} were in the tasks {owner} and "
                    f"{report.partition}, so that not all of them are stored, and the batch is not "
                    "committed: write with holdfast.spark.write_to_streams, which puts a stream's "
                    "rows into one task, under another producerId (and, in a streaming query, with "
                    "a new checkpoint)."
                )
    return reports


@dataclass(frozen=True)
class WriteTask:
    """A write, as each of its tasks gets it."""

    options: WriteOptions
    columns: WriteColumns

    def write(
        self,
        batches: Iterable[pa.RecordBatch],
        producer: BatchProducer,
        *,
        partition: int = 0,
        placement: Placement | None = None,
    ) -> TaskReport:
        """Append the rows; returns once all of them are stored."""
        options = self.options
        builder = RequestBuilder(options, placement)
        with SparkClient(options.connection) as server:
            sender = Sender(server.async_client, options, producer)
            try:
                for batch in batches:
                    rows = read_rows(batch, self.columns, options.bucket, options.stream)
                    server.call(sender.take(builder.take(*rows)))
                server.call(sender.take(builder.finish()))
                server.call(sender.finish())
            finally:
                server.call(sender.stop())
        return TaskReport(
            rows=sender.rows,
            bytes=sender.bytes,
            requests=sender.requests,
            duplicates=sender.duplicates,
            streams=len(sender.names),
            partition=partition,
            packed_names=packed(sorted(sender.names)),
        )

    def producer_of_stream(self) -> BatchProducer:
        """The producer of a streaming query's batch."""
        query_id, batch_id = _property(QUERY_PROPERTY), _property(BATCH_PROPERTY)
        if query_id is None or batch_id is None:
            raise SettingsError(
                f"This version of Spark does not tell a task its query and batch ("
                f"{QUERY_PROPERTY}, {BATCH_PROPERTY}): use foreachBatch and "
                "holdfast.spark.write_to_streams with a batch_id instead."
            )
        return BatchProducer(self.options.producer_id or query_id, int(batch_id))

    def producer_of_batch(self) -> BatchProducer:
        """The producer of a batch write; inside foreachBatch its epoch is at least the batch id.

        Spark Connect does not tell the batch id.
        """
        epoch = self.options.producer_epoch
        batch_id = int(_property(BATCH_PROPERTY) or 0)
        if epoch is not None and epoch < batch_id:
            raise SettingsError(
                f"The batch_id or producerEpoch is {epoch}, but this is the batch {batch_id} of a "
                "streaming query: pass on the batch_id that foreachBatch gives, or rows are taken "
                "for those of an earlier batch."
            )
        return BatchProducer(self.options.producer_id, batch_id if epoch is None else epoch)


def partition_id() -> int:
    """Which task of the write this is."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _property(name: str) -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)
