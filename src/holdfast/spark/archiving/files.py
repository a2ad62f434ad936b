"""What executors do: messages of slices into Parquet files, one open file for each day.

Spark may run a task twice, so every attempt writes files of its own names; those that no result
names are not part of the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.clock import SystemClock
from holdfast.failpoints import failpoint
from holdfast.spark.archiving.layout import Layout, Rows
from holdfast.spark.archiving.names import DATE
from holdfast.spark.archiving.places import Place
from holdfast.spark.archiving.state import DataFile
from holdfast.spark.reading.arrow import Chunk, split_chunk
from holdfast.spark.reading.slice_reader import read_chunks
from holdfast.spark.reading.source import ReadSource, Slice, StreamSlice

ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
# Of all open files together, and how many may be open.
_HELD_BYTES_MAX: Final = 4 * ROW_GROUP_BYTES
_OPEN_MAX: Final = 64
# Files that are to be smaller than a chunk are filled in so many steps at least.
_PIECES: Final = 4
_DAY_MS: Final = 86_400_000
_EPOCH: Final = date(1970, 1, 1)
# Higher levels take twice the time for a few percent.
_ZSTD_LEVEL: Final = 1


@dataclass(frozen=True)
class Output:
    """Where files go, and what is in them."""

    place: Place
    # Below the place, with its slash, and what all names begin with.
    folder: str
    stem: str
    layout: Layout
    by_date: bool
    compression: str
    file_bytes: int
    # Whether fields without a column are of interest.
    noticing: bool = False


@dataclass(frozen=True)
class Task:
    """Some slices of a source, for one executor."""

    number: int
    source: ReadSource
    parts: tuple[Slice | StreamSlice, ...]


@dataclass(frozen=True)
class Written:
    """What became of a task."""

    files: list[DataFile]
    payload_bytes: int = 0
    raw_rows: int = 0
    rest_rows: int = 0
    unknown: dict[str, str] = field(default_factory=dict)


def write_task(output: Output, task: Task) -> Written:
    """Read the slices of a task, and write their messages to files."""
    rows = Rows(output.layout, task.source.bucket, noticing=output.noticing)
    size = 0
    with Files(output, task.number) as files:
        for part in task.parts:
            for chunk in read_chunks(task.source, part):
                for day, of_day in by_day(chunk) if output.by_date else [("", chunk)]:
                    size += pc.sum(pc.binary_length(of_day.payloads)).as_py() or 0
                    for piece in split_chunk(of_day, output.file_bytes // _PIECES):
                        files.write(day, rows.batch(piece))
                failpoint("archive.writing")
    parsed = rows.parsed
    return Written(files.written, size, parsed.raw_rows, parsed.rest_rows, parsed.unknown)


def by_day(chunk: Chunk) -> Iterator[tuple[str, Chunk]]:
    """The messages of each UTC day, with its date."""
    assert chunk.timestamps is not None
    days = chunk.timestamps // _DAY_MS
    found = np.unique(days)
    for day in found.tolist():
        text = (_EPOCH + timedelta(days=day)).isoformat()
        yield text, chunk if len(found) == 1 else chunk.filter(days == day)


class Files:
    """The open files of one task, by day. A context: at its end all of them are complete."""

    def __init__(self, output: Output, number: int) -> None:
        self._output = output
        # Two attempts at one task may run at the same time.
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
        """Add rows to the file of a day; a full one is followed by another."""
        file = self._open.pop(day, None)
        if file is None:
            if len(self._open) >= _OPEN_MAX:
                self._finish(next(iter(self._open)))
            file = self._opened(day)
        # At the end: the first is the one that was not written to for the longest time.
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
    """One Parquet file; rows are held until they make a row group."""

    def __init__(self, output: Output, path: str, day: str) -> None:
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
        """How much of it is written."""
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
        first, last = _span(metadata, self._time_column)
        first_stream, last_stream = _span(metadata, "stream_id")
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
        """Leave nothing behind."""
        error = _AbandonedError()
        self._stack.__exit__(type(error), error, None)


class _AbandonedError(Exception):
    """Tells an open file that it is not wanted."""


def _span(metadata: Any, name: str) -> tuple[Any, Any]:
    """The least and the greatest value of one of the columns that every table has."""
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    paths = [groups[0].column(at).path_in_schema for at in range(groups[0].num_columns)]
    found = [each.column(paths.index(name)).statistics for each in groups]
    return min(each.min for each in found), max(each.max for each in found)


def parquet_writer(file: Any, output: Output, metadata: list[Any]) -> Any:
    """A writer for files of a table; what it says of one at its end is added to a list."""
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
