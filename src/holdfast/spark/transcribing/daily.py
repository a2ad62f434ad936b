"""The summary of a table of responses: a row for each day and model.

It is one Parquet file, which says up to which cursor it goes. A run counts the days again that got
new rows; if the file is behind the table, because a run was killed in between, all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.errors import ObjectMissingError
from holdfast.protocol.frames import Outcome
from holdfast.spark.archiving.places import Place
from holdfast.spark.archiving.tables.table import SmallFile, Table
from holdfast.spark.jobs.tasks import Executors
from holdfast.spark.jobs.transcripts import DayOfModel

NAME: Final = "daily.parquet"
_UNTIL: Final = b"holdfast.until"
_ALL_SIZES: Final = 2**63
_READ: Final = (
    *("started_at", "ended_at", "outcome", "bytes", "model"),
    *("prompt_tokens", "completion_tokens", "total_tokens"),
)
_SCHEMA: Final = pa.schema(
    [
        pa.field("date", pa.date32(), nullable=False),
        # Null for what is no answer of a model, or does not name it.
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
    """The file as it is; empty if there is none, or none that can be read."""

    until: str = ""
    rows: Sequence[DayOfModel] = ()


@dataclass(frozen=True)
class DayTask:
    """The files of one day."""

    date: str
    files: tuple[SmallFile, ...]


def read_daily(place: Place) -> Daily:
    """What was counted so far."""
    try:
        file = pq.ParquetFile(pa.BufferReader(place.objects.read(NAME)))
        until = (file.metadata.metadata or {}).get(_UNTIL, b"").decode()
        table = file.read().cast(_SCHEMA)
    except (ObjectMissingError, pa.ArrowException, ValueError):
        # It can be counted again.
        return Daily()
    rows = [DayOfModel(**{**row, "date": row["date"].isoformat()}) for row in table.to_pylist()]
    return Daily(until, rows)


def write_daily(place: Place, daily: Daily) -> None:
    """Put the file into the place of the one before; readers see one or the other."""
    rows = [{**vars(each), "date": date.fromisoformat(each.date)} for each in daily.rows]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, _SCHEMA, store_schema=False) as writer:
        writer.write_table(pa.Table.from_pylist(rows, _SCHEMA))
        writer.add_key_value_metadata({_UNTIL.decode(): daily.until})
    place.objects.put(NAME, sink.getvalue().to_pybytes())


def counted(
    executors: Executors, place: Place, table: Table, before: Daily, days: Collection[str] | None
) -> list[DayOfModel]:
    """The rows of all days; those of some days, or of all if None, are counted again."""
    files: dict[str, list[SmallFile]] = {}
    for each in table.small_files(_ALL_SIZES):
        if days is None or each.date in days:
            files.setdefault(each.date, []).append(each)
    tasks = [DayTask(day, tuple(files[day])) for day in sorted(files)]
    found = executors.run(tasks, partial(count_day, place), "counting days")
    kept = [] if days is None else [each for each in before.rows if each.date not in days]
    rows = [*kept, *(row for of_day in found for row in of_day)]
    return sorted(rows, key=lambda each: (each.date, each.model or ""))


def count_day(place: Place, task: DayTask) -> list[DayOfModel]:
    """The rows of one day: one for each model."""
    tables = []
    for each in task.files:
        with place.reading(each.path) as source:
            tables.append(pq.ParquetFile(source).read(columns=list(_READ)))
    table = pa.concat_tables(tables)
    models = pc.unique(table["model"]).to_pylist()
    return [_row(task.date, each, table.filter(_is_of(table, each))) for each in models]


def _is_of(table: Any, model: str | None) -> Any:
    found = table["model"]
    return pc.is_null(found) if model is None else pc.equal(found, model)


def _row(day: str, model: str | None, table: Any) -> DayOfModel:
    outcomes = {each["values"]: each["counts"] for each in _counts(table["outcome"])}
    took_us = pc.subtract(table["ended_at"], table["started_at"]).drop_null().cast(pa.int64())
    quantiles: list[float | None] = [None, None]
    if len(took_us):
        quantiles = (np.percentile(took_us.to_numpy(), [50, 95]).round() / 1e6).tolist()
    return DayOfModel(
        day,
        model,
        len(table),
        *(outcomes.get(each.value, 0) for each in Outcome),
        *(pc.sum(table[name]).as_py() or 0 for name in ("bytes", *_READ[-3:])),
        *quantiles,
    )


def _counts(column: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pc.value_counts(column).to_pylist()
    return found
