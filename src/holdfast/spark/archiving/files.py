"""Parquet files: executors write messages to them, and merge small ones.

Spark may run a task twice, so every attempt gives its files names of their own. Files that no
result names do not become part of the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import partial
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.clock import SystemClock
from holdfast.failpoints import failpoint
from holdfast.spark.archiving.layout import DATE, TableLayout, TableRows
from holdfast.spark.archiving.place import TablePlace
from holdfast.spark.archiving.table import (
    ArchiveTable,
    DataFile,
    ListedFile,
    TableState,
    new_batch,
)
from holdfast.spark.jobs.tasks import Executors
from holdfast.spark.reading.arrow import Chunk, split_chunk
from holdfast.spark.reading.slice_reader import read_chunks
from holdfast.spark.reading.source import AnyPart, ReadSource

ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
# Of all open files together, and how many may be open.
_HELD_BYTES_MAX: Final = 4 * ROW_GROUP_BYTES
_OPEN_MAX: Final = 64
# Small files are filled in at least so many steps, since a chunk may be larger than a file.
_PIECES: Final = 4
_DAY_MS: Final = 86_400_000
_EPOCH: Final = date(1970, 1, 1)
# Higher levels take twice the time to save a few percent.
_ZSTD_LEVEL: Final = 1


@dataclass(frozen=True)
class FileOutput:
    """Where files are written, and in which form."""

    place: TablePlace
    # The folder below the place, with a slash at its end, and the prefix of all names.
    folder: str
    stem: str
    layout: TableLayout
    by_date: bool
    compression: str
    file_bytes: int
    # Whether to report fields without a column.
    noticing: bool = False


@dataclass(frozen=True)
class ArchiveTask:
    number: int
    source: ReadSource
    parts: tuple[AnyPart, ...]


@dataclass(frozen=True)
class WrittenFiles:
    files: list[DataFile]
    payload_bytes: int = 0
    raw_rows: int = 0
    rest_rows: int = 0
    # Fields that need a column, and columns that need another kind.
    unknown: dict[str, str] = field(default_factory=dict)
    wider: dict[str, str] = field(default_factory=dict)


def write_task(output: FileOutput, task: ArchiveTask) -> WrittenFiles:
    """Write the messages of a task's slices to files."""
    output.place.check_shared()
    rows = TableRows(output.layout, task.source.bucket, noticing=output.noticing)
    size = 0
    with TableFiles(output, task.number) as files:
        for part in task.parts:
            for chunk in read_chunks(task.source, part):
                for day, of_day in by_day(chunk) if output.by_date else [("", chunk)]:
                    size += pc.sum(pc.binary_length(of_day.payloads)).as_py() or 0
                    for piece in split_chunk(of_day, output.file_bytes // _PIECES):
                        files.write(day, rows.batch(piece))
                failpoint("archive.writing")
    parsed = rows.parsed
    counts = parsed.raw_rows, parsed.rest_rows
    return WrittenFiles(files.written, size, *counts, parsed.unknown, parsed.wider)


def by_day(chunk: Chunk) -> Iterator[tuple[str, Chunk]]:
    """The messages of each UTC day, with the date."""
    assert chunk.timestamps is not None
    days = chunk.timestamps // _DAY_MS
    found = np.unique(days)
    for day in found.tolist():
        text = (_EPOCH + timedelta(days=day)).isoformat()
        yield text, chunk if len(found) == 1 else chunk.filter(days == day)


class TableFiles:
    """The files of one task, one open for each day. When its context ends, all are complete."""

    def __init__(self, output: FileOutput, number: int) -> None:
        self._output = output
        self.layout = output.layout
        # Two attempts of one task may run at the same time.
        self._stem = f"{output.stem}-{number:05d}-{SystemClock().random_u64():016x}"
        self._open: dict[str, _File] = {}
        self._count = 0
        self.written: list[DataFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for day in list(self._open):
            if kind is None:
                self._finish(day)
            else:
                self._open.pop(day).abandon()
        if kind is not None:
            for each in self.written:
                self._output.place.objects.remove(each.path)

    def write(self, day: str, batch: Any) -> None:
        """Add rows to the file of a day; when it is full, another one follows."""
        file = self._open.pop(day, None)
        if file is None:
            if len(self._open) >= _OPEN_MAX:
                self._finish(next(iter(self._open)))
            file = self._opened(day)
        # Moved to the end: the first one is the least recently used.
        self._open[day] = file
        file.add(batch)
        if file.size_bytes >= self._output.file_bytes:
            self._finish(day)
        elif sum(each.held_bytes for each in self._open.values()) > _HELD_BYTES_MAX:
            max(self._open.values(), key=lambda each: each.held_bytes).flush()

    def _opened(self, day: str) -> _File:
        self._count += 1
        folder = f"{self._output.folder}{DATE}={day}/" if day else self._output.folder
        return _File(self._output, f"{folder}{self._stem}-{self._count:04d}.parquet", day)

    def _finish(self, day: str) -> None:
        self.written.append(self._open.pop(day).finish())


class _File:
    """One Parquet file; rows are held until they fill a row group."""

    def __init__(self, output: FileOutput, path: str, day: str) -> None:
        self._path = path
        self._day = day
        self._time_column = output.layout.time_column
        self._stack = ExitStack()
        self._file = self._stack.enter_context(output.place.writing(path))
        self._metadata: list[Any] = []
        self._writer = self._stack.enter_context(parquet_writer(self._file, output, self._metadata))
        self._row_group_bytes = min(ROW_GROUP_BYTES, output.file_bytes)
        self._held: list[Any] = []
        self._rows = 0
        self.held_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._file.tell()

    def add(self, batch: Any) -> None:
        self._held.append(batch)
        self._rows += len(batch)
        self.held_bytes += batch.nbytes
        if self.held_bytes >= self._row_group_bytes:
            self.flush()

    def flush(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held)
            self._writer.write_table(table, row_group_size=len(table))
            self._held, self.held_bytes = [], 0

    def finish(self) -> DataFile:
        self.flush()
        self._writer.close()
        size = self._file.tell()
        self._stack.close()
        (metadata,) = self._metadata
        first, last = column_span(metadata, self._time_column)
        first_stream, last_stream = column_span(metadata, "stream_id")
        return DataFile(
            self._path,
            self._day,
            self._rows,
            size,
            int(first.timestamp() * 1000),
            int(last.timestamp() * 1000),
            first_stream,
            last_stream,
        )

    def abandon(self) -> None:
        error = _AbandonedError()
        self._stack.__exit__(type(error), error, None)


class _AbandonedError(Exception):
    """Makes an open file remove itself."""


def column_span(metadata: Any, name: str) -> tuple[Any, Any]:
    """The least and the greatest value of a column."""
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    paths = [groups[0].column(at).path_in_schema for at in range(groups[0].num_columns)]
    found = [each.column(paths.index(name)).statistics for each in groups]
    return min(each.min for each in found), max(each.max for each in found)


def parquet_writer(file: Any, output: FileOutput, metadata: list[Any]) -> Any:
    """A writer that adds the metadata of the finished file to a list."""
    layout = output.layout
    return pq.ParquetWriter(
        file,
        layout.schema,
        compression=output.compression,
        compression_level=_ZSTD_LEVEL if output.compression == "zstd" else None,
        use_dictionary=layout.dictionary_columns,
        write_statistics=layout.statistics_columns,
        store_schema=False,
        metadata_collector=metadata,
    )


@dataclass(frozen=True)
class MergeTask:
    number: int
    files: tuple[ListedFile, ...]


def merge_small_files(
    executors: Executors,
    table: ArchiveTable,
    state: TableState,
    output: FileOutput,
    at_least: int,
) -> int:
    """Merge the small files of days with `at_least` this many; returns how many were replaced.

    A file is small if two of them fit into one.
    """
    days: dict[str, list[ListedFile]] = defaultdict(list)
    for each in table.files(output.file_bytes // 2):
        days[each.date].append(each)
    chosen = {day: files for day, files in days.items() if len(files) >= at_least}
    if not chosen:
        return 0
    tasks = _tasks(chosen, output.file_bytes)
    batch = new_batch(state, state.until)
    folder, stem = table.begin(batch)
    results = executors.run(
        tasks,
        partial(merge_task, replace(output, folder=folder, stem=stem)),
        "merging small files",
    )
    old = [file for task in tasks for file in task.files]
    new = [file for files in results for file in files]
    table.replace(batch, old, new, output.layout, same_rows=True)
    return len(old)


def _tasks(days: dict[str, list[ListedFile]], file_bytes: int) -> list[MergeTask]:
    """Groups of files of a day that make one file; a single file is left as it is."""
    groups: list[list[ListedFile]] = []
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


def merge_task(output: FileOutput, task: MergeTask) -> list[DataFile]:
    """Write the rows of some files to one file."""
    # One file, whatever its size turns out to be.
    with TableFiles(replace(output, file_bytes=output.file_bytes * 2), task.number) as files:
        for each in task.files:
            with output.place.reading(each.path) as source:
                reader = pq.ParquetFile(source, pre_buffer=True)
                for group in range(reader.num_row_groups):
                    for batch in conformed(reader.read_row_group(group), output.layout):
                        files.write(each.date, batch)
    return files.written


def conformed(table: Any, layout: TableLayout) -> Sequence[Any]:
    """Rows of an older file with the current columns; missing ones are null."""
    schema = layout.schema
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.chunked_array([pa.nulls(len(table), field.type)])
        for field in schema
    ]
    batches: Sequence[Any] = pa.table(columns, schema=schema).to_batches()
    return batches
