"""The job `archive`: a bucket to a table, incrementally and exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast.errors import SettingsError
from holdfast.settings.options import option
from holdfast.spark.connection import parse_size
from holdfast.spark.jobs.options import TableOptions
from holdfast.spark.jobs.progress import Progress
from holdfast.spark.jobs.result import JobResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Archive", "Archived", "run"]


@dataclass(frozen=True, kw_only=True)
class Archive(TableOptions):
    """Copy a bucket to a table.

    Each run adds what was appended since the last one; the table itself stores its position. A run
    that was killed is simply run again: every message is in the table once.
    """

    json_as: Literal["binary", "text", "columns"] = option(
        "Messages of JSON streams: in 'payload', as text in 'value', or their fields as columns.",
        "binary",
    )
    schema: dict[str, str] = option(
        "Types by field, for json_as=columns: string, int, long, double, boolean, timestamp, date "
        "or json. (default: inferred from the first messages)",
        {},
    )
    evolve: bool = option("Add columns for new fields.", False)
    partition_by: Literal["date", "none"] = option(
        "One partition for each UTC day, or none.", "date"
    )
    deletes: Literal["keep", "apply"] = option(
        "Rows of streams that are deleted or expired: keep them, or remove them from the table.",
        "keep",
    )
    min_bytes: str = option("Wait until this much is new, such as 64m.", "")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_bytes:
            parse_size(self.min_bytes, "'min_bytes'")
        if self.json_as != "columns" and (self.schema or self.evolve):
            raise SettingsError("'schema' and 'evolve' are for json_as = \"columns\".")


@dataclass(frozen=True, kw_only=True)
class Archived(JobResult):
    table: str
    format: str
    bucket: str
    # Between these cursors, the first excluded; empty for the beginning.
    after: str
    until: str
    # Whether the table has everything that the bucket had when the run began.
    up_to_date: bool
    batches: int
    rows: int
    payload_bytes: int
    file_bytes: int
    files: int
    # Small files that were merged into larger ones.
    merged_files: int
    # JSON messages in `_raw` since they are not objects, and messages with fields in `_rest`.
    raw_rows: int
    rest_rows: int
    # Rows of deleted streams that were removed, and the files that had them.
    erased_rows: int
    erased_files: int
    columns: dict[str, str]


def run(spark: SparkSession, job: Archive, progress: Progress) -> Archived:
    from holdfast.spark.archiving.archive_run import archive  # noqa: PLC0415 (only where jobs run)
    from holdfast.spark.jobs.tasks import SparkExecutors  # noqa: PLC0415

    return archive(SparkExecutors(spark, progress), job, progress)
