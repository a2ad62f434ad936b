"""The jobs of the pipeline: each a module with a declaration and a function that does it.

    from holdfast.spark.jobs import run_job
    from holdfast.spark.jobs.archive import Archive

    summary = run_job(spark, Archive(bucket="events", to="/lake/events"))

A job's module can be imported without Spark: the command line reads its options from it. What
needs Spark or Arrow it imports when it runs.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import SettingsError
from holdfast.spark.jobs.progress import UNSEEN, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JOBS", "job_class", "run_job"]

# By name; what each does, in the words of the command line's help.
JOBS: Final = {
    "archive": "Copy a bucket to a table.",
    "compact": "Rewrite packs: merge, sort, drop what is dead.",
    "snapshot": "Fold new messages into snapshots.",
    "load": "Append a table's rows to streams.",
    "audit": "Verify every pack against the catalog.",
    "replay": "Copy streams from server to server.",
    "transcripts": "Make a table of the proxy's responses.",
    "report": "Make a page of plots from archived tables and transcripts.",
}


def job_class(name: str) -> type[Any]:
    """The declaration of a job: the class `Archive` of the job `archive`."""
    if name not in JOBS:
        raise SettingsError(f"There is no job {name!r}; there are {', '.join(JOBS)}.")
    found: type[Any] = getattr(_module(name), name.title())
    return found


def run_job(spark: SparkSession, job: Any, progress: Progress = UNSEEN) -> Any:
    """Do a job, and return its summary: a frozen dataclass of plain values."""
    return importlib.import_module(type(job).__module__).run(spark, job, progress)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")
