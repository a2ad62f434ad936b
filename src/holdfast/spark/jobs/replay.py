"""The job `replay`: copy streams from server to server.

It keeps no state: the target knows how far each stream is copied (see `holdfast.spark.replaying`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from holdfast.spark.reading.planning import ReadPlan
    from holdfast.spark.replaying.comparing import PendingCopy, ReplayWork
    from holdfast.spark.replaying.copying import CopyTask

_CONCURRENCY: Final = 32
_CONCURRENCY_MAX: Final = 512
_SLICES_PER_CORE: Final = 3
_COMPARED_TOGETHER: Final = 1000
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
    left_alone: int
    # The first streams that were left alone, and why.
    left: list[dict[str, str]]


def run(spark: SparkSession, job: Replay, progress: Progress = UNSEEN) -> Replayed:
    from holdfast.spark.jobs.load import ensure_bucket  # noqa: PLC0415
    from holdfast.spark.jobs.tasks import core_count, run_tasks, totals  # noqa: PLC0415
    from holdfast.spark.replaying.comparing import ReplayReport, compare_streams  # noqa: PLC0415
    from holdfast.spark.replaying.copying import copy_slice  # noqa: PLC0415

    progress.start("listing streams")
    with SparkClient(job.server) as server, SparkClient(job.target) as target:
        work = _work(job, server)
        different, unchanged = _different(job, server, target)
        ensure_bucket(target, work.target_bucket)
    cores = core_count(spark)
    compared = run_tasks(
        spark,
        _together(different, cores),
        partial(compare_streams, work),
        what="comparing streams",
        progress=progress,
    )
    todo = sorted((each for x in compared for each in x.todo), key=lambda each: each.stream_id)
    failpoint("replay.planned")
    copied: list[ReplayReport] = []
    if todo:
        progress.start("planning")
        with SparkClient(job.server) as server:
            plan = _plan(job, server, todo, _SLICES_PER_CORE * cores)
        copied = run_tasks(
            spark,
            _tasks(plan, todo),
            partial(copy_slice, work),
            what="copying streams",
            progress=progress,
        )
    reports = [*compared, *copied]
    sums = totals(reports, ReplayReport)
    left = [each for report in reports for each in report.left][:_LEFT_MAX]
    return Replayed(
        **sums,
        ok=not sums["left_alone"],
        unchanged=unchanged,
        left=[{"stream_id": each.stream_id, "why": each.why} for each in left],
    )


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


def _different(job: Replay, server: SparkClient, target: SparkClient) -> tuple[list[str], int]:
    """The streams to compare, and the number of those that are equal."""
    from holdfast.spark.replaying.comparing import list_streams  # noqa: PLC0415

    selection = job.selection()
    theirs = server.run(lambda client: list_streams(client, job.bucket, selection.prefix))
    bucket = job.target_bucket or job.bucket
    ours = target.run(lambda client: list_streams(client, bucket, selection.prefix))
    wanted = [each for each in theirs if selection.includes(each)]
    if job.snapshots:
        # Listings do not show snapshots.
        return wanted, 0
    found = []
    for stream_id in wanted:
        tail, status, created_ms = theirs[stream_id]
        own_tail, own_status, own_created_ms = ours.get(stream_id, (-1, "", 0))
        # A stream created after its copy is another stream of the same name.
        if (tail, status) != (own_tail, own_status) or created_ms > own_created_ms:
            found.append(stream_id)
    return found, len(wanted) - len(found)


def _together(stream_ids: Sequence[str], cores: int) -> list[Sequence[str]]:
    size = max(1, min(_COMPARED_TOGETHER, -(-len(stream_ids) // cores)))
    return [stream_ids[at : at + size] for at in range(0, len(stream_ids), size)]


def _plan(
    job: Replay, server: SparkClient, todo: Sequence[PendingCopy], min_partitions: int
) -> ReadPlan:
    from holdfast.spark.reading.planning import plan_between  # noqa: PLC0415
    from holdfast.spark.reading.selection import Selection  # noqa: PLC0415
    from holdfast.spark.reading.source import ReadSource  # noqa: PLC0415

    source = ReadSource(
        job.server,
        job.bucket,
        selection=Selection(frozenset(each.stream_id for each in todo)),
        fail_on_data_loss=False,
        place=job.place(""),
    )
    return plan_between(server, source, "", "", min_partitions=min_partitions, whole_streams=True)


def _tasks(plan: ReadPlan, todo: Sequence[PendingCopy]) -> list[CopyTask]:
    """The slices, each with its streams."""
    from holdfast.spark.reading.selection import Selection  # noqa: PLC0415
    from holdfast.spark.reading.source import Slice  # noqa: PLC0415
    from holdfast.spark.replaying.copying import CopyTask  # noqa: PLC0415

    # Each task gets its own streams only.
    source = replace(plan.source, selection=Selection())
    if not plan.slices:
        return [CopyTask(source, None, todo)]
    tasks = []
    rest = iter(todo)
    following = next(rest, None)
    for part in plan.slices:
        assert isinstance(part, Slice)
        own = []
        while following is not None and (not part.last or following.stream_id <= part.last):
            own.append(following)
            following = next(rest, None)
        if own:
            tasks.append(CopyTask(source, part, own))
    return tasks
