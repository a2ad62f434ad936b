"""The columns of the table of responses, and the daily summary of it.

The summary is one Parquet file with a row for each day and model, which stores the cursor it goes
up to. A run recounts the days that got new rows, or all days if the file is behind the table
because a run was killed in between. A task counts some files of a day, and the driver adds up the
counts. Durations are counted with three significant digits, so their number has a limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.errors import ObjectMissingError
from holdfast.protocol.frames import Outcome
from holdfast.spark.archiving.layout import TableLayout
from holdfast.spark.archiving.place import TablePlace
from holdfast.spark.archiving.table import ArchiveTable, ListedFile
from holdfast.spark.jobs.tasks import Executors
from holdfast.spark.jobs.transcripts import DailyFigures
from holdfast.spark.transcribing.responses import TranscribedResponse

_TIME: Final = pa.timestamp("us", tz="UTC")


def _time(at_ms: int | None) -> int | None:
    return None if at_ms is None else at_ms * 1000


def _of_answer(name: str) -> Callable[[TranscribedResponse], object]:
    return lambda each: getattr(each.answer, name) if each.answer else None


# In the order of the table: the type, whether it can be null, and the value.
_COLUMNS: Final[dict[str, tuple[Any, bool, Callable[[TranscribedResponse], object]]]] = {
    "stream_id": (pa.string(), False, lambda each: each.stream_id),
    "response_id": (pa.int64(), False, lambda each: each.response_id),
    "status": (pa.int32(), True, lambda each: each.status),
    "content_type": (pa.string(), True, lambda each: (each.headers or {}).get("content-type")),
    "started_at": (_TIME, False, lambda each: _time(each.started_at_ms)),
    "ended_at": (_TIME, True, lambda each: _time(each.ended_at_ms)),
    "outcome": (pa.string(), False, lambda each: each.outcome.value),
    "error_code": (pa.string(), True, lambda each: each.error_code),
    "error_message": (pa.string(), True, lambda each: each.error_message),
    "bytes": (pa.int64(), False, lambda each: each.size_bytes),
    "api": (pa.string(), True, _of_answer("api")),
    "model": (pa.string(), True, _of_answer("model")),
    "finish_reason": (pa.string(), True, _of_answer("finish_reason")),
    "prompt_tokens": (pa.int64(), True, _of_answer("prompt_tokens")),
    "completion_tokens": (pa.int64(), True, _of_answer("completion_tokens")),
    "total_tokens": (pa.int64(), True, _of_answer("total_tokens")),
    "tool_calls": (pa.int32(), True, _of_answer("tool_calls")),
    "text": (pa.string(), True, _of_answer("text")),
    "headers": (
        pa.map_(pa.string(), pa.string()),
        True,
        lambda each: None if each.headers is None else list(each.headers.items()),
    ),
    "body": (pa.binary(), True, lambda each: each.body),
    "body_truncated": (pa.bool_(), False, lambda each: each.size_bytes > len(each.body or b"")),
}
NAMES: Final = tuple(_COLUMNS)
_SCHEMA: Final = pa.schema([pa.field(x, kind, null) for x, (kind, null, _) in _COLUMNS.items()])
_FEW_VALUES: Final = (
    *("stream_id", "content_type", "outcome", "error_code"),
    *("api", "model", "finish_reason"),
)


@dataclass(frozen=True)
class ResponseLayout(TableLayout):
    """The form of the rows, which never changes."""

    # Responses that never end have no other time.
    time_column: ClassVar[str] = "started_at"
    large_columns: ClassVar[tuple[str, ...]] = ("error_message", "text", "headers", "body")

    @property
    def schema(self) -> Any:
        return _SCHEMA

    @property
    def dictionary_columns(self) -> list[str]:
        return list(_FEW_VALUES)


def to_batch(responses: Sequence[TranscribedResponse]) -> Any:
    """Responses as a RecordBatch."""
    arrays = [
        pa.array([value(each) for each in responses], kind) for kind, _, value in _COLUMNS.values()
    ]
    return pa.record_batch(arrays, schema=_SCHEMA)


NAME: Final = "daily.parquet"
_UNTIL: Final = b"holdfast.until"
_TASK_BYTES: Final = 256 * 1024 * 1024
_SUMMED: Final = ("bytes", "prompt_tokens", "completion_tokens", "total_tokens")
_READ: Final = ("started_at", "ended_at", "outcome", "model", *_SUMMED)
_DAILY_SCHEMA: Final = pa.schema(
    [
        pa.field("date", pa.date32(), nullable=False),
        # Null if the response names no model.
        pa.field("model", pa.string()),
        *(
            pa.field(name, pa.int64(), nullable=False)
            for name in (
                *("responses", "complete", "aborted", "failed", "open"),
                *("bytes", "prompt_tokens", "completion_tokens", "total_tokens"),
            )
        ),
        pa.field("duration_p50_s", pa.float64()),
        pa.field("duration_p95_s", pa.float64()),
    ]
)


@dataclass(frozen=True)
class Daily:
    """The file's content; empty if the file is missing or unreadable."""

    until: str = ""
    rows: Sequence[DailyFigures] = ()


@dataclass(frozen=True)
class DayTask:
    """Some files of a day."""

    date: str
    files: tuple[ListedFile, ...]


# What is summed of the responses of a model, and how many responses took so many milliseconds.
_Sums = tuple[Counter[str], Counter[int]]


