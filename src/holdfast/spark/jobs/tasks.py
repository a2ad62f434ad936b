"""Work on the executors, one Spark task for each piece.

Tasks travel as rows of a small DataFrame, each to a partition of its own, and the results come back
as rows; so a task is sent once, to the executor that does it, and all of this works with Spark
Connect, which has no RDDs.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import HoldfastError
from holdfast.spark.jobs.progress import UNSEEN, Progress, watching
from holdfast.spark.session import rebuild_error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["run_tasks"]

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_SCHEMA = "at int not null, data binary not null"


@dataclass(frozen=True)
class _Failed:
    """In place of a result: the class and the message of what `work` raised."""

    error: type[HoldfastError]
    message: str


def run_tasks(
    spark: SparkSession,
    tasks: Sequence[_Task],
    work: Callable[[_Task], _Result],
    *,
    what: str,
    progress: Progress = UNSEEN,
) -> list[_Result]:
    """Call `work` for each task on the executors, and return the results in the tasks' order.

    `work`, the tasks and the results must be things that can be pickled. Spark may run a task
    again, even twice at the same time, so `work` must bear that; only one of the results counts.

    A HoldfastError that `work` raises is the answer (the bucket is not there, the token is not
    good): it travels back as a value and is raised here, once all tasks are over, as the same class
    with the same message; the first in the order of the tasks wins. The client has tried again
    by then where that helps, so Spark does not. Everything else that `work` raises is Spark's: it
    runs the task again (`spark.task.maxFailures` times) and then fails the whole job.
    """
    if not tasks:
        return []
    rows = [(at, pickle.dumps(task)) for at, task in enumerate(tasks)]
    frame = (
        spark.createDataFrame(rows, _SCHEMA)
        # Not by hash, which would put several in one and leave others empty.
        .repartitionById(len(rows), "at")
        .mapInArrow(_worker(work), _SCHEMA)
    )
    with watching(spark, progress, what):
        collected = frame.collect()
    results = {row.at: pickle.loads(row.data) for row in collected}  # noqa: S301 (our own)
    assert len(results) == len(tasks), "every task has a result"
    return [_result(results[at]) for at in range(len(tasks))]


def _result(value: Any) -> Any:
    if isinstance(value, _Failed):
        raise rebuild_error(value.error, value.message)
    return value


def _worker(work: Callable[[Any], Any]) -> Callable[[Iterable[pa.RecordBatch]], Any]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 (on the executor)

        for batch in batches:
            for at, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                result = pickle.dumps(_outcome(work, data))
                yield pa.RecordBatch.from_arrays(
                    [pa.array([at], pa.int32()), pa.array([result], pa.binary())], ["at", "data"]
                )

    return run


def _outcome(work: Callable[[Any], Any], data: bytes) -> Any:
    task = pickle.loads(data)  # noqa: S301 (the driver made it)
    try:
        return work(task)
    except HoldfastError as error:
        return _Failed(type(error), error.message)
