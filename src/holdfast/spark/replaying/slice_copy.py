"""Copying the streams of a slice, many at once: what executors do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast.spark.connection import SparkClient
from holdfast.spark.reading.selection import Selection
from holdfast.spark.reading.slice_reader import StreamRun, stream_runs
from holdfast.spark.reading.source import ReadSource, Slice
from holdfast.spark.replaying.comparing import Ends, ReplayReport, ReplayWork, Todo
from holdfast.spark.replaying.copying import StreamCopy
from holdfast.spark.replaying.endings import LeftError
from holdfast.spark.replaying.groups import together

PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
_PENDING_MAX: Final = 2000


@dataclass(frozen=True)
class CopyTask:
    """Streams to be copied, and the slice that has their messages; None if none has."""

    source: ReadSource
    part: Slice | None
    todo: Sequence[Todo]


def copy_slice(work: ReplayWork, task: CopyTask) -> ReplayReport:
    """Copy the streams of a task."""
    if not task.todo:
        return ReplayReport()
    starts = {each.stream_id: each.start for each in task.todo}
    ends = {each.stream_id: each.end for each in task.todo}
    selection = Selection(frozenset(starts), "", starts, ends)
    source = replace(task.source, selection=selection)
    with SparkClient(source.connection) as server:
        runs = iter(()) if task.part is None else stream_runs(source, server, task.part)
        return asyncio.run(_SliceCopy(work, task.todo).run(runs))


class _SliceCopy:
    def __init__(self, work: ReplayWork, todo: Sequence[Todo]) -> None:
        self._work = work
        self._report = ReplayReport()
        self._todo = {each.stream_id: each for each in todo}
        self._slots = asyncio.Semaphore(work.concurrency)
        self._pending = self._pending_bytes = 0
        self._room = asyncio.Event()

    async def run(self, runs: Iterator[StreamRun]) -> ReplayReport:
        """Copy all of them."""
        async with Ends(self._work) as self._ends, together() as group:
            name, lane = "", None
            while (run := await asyncio.to_thread(next, runs, None)) is not None:
                if lane is None or run.stream.stream_id != name:
                    if lane is not None:
                        lane.put_nowait(None)
                    name = run.stream.stream_id
                    lane = self._start(group, self._todo.pop(name))
                await self._until_room()
                self._pending += 1
                self._pending_bytes += run.payloads.nbytes
                lane.put_nowait(run)
            if lane is not None:
                lane.put_nowait(None)
            # Forks that have nothing of their own yet.
            for todo in self._todo.values():
                self._start(group, todo).put_nowait(None)
        return self._report

    def _start(self, group: asyncio.TaskGroup, todo: Todo) -> asyncio.Queue[StreamRun | None]:
        lane: asyncio.Queue[StreamRun | None] = asyncio.Queue()
        group.create_task(self._copy(todo, lane))
        return lane

    async def _until_room(self) -> None:
        while self._pending_bytes > PENDING_BYTES_MAX or self._pending > _PENDING_MAX:
            self._room.clear()
            await self._room.wait()

    async def _copy(self, todo: Todo, lane: asyncio.Queue[StreamRun | None]) -> None:
        async with self._slots:
            copy = StreamCopy(self._work, todo, *self._ends.streams(todo.stream_id), self._report)
            try:
                while (run := await self._next(lane)) is not None:
                    await copy.take(run)
                await copy.finish()
            except LeftError as error:
                self._report.leave(todo.stream_id, error.message)
                while await self._next(lane) is not None:
                    pass

    async def _next(self, lane: asyncio.Queue[StreamRun | None]) -> StreamRun | None:
        run = await lane.get()
        if run is not None:
            self._pending -= 1
            self._pending_bytes -= run.payloads.nbytes
            self._room.set()
        return run
