"""Small files of a day, rewritten as larger ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.spark.archiving.files import Files, Output
from holdfast.spark.archiving.layout import Layout
from holdfast.spark.archiving.state import DataFile, State
from holdfast.spark.archiving.tables.delta import Delta
from holdfast.spark.archiving.tables.table import SmallFile, Table, new_batch
from holdfast.spark.jobs.tasks import Executors


@dataclass(frozen=True)
class MergeTask:
    """Files of one day, for one executor."""

    number: int
    files: tuple[SmallFile, ...]


def merge_small_files(
    executors: Executors,
    table: Table,
    state: State,
    output: Output,
    at_least: int,
) -> int:
    """Rewrite the small files of days that have so many of them; how many were replaced.

    A file is small if two of them fit into one. Delta does it by itself, on the driver.
    """
    days: dict[str, list[SmallFile]] = defaultdict(list)
    for each in table.small_files(output.file_bytes // 2):
        days[each.date].append(each)
    chosen = {day: files for day, files in days.items() if len(files) >= at_least}
    if not chosen:
        return 0
    if isinstance(table, Delta):
        return table.merge_small(sorted(chosen), output.file_bytes)
    tasks = _tasks(chosen, output.file_bytes)
    batch = new_batch(state, state.until)
    folder, stem = table.begin(batch)
    results = executors.run(
        tasks,
        partial(merge_task, replace(output, folder=folder, stem=stem)),
        "merging small files",
    )
    old = [file for task in tasks for file in task.files]
    table.replace(batch, old, [file for files in results for file in files], output.layout)
    return len(old)


def _tasks(days: dict[str, list[SmallFile]], file_bytes: int) -> list[MergeTask]:
    """Files of a day in groups that make one file; a single one is left as it is."""
    groups: list[list[SmallFile]] = []
    for files in days.values():
        held = file_bytes
        for each in sorted(files, key=lambda file: file.path):
            if held + each.size_bytes > file_bytes:
                groups.append([])
                held = 0
            groups[-1].append(each)
            held += each.size_bytes
    several = [group for group in groups if len(group) > 1]
    return [MergeTask(number, tuple(group)) for number, group in enumerate(several)]


def merge_task(output: Output, task: MergeTask) -> list[DataFile]:
    """Write the rows of some files to one, in their order."""
    # It is one file, whatever its size turns out to be.
    with Files(replace(output, file_bytes=output.file_bytes * 2), task.number) as files:
        for each in task.files:
            with output.place.reading(each.path) as source:
                reader = pq.ParquetFile(source)
                for group in range(reader.num_row_groups):
                    for batch in conformed(reader.read_row_group(group), output.layout):
                        files.write(each.date, batch)
    return files.written


def conformed(table: Any, layout: Layout) -> Sequence[Any]:
    """Rows of an older file with the columns of today; those that it lacks are null."""
    schema = layout.schema
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.chunked_array([pa.nulls(len(table), field.type)])
        for field in schema
    ]
    batches: Sequence[Any] = pa.table(columns, schema=schema).to_batches()
    return batches
