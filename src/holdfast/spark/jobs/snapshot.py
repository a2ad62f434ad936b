"""The job `snapshot`: fold new messages into snapshots.

Publishing a snapshot has the stream start at it. So what a scan of the bucket finds is what came
since the last snapshot, and the job keeps no state of its own: it can be killed at any point, and
does what is left when it is run again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import HoldfastError, SettingsError
from holdfast.failpoints import failpoint
from holdfast.settings.options import option
from holdfast.spark.connection import SparkConnection, parse_size
from holdfast.spark.jobs.options import StoreOptions, server_option
from holdfast.spark.jobs.progress import UNSEEN, Progress
from holdfast.spark.reading.selection import make_selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from holdfast.spark.connection import SparkClient
    from holdfast.spark.folding.folds import Fold
    from holdfast.spark.folding.slice_fold import FoldReport
    from holdfast.spark.reading.selection import Selection

FOLDS: Final = ("merge-patch", "json-patch", "last-by-key", "concat")
_CONCURRENCY: Final = 16
_CONCURRENCY_MAX: Final = 128
_SLICES_PER_CORE: Final = 3
_LEFT_MAX: Final = 100


@dataclass(frozen=True, kw_only=True)
class Snapshot(StoreOptions):
    """Fold new messages into snapshots.

    Each stream's messages since its snapshot are folded into it, and the result is published as
    the next snapshot; the messages before it are given back. Streams that do not fit the fold are
    left alone and named.
    """

    bucket: str = option("The bucket whose streams are folded.")
    # From Python also a function itself.
    fold: Any = option(
        "How: merge-patch, json-patch, last-by-key, concat, or MODULE:FUNCTION, "
        "which is called with the state and a message."
    )
    key: str = option("last-by-key: where the key is, user.id or /user/id.", "")
    value: str = option("last-by-key: the part that is kept. (default all of the message)", "")
    tombstone: str = option("last-by-key: what, if it is there and true, deletes the key.", "")
    streams: list[str] = option("Only these streams.", [], flag="stream")
    stream_pattern: str = option("Only streams whose ids match as a whole.", "")
    min_messages: int = option("Only streams with so many new messages.", 1)
    min_bytes: str = option("Only streams that grew by so much, such as 64k.", "")
    strict: bool = option("Fail if a stream does not fit the fold.", False)
    py_files: list[str] = option(
        "Python files and archives that executors need for the fold.", [], path=True, flag="py-file"
    )
    concurrency: int = option("Requests at once of each task.", _CONCURRENCY)
    server: SparkConnection = server_option()

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.min_messages < 1:
            raise SettingsError(f"'min_messages' is at least 1, not {self.min_messages}.")
        if not 1 <= self.concurrency <= _CONCURRENCY_MAX:
            raise SettingsError(
                f"'concurrency' is from 1 to {_CONCURRENCY_MAX}, not {self.concurrency}."
            )
        if (self.fold == "last-by-key") != bool(self.key):
            raise SettingsError("'key' is needed for the fold last-by-key, and for no other.")
        if (self.value or self.tombstone) and not self.key:
            raise SettingsError("'value' and 'tombstone' are for the fold last-by-key.")
        self.selection()
        self.min_size_bytes()
        _fold_of(self)

    def selection(self) -> Selection:
        """Which streams are meant."""
        return make_selection(self.streams, self.stream_pattern)

    def min_size_bytes(self) -> int:
        """`min_bytes` as a number."""
        return parse_size(self.min_bytes, "'min_bytes'") if self.min_bytes else 0


@dataclass(frozen=True)
class SnapshotSummary:
    """What was folded and published."""

    # Streams that have something new.
    streams: int
    published: int
    # What went into those that were published, and their size.
    messages: int
    bytes: int
    snapshot_bytes: int
    below_threshold: int
    # Deleted, or folded by somebody else, meanwhile.
    skipped: int
    left_alone: int
    # The first of those that were left alone, and why.
    left: list[dict[str, str]]
    ok: bool = True


def run(spark: SparkSession, job: Snapshot, progress: Progress = UNSEEN) -> SnapshotSummary:
    """Fold and publish."""
    from holdfast.spark.connection import SparkClient  # noqa: PLC0415 (only where jobs run)
    from holdfast.spark.folding.slice_fold import (  # noqa: PLC0415
        FoldWork,
        Thresholds,
        fold_slice,
    )
    from holdfast.spark.jobs.tasks import core_count, run_tasks  # noqa: PLC0415
    from holdfast.spark.reading.planning import plan_between  # noqa: PLC0415
    from holdfast.spark.reading.source import ReadSource  # noqa: PLC0415

    fold = _shipped(spark, job)
    progress.start("planning")
    source = ReadSource(
        job.server,
        job.bucket,
        selection=job.selection(),
        fail_on_data_loss=False,
        place=job.place(""),
    )
    with SparkClient(job.server) as server:
        knows_snapshots = _flushed(server)
        plan = plan_between(
            server,
            source,
            "",
            "",
            min_partitions=_SLICES_PER_CORE * core_count(spark),
            whole_streams=True,
        )
    failpoint("snapshot_job.planned")
    work = FoldWork(
        plan.source,
        fold,
        Thresholds(job.min_messages, job.min_size_bytes()),
        job.concurrency,
        knows_snapshots,
    )
    reports = run_tasks(
        spark, plan.slices, partial(fold_slice, work), what="folding streams", progress=progress
    )
    return _summary(reports, strict=job.strict)


def _flushed(server: SparkClient) -> bool:
    """Whether what the packs say of streams is up to date: snapshots since are in memory only."""
    try:
        server.run(lambda client: client.storage.flush())
    except HoldfastError as error:
        # Not allowed, or a server without packs: then every stream's snapshot is asked for.
        if error.status not in {401, 403, 404, 405}:
            raise
        return False
    return True


def _summary(reports: Sequence[FoldReport], *, strict: bool) -> SnapshotSummary:
    left = [each for report in reports for each in report.left][:_LEFT_MAX]
    left_alone = sum(each.left_alone for each in reports)
    return SnapshotSummary(
        streams=sum(each.streams for each in reports),
        published=sum(each.published for each in reports),
        messages=sum(each.messages for each in reports),
        bytes=sum(each.bytes for each in reports),
        snapshot_bytes=sum(each.snapshot_bytes for each in reports),
        below_threshold=sum(each.below_threshold for each in reports),
        skipped=sum(each.skipped for each in reports),
        left_alone=left_alone,
        left=[{"stream_id": x.stream_id, "offset": x.offset, "why": x.why} for x in left],
        ok=not (strict and left_alone),
    )


def _fold_of(job: Snapshot, paths: Sequence[str] = ()) -> Fold:
    """The fold that the options mean."""
    from holdfast.spark.folding.folds import (  # noqa: PLC0415
        Concatenation,
        JsonPatches,
        LastByKey,
        MergePatches,
        parse_path,
    )
    from holdfast.spark.folding.user_function import UserFunction, is_function_name  # noqa: PLC0415

    if callable(job.fold):
        return UserFunction(job.fold)
    match job.fold:
        case "merge-patch":
            return MergePatches()
        case "json-patch":
            return JsonPatches()
        case "concat":
            return Concatenation()
        case "last-by-key":
            return LastByKey(
                parse_path(job.key, "key"),
                parse_path(job.value, "value") if job.value else (),
                parse_path(job.tombstone, "tombstone") if job.tombstone else (),
            )
        case str() as name if is_function_name(name):
            return UserFunction(name, tuple(paths))
    raise SettingsError(
        f"'fold' is one of {', '.join(FOLDS)}, or a function as MODULE:FUNCTION, not {job.fold!r}."
    )


def _shipped(spark: SparkSession, job: Snapshot) -> Fold:
    """The fold, with the files that it needs on the executors."""
    from holdfast.spark.folding.user_function import UserFunction, load_function  # noqa: PLC0415
    from holdfast.spark.jobs.progress import is_connect  # noqa: PLC0415

    for file in job.py_files:
        if not Path(file).is_file():
            raise SettingsError(f"There is no file {file!r}, which 'py_files' names.")
        if is_connect(spark):
            spark.addArtifacts(file, pyfile=True)
        else:
            spark.sparkContext.addPyFile(file)
    # Where the job is started is where modules are looked for, if executors see that directory.
    fold = _fold_of(job, [str(Path.cwd())])
    if isinstance(fold, UserFunction) and isinstance(fold.function, str):
        # A mistake shows here, before anything runs.
        load_function(fold.function, [*fold.paths, *_places(job.py_files)])
    return fold


def _places(files: Sequence[str]) -> list[str]:
    """What Python takes as places of modules: the directory of a file, an archive itself."""
    return [
        str(Path(file).absolute().parent if file.endswith(".py") else Path(file).absolute())
        for file in files
    ]
