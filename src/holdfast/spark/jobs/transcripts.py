"""The job `transcripts`: the proxy's streams to a table of responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.errors import SettingsError
from holdfast.settings.options import option
from holdfast.spark.connection import parse_size
from holdfast.spark.jobs.options import TableOptions
from holdfast.spark.jobs.progress import Progress
from holdfast.spark.jobs.result import JobResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DailyFigures", "Transcripts", "TranscriptsSummary", "run"]

_BODY_BYTES_MAX: Final = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Transcripts(TableOptions):
    """Make a table of responses from the proxy's streams, and a daily summary of it.

    A response gets its row once it has ended. Each run adds those that ended since the last one; a
    run that was killed is simply run again. The token is the proxy's secret, or one with the scope
    write:_proxy.
    """

    bucket: str = option("The bucket with the proxy's streams.", "_proxy")
    to: str = option(
        "Where the tables are, a path or s3://BUCKET/PREFIX; they are 'responses' and 'daily' "
        "below it.",
        path=True,
    )
    body_bytes_max: str = option(
        "How much of a body is kept, 0 for nothing.", "1m", flag="body-bytes-max"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kept_bytes_max > _BODY_BYTES_MAX:
            raise SettingsError(f"'body_bytes_max' is at most 1g, not {self.body_bytes_max!r}.")

    @property
    def kept_bytes_max(self) -> int:
        text = self.body_bytes_max.strip()
        return 0 if text == "0" else parse_size(text, "'body_bytes_max'")


@dataclass(frozen=True)
class DailyFigures:
    """The responses of one model that began on one day; None stands for no known model."""

    date: str
    model: str | None
    responses: int
    complete: int
    aborted: int
    failed: int
    # Responses that will never end: their streams were deleted, or are damaged.
    open: int
    bytes: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    duration_p50_s: float | None
    duration_p95_s: float | None


@dataclass(frozen=True, kw_only=True)
class TranscriptsSummary(JobResult):
    table: str
    daily: str
    format: str
    bucket: str
    # Between these cursors, the first excluded; empty for the beginning.
    after: str
    until: str
    batches: int
    # Rows added, and how many of each outcome.
    responses: int
    outcomes: dict[str, int]
    # Responses still in progress: a later run adds them.
    under_way: int
    body_bytes: int
    prompt_tokens: int
    completion_tokens: int
    files: int
    file_bytes: int
    # Small files that were merged into larger ones.
    merged_files: int
    # Streams that hold anything but frames, and the first of them.
    damaged: int
    damage: list[dict[str, str]]
    # The latest rows of the daily summary among those that were counted again.
    days: list[DailyFigures]


def run(spark: SparkSession, job: Transcripts, progress: Progress) -> TranscriptsSummary:
    from holdfast.spark.jobs.tasks import SparkExecutors  # noqa: PLC0415 (where jobs run)
    from holdfast.spark.transcribing.run import transcribe  # noqa: PLC0415 (the same)

    return transcribe(SparkExecutors(spark, progress), job, progress)
