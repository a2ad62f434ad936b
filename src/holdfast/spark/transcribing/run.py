"""A run of the job `transcripts`: responses that have ended, from the proxy's streams to a table.

Rows are only added. A response gets its row when it has ended; until then the table's state records
where it begins, and the run that finds its end reads it again from there. So a row never changes,
whatever the format, and the rows of a stream that is deleted later stay.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Final

from holdfast.client import Client
from holdfast.errors import GoneError, StreamNotFoundError
from holdfast.failpoints import failpoint
from holdfast.spark.archiving.files import FileOutput, TableFiles
from holdfast.spark.archiving.place import TablePlace
from holdfast.spark.archiving.table import (
    DataFile,
    new_batch,
)
from holdfast.spark.archiving.table_run import OpenedTable, TableRun, open_table
from holdfast.spark.connection import SparkClient
from holdfast.spark.jobs.progress import Progress
from holdfast.spark.jobs.tasks import Executors
from holdfast.spark.jobs.transcripts import DailyFigures, Transcripts, TranscriptsSummary
from holdfast.spark.reading.http_reader import stream_chunks
from holdfast.spark.reading.planning import ReadPlan
from holdfast.spark.reading.slice_reader import StreamRun, stream_runs
from holdfast.spark.reading.source import ReadSource, Slice, StreamSlice
from holdfast.spark.transcribing.responses import (
    OpenStream,
    StreamDamage,
    StreamTranscript,
    TranscribedResponse,
    deleted_response,
    forget_before,
    read_open,
    write_open,
)
from holdfast.spark.transcribing.tables import (
    Daily,
    ResponseLayout,
    counted,
    read_daily,
    to_batch,
    write_daily,
)

# Responses held in memory before they are written.
_HELD_BYTES_MAX: Final = 16 * 1024 * 1024
RESPONSES: Final = "responses"
DAILY: Final = "daily"
# Concurrent requests for the state of streams.
_HEADS_MAX: Final = 32
_DAMAGE_SHOWN: Final = 100
_DAYS_SHOWN: Final = 100


def transcribe(executors: Executors, job: Transcripts, progress: Progress) -> TranscriptsSummary:
    """Bring the tables up to the current end of the bucket."""
    place, daily = (_place(job, name) for name in (RESPONSES, DAILY))
    with open_table(job, place, f"{job.bucket}_{RESPONSES}", holds=RESPONSES) as opened:
        run = _TranscriptsRun(executors, job, progress, opened)
        run.add_new()
        merged = run.merge_small_files()
        return run.summary(merged, daily.name, run.count_days(daily))


def _place(job: Transcripts, name: str) -> TablePlace:
    return TablePlace.of(f"{job.to.rstrip('/')}/{name}", job.to_endpoint, job.to_region, os.environ)


class _TranscriptsRun(TableRun):
    layout = ResponseLayout()

    def __init__(
        self, executors: Executors, job: Transcripts, progress: Progress, opened: OpenedTable
    ) -> None:
        super().__init__(executors, job, progress, opened)
        self._transcripts = job
        # Responses in progress at the end of the last batch, which may be after the last commit.
        self._open = read_open(self.place, self.state.until)
        # Streams with such responses that are deleted; the first batch takes them.
        self._deleted: list[OpenStream] = []
        # The sum of all tasks: its files, and no streams.
        self._done = Transcribed()
        self._batches = 0

    def add_new(self) -> None:
        self.progress.start("planning", None, "")
        latest = self.feed.latest()
        if self.after < latest:
            bucket = self.feed.source.bucket
            self._deleted = self.feed.server.run(
                lambda client: _missing(client, bucket, self._open)
            )
            self.add_batches(latest)

    def count_days(self, place: TablePlace) -> list[DailyFigures]:
        """Bring the daily summary up to the table; returns the rows that were counted again."""
        before = read_daily(place)
        days = {file.date for file in self._done.files}
        is_behind = before.until != self.after
        if not days and not is_behind:
            return []
        rows = counted(self.executors, self.place, self.table, before, None if is_behind else days)
        write_daily(place, Daily(self.state.until, rows))
        failpoint("transcripts.summed")
        return rows if is_behind else [each for each in rows if each.date in days]

    def summary(self, merged: int, daily: str, days: list[DailyFigures]) -> TranscriptsSummary:
        self.progress.done()
        done, files = self._done, self._done.files
        return TranscriptsSummary(
            table=self.place.name,
            daily=daily,
            format=self._transcripts.format,
            bucket=self._transcripts.bucket,
            after=self.after,
            until=self.state.until,
            batches=self._batches,
            responses=sum(file.rows for file in files),
            outcomes=dict(done.outcomes),
            under_way=sum(len(each.responses) for each in self._open),
            body_bytes=done.size_bytes,
            prompt_tokens=done.prompt_tokens,
            completion_tokens=done.completion_tokens,
            files=len(files),
            file_bytes=sum(file.size_bytes for file in files),
            merged_files=merged,
            damaged=done.damaged,
            damage=[vars(each) for each in done.damage],
            days=days[-_DAYS_SHOWN:],
        )

    def add_batch(self, after: str, until: str, size_bytes: int) -> None:
        plan, _ = self.plan(after, until, size_bytes, whole_streams=True)
        tasks = self._tasks(plan)
        failpoint("transcripts.planned")
        batch = new_batch(self.state, until)
        output = self.output(*self.table.begin(batch))
        work = partial(transcribe_task, output, self._transcripts.kept_bytes_max)
        done = self.run_tasks(tasks, work, "reading responses")
        self._open = [each for one in done for each in one.left]
        failpoint("transcripts.staged")
        files = [file for each in done for file in each.files]
        for each in done:
            self._done.add(each)
        if not files:
            # The position is not stored, so the next run finds the same again.
            self.table.discard(batch)
            return
        self.progress.start("committing", None, "")
        write_open(self.place, until, self._open)
        failpoint("transcripts.noted")
        self.commit(batch, files)
        failpoint("transcripts.committed")
        self._batches += 1
        forget_before(self.place, until)

    def _tasks(self, plan: ReadPlan) -> list[TranscribeTask]:
        """A task for each slice, with the open streams in it, and one for the other streams."""
        deleted, self._deleted = tuple(self._deleted), []
        gone = {each.stream_id for each in deleted}
        rest = {each.stream_id: each for each in self._open if each.stream_id not in gone}
        tasks: list[TranscribeTask] = []
        for part in plan.slices:
            assert isinstance(part, Slice)
            known = tuple(each for each in rest.values() if part.covers(each.stream_id))
            rest = {name: each for name, each in rest.items() if not part.covers(name)}
            tasks.append(TranscribeTask(len(tasks), plan.source, part, known))
        if rest or deleted:
            left = tuple(rest.values())
            tasks.append(TranscribeTask(len(tasks), plan.source, None, left, deleted))
        return tasks


async def _missing(client: Client, bucket: str, streams: Sequence[OpenStream]) -> list[OpenStream]:
    """The streams that do not exist any more."""
    slots = asyncio.Semaphore(_HEADS_MAX)

    async def is_missing(stream_id: str) -> bool:
        try:
            async with slots:
                await client.stream(f"{bucket}/{stream_id}").head()
        except (StreamNotFoundError, GoneError):
            return True
        return False

    found = await asyncio.gather(*(is_missing(each.stream_id) for each in streams))
    return [each for each, is_one in zip(streams, found, strict=True) if is_one]


@dataclass(frozen=True)
class TranscribeTask:
    """A slice of whole streams, and the streams with open responses in it."""

    number: int
    source: ReadSource
    part: Slice | None
    known: tuple[OpenStream, ...] = ()
    # Streams with open responses that were deleted.
    deleted: tuple[OpenStream, ...] = ()


@dataclass
class Transcribed:
    files: list[DataFile] = field(default_factory=list)
    # The streams of the slice with open responses.
    left: list[OpenStream] = field(default_factory=list)
    # Streams that hold anything but frames, and the first of them.
    damaged: int = 0
    damage: list[StreamDamage] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    size_bytes: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, other: Transcribed) -> None:
        """Add the figures and files of another one, without its open streams."""
        self.files += other.files
        self.damaged += other.damaged
        self.damage += other.damage[: _DAMAGE_SHOWN - len(self.damage)]
        self.outcomes.update(other.outcomes)
        self.size_bytes += other.size_bytes
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens

    def is_damaged(self, damage: StreamDamage) -> None:
        self.damaged += 1
        if len(self.damage) < _DAMAGE_SHOWN:
            self.damage.append(damage)

    def count(self, response: TranscribedResponse) -> None:
        self.outcomes[response.outcome.value] += 1
        self.size_bytes += response.size_bytes
        if response.answer is not None:
            self.prompt_tokens += response.answer.prompt_tokens or 0
            self.completion_tokens += response.answer.completion_tokens or 0


def transcribe_task(output: FileOutput, body_bytes_max: int, task: TranscribeTask) -> Transcribed:
    """Write the responses of a task's streams that have ended to files."""
    output.place.check_shared()
    done = Transcribed()
    with SparkClient(task.source.connection) as server, TableFiles(output, task.number) as files:
        rows = _Rows(files, done)
        for stream in task.deleted:
            rows.add(deleted_response(stream.stream_id, each) for each in stream.responses)
        known = {each.stream_id: each for each in task.known}
        runs = iter(()) if task.part is None else stream_runs(task.source, server, task.part)
        for stream_id, of_stream in groupby(runs, key=lambda run: run.stream.stream_id):
            reader = StreamTranscript(stream_id, body_bytes_max, known.pop(stream_id, None))
            for run in of_stream:
                _read_again(reader, run, task.source, server)
                for message in _messages(run):
                    rows.add(reader.take(*message))
            if (left := reader.left()) is not None:
                done.left.append(left)
            if reader.damage is not None:
                done.is_damaged(reader.damage)
            failpoint("transcripts.writing")
        rows.flush()
        done.left += known.values()
    done.files = files.written
    return done


