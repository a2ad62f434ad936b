"""Progress of jobs.

A job gets a `Progress` and reports its steps to it. `watching` reports the tasks of Spark's jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S: Final = 0.25


class Progress(Protocol):
    """Takes the progress of a job; any thread may call it."""

    def start(self, what: str, total: int | None = None, unit: str = "") -> None:
        """A step begins, and the previous one is over; None if the total is unknown."""

    def advance(self, n: int) -> None:
        """So much more of the step is done."""

    def done(self) -> None:
        """The job is over."""


class _Unseen:
    def start(self, what: str, total: int | None = None, unit: str = "") -> None:
        pass

    def advance(self, n: int) -> None:
        pass

    def done(self) -> None:
        pass


UNSEEN: Final = _Unseen()


def is_connect(spark: SparkSession) -> bool:
    """Whether the session uses Spark Connect, whose driver is elsewhere."""
    return "connect" in type(spark).__module__.split(".")


@contextmanager
def watching(spark: SparkSession, progress: Progress, what: str) -> Iterator[None]:
    """Report the tasks of the Spark jobs that run inside.

    The number of tasks grows with each job and stage that Spark starts; then the step starts again
    with the new total. Spark Connect does not tell a client about tasks: none are counted.
    """
    progress.start(what, None, "tasks")
    if progress is UNSEEN or is_connect(spark):
        try:
            yield
        finally:
            progress.done()
        return
    over = Event()
    poller = Thread(target=_poll, args=(spark, progress, what, over), daemon=True)
    poller.start()
    try:
        yield
    finally:
        over.set()
        poller.join()
        progress.done()


def _poll(spark: SparkSession, progress: Progress, what: str, over: Event) -> None:
    tracker: Any = spark.sparkContext.statusTracker()
    before = set(tracker.getActiveJobsIds())
    stages: dict[int, tuple[int, int]] = {}
    shown_total = shown = 0
    while not over.wait(_POLL_S):
        for job in set(tracker.getActiveJobsIds()) - before:
            for stage in getattr(tracker.getJobInfo(job), "stageIds", ()):
                info = tracker.getStageInfo(stage)
                # Stages that wait, or whose output exists already, have no numbers.
                if info is not None:
                    stages[stage] = (info.numCompletedTasks, info.numTasks)
        finished = sum(each for each, _ in stages.values())
        total = sum(each for _, each in stages.values())
        if total != shown_total:
            progress.start(what, total, "tasks")
            shown_total, shown = total, 0
        if finished > shown:
            progress.advance(finished - shown)
            shown = finished