def read_daily(place: TablePlace) -> Daily:
    try:
        file = pq.ParquetFile(pa.BufferReader(place.objects.read(NAME)))
        until = (file.metadata.metadata or {}).get(_UNTIL, b"").decode()
        table = file.read().cast(_DAILY_SCHEMA)
    except (ObjectMissingError, pa.ArrowException, ValueError):
        # Everything can be counted again.
        return Daily()
    rows = [DailyFigures(**{**row, "date": row["date"].isoformat()}) for row in table.to_pylist()]
    return Daily(until, rows)


def write_daily(place: TablePlace, daily: Daily) -> None:
    """Replace the file; readers see the old or the new one."""
    rows = [{**vars(each), "date": date.fromisoformat(each.date)} for each in daily.rows]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, _DAILY_SCHEMA, store_schema=False) as writer:
        writer.write_table(pa.Table.from_pylist(rows, _DAILY_SCHEMA))
        writer.add_key_value_metadata({_UNTIL.decode(): daily.until})
    place.objects.put(NAME, sink.getvalue().to_pybytes())


def counted(
    executors: Executors,
    place: TablePlace,
    table: ArchiveTable,
    before: Daily,
    days: Collection[str] | None,
) -> list[DailyFigures]:
    """The rows of all days; the given days, or all if None, are counted again."""
    files: dict[str, list[ListedFile]] = {}
    for each in table.files():
        if days is None or each.date in days:
            files.setdefault(each.date, []).append(each)
    tasks = [task for day in sorted(files) for task in day_tasks(day, files[day])]
    found = executors.run(tasks, partial(count_files, place), "counting days")
    of_tasks = zip((task.date for task in tasks), found, strict=True)
    kept = [] if days is None else [each for each in before.rows if each.date not in days]
    rows = [*kept, *(row for each in groupby(of_tasks, itemgetter(0)) for row in _day(*each))]
    return sorted(rows, key=lambda each: (each.date, each.model or ""))


def day_tasks(day: str, files: Sequence[ListedFile]) -> Iterator[DayTask]:
    """The files of a day in tasks of about the same size."""
    held: list[ListedFile] = []
    for each in files:
        held.append(each)
        if sum(file.size_bytes for file in held) >= _TASK_BYTES:
            yield DayTask(day, tuple(held))
            held = []
    if held:
        yield DayTask(day, tuple(held))


def count_files(place: TablePlace, task: DayTask) -> dict[str | None, _Sums]:
    """The sums of each model in some files, a batch of rows at a time."""
    models: dict[str | None, _Sums] = {}
    for file in task.files:
        with place.reading(file.path) as source:
            for batch in pq.ParquetFile(source).iter_batches(columns=list(_READ)):
                table = pa.Table.from_batches([batch])
                for model in pc.unique(table["model"]).to_pylist():
                    sums, took = models.setdefault(model, (Counter(), Counter()))
                    _add(table.filter(_is_of(table, model)), sums, took)
    return models


def _is_of(table: Any, model: str | None) -> Any:
    found = table["model"]
    return pc.is_null(found) if model is None else pc.equal(found, model)


def _add(table: Any, sums: Counter[str], took: Counter[int]) -> None:
    sums["responses"] += len(table)
    sums.update({each["values"]: each["counts"] for each in _counts(table["outcome"])})
    sums.update({name: pc.sum(table[name]).as_py() or 0 for name in _SUMMED})
    took_us = pc.subtract(table["ended_at"], table["started_at"]).drop_null().cast(pa.int64())
    took_ms = pc.round_to_multiple(took_us, 1000).cast(pa.int64()).to_numpy() // 1000
    digits = np.floor(np.log10(np.maximum(took_ms, 1))).astype(np.int64)
    unit = 10 ** np.maximum(digits - 2, 0)
    values, counts = np.unique((took_ms + unit // 2) // unit * unit, return_counts=True)
    took.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))


def _day(day: str, parts: Iterable[tuple[str, dict[str | None, _Sums]]]) -> list[DailyFigures]:
    """The rows of a day, one for each model."""
    models: dict[str | None, _Sums] = {}
    for _, part in parts:
        for model, (sums, took) in part.items():
            all_sums, all_took = models.setdefault(model, (Counter(), Counter()))
            all_sums.update(sums)
            all_took.update(took)
    return [_row(day, model, *sums) for model, sums in models.items()]


def _row(day: str, model: str | None, sums: Counter[str], took: Counter[int]) -> DailyFigures:
    p50, p95 = quantiles(took)
    counts = {each.value: sums[each.value] for each in Outcome}
    counts |= {name: sums[name] for name in ("responses", *_SUMMED)}
    return DailyFigures(day, model, **counts, duration_p50_s=p50, duration_p95_s=p95)


def quantiles(took_ms: Mapping[int, int]) -> tuple[float | None, float | None]:
    """The median and the 95th percentile of counted milliseconds, in seconds."""
    if not took_ms:
        return None, None
    values = np.array(sorted(took_ms))
    ends = np.cumsum([took_ms[each] for each in values.tolist()])
    # As numpy does it: between the two values around the place.
    places = np.array([0.5, 0.95]) * (ends[-1] - 1)
    low, high = (
        values[np.searchsorted(ends, side(places), side="right")] for side in (np.floor, np.ceil)
    )
    p50, p95 = ((low + (places % 1) * (high - low)).round() / 1000).tolist()
    return p50, p95


def _counts(column: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pc.value_counts(column).to_pylist()
    return found
