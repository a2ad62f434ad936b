"""What one task does: rows in, requests out, a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext

from holdfast.client.loop_thread import LoopThread
from holdfast.errors import SettingsError
from holdfast.spark.writing.options import WriteOptions
from holdfast.spark.writing.placement import Placement
from holdfast.spark.writing.report import BatchProducer, TaskReport, packed
from holdfast.spark.writing.requests import Cutter, Request
from holdfast.spark.writing.rows import Columns, RowReader
from holdfast.spark.writing.sender import Sender

# Spark has these for its own use; that they are there is asserted, and tested.
QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class Task:
    """A write as every task of it gets it."""

    options: WriteOptions
    columns: Columns

    def write(
        self,
        batches: Iterable[pa.RecordBatch],
        producer: BatchProducer,
        *,
        partition: int = 0,
        placement: Placement | None = None,
    ) -> TaskReport:
        """Store the rows, and come back when all of them are stored."""
        cutter = Cutter(self.options, placement)
        reader = RowReader(self.columns, self.options.bucket, self.options.stream)
        tally = _Tally(partition)
        with _sending(self.options, producer) as sending:
            for batch in batches:
                sending.take(tally.of(cutter.take(*reader.read(batch))))
            sending.take(tally.of(cutter.finish()))
            sending.finish()
        return tally.report(sending.duplicates)

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
        """The producer of a batch write; inside of foreachBatch its epoch is at least the batch.

        Spark Connect does not tell which batch it is.
        """
        epoch = self.options.producer_epoch
        batch_id = int(_property(BATCH_PROPERTY) or 0)
        if epoch is not None and epoch < batch_id:
            raise SettingsError(
                f"The batch_id or producerEpoch is {epoch}, but this is the batch {batch_id} of a "
                "streaming query: pass on what foreachBatch gives, or rows are taken for those of "
                "an earlier batch."
            )
        return BatchProducer(self.options.producer_id, batch_id if epoch is None else epoch)


def partition_id() -> int:
    """Which task of the write this is."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _property(name: str) -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


class _Tally:
    """Counts what is sent."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._rows = 0
        self._bytes = 0
        self._requests = 0
        self._names: list[str] = []

    def of(self, requests: list[Request]) -> list[Request]:
        for request in requests:
            self._rows += request.rows
            self._bytes += len(request.body)
            self._requests += 1
            if request.last:
                self._names.append(request.name)
        return requests

    def report(self, duplicates: int) -> TaskReport:
        return TaskReport(
            rows=self._rows,
            bytes=self._bytes,
            requests=self._requests,
            duplicates=duplicates,
            streams=len(self._names),
            partition=self._partition,
            packed_names=packed(sorted(self._names)),
        )


class _Sending:
    """The sender, from outside its loop; made when there is something to send."""

    def __init__(self, options: WriteOptions, producer: BatchProducer) -> None:
        self._options = options
        self._producer = producer
        self._thread: LoopThread | None = None
        self._sender: Sender | None = None

    @property
    def duplicates(self) -> int:
        return 0 if self._sender is None else self._sender.duplicates

    def take(self, requests: list[Request]) -> None:
        if requests:
            thread = self._thread = self._thread or LoopThread()
            thread.call(self._take(requests))

    def finish(self) -> None:
        if self._thread is not None and self._sender is not None:
            self._thread.call(self._sender.finish())

    def close(self) -> None:
        if self._thread is not None:
            try:
                self._thread.call(self._close())
            finally:
                self._thread.stop()

    async def _take(self, requests: list[Request]) -> None:
        if self._sender is None:
            self._sender = Sender(self._options, self._producer)
        await self._sender.take(requests)

    async def _close(self) -> None:
        if self._sender is not None:
            await self._sender.stop()


@contextmanager
def _sending(options: WriteOptions, producer: BatchProducer) -> Iterator[_Sending]:
    sending = _Sending(options, producer)
    try:
        yield sending
    finally:
        sending.close()
