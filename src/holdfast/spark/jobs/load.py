"""The job `load`: append a table's rows to streams.

The rows go through `write_to_streams`, with a producer id that identifies the load. So a load that
was killed and is run again ends with the same streams, and one that was complete stores nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import HoldfastError, SettingsError
from holdfast.settings.options import option
from holdfast.spark.connection import SparkClient
from holdfast.spark.jobs.options import JobOptions
from holdfast.spark.jobs.progress import UNSEEN, Progress, watching
from holdfast.spark.jobs.result import JobResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_CONCURRENCY: Final = 32
# The bucket needs no creating, this token may not create it, or the server is not Holdfast.
_NOT_CREATED: Final = frozenset({400, 403, 404, 405})


@dataclass(frozen=True, kw_only=True)
class Load(JobOptions):
    """Append a table's rows to streams, each of them once.

    A row becomes a message: a JSON object, or the content of one column. The same load can be run
    again: rows that are stored already are not stored twice. A table whose files have changed is
    another load.
    """

    bucket: str = option("The bucket to write to.")
    stream_id: str = option("Column with the stream's id, or a template such as 'user-{user_id}'.")
    order_by: list[str] = option(
        "Columns that give the order of the rows in a stream.", flag="order-by"
    )
    source: str = option("Path of the table's files.", "", path=True)
    table: str = option("Name of a table in Spark's catalog, instead of files.", "")
    format: str = option(
        "Format of the files: parquet, delta, iceberg, csv, json, orc or another that Spark has.",
        "parquet",
    )
    source_options: dict[str, str] = option("Options of Spark's reader.", {}, flag="source-option")
    where: str = option("Only rows that satisfy this SQL condition.", "")
    columns: list[str] = option("Columns that go into the JSON object. Empty: all.", [])
    value: str = option("Column with the message's text, instead of a JSON object.", "")
    payload: str = option("Column with the message's bytes, instead of a JSON object.", "")
    content_type: str = option(
        "Content type of the streams. (default: application/json, or application/octet-stream "
        "with 'payload')",
        "",
    )
    create_streams: bool = option("Create streams that are missing.", True)
    close_streams: bool = option("Close the streams after their last rows.", False)
    ttl: int | None = option("Seconds to live of streams that are created.", None)
    producer_id: str = option(
        "Producer id of this load. (default: derived from the options and files)", ""
    )
    concurrency: int = option("Concurrent requests of each task.", _CONCURRENCY)

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.source) == bool(self.table):
            raise SettingsError("Give either 'source' or 'table'.")
        if sum(map(bool, (self.columns, self.value, self.payload))) > 1:
            raise SettingsError("Give at most one of 'columns', 'value' and 'payload'.")
        if not self.order_by or not all(self.order_by):
            raise SettingsError(
                "'order_by' is needed: a table has no order, but the messages of a stream do."
            )
        if not self.stream_id.strip():
            raise SettingsError("'stream_id' is needed: a column, or a template.")
        if self.concurrency < 1:
            raise SettingsError(f"'concurrency' is at least 1, not {self.concurrency}.")
        if self.ttl is not None and self.ttl < 1:
            raise SettingsError(f"'ttl' is at least 1, not {self.ttl}.")


@dataclass(frozen=True)
class Loaded(JobResult):
    rows: int
    streams: int
    bytes: int
    requests: int
    # Requests that an earlier run had stored.
    stored_before: int
    producer_id: str


def run(spark: SparkSession, job: Load, progress: Progress = UNSEEN) -> Loaded:
    from holdfast.spark.jobs.load_rows import load_name, open_table, rows_of  # noqa: PLC0415
    from holdfast.spark.writing.writers import write_to_streams  # noqa: PLC0415

    progress.start("opening the table")
    table = open_table(spark, job)
    rows, order_by = rows_of(table, job)
    producer_id = job.producer_id or load_name(table, job)
    with SparkClient(job.server) as server:
        ensure_bucket(server, job.bucket)
    options: dict[str, Any] = job.server.options() | {
        "bucket": job.bucket,
        "contentType": job.content_type or None,
        "createStreams": job.create_streams,
        "closeStreams": job.close_streams,
        "ttl": job.ttl,
        "concurrency": job.concurrency,
    }
    with watching(spark, progress, "loading rows"):
        report = write_to_streams(
            rows, producer_id=producer_id, batch_id=0, order_by=order_by, **options
        )
    return Loaded(
        rows=report.rows,
        streams=report.streams,
        bytes=report.bytes,
        requests=report.requests,
        stored_before=report.duplicates,
        producer_id=producer_id,
    )


def ensure_bucket(server: SparkClient, bucket: str) -> None:
    """Create the bucket if it is missing and can be created; fails if the server is unreachable."""
    try:
        server.run(lambda client: client.bucket(bucket).create(exist_ok=True))
    except HoldfastError as error:
        if error.status not in _NOT_CREATED:
            raise
