"""Runs of jobs that bring a bucket into a table, batch by batch: the part they have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from holdfast.client import ScanEnd
from holdfast.errors import (
    BadAnswerError,
    BucketNotFoundError,
    DataLossError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    SettingsError,
)
from holdfast.spark.archiving.files import ArchiveTask, FileOutput, merge_small_files
from holdfast.spark.archiving.layout import TableLayout
from holdfast.spark.archiving.place import TablePlace
from holdfast.spark.archiving.table import (
    BEGINNING,
    ArchiveTable,
    DataFile,
    TableBatch,
    TableIdentity,
    TableState,
    claim,
    table_at,
)
from holdfast.spark.connection import SparkClient, parse_size
from holdfast.spark.jobs.options import TableOptions
from holdfast.spark.jobs.progress import Progress
from holdfast.spark.jobs.tasks import Executors
from holdfast.spark.reading.arrow import json_rows
from holdfast.spark.reading.planning import ReadPlan, plan_between, trimmed_streams
from holdfast.spark.reading.slice_reader import read_chunks
from holdfast.spark.reading.source import AnyPart, ReadSource, StreamSlice

# The sample from which columns are inferred: so many slices, so many messages of each.
_SAMPLE_SLICES: Final = 8
_SAMPLE_MESSAGES: Final = 2_000
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class BucketFeed:
    """A bucket that is read batch by batch."""

    server: SparkClient
    source: ReadSource

    def latest(self) -> str:
        """The cursor of the bucket's end."""
        return self._until("now", None).latest

    def store_id(self) -> str:
        """The id of the server's store, which identifies it."""
        bucket = self.source.bucket
        try:
            plan = self.server.run(lambda client: client.bucket(bucket).scan(after="now"))
        except (NotFoundError, MethodNotAllowedError, BadAnswerError) as error:
            if isinstance(error, BucketNotFoundError):
                raise
            raise SettingsError(
                f"{self.server.url} is not a Holdfast server: it cannot read a bucket from a "
                "cursor on, so its buckets cannot be archived."
            ) from None
        return plan.store_id

    def until(self, after: str, max_bytes: int) -> ScanEnd:
        """The end of a batch of about so many bytes."""
        try:
            return self._until(after, max_bytes)
        except InvalidRequestError as error:
            raise DataLossError(
                f"{self.server.url} does not know the cursor {after}, up to which the table goes "
                f"({error.message}): was its data removed? Archive to another place."
            ) from None

    def plan(
        self,
        after: str,
        until: str,
        slice_bytes: int,
        *,
        missing_ok: bool,
        whole_streams: bool = False,
    ) -> ReadPlan:
        """The slices of a batch; with `missing_ok`, deleted messages are not a data loss."""
        source = replace(self.source, fail_on_data_loss=False) if missing_ok else self.source
        try:
            return plan_between(
                self.server,
                source,
                after,
                until,
                slice_bytes=slice_bytes,
                whole_streams=whole_streams,
            )
        except DataLossError as error:
            raise explained_loss(error) from None

    def trimmed(self, after: str, until: str) -> list[str]:
        """Streams of which messages in this range are gone though they exist."""
        bucket, prefix = self.source.bucket, self.source.selection.prefix
        scan = self.server.bucket(bucket).scan(after=after, until=until, prefix=prefix, by="packs")
        lost = dict.fromkeys(self.source.lost(self.server, scan), 0)
        return self.server.run(lambda client: trimmed_streams(client, bucket, lost))

    def _until(self, after: str, max_bytes: int | None) -> ScanEnd:
        bucket, prefix = self.source.bucket, self.source.selection.prefix
        return self.server.run(
            lambda client: client.bucket(bucket).until(after, bytes=max_bytes, prefix=prefix)
        )


@dataclass(frozen=True)
class OpenedTable:
    """A job's table, locked and checked, and the bucket that goes into it."""

    feed: BucketFeed
    place: TablePlace
    table: ArchiveTable
    state: TableState
    # The end of the bucket when the table was begun.
    begun_at: str


@contextmanager
def open_table(
    job: TableOptions,
    place: TablePlace,
    name: str,
    *,
    holds: str = "messages",
    json_as: str = "",
    partition_by: str = "date",
) -> Iterator[OpenedTable]:
    """Connect to the server, lock the table of a job, and check that it is this job's."""
    source = ReadSource(
        job.server,
        job.bucket,
        job.selection(),
        fail_on_data_loss=job.fail_on_data_loss,
        place=job.place(""),
        via=job.via,
    )
    with SparkClient(job.server) as server, place.alone() as alone:
        feed = BucketFeed(server, source)
        identity = TableIdentity(
            job.format,
            job.bucket,
            feed.store_id(),
            sorted(job.streams),
            job.stream_pattern,
            json_as,
            partition_by,
            feed.latest(),
            holds,
        )
        begun_at = claim(place, identity).begun_at
        table = table_at(place, job, name, by_date=partition_by == "date")
        yield OpenedTable(feed, place, table, table.open(alone=alone), begun_at)


