"""The job `snapshot`: fold new messages into snapshots.

A stream starts at its latest snapshot, so a scan of the bucket finds exactly the messages since
then. The job can be killed at any point and run again.

Streams that have not grown enough would be read in every run. So a run that was recorded starts
where the last one of the pipeline has looked, and reads only streams that have changed since: the
others are still below the thresholds. It looks at everything if that run had other thresholds or
streams, or did not fold each of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import HoldfastError, SettingsError
from holdfast.failpoints import failpoint
from holdfast.settings.options import option
from holdfast.spark.connection import SparkClient, parse_size
from holdfast.spark.jobs.options import SelectionOptions
from holdfast.spark.jobs.progress import UNSEEN, Progress
from holdfast.spark.jobs.recording import last_results, pipeline_name
from holdfast.spark.jobs.result import JobResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from holdfast.spark.folding.folds import Fold

FOLDS: Final = ("merge-patch", "json-patch", "last-by-key", "concat")
_CONCURRENCY: Final = 16
_CONCURRENCY_MAX: Final = 128
_SLICES_PER_CORE: Final = 3
_LEFT_MAX: Final = 100


@dataclass(frozen=True, kw_only=True)
class Snapshot(SelectionOptions):
    """Fold new messages into snapshots.

    Each stream's messages since its snapshot are folded into it, and the result is published as
    the next snapshot; the messages before it are released. Streams that do not fit the fold are
    left alone and named.
    """

    bucket: str = option("The bucket whose streams are folded.")
    # From Python also a function itself.
    fold: Any = option(
        "The fold: merge-patch, json-patch, last-by-key, concat, or MODULE:FUNCTION, "
        "which is called with the state and a message."
    )
    key: str = option("last-by-key: path of the key, such as user.id or /user/id.", "")
    value: str = option("last-by-key: path of the part to keep. (default: the message)", "")
    tombstone: str = option("last-by-key: path of a field that, if true, deletes the key.", "")
    min_messages: int = option("Only streams with at least this many new messages.", 1)
    min_bytes: str = option("Only streams that grew by at least this much, such as 64k.", "")
    strict: bool = option("Fail if a stream does not fit the fold.", False)
    py_files: list[str] = option(
        "Python files and archives that executors need for the fold.", [], path=True, flag="py-file"
    )
    concurrency: int = option("Concurrent requests of each task.", _CONCURRENCY)

    def __post_init__(self) -> None:
        super().__post_init__()
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
        self.min_size_bytes()
        _fold_of(self)

    def min_size_bytes(self) -> int:
        return parse_size(self.min_bytes, "'min_bytes'") if self.min_bytes else 0

    def scope(self) -> str:
        """A digest of the options that decide which streams are folded."""
        thresholds = self.min_messages, self.min_size_bytes()
        chosen = repr((self.bucket, sorted(self.streams), self.stream_pattern, *thresholds))
        return hashlib.sha256(chosen.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class SnapshotSummary(JobResult):
    # Streams that have something new.
    streams: int
    published: int
    # The messages in published snapshots, and the size of these.
    messages: int
    bytes: int
    snapshot_bytes: int
    below_threshold: int
    # Streams that were deleted, or folded by another run, meanwhile.
    skipped: int
    left_alone: int
    # The first streams that were left alone, and why.
    left: list[dict[str, str]]
    # The cursor up to which everything was looked at, and which streams: a later run of the same
    # scope starts there.
    until: str
    scope: str


def run(spark: SparkSession, job: Snapshot, progress: Progress = UNSEEN) -> SnapshotSummary:
    from holdfast.spark.folding.slice_fold import (  # noqa: PLC0415
        FoldReport,
        FoldWork,
        Thresholds,
        fold_slice,
    )
    from holdfast.spark.jobs.tasks import core_count, run_tasks, totals  # noqa: PLC0415
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
            _looked_until(server, job),
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
    sums = totals(reports, FoldReport)
    left = [each for report in reports for each in report.left][:_LEFT_MAX]
    return SnapshotSummary(
        **sums,
        left=[vars(each) for each in left],
        until=plan.until,
        scope=job.scope(),
        ok=not (job.strict and sums["left_alone"]),
    )


def _looked_until(server: SparkClient, job: Snapshot) -> str:
    """The cursor up to which nothing has to be looked at again, or an empty text."""
    if not job.record:
        return ""
    for result in last_results(server, pipeline_name(job)):
        if result.get("scope") == job.scope():
            is_complete = not (result.get("skipped") or result.get("left_alone"))
            return str(result.get("until", "")) if is_complete else ""
    return ""


def _flushed(server: SparkClient) -> bool:
    """Flush, so that the packs know every snapshot; returns whether that succeeded."""
    try:
        server.run(lambda client: client.storage.flush())
    except HoldfastError as error:
        # Not allowed, or a server without packs: then every stream's snapshot is fetched.
        if error.status not in {401, 403, 404, 405}:
            raise
        return False
    return True


def _fold_of(job: Snapshot, paths: Sequence[str] = ()) -> Fold:
    """The fold that the options describe."""
    from holdfast.spark.folding.folds import (  # noqa: PLC0415  # noqa: PLC0415
        Concatenation,
        JsonPatches,
        LastByKey,
        MergePatches,
        UserFunction,
        is_function_name,
        parse_path,
    )

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
    """The fold, after sending its files to the executors."""
    from holdfast.spark.folding.folds import UserFunction, load_function  # noqa: PLC0415
    from holdfast.spark.jobs.progress import is_connect  # noqa: PLC0415

    for file in job.py_files:
        if not Path(file).is_file():
            raise SettingsError(f"There is no file {file!r}, which 'py_files' names.")
        if is_connect(spark):
            spark.addArtifacts(file, pyfile=True)
        else:
            spark.sparkContext.addPyFile(file)
    # Modules are searched in the current directory, if executors see it.
    fold = _fold_of(job, [str(Path.cwd())])
    if isinstance(fold, UserFunction) and isinstance(fold.function, str):
        # A wrong name fails here, before anything runs.
        load_function(fold.function, [*fold.paths, *_search_paths(job.py_files)])
    return fold


def _search_paths(files: Sequence[str]) -> list[str]:
    """The entries of `sys.path` for files: the directory of a module, an archive itself."""
    return [
        str(Path(file).absolute().parent if file.endswith(".py") else Path(file).absolute())
        for file in files
    ]
