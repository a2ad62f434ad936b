"""A run of the job `transcripts`: batch after batch, until the table has what has ended."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

from holdfast.client import Client
from holdfast.errors import DataLossError, GoneError, StreamNotFoundError
from holdfast.failpoints import failpoint
from holdfast.spark.archiving.batches import Feed, explained_loss, task_bytes
from holdfast.spark.archiving.files import Output
from holdfast.spark.archiving.merging import merge_small_files
from holdfast.spark.archiving.places import Place
from holdfast.spark.archiving.state import BEGINNING, Identity, State
from holdfast.spark.archiving.tables.opening import table_at
from holdfast.spark.archiving.tables.table import Table, claim, new_batch
from holdfast.spark.connection import SparkClient, parse_size
from holdfast.spark.jobs.progress import Progress
from holdfast.spark.jobs.tasks import Executors
from holdfast.spark.jobs.transcripts import DayOfModel, Transcripts, TranscriptsSummary
from holdfast.spark.reading.planning import ReadPlan
from holdfast.spark.reading.selection import make_selection
from holdfast.spark.reading.source import ReadSource, Slice
from holdfast.spark.transcribing.daily import Daily, counted, read_daily, write_daily
from holdfast.spark.transcribing.layout import ResponseLayout
from holdfast.spark.transcribing.open_streams import (
    OpenStream,
    forget_before,
    read_open,
    write_open,
)
from holdfast.spark.transcribing.task import Transcribed, TranscribeTask, transcribe_task

RESPONSES: Final = "responses"
DAILY: Final = "daily"
# Streams that the server is asked about at one time.
_HEADS_MAX: Final = 32
_DAMAGE_SHOWN: Final = 100
_DAYS_SHOWN: Final = 100


def transcribe(executors: Executors, job: Transcripts, progress: Progress) -> TranscriptsSummary:
    """Bring the tables up to what the bucket has now."""
    place, daily = (_place(job, name) for name in (RESPONSES, DAILY))
    source = ReadSource(
        job.server,
        job.bucket,
        make_selection(job.streams, job.stream_pattern),
        fail_on_data_loss=job.fail_on_data_loss,
        place=job.place(""),
        via=job.via,
    )
    with SparkClient(job.server) as server, place.alone() as alone:
        feed = Feed(server, source)
        wanted = Identity(
            job.format,
            job.bucket,
            feed.store_id(),
            sorted(job.streams),
            job.stream_pattern,
            "",
            "date",
            feed.latest(),
            RESPONSES,
        )
        begun_at = claim(place, wanted).begun_at
        table = table_at(place, job, f"{job.bucket}_{RESPONSES}", by_date=True)
        run = _Run(executors, job, progress, feed, place, table, begun_at, alone=alone)
        run.all_of_it()
        merged = run.merge_small_files()
        return run.summary(merged, daily.name, run.count_days(daily))


def _place(job: Transcripts, name: str) -> Place:
    return Place.of(f"{job.to.rstrip('/')}/{name}", job.to_endpoint, job.to_region, os.environ)


class _Run:
    """One run. `state` is how far the table is, by what it says itself."""

    def __init__(
        self,
        executors: Executors,
        job: Transcripts,
        progress: Progress,
        feed: Feed,
        place: Place,
        table: Table,
        begun_at: str,
        *,
        alone: bool,
    ) -> None:
        self._executors = executors
        self._job = job
        self._progress = progress
        self._feed = feed
        self._place = place
        self._table = table
        self._begun_at = begun_at
        self._state = table.open(alone=alone)
        self._begun = self._state.until
        # What is not over where the batches have come to, which may be behind the last commit.
        self._open = read_open(place, self._state.until)
        self._done: list[Transcribed] = []
        self._batches = 0
        self._damage: list[dict[str, str]] = []
        self._file_bytes = parse_size(job.file_size, "'file_size'")
        self._max_bytes = parse_size(job.max_bytes, "'max_bytes'")

    def all_of_it(self) -> None:
        """Batch after batch, up to where the bucket ends as the run begins."""
        after = self._begun
        self._progress.start("planning", None, "")
        latest = self._feed.latest()
        gone = self._gone() if after < latest else []
        while after < latest:
            end = self._feed.until(after, self._max_bytes)
            until = min(end.until, latest, self._begun_at if after < self._begun_at else latest)
            self._batch(after, until, end.bytes, gone)
            after, gone = until, []

    def merge_small_files(self) -> int:
        """Rewrite small files, if that is asked for."""
        if not self._job.compact_files or self._state.until == BEGINNING:
            return 0
        return merge_small_files(
            self._executors, self._table, self._state, self._output("", ""), self._job.compact_files
        )

    def count_days(self, place: Place) -> list[DayOfModel]:
        """Bring the summary up to the table; the rows of days that were counted again."""
        before = read_daily(place)
        days = {file.date for each in self._done for file in each.files}
        is_behind = before.until != self._begun
        if not days and not is_behind:
            return []
        rows = counted(
            self._executors, self._place, self._table, before, None if is_behind else days
        )
        write_daily(place, Daily(self._state.until, rows))
        failpoint("transcripts.summed")
        return rows if is_behind else [each for each in rows if each.date in days]

    def summary(self, merged: int, daily: str, days: list[DayOfModel]) -> TranscriptsSummary:
        """What the run did."""
        self._progress.done()
        outcomes: Counter[str] = Counter()
        for each in self._done:
            outcomes.update(each.outcomes)
        files = [file for each in self._done for file in each.files]
        return TranscriptsSummary(
            table=self._place.name,
            daily=daily,
            format=self._job.format,
            bucket=self._job.bucket,
            after=self._begun,
            until=self._state.until,
            batches=self._batches,
            responses=sum(file.rows for file in files),
            outcomes=dict(outcomes),
            under_way=sum(len(each.responses) for each in self._open),
            body_bytes=sum(each.size_bytes for each in self._done),
            prompt_tokens=sum(each.prompt_tokens for each in self._done),
            completion_tokens=sum(each.completion_tokens for each in self._done),
            files=len(files),
            file_bytes=sum(file.size_bytes for file in files),
            merged_files=merged,
            damaged=len(self._damage),
            damage=self._damage[:_DAMAGE_SHOWN],
            days=days[-_DAYS_SHOWN:],
        )

    def _batch(self, after: str, until: str, size_bytes: int, gone: Sequence[OpenStream]) -> None:
        """Add the responses that ended in one stretch of the bucket."""
        each_bytes = task_bytes(size_bytes, self._file_bytes, self._executors.cores)
        plan = self._feed.plan(
            after, until, each_bytes, missing_ok=until <= self._begun_at, whole_streams=True
        )
        tasks = self._tasks(plan, gone)
        failpoint("transcripts.planned")
        batch = new_batch(self._state, until)
        output = self._output(*self._table.begin(batch))
        done = self._write(output, tasks)
        failpoint("transcripts.staged")
        files = [file for each in done for file in each.files]
        self._done += done
        self._damage += [vars(x) for each in done for x in each.damage]
        if not files:
            # How far it came is not kept, so that the next run finds the same again.
            self._table.discard(batch)
            return
        self._progress.start("committing", None, "")
        write_open(self._place, until, self._open)
        failpoint("transcripts.noted")
        self._table.commit(batch, files, output.layout)
        failpoint("transcripts.committed")
        self._state = State(until, batch.number)
        self._batches += 1
        forget_before(self._place, until)

    def _write(self, output: Output, tasks: Sequence[TranscribeTask]) -> list[Transcribed]:
        work = partial(transcribe_task, output, self._job.kept_bytes_max)
        try:
            done = self._executors.run(tasks, work, "reading responses")
        except DataLossError as error:
            raise explained_loss(error) from None
        self._open = [each for one in done for each in one.left]
        return done

    def _tasks(self, plan: ReadPlan, gone: Sequence[OpenStream]) -> list[TranscribeTask]:
        """A task for each slice, with what is known of its streams, and one for what is not."""
        rest = {each.stream_id: each for each in self._open}
        for each in gone:
            del rest[each.stream_id]
        tasks: list[TranscribeTask] = []
        for part in plan.slices:
            assert isinstance(part, Slice)
            known = tuple(each for each in rest.values() if part.covers(each.stream_id))
            rest = {name: each for name, each in rest.items() if not part.covers(name)}
            tasks.append(TranscribeTask(len(tasks), plan.source, part, known))
        if rest or gone:
            left = tuple(rest.values())
            tasks.append(TranscribeTask(len(tasks), plan.source, None, left, tuple(gone)))
        return tasks

    def _gone(self) -> list[OpenStream]:
        """Streams of which something was open, and which are not there any more."""
        bucket = self._feed.source.bucket
        return self._feed.server.run(lambda client: _missing(client, bucket, self._open))

    def _output(self, folder: str, stem: str) -> Output:
        return Output(
            self._place,
            folder,
            stem,
            ResponseLayout(),
            by_date=True,
            compression=self._job.compression,
            file_bytes=self._file_bytes,
        )


async def _missing(client: Client, bucket: str, streams: Sequence[OpenStream]) -> list[OpenStream]:
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
