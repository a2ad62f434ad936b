"""What one Spark task of a write does: rows in, requests out, and a report of what was written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from holdfast.errors import SettingsError
from holdfast.spark.connection import SparkClient
from holdfast.spark.writing.options import WriteColumns, WriteOptions
from holdfast.spark.writing.requests import ALONE, Placement, RequestBuilder
from holdfast.spark.writing.rows import RowEncoder
from holdfast.spark.writing.sender import BatchProducer, Sender
from holdfast.spark.writing.staging import stage

# Internal properties of Spark. A write fails if they are missing, and tests check for them.
QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class WriteReport:
    """What was written by a task, or by all of them."""

    rows: int = 0
    bytes: int = 0
    requests: int = 0
    # Requests that streams had already: from another attempt, or another run.
    duplicates: int = 0
    streams: int = 0


COUNTS: Final = tuple(each.name for each in fields(WriteReport))


def total(reports: Iterable[WriteReport]) -> WriteReport:
    found = list(reports)
    return WriteReport(*(sum(getattr(each, name) for each in found) for name in COUNTS))


@dataclass(frozen=True)
class WriteTask:
    """A write, as each of its tasks gets it."""

    options: WriteOptions
    columns: WriteColumns

    def write(
        self,
        batches: Iterable[pa.RecordBatch],
        producer: BatchProducer,
        placement: Placement = ALONE,
    ) -> WriteReport:
        """Append rows that are sorted by stream; returns once all of them are stored."""
        options = self.options
        encoder = RowEncoder(options, self.columns)
        builder = RequestBuilder(options, placement)
        with SparkClient(options.connection) as server:
            sender = Sender(server.async_client, options, producer)
            try:
                for batch in batches:
                    server.call(sender.take(builder.take(encoder.runs(batch))))
                server.call(sender.take(builder.finish()))
                server.call(sender.finish())
            finally:
                server.call(sender.stop())
        return WriteReport(
            rows=sender.rows,
            bytes=sender.bytes,
            requests=sender.requests,
            duplicates=sender.duplicates,
            streams=sender.streams,
        )

    def stage(
        self, batches: Iterable[pa.RecordBatch], producer: BatchProducer, *, is_named: bool
    ) -> WriterCommitMessage:
        """Stage rows in any order; nobody sees them yet.

        If the producer was named by the user, other batches may have the same name and number.
        """
        return stage(
            self.options, self.columns, batches, producer, partition_id(), has_digest=is_named
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

    def producer_of_batch(self, default_id: str = "") -> BatchProducer:
        """The producer of a batch write; inside foreachBatch its epoch is at least the batch id.

        A write without a name is the query's inside foreachBatch, and has the default id elsewhere.
        Spark Connect does not tell the query and the batch.
        """
        epoch = self.options.producer_epoch
        batch_id = int(_property(BATCH_PROPERTY) or 0)
        if epoch is not None and epoch < batch_id:
            raise SettingsError(
                f"The batch_id or producerEpoch is {epoch}, but this is the batch {batch_id} of a "
                "streaming query: pass on the batch_id that foreachBatch gives, or rows are taken "
                "for those of an earlier batch."
            )
        producer_id = self.options.producer_id or _property(QUERY_PROPERTY) or default_id
        return BatchProducer(producer_id, batch_id if epoch is None else epoch)


def partition_id() -> int:
    """Which task of the write this is."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _property(name: str) -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)
