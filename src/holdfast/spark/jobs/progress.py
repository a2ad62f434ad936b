"""How far a job has come, for whoever watches.

A job is given a `Progress` and says what it does, one thing after the other. `watching` shows the
tasks of what Spark runs meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["UNSEEN", "Progress", "is_connect", "watching"]

_POLL_S: Final = 0.25


class Progress(Protocol):
    """Where a job says what it does and how far it is; any thread may call it."""

    def start(self, what: str, total: int | None = None, unit: str = "") -> None:
        """Something begins, and what came before is over; None where the end is not known."""

    def advance(self, n: int) -> None:
        """So much more of it is done."""

    def done(self) -> None:
        """It is over."""


class _Unseen:
    """Where nobody looks."""

    def start(self, what: str, total: int | None = None, unit: str = "") -> None:
        """Nobody looks."""

    def advance(self, n: int) -> None:
        """Nobody looks."""

    def done(self) -> None:
        """Nobody looks."""


UNSEEN: Final = _Unseen()


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect, whose driver is elsewhere."""
    return "connect" in type(spark).__module__.split(".")


@contextmanager
def watching(spark: SparkSession, progress: Progress, what: str) -> Iterator[None]:
    """Show the tasks of the Spark jobs that run inside as progress.

    The number of tasks grows with each job and stage that Spark starts, so the bar is begun anew
    where it does. Spark Connect does not tell a client about its tasks: nothing is counted there.
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
                # Stages that wait, or whose output is there already, have no numbers.
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