class TableRun(ABC):
    """One run of a job that adds a bucket's batches to a table.

    `state` is the table's position, as the table itself stores it.
    """

    def __init__(
        self, executors: Executors, job: TableOptions, progress: Progress, opened: OpenedTable
    ) -> None:
        self.executors = executors
        self.progress = progress
        self.feed = opened.feed
        self.place = opened.place
        self.table = opened.table
        self.state = opened.state
        # The position at the start of the run.
        self.after = opened.state.until
        self._job = job
        self._begun_at = opened.begun_at
        self._file_bytes = parse_size(job.file_size, "'file_size'")
        self.max_bytes = parse_size(job.max_bytes, "'max_bytes'")

    @property
    @abstractmethod
    def layout(self) -> TableLayout:
        """The form of the table's rows."""

    @abstractmethod
    def add_batch(self, after: str, until: str, size_bytes: int) -> None:
        """Add the part (after, until] of the bucket, of about this size."""

    def add_batches(self, latest: str) -> None:
        """Add batches up to a cursor."""
        after = self.after
        while after < latest:
            end = self.feed.until(after, self.max_bytes)
            # No batch extends across the start of the table: only before it may messages be gone.
            until = min(end.until, latest, self._begun_at if after < self._begun_at else latest)
            self.add_batch(after, until, end.bytes)
            after = until

    def plan(
        self,
        after: str,
        until: str,
        size_bytes: int,
        *,
        whole_streams: bool = False,
        missing_ok: bool = False,
    ) -> tuple[ReadPlan, int]:
        """The plan of a batch, and the size of its tasks."""
        each_bytes = task_bytes(size_bytes, self._file_bytes, self.executors.cores)
        missing_ok = missing_ok or until <= self._begun_at
        plan = self.feed.plan(
            after, until, each_bytes, missing_ok=missing_ok, whole_streams=whole_streams
        )
        return plan, each_bytes

    def run_tasks(
        self, tasks: Sequence[_Task], work: Callable[[_Task], _Result], what: str
    ) -> list[_Result]:
        """Run tasks on the executors."""
        try:
            return self.executors.run(tasks, work, what)
        except DataLossError as error:
            raise explained_loss(error) from None

    def commit(self, batch: TableBatch, files: Sequence[DataFile]) -> None:
        """Commit a batch; the table's position is its end."""
        self.table.commit(batch, files, self.layout)
        self.state = TableState(batch.until, batch.number, dict(self.layout.columns), batch.erased)

    def merge_small_files(self) -> int:
        """Merge small files if the job says so; returns how many were replaced."""
        if not self._job.compact_files or self.state.until == BEGINNING:
            return 0
        return merge_small_files(
            self.executors, self.table, self.state, self.output("", ""), self._job.compact_files
        )

    def output(self, folder: str, stem: str) -> FileOutput:
        """Where and how executors write files."""
        return FileOutput(
            self.place,
            folder,
            stem,
            self.layout,
            by_date=True,
            compression=self._job.compression,
            file_bytes=self._file_bytes,
        )


def explained_loss(error: DataLossError) -> DataLossError:
    """The error with the name that the option has in jobs."""
    return DataLossError(error.message.replace("'failOnDataLoss'", "'fail_on_data_loss'"))


def task_bytes(total_bytes: int, file_bytes: int, cores: int) -> int:
    """The size of a task: about a file, but adjusted so that all cores have equal work.

    That may make files smaller, though not by half.
    """
    count = max(1, -(-total_bytes // file_bytes))
    even = -(-count // cores) * cores
    if total_bytes // even * 2 >= file_bytes:
        count = even
    return max(1, -(-total_bytes // count))


def grouped(plan: ReadPlan, size_bytes: int, total_bytes: int) -> list[ArchiveTask]:
    """The tasks of a plan: small slices are grouped, up to this size."""
    groups: list[list[AnyPart]] = []
    held = 0
    # Messages that are not in packs yet have no known size: it is the rest of the total.
    known = sum(_size(each) for each in plan.slices)
    for each in plan.slices:
        size = _size(each) or max(0, total_bytes - known)
        # A slice may be somewhat larger than requested.
        if not groups or held + size > size_bytes * 5 // 4:
            groups.append([])
            held = 0
        groups[-1].append(each)
        held += size
    return [ArchiveTask(number, plan.source, tuple(parts)) for number, parts in enumerate(groups)]


def _size(part: AnyPart) -> int:
    return 0 if isinstance(part, StreamSlice) else part.size_bytes


def sample(plan: ReadPlan) -> Iterator[bytes]:
    """Some JSON messages from all over a plan."""
    for part in _spread(plan.slices, _SAMPLE_SLICES):
        left = _SAMPLE_MESSAGES
        for chunk in read_chunks(plan.source, part):
            found = chunk.payloads.filter(json_rows(chunk))[:left].to_pylist()
            yield from found
            left -= len(found)
            if not left:
                break


def _spread(slices: Sequence[AnyPart], count: int) -> Sequence[AnyPart]:
    if len(slices) <= count:
        return slices
    return [slices[at * len(slices) // count] for at in range(count)]
