"""The job `archive`: a bucket to a table, incrementally and exactly once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast.errors import SettingsError
from holdfast.settings.options import option
from holdfast.spark.connection import SparkConnection, parse_size
from holdfast.spark.jobs.options import server_option
from holdfast.spark.jobs.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Archive", "Archived", "run"]


@dataclass(frozen=True, kw_only=True)
class Archive:
    """Copy a bucket to a table.

    Each run adds what was appended since the last one; the table itself says how far it is. A run
    that was killed is simply run again: every message is in the table once.
    """

    bucket: str = option("The bucket to copy.")
    to: str = option("Where the table is: a path or s3://BUCKET/PREFIX.", path=True)
    format: Literal["parquet", "delta", "iceberg"] = option("Format of the table.", "parquet")
    streams: list[str] = option("Only these streams.", [], flag="stream")
    stream_pattern: str = option("Only streams whose ids match this expression as a whole.", "")
    json_as: Literal["binary", "text", "columns"] = option(
        "Messages of JSON streams: in 'payload', as text in 'value', or their fields as columns.",
        "binary",
    )
    schema: dict[str, str] = option(
        "Types by field, for json_as=columns: string, int, long, double, boolean, timestamp, date "
        "or json. Without it, the first messages tell.",
        {},
    )
    evolve: bool = option("Give fields that are new columns of their own.", False)
    partition_by: Literal["date", "none"] = option(
        "One partition for each UTC day, or none.", "date"
    )
    file_size: str = option("How large files get.", "128m")
    min_bytes: str = option("Wait until so much is new, such as 64m.", "")
    max_bytes: str = option("Commit after about so much.", "16g")
    compact_files: int = option(
        "Merge the small files of a day once there are so many. 0: never.", 0
    )
    compression: Literal["zstd", "snappy", "none"] = option("Compression of the files.", "zstd")
    fail_on_data_loss: bool = option(
        "Fail if messages were deleted before they were archived.", True
    )
    via: Literal["auto", "store", "server"] = option(
        "Read packs from the object store, through the server, or as it can be done.",
        "auto",
    )
    store: str = option("The server's object store, if it is elsewhere for executors.", "")
    store_endpoint: str = option("Address of that store's S3 service.", "")
    store_region: str = option("Region of that store.", "")
    to_endpoint: str = option("Address of the S3 service that the table is in.", "")
    to_region: str = option("Region of the table's bucket.", "")
    catalog: str = option("Iceberg: the catalog, by its name in PyIceberg's settings.", "")
    catalog_options: dict[str, str] = option("Iceberg: properties of the catalog.", {})
    catalog_table: str = option("Iceberg: the table's name in the catalog.", "")
    server: SparkConnection = server_option()

    def __post_init__(self) -> None:
        for name in ("file_size", "max_bytes", "min_bytes"):
            text = getattr(self, name)
            if text or name != "min_bytes":
                parse_size(text, f"{name!r}")
        if self.streams and self.stream_pattern:
            raise SettingsError("Give either 'streams' or 'stream_pattern', not both.")
        try:
            re.compile(self.stream_pattern)
        except re.error as error:
            raise SettingsError(f"'stream_pattern' is no regular expression: {error}.") from None
        if self.json_as != "columns" and (self.schema or self.evolve):
            raise SettingsError("'schema' and 'evolve' are for json_as = \"columns\".")
        if self.compact_files < 0 or self.compact_files == 1:
            raise SettingsError("'compact_files' is 0 or a number from 2 on.")
        if self.format != "iceberg" and (
            self.catalog or self.catalog_options or self.catalog_table
        ):
            raise SettingsError("'catalog' and its options are for format = \"iceberg\".")


@dataclass(frozen=True, kw_only=True)
class Archived:
    """What a run did."""

    table: str
    format: str
    bucket: str
    # Between these cursors, the first excluded; empty for the beginning.
    after: str
    until: str
    # Whether the table has all that the bucket had when the run began.
    up_to_date: bool
    batches: int
    rows: int
    payload_bytes: int
    file_bytes: int
    files: int
    # Small files that were merged into larger ones.
    merged_files: int
    # Of JSON messages: kept in `_raw` since they do not fit, and with fields in `_rest`.
    raw_rows: int
    rest_rows: int
    columns: dict[str, str]


def run(spark: SparkSession, job: Archive, progress: Progress) -> Archived:
    """Archive what is new."""
    from holdfast.spark.archiving.run import archive  # noqa: PLC0415 (the same)
    from holdfast.spark.jobs.tasks import SparkExecutors  # noqa: PLC0415 (where jobs run)

    return archive(SparkExecutors(spark, progress), job, progress)
