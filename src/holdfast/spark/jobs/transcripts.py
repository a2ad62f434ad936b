"""The job `transcripts`: the proxy's streams to a table of responses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from holdfast.errors import SettingsError
from holdfast.settings.options import option
from holdfast.spark.connection import SparkConnection, parse_size
from holdfast.spark.jobs.options import StoreOptions, server_option
from holdfast.spark.jobs.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DayOfModel", "Transcripts", "TranscriptsSummary", "run"]

_BODY_BYTES_MAX: Final = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Transcripts(StoreOptions):
    """Make a table of responses from the proxy's streams, and a daily summary of it.

    A response gets its row once it has ended. Each run adds those that ended since the last one; a
    run that was killed is simply run again. The token is the proxy's secret, or one with the scope
    write:_proxy.
    """

    to: str = option(
        "Where the tables are, a path or s3://BUCKET/PREFIX; they are 'responses' and 'daily' "
        "below it.",
        path=True,
    )
    format: Literal["parquet", "delta", "iceberg"] = option(
        "Format of the table of responses.", "parquet"
    )
    bucket: str = option("The bucket with the proxy's streams.", "_proxy")
    streams: list[str] = option("Only these streams.", [], flag="stream")
    stream_pattern: str = option("Only streams whose ids match this expression as a whole.", "")
    body_bytes_max: str = option(
        "How much is kept of a body, 0 for nothing.", "1m", flag="body-bytes-max"
    )
    file_size: str = option("How large files get.", "128m")
    max_bytes: str = option("Commit after about so much.", "16g")
    compact_files: int = option(
        "Merge the small files of a day once there are so many. 0: never.", 0
    )
    compression: Literal["zstd", "snappy", "none"] = option("Compression of the files.", "zstd")
    fail_on_data_loss: bool = option("Fail if something was deleted before it was read.", True)
    via: Literal["auto", "store", "server"] = option(
        "Read packs from the object store, through the server, or as it can be done.",
        "auto",
    )
    to_endpoint: str = option("Address of the S3 service that the tables are in.", "")
    to_region: str = option("Region of the tables' bucket.", "")
    catalog: str = option("Iceberg: the catalog, by its name in PyIceberg's settings.", "")
    catalog_options: dict[str, str] = option("Iceberg: properties of the catalog.", {})
    catalog_table: str = option("Iceberg: the table's name in the catalog.", "")
    server: SparkConnection = server_option()

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in ("file_size", "max_bytes"):
            parse_size(getattr(self, name), f"{name!r}")
        if self.kept_bytes_max > _BODY_BYTES_MAX:
            raise SettingsError(f"'body_bytes_max' is at most 1g, not {self.body_bytes_max!r}.")
        if self.streams and self.stream_pattern:
            raise SettingsError("Give either 'streams' or 'stream_pattern', not both.")
        try:
            re.compile(self.stream_pattern)
        except re.error as error:
            raise SettingsError(f"'stream_pattern' is no regular expression: {error}.") from None
        if self.compact_files < 0 or self.compact_files == 1:
            raise SettingsError("'compact_files' is 0 or a number from 2 on.")
        if self.format != "iceberg" and (
            self.catalog or self.catalog_options or self.catalog_table
        ):
            raise SettingsError("'catalog' and its options are for format = \"iceberg\".")

    @property
    def kept_bytes_max(self) -> int:
        """`body_bytes_max` as a number."""
        text = self.body_bytes_max.strip()
        return 0 if text == "0" else parse_size(text, "'body_bytes_max'")


@dataclass(frozen=True)
class DayOfModel:
    """What began on one day: of one model, or of none that is known."""

    date: str
    model: str | None
    responses: int
    complete: int
    aborted: int
    failed: int
    # Those that can never end: their streams were deleted too early, or are damaged.
    open: int
    bytes: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    # Half of them, and 95 of 100, took no longer.
    duration_p50_s: float | None
    duration_p95_s: float | None


@dataclass(frozen=True, kw_only=True)
class TranscriptsSummary:
    """What a run did."""

    table: str
    daily: str
    format: str
    bucket: str
    # Between these cursors, the first excluded; empty for the beginning.
    after: str
    until: str
    batches: int
    # Rows that were added, and how many of each outcome.
    responses: int
    outcomes: dict[str, int]
    # Responses that go on: a later run adds them.
    under_way: int
    body_bytes: int
    prompt_tokens: int
    completion_tokens: int
    files: int
    file_bytes: int
    # Small files that were merged into larger ones.
    merged_files: int
    # Streams that hold something else than frames, and the first of them.
    damaged: int
    damage: list[dict[str, str]]
    # The latest rows of the summary, of days that were counted again.
    days: list[DayOfModel]


def run(spark: SparkSession, job: Transcripts, progress: Progress) -> TranscriptsSummary:
    """Add what is new."""
    from holdfast.spark.jobs.tasks import SparkExecutors  # noqa: PLC0415 (where jobs run)
    from holdfast.spark.transcribing.run import transcribe  # noqa: PLC0415 (the same)

    return transcribe(SparkExecutors(spark, progress), job, progress)
