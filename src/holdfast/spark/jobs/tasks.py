"""Run work on the executors, in one Spark task for each piece.

Tasks are the rows of a small DataFrame, each in a partition of its own, and the results come back
as rows. So a task is sent only to the executor that runs it, and Spark Connect, which has no RDDs,
works too.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from holdfast.errors import HoldfastError
from holdfast.objects.request_counts import counted_requests
from holdfast.spark.jobs.progress import UNSEEN, Progress, is_connect, watching
from holdfast.spark.session import rebuild_error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_SCHEMA: Final = "at int not null, data binary not null"
# Spark Connect does not tell how many tasks run at once.
_CORES_UNKNOWN: Final = 8


def core_count(spark: SparkSession) -> int:
    """How many tasks a session runs at once, about."""
    return _CORES_UNKNOWN if is_connect(spark) else spark.sparkContext.defaultParallelism


class Executors(Protocol):
    """What runs tasks: Spark's executors, or a test's own process."""

    @property
    def cores(self) -> int:
        """How many tasks run at once, about."""

    def run(
        self, tasks: Sequence[_Task], work: Callable[[_Task], _Result], what: str
    ) -> list[_Result]:
        """Run the tasks, and return the results in the tasks' order."""


@dataclass(frozen=True)
class SparkExecutors:
    spark: SparkSession
    progress: Progress

    @property
    def cores(self) -> int:
        return core_count(self.spark)

    def run(
        self, tasks: Sequence[_Task], work: Callable[[_Task], _Result], what: str
    ) -> list[_Result]:
        return run_tasks(self.spark, tasks, work, what=what, progress=self.progress)


@dataclass(frozen=True)
class TaskFailure:
    """Stands for a result: the class and the message of the error that `work` raised."""

    error: type[HoldfastError]
    message: str

    def rebuilt(self) -> HoldfastError:
        return rebuild_error(self.error, self.message)


def run_tasks(
    spark: SparkSession,
    tasks: Sequence[_Task],
    work: Callable[[_Task], _Result],
    *,
    what: str,
    progress: Progress = UNSEEN,
) -> list[_Result]:
    """Call `work` for each task on the executors, and return the results in the tasks' order.

    `work`, the tasks and the results must be picklable. Spark may run a task again, even twice at
    the same time, so `work` must allow that; only one of the results counts.

    A HoldfastError that `work` raises is a definite result (no such bucket, a bad token): it is
    raised here once all tasks have ended, with the same class and message; the first in the order
    of the tasks wins. The client has retried by then where that helps, so Spark does not. For all
    other exceptions Spark runs the task again (`spark.task.maxFailures` times), and then fails the
    whole job.
    """
    if not tasks:
        return []
    rows = [(at, pickle.dumps(task)) for at, task in enumerate(tasks)]
    frame = (
        spark.createDataFrame(rows, _SCHEMA)
        # By hash, some partitions would get several tasks and others none.
        .repartitionById(len(rows), "at")
        .mapInArrow(_worker(work), _SCHEMA)
    )
    with watching(spark, progress, what):
        collected = frame.collect()
    results: dict[int, Any] = {}
    for row in collected:
        results[row.at], requests = pickle.loads(row.data)  # noqa: S301 (our own)
        add_requests(requests)
    assert len(results) == len(tasks), "every task has a result"
    return [_result(results[at]) for at in range(len(tasks))]


# Requests of the tasks of the job that runs in this context.
_requests: ContextVar[Counter[str] | None] = ContextVar("requests", default=None)


@contextmanager
def requests_of_tasks() -> Iterator[Counter[str]]:
    """Count the requests to object stores of all tasks that end inside."""
    counts: Counter[str] = Counter()
    token = _requests.set(counts)
    try:
        yield counts
    finally:
        _requests.reset(token)


def add_requests(counts: Mapping[str, int]) -> None:
    """Add the requests of a task."""
    known = _requests.get()
    if known is not None:
        known.update(counts)


def totals(reports: Sequence[Any], kind: type[Any]) -> dict[str, Any]:
    """The sums of the integer fields of some tasks' reports, which are dataclasses of a kind."""
    names = [each.name for each in fields(kind) if each.type == "int"]
    return {name: sum(getattr(each, name) for each in reports) for name in names}


def _result(value: Any) -> Any:
    if isinstance(value, TaskFailure):
        raise value.rebuilt()
    return value


def _worker(work: Callable[[Any], Any]) -> Callable[[Iterable[pa.RecordBatch]], Any]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 (on the executor)

        for batch in batches:
            for at, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                before = counted_requests()
                outcome = _outcome(work, data)
                result = pickle.dumps((outcome, counted_requests() - before))
                yield pa.RecordBatch.from_arrays(
                    [pa.array([at], pa.int32()), pa.array([result], pa.binary())], ["at", "data"]
                )

    return run


def _outcome(work: Callable[[Any], Any], data: bytes) -> Any:
    task = pickle.loads(data)  # noqa: S301 (the driver made it)
    try:
        return work(task)
    except HoldfastError as error:
        return TaskFailure(type(error), error.message)
