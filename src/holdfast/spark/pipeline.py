"""The jobs as functions, for programs that run them: a notebook, Airflow, dbt.

    from holdfast.spark import pipeline

    result = pipeline.archive(spark, bucket="events", to="/lake/events", format="delta")
    print(result.rows, result.seconds)

The arguments of a function are the options of the job's class, and its result is what `holdfast
pipeline JOB --json` prints. Like that command, a function locks and records the run; see
`holdfast.spark.jobs.recording`. It raises a HoldfastError if the job fails, PipelineBusyError if
another run of the same pipeline is in progress.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from holdfast.spark.jobs import archive as _archive
from holdfast.spark.jobs import audit as _audit
from holdfast.spark.jobs import compact as _compact
from holdfast.spark.jobs import load as _load
from holdfast.spark.jobs import replay as _replay
from holdfast.spark.jobs import report as _report
from holdfast.spark.jobs import run_job
from holdfast.spark.jobs import snapshot as _snapshot
from holdfast.spark.jobs import transcripts as _transcripts
from holdfast.spark.jobs.progress import UNSEEN, Progress
from holdfast.spark.jobs.recording import recorded
from holdfast.spark.jobs.result import JobResult
from holdfast.spark.session import as_holdfast_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "archive",
    "audit",
    "compact",
    "load",
    "replay",
    "report",
    "run",
    "snapshot",
    "transcripts",
]

P = ParamSpec("P")
J = TypeVar("J")
R = TypeVar("R", bound=JobResult)


def run(spark: SparkSession, job: Any) -> JobResult:
    """Run a job that is an instance of its class, such as `Archive(bucket="events", to="lake")`."""
    result: JobResult = _recorded(job, lambda: run_job(spark, job))
    return result


def _recorded(job: Any, work: Callable[[], R]) -> R:
    try:
        return recorded(job, work)
    except Exception as error:
        found = as_holdfast_error(error)
        if found is error:
            raise
        raise found from error


def _function(
    declared: Callable[P, J], run_: Callable[[SparkSession, J, Progress], R]
) -> Callable[Concatenate[SparkSession, P], R]:
    """A function with the parameters of a job's class and the result of its `run`."""

    def call(spark: SparkSession, /, *arguments: P.args, **options: P.kwargs) -> R:
        job = declared(*arguments, **options)
        return _recorded(job, lambda: run_(spark, job, UNSEEN))

    call.__name__ = call.__qualname__ = str(getattr(declared, "__name__", "")).lower()
    call.__doc__ = declared.__doc__
    return call


archive = _function(_archive.Archive, _archive.run)
compact = _function(_compact.Compact, _compact.run)
snapshot = _function(_snapshot.Snapshot, _snapshot.run)
load = _function(_load.Load, _load.run)
audit = _function(_audit.Audit, _audit.run)
replay = _function(_replay.Replay, _replay.run)
transcripts = _function(_transcripts.Transcripts, _transcripts.run)
report = _function(_report.Report, _report.run)
