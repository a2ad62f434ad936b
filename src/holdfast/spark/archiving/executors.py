"""Whoever does the tasks: Spark's executors, or a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from holdfast.spark.jobs.progress import Progress, is_connect
from holdfast.spark.jobs.tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
# Where Spark does not tell how many cores it has.
_CORES: Final = 4


class Executors(Protocol):
    """Processes that do tasks, several at once."""

    @property
    def cores(self) -> int:
        """How many tasks run at once, about."""

    def run(self, tasks: Sequence[T], work: Callable[[T], R], what: str) -> list[R]:
        """Do the tasks; the results are in their order."""


@dataclass(frozen=True)
class SparkExecutors:
    """The executors of a session."""

    spark: SparkSession
    progress: Progress

    @property
    def cores(self) -> int:
        """What Spark says; Spark Connect does not."""
        return _CORES if is_connect(self.spark) else self.spark.sparkContext.defaultParallelism

    def run(self, tasks: Sequence[T], work: Callable[[T], R], what: str) -> list[R]:
        """One task of Spark for each."""
        return run_tasks(self.spark, tasks, work, what=what, progress=self.progress)
