"""The job `replay`: copy streams from server to server.

It keeps no state: the target knows how far each stream is copied (see `holdfast.spark.replaying`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.errors import SettingsError
from holdfast.failpoints import failpoint
from holdfast.settings.options import option
from holdfast.spark.connection import SparkClient, SparkConnection
from holdfast.spark.jobs.options import SelectionOptions, server_option
from holdfast.spark.jobs.progress import UNSEEN, Progress
from holdfast.spark.jobs.result import JobResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.replaying.comparing import ReplayWork

_CONCURRENCY: Final = 32
_CONCURRENCY_MAX: Final = 512
_SLICES_PER_CORE: Final = 3
_LEFT_MAX: Final = 100


@dataclass(frozen=True, kw_only=True)
class Replay(SelectionOptions):
    """Copy streams from server to server.

    Streams get the same ids, content types, messages and order, each message once; closed ones are
    closed. Messages that were copied before are not copied again. Both servers must be Holdfast.
    """

    bucket: str = option("The bucket to copy.")
    target_bucket: str = option("The bucket to copy to. (default: the same)", "")
    snapshots: bool = option("Copy snapshots, too.", True)
    fail_on_data_loss: bool = option(
        "Leave streams alone if messages were deleted before they were copied.",
        True,
    )
    identity: str = option("Name of the source on the target. (default: its store's id)", "")
    concurrency: int = option("Concurrent streams in each task.", _CONCURRENCY)
    target: SparkConnection = server_option("The server to copy to.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.concurrency <= _CONCURRENCY_MAX:
            raise SettingsError(
                f"'concurrency' is from 1 to {_CONCURRENCY_MAX}, not {self.concurrency}."
            )
        same = self.server.url.rstrip("/") == self.target.url.rstrip("/")
        if same and self.bucket == (self.target_bucket or self.bucket):
            raise SettingsError(
                "The target is the source itself: give 'target', or another 'target_bucket'."
            )


@dataclass(frozen=True)
class Replayed(JobResult):
    # Streams that were compared, and streams that are equal according to the listings.
    streams: int
    unchanged: int
    created: int
    # Streams that got messages, and the messages.
    copied: int
    messages: int
    bytes: int
    closed: int
    snapshots: int
    # Copies that begin or continue after messages that the source no longer has.
    trimmed: int
    # Copies with smaller offsets than their sources for that reason, since this or an earlier run.
    renumbered: int
    left_alone: int
    # The first streams that were left alone, and why.
    left: list[dict[str, str]]


def run(spark: SparkSession, job: Replay, progress: Progress = UNSEEN) -> Replayed:
    from holdfast.spark.jobs.load import ensure_bucket  # noqa: PLC0415
    from holdfast.spark.jobs.tasks import core_count, run_tasks, totals  # noqa: PLC0415
    from holdfast.spark.reading.planning import plan_between  # noqa: PLC0415
    from holdfast.spark.reading.source import ReadSource, Slice  # noqa: PLC0415
    from holdfast.spark.replaying.comparing import ReplayReport  # noqa: PLC0415
    from holdfast.spark.replaying.slice_replay import replay_slice  # noqa: PLC0415

    progress.start("planning")
    source = ReadSource(
        job.server,
        job.bucket,
        selection=job.selection(),
        fail_on_data_loss=False,
        place=job.place(""),
    )
    slices = _SLICES_PER_CORE * core_count(spark)
    with SparkClient(job.server) as server, SparkClient(job.target) as target:
        work = _work(job, server)
        ensure_bucket(target, work.target_bucket)
        plan = plan_between(server, source, "", "", min_partitions=slices, whole_streams=True)
    failpoint("replay.planned")
    reports = run_tasks(
        spark,
        # Streams without messages are in one slice at least.
        plan.slices or [Slice("", "", 0, 0, 0)],
        partial(replay_slice, work, plan.source),
        what="copying streams",
        progress=progress,
    )
    sums = totals(reports, ReplayReport)
    left = [each for report in reports for each in report.left][:_LEFT_MAX]
    return Replayed(
        **sums,
        ok=not sums["left_alone"],
        left=[{"stream_id": each.stream_id, "why": each.why} for each in left],
        warnings=_renumbered(sums["renumbered"]),
    )


def _renumbered(streams: int) -> list[str]:
    said = (
        f"The offsets of {streams} streams are smaller on the target: their sources had dropped "
        "messages before they were copied, and a copy counts from the first message it has."
    )
    return [said] if streams else []


def _work(job: Replay, server: SparkClient) -> ReplayWork:
    from holdfast.spark.replaying.comparing import ReplayWork  # noqa: PLC0415

    identity = job.identity
    if not identity:
        plan = server.run(lambda client: client.bucket(job.bucket).scan(until=f"{0:020d}"))
        identity = f"{plan.store_id or server.url} {job.bucket}"
    return ReplayWork(
        source=job.server,
        bucket=job.bucket,
        target=job.target,
        target_bucket=job.target_bucket or job.bucket,
        identity=identity,
        snapshots=job.snapshots,
        fail_on_data_loss=job.fail_on_data_loss,
        concurrency=job.concurrency,
    )