def _read_again(
    reader: StreamTranscript, run: StreamRun, source: ReadSource, server: SparkClient
) -> None:
    """Bring a stream's reader to the start of its new messages."""
    missing = reader.missing
    if missing is None or int(run.offsets[0]) != missing[1]:
        return
    part = StreamSlice(run.stream.stream_id, *(f"{each:020d}" for each in missing))
    for chunk in stream_chunks(source, server, part):
        for payload in chunk.payloads.to_pylist():
            reader.again(payload)


def _messages(run: StreamRun) -> Iterable[tuple[int, int, bytes, int]]:
    return zip(
        run.offsets.tolist(),
        run.next_offsets.tolist(),
        run.payloads.to_pylist(),
        run.timestamps.tolist(),
        strict=True,
    )


class _Rows:
    """Holds responses until there are enough to write."""

    def __init__(self, files: TableFiles, done: Transcribed) -> None:
        self._files = files
        self._done = done
        self._held: dict[str, list[TranscribedResponse]] = {}
        self._held_bytes = 0

    def add(self, responses: Iterable[TranscribedResponse]) -> None:
        for each in responses:
            self._done.count(each)
            day = datetime.fromtimestamp(each.started_at_ms / 1000, UTC).date().isoformat()
            self._held.setdefault(day, []).append(each)
            self._held_bytes += each.held_bytes
            if self._held_bytes >= _HELD_BYTES_MAX:
                self.flush()

    def flush(self) -> None:
        for day, held in self._held.items():
            self._files.write(day, to_batch(held))
        self._held, self._held_bytes = {}, 0
