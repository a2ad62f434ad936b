"""Removes the rows of deleted and expired streams from a table (`deletes=apply`).

Executors rewrite the files that have such rows, and one commit replaces them. Rules:

- The table stores `erased`, the cursor up to which deletions are applied, in every commit.
- Deletions are applied before rows are added, and the server returns no rows of a deleted stream.
  So while `erased` is not behind the table's position, a stream that was deleted after `erased` has
  only rows from before the deletion in the table, even if a new stream has its name by now. The
  changes feed tells which streams those are, and all of their rows go.
- Otherwise, which is after a run that kept deleted streams, or if the feed no longer reaches back,
  executors compare the streams in each file with those of the bucket. Rows of a missing stream go,
  and so do rows that are older than the stream. What a fork inherits is as old as the fork.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.client import Bucket, Client, StreamInfo
from holdfast.errors import CursorGoneError
from holdfast.failpoints import failpoint
from holdfast.spark.archiving.files import FileOutput, TableFiles, column_span, conformed
from holdfast.spark.archiving.table import (
    BEGINNING,
    ArchiveTable,
    DataFile,
    ListedFile,
    TableState,
    new_batch,
)
from holdfast.spark.connection import SparkClient
from holdfast.spark.jobs.tasks import Executors
from holdfast.spark.reading.source import ReadSource

# More deleted streams than this are found by the executors: each task would get all of their ids.
_IDS_MAX: Final = 10_000
_TASK_FILES_MAX: Final = 64
_PAGE_STREAMS: Final = 1_000
# Microseconds before and after all times.
_NEVER: Final = np.iinfo(np.int64).min
_ALWAYS: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class EraseTask:
    number: int
    files: tuple[ListedFile, ...]
    # The deleted streams, sorted; None if the server is to be asked.
    gone: tuple[str, ...] | None


@dataclass
class ErasedFiles:
    """Files that were rewritten, what they became, and how many rows are missing from them."""

    old: list[ListedFile] = field(default_factory=list)
    new: list[DataFile] = field(default_factory=list)
    rows: int = 0


@dataclass
class TableEraser:
    """Removes deleted streams from a table; `state` is the table's state, and follows."""

    executors: Executors
    source: ReadSource
    table: ArchiveTable
    state: TableState
    # The output of executors, by folder and prefix of names.
    output: Callable[[str, str], FileOutput]
    # About as much is rewritten in one commit.
    commit_bytes: int
    rows: int = 0
    files: int = 0

    def erase(self, server: SparkClient, latest: str) -> None:
        """Apply all deletions up to a cursor that is the bucket's end, and perhaps later ones."""
        gone, cursor = None, latest
        if self.state.until == BEGINNING:
            self.state = msgspec.structs.replace(self.state, erased=latest)
            return
        if self.state.erased >= self.state.until:
            gone, cursor = server.run(self._deleted) or (None, latest)
        files = self.table.files() if gone is None else self.table.files_with(gone)
        waves = list(self._waves(files, gone))
        for number, tasks in enumerate(waves, 1):
            self._rewrite(tasks, cursor if number == len(waves) else self.state.erased)
        # Without a commit, the next one says it.
        self.state = msgspec.structs.replace(self.state, erased=cursor)

    async def _deleted(self, client: Client) -> tuple[tuple[str, ...], str] | None:
        """The streams deleted since `erased`, and until when; None if the feed cannot tell."""
        found: set[str] = set()
        cursor = self.state.erased
        changes = client.bucket(self.source.bucket).changes(cursor)
        try:
            async with aclosing(changes) as pages:
                async for page in pages:
                    found.update(each.stream_id for each in page.changes if each.deleted)
                    cursor = page.next_cursor
                    if len(found) > _IDS_MAX:
                        return None
        except CursorGoneError:
            return None
        return tuple(sorted(filter(self.source.selection.includes, found))), cursor

    def _waves(
        self, files: Sequence[ListedFile], gone: tuple[str, ...] | None
    ) -> Iterator[list[EraseTask]]:
        """The tasks of each commit."""
        task_bytes = max(1, self.commit_bytes // max(1, 4 * self.executors.cores))
        left, number = iter(_groups(files, task_bytes)), 0
        while True:
            tasks: list[EraseTask] = []
            size = 0
            for group in left:
                tasks.append(EraseTask(number, group, gone))
                number += 1
                size += sum(each.size_bytes for each in group)
                if size >= self.commit_bytes:
                    break
            if not tasks:
                return
            yield tasks

    def _rewrite(self, tasks: Sequence[EraseTask], erased: str) -> None:
        state = msgspec.structs.replace(self.state, erased=erased)
        batch = new_batch(state, state.until)
        output = self.output(*self.table.begin(batch))
        work = partial(erase_task, output, self.source)
        done = self.executors.run(tasks, work, "removing deleted streams")
        failpoint("archive.staged")
        old = [file for each in done for file in each.old]
        if not old and erased == self.state.erased:
            self.table.discard(batch)
            return
        new = [file for each in done for file in each.new]
        self.table.replace(batch, old, new, output.layout, same_rows=False)
        self.state = msgspec.structs.replace(state, number=batch.number)
        self.rows += sum(each.rows for each in done)
        self.files += len(old)


def _groups(files: Sequence[ListedFile], size_bytes: int) -> Iterator[tuple[ListedFile, ...]]:
    """Neighbouring files of about this size together."""
    group: list[ListedFile] = []
    held = 0
    for each in sorted(files, key=lambda file: (file.date, file.path)):
        group.append(each)
        held += each.size_bytes
        if held >= size_bytes or len(group) >= _TASK_FILES_MAX:
            yield tuple(group)
            group, held = [], 0
    if group:
        yield tuple(group)


def erase_task(output: FileOutput, source: ReadSource, task: EraseTask) -> ErasedFiles:
    """Rewrite those files of a task that have rows of deleted streams."""
    done = ErasedFiles()
    output = replace(output, file_bytes=output.file_bytes * 2)
    with SparkClient(source.connection) as server, TableFiles(output, task.number) as files:
        limits = (
            _Present(server, source.bucket).limits
            if task.gone is None
            else partial(_limits, frozenset(task.gone))
        )
        for each in task.files:
            with output.place.reading(each.path) as file:
                reader = pq.ParquetFile(file, pre_buffer=True)
                if task.gone is not None and not _may_have(reader, task.gone):
                    continue
                kept = _kept_rows(reader, limits)
                if kept.all():
                    continue
                done.old.append(each)
                done.rows += int((~kept).sum())
                _copy(reader, kept, each.date, files)
    done.new = files.written
    return done


def _may_have(reader: Any, gone: Sequence[str]) -> bool:
    first, last = column_span(reader.metadata, "stream_id")
    return bisect_left(gone, first) < bisect_right(gone, last)


def _kept_rows(reader: Any, limits: Callable[[Sequence[str]], Any]) -> Any:
    """A mask of the rows that stay."""
    table = reader.read(columns=["stream_id", "timestamp"])
    ids = table["stream_id"].combine_chunks().dictionary_encode()
    # Of each stream, rows before this time go.
    limits_us = limits(ids.dictionary.to_pylist())
    times_us = table["timestamp"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
    return times_us >= limits_us[ids.indices.to_numpy()]


def _copy(reader: Any, kept: Any, date: str, files: TableFiles) -> None:
    """Write the rows that stay."""
    first = 0
    for group in range(reader.num_row_groups):
        table = reader.read_row_group(group)
        last = first + len(table)
        for batch in conformed(table.filter(pa.array(kept[first:last])), files.layout):
            files.write(date, batch)
        first = last


def _limits(gone: frozenset[str], stream_ids: Sequence[str]) -> Any:
    return np.array([_ALWAYS if each in gone else _NEVER for each in stream_ids], dtype=np.int64)


class _Present:
    """The streams of a bucket, page by page; only the pages that are needed are requested."""

    def __init__(self, server: SparkClient, bucket: str) -> None:
        self._server = server
        self._bucket = bucket
        # The files of a task mostly have the same streams.
        self._found: dict[str, int] = {}
        self._page: dict[str, StreamInfo] = {}
        # The page has all streams between these ids, both included.
        self._first = ""
        self._last = ""

    def limits(self, stream_ids: Sequence[str]) -> Any:
        """The times before which rows of these streams are not theirs, in microseconds."""
        for each in sorted(set(stream_ids) - self._found.keys()):
            self._found[each] = self._limit(each)
        return np.array([self._found[each] for each in stream_ids], dtype=np.int64)

    def _limit(self, stream_id: str) -> int:
        if not self._first <= stream_id <= self._last:
            self._load(stream_id)
        found = self._page.get(stream_id)
        return _ALWAYS if found is None else found.created_at_ms * 1000

    def _load(self, stream_id: str) -> None:
        # The listing starts after an id, so the id before this one has to be given.
        before = f"{stream_id[:-1]}{chr(ord(stream_id[-1]) - 1)}\U0010ffff"
        page = self._server.run(lambda client: _page(client.bucket(self._bucket), before))
        self._page = {each.stream_id: each for each in page}
        self._first = stream_id
        self._last = page[-1].stream_id if len(page) == _PAGE_STREAMS else "\U0010ffff"


async def _page(bucket: Bucket, after: str) -> list[StreamInfo]:
    """One page of a listing, or less if it ends."""
    page: list[StreamInfo] = []
    async for each in bucket.streams(after=after, page_size=_PAGE_STREAMS):
        page.append(each)
        if len(page) == _PAGE_STREAMS:
            break
    return page
