"""A pass over packs: executors look at them, and what they say of streams is sent round and sorted.

One job of Spark does both, so a pack is read once, and the driver gets what was found and nothing
else. Rows that are no places of streams (reports on packs, errors) go along under streams that
there are not, numbered from -1 downward.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.spark.auditing.findings import PackReport, StreamFinding, StreamsReport
from holdfast.spark.auditing.looking import Look, Looking
from holdfast.spark.auditing.streams import Place, StreamsCheck
from holdfast.spark.connection import SparkClient
from holdfast.spark.jobs.progress import Progress, watching
from holdfast.spark.session import rebuild_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Pass", "run_pass"]

_TASKS: Final = "at int not null, data binary not null"
_PLACES: Final = (
    "stream bigint not null, kind int not null, at bigint not null, end bigint not null, "
    "start bigint not null, tail bigint not null, pack int not null, name string not null, "
    "report binary"
)
_PLACES_TYPES: Final = (
    pa.int64(),
    pa.int32(),
    pa.int64(),
    pa.int64(),
    pa.int64(),
    pa.int64(),
    pa.int32(),
    pa.string(),
)
_REPORT_AT: Final = len(_PLACES_TYPES)
_FOUND: Final = "found binary not null"
_ROWS_MAX: Final = 16_384


@dataclass(frozen=True)
class _Failed:
    """In place of a report: the class and the message of what was raised."""

    error: type[HoldfastError]
    message: str


@dataclass
class Pass:
    """What one pass has found."""

    packs: list[PackReport] = field(default_factory=list)
    streams: int = 0
    findings: list[StreamFinding] = field(default_factory=list)
    left_out: int = 0

    def take(self, found: Any) -> None:
        """Take one report."""
        match found:
            case PackReport():
                self.packs.append(found)
            case StreamsReport():
                self.streams += found.streams
                self.findings += found.findings
                self.left_out += found.left_out
            case _Failed():
                raise rebuild_error(found.error, found.message)


def run_pass(spark: SparkSession, looks: Sequence[Look], what: str, progress: Progress) -> Pass:
    """Have everything looked at; raises what kept executors from looking."""
    done = Pass()
    if not looks:
        return done
    rows = [(at, pickle.dumps(look)) for at, look in enumerate(looks)]
    frame = (
        spark.createDataFrame(rows, _TASKS)
        .repartitionById(len(rows), "at")
        .mapInArrow(_looking(), _PLACES)
        .repartition("stream")
        .sortWithinPartitions("stream", "kind", "at")
        .mapInArrow(_checking(), _FOUND)
    )
    with watching(spark, progress, what):
        collected = frame.collect()
    for row in collected:
        done.take(pickle.loads(row.found))  # noqa: S301 (our own)
    return done


def _looking() -> Callable[[Iterable[pa.RecordBatch]], Any]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield from _looked_at(at, pickle.loads(data))  # noqa: S301 (the driver made it)

    return run


def _looked_at(at: int, look: Look) -> Iterator[pa.RecordBatch]:
    """What one task finds out; an error of ours is an answer, and Spark does not try again."""
    reports: list[Any] = []
    try:
        with SparkClient(look.connection) as server:
            for found in Looking(look, server):
                if isinstance(found, PackReport):
                    reports.append(found)
                else:
                    yield from _place_batches(found)
    except HoldfastError as error:
        reports.append(_Failed(type(error), error.message))
    yield _report_batch(at, reports)


def _place_batches(places: Sequence[Place]) -> Iterator[pa.RecordBatch]:
    for first in range(0, len(places), _ROWS_MAX):
        some = places[first : first + _ROWS_MAX]
        columns = [
            pa.array(values, kind)
            for values, kind in zip(zip(*some, strict=True), _PLACES_TYPES, strict=True)
        ]
        yield _batch([*columns, pa.nulls(len(some), pa.binary())])


def _report_batch(at: int, reports: Sequence[Any]) -> pa.RecordBatch:
    blank = Place(-1 - at, 0, 0)
    columns = [
        pa.array([value] * len(reports), kind)
        for value, kind in zip(blank, _PLACES_TYPES, strict=True)
    ]
    return _batch([*columns, pa.array([pickle.dumps(each) for each in reports], pa.binary())])


def _batch(columns: list[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(columns, [*Place._fields, "report"])


def _checking() -> Callable[[Iterable[pa.RecordBatch]], Any]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check = StreamsCheck()
        for batch in batches:
            columns = [column.to_pylist() for column in batch.columns]
            reports = [each for each in columns.pop(_REPORT_AT) if each is not None]
            if reports:
                yield pa.RecordBatch.from_arrays([pa.array(reports, pa.binary())], ["found"])
            check.take(place for place in map(Place, *columns) if place.stream >= 0)
        found = pickle.dumps(check.finish())
        yield pa.RecordBatch.from_arrays([pa.array([found], pa.binary())], ["found"])

    return run
