"""The jobs of the pipeline: each is a module with a declaration and a function `run`.

Programs call the functions of `holdfast.spark.pipeline`, which lock and record each run. `run_job`
is the job alone.

A job's module can be imported without Spark, since the command line reads the options from it.
Whatever needs Spark or Arrow is imported when the job runs.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import SettingsError
from holdfast.objects.request_counts import counted_requests
from holdfast.spark.jobs.progress import UNSEEN, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JOBS", "job_class", "run_job"]

# By name, with the help of the command line.
JOBS: Final = {
    "archive": "Copy a bucket to a table.",
    "compact": "Rewrite packs: merge, sort, drop dead bytes.",
    "snapshot": "Fold new messages into snapshots.",
    "load": "Append a table's rows to streams.",
    "audit": "Verify every pack against the catalog.",
    "replay": "Copy streams from server to server.",
    "transcripts": "Make a table of the proxy's responses.",
    "report": "Make a page of plots from archived tables and transcripts.",
}


def job_class(name: str) -> type[Any]:
    """The class that declares a job: `Archive` for `archive`."""
    if name not in JOBS:
        raise SettingsError(f"There is no job {name!r}; there are {', '.join(JOBS)}.")
    found: type[Any] = getattr(_module(name), name.title())
    return found


def run_job(spark: SparkSession, job: Any, progress: Progress = UNSEEN) -> Any:
    """Run a job, and return its result, a `JobResult`."""
    from holdfast.spark.jobs.tasks import requests_of_tasks  # noqa: PLC0415 (only where jobs run)

    before = counted_requests()
    with requests_of_tasks() as of_tasks:
        result = importlib.import_module(type(job).__module__).run(spark, job, progress)
    # Subtracting counters leaves out what is zero.
    return replace(result, store_requests=dict(counted_requests() - before + of_tasks))


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")
