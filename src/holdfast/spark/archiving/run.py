"""A run of the job `archive`: batch after batch, until the table has what the bucket had."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from holdfast.errors import DataLossError, SettingsError
from holdfast.failpoints import failpoint
from holdfast.objects.locations import StoreLocation
from holdfast.spark.archiving.batches import Feed, explained_loss, grouped, sample, task_bytes
from holdfast.spark.archiving.files import Output, Written, write_task
from holdfast.spark.archiving.layout import Layout
from holdfast.spark.archiving.merging import merge_small_files
from holdfast.spark.archiving.places import Place
from holdfast.spark.archiving.schema import (
    add_kinds,
    given_columns,
    inferred_columns,
    new_columns,
)
from holdfast.spark.archiving.state import Identity, State
from holdfast.spark.archiving.tables.opening import table_at
from holdfast.spark.archiving.tables.table import Table, claim, new_batch
from holdfast.spark.connection import SparkClient, parse_size
from holdfast.spark.jobs.archive import Archive, Archived
from holdfast.spark.jobs.progress import Progress
from holdfast.spark.jobs.tasks import Executors
from holdfast.spark.reading.planning import ReadPlan
from holdfast.spark.reading.selection import Selection
from holdfast.spark.reading.source import ReadSource


def archive(executors: Executors, job: Archive, progress: Progress) -> Archived:
    """Bring the table up to what the bucket has now."""
    place = Place.of(job.to, job.to_endpoint, job.to_region, os.environ)
    given = given_columns(job.schema)
    with SparkClient(job.server) as server, place.alone() as alone:
        feed = Feed(server, _source(job))
        wanted = Identity(
            job.format,
            job.bucket,
            feed.store_id(),
            sorted(job.streams),
            job.stream_pattern,
            job.json_as,
            job.partition_by,
            feed.latest(),
        )
        begun_at = claim(place, wanted).begun_at
        table = table_at(place, job, job.bucket, by_date=job.partition_by == "date")
        state = table.open(alone=alone)
        run = _Run(executors, job, progress, feed, place, table, state, begun_at)
        run.settle(given)
        return run.all_of_it()


def _source(job: Archive) -> ReadSource:
    return ReadSource(
        job.server,
        job.bucket,
        Selection(frozenset(job.streams) if job.streams else None, job.stream_pattern),
        fail_on_data_loss=job.fail_on_data_loss,
        place=StoreLocation(job.store, endpoint=job.store_endpoint, region=job.store_region),
        via=job.via,
    )


@dataclass
class _Totals:
    batches: int = 0
    rows: int = 0
    payload_bytes: int = 0
    file_bytes: int = 0
    files: int = 0
    raw_rows: int = 0
    rest_rows: int = 0


class _Run:
    """One run. `state` is how far the table is, by what it says itself."""

    def __init__(
        self,
        executors: Executors,
        job: Archive,
        progress: Progress,
        feed: Feed,
        place: Place,
        table: Table,
        state: State,
        begun_at: str,
    ) -> None:
        self._executors = executors
        self._job = job
        self._progress = progress
        self._feed = feed
        self._place = place
        self._table = table
        self._state = state
        self._begun_at = begun_at
        # Empty until they are given, or until there are messages that tell.
        self._columns = dict(state.columns)
        self._totals = _Totals()
        self._file_bytes = parse_size(job.file_size, "'file_size'")
        self._max_bytes = parse_size(job.max_bytes, "'max_bytes'")

    def settle(self, given: Mapping[str, str]) -> None:
        """Take the columns that the user gives, if the table has the same or may get them."""
        if not given:
            return
        if not self._columns:
            self._columns = dict(given)
            return
        for field, kind in given.items():
            known = self._columns.get(field)
            if known == kind or (known is None and self._job.evolve):
                continue
            raise SettingsError(
                f"'schema': {field!r} is {known or 'no column'} in the table at "
                f"{self._place.name}, which cannot become {kind}"
                + (
                    "; archive to another place."
                    if known
                    else " without 'evolve'; set it, or archive to another place."
                )
            )
        self._columns |= given

    def all_of_it(self) -> Archived:
        """Batch after batch, up to where the bucket ends as the run begins."""
        begun = after = self._state.until
        self._progress.start("planning", None, "")
        latest = self._feed.latest()
        up_to_date = after >= latest or self._is_enough(after, latest)
        while up_to_date and after < latest:
            end = self._feed.until(after, self._max_bytes)
            until = min(end.until, latest, self._begun_at if after < self._begun_at else latest)
            self._batch(after, until, end.bytes)
            after = until
        merged = self._merge_small_files()
        self._progress.done()
        return Archived(
            table=self._place.name,
            format=self._job.format,
            bucket=self._job.bucket,
            after=begun,
            until=self._state.until,
            up_to_date=up_to_date,
            merged_files=merged,
            columns=dict(self._state.columns),
            **vars(self._totals),
        )

    def _is_enough(self, after: str, latest: str) -> bool:
        """Whether so much is new that it is worth new files."""
        if not self._job.min_bytes:
            return True
        least = parse_size(self._job.min_bytes, "'min_bytes'")
        found = self._feed.until(after, least)
        return found.until < latest or found.bytes >= least

    def _batch(self, after: str, until: str, size_bytes: int) -> None:
        """Archive one stretch of the bucket."""
        each_bytes = task_bytes(size_bytes, self._file_bytes, self._executors.cores)
        plan = self._feed.plan(after, until, each_bytes, missing_ok=until <= self._begun_at)
        failpoint("archive.planned")
        if not plan.slices:
            return
        if self._job.json_as == "columns" and not self._columns:
            self._progress.start("looking at messages", None, "")
            self._columns = inferred_columns(sample(plan))
        batch = new_batch(self._state, until)
        folder, stem = self._table.begin(batch)
        written = self._write(plan, each_bytes, size_bytes, folder, stem)
        if any(each.files for each in written) and self._evolved(written):
            # Written once more, now with the columns that were missing.
            self._table.discard(batch)
            batch = new_batch(self._state, until)
            folder, stem = self._table.begin(batch)
            written = self._write(plan, each_bytes, size_bytes, folder, stem)
        files = [file for each in written for file in each.files]
        failpoint("archive.staged")
        if not files:
            self._table.discard(batch)
            return
        self._progress.start("committing", None, "")
        self._table.commit(batch, files, self._layout())
        failpoint("archive.committed")
        self._state = State(until, batch.number, dict(self._columns))
        self._count(written)

    def _write(
        self, plan: ReadPlan, each_bytes: int, size_bytes: int, folder: str, stem: str
    ) -> list[Written]:
        output = replace(self._output(), folder=folder, stem=stem)
        try:
            return self._executors.run(
                grouped(plan, each_bytes, size_bytes), partial(write_task, output), "writing files"
            )
        except DataLossError as error:
            raise explained_loss(error) from None

    def _evolved(self, written: list[Written]) -> bool:
        """Whether there are fields that get columns now."""
        if self._job.json_as != "columns" or not self._job.evolve:
            return False
        found: dict[str, str] = {}
        for each in written:
            add_kinds(found, each.unknown)
        added = new_columns(self._columns, found)
        self._columns |= added
        return bool(added)

    def _count(self, written: list[Written]) -> None:
        totals = self._totals
        totals.batches += 1
        for each in written:
            totals.files += len(each.files)
            totals.rows += sum(file.rows for file in each.files)
            totals.file_bytes += sum(file.size_bytes for file in each.files)
            totals.payload_bytes += each.payload_bytes
            totals.raw_rows += each.raw_rows
            totals.rest_rows += each.rest_rows

    def _merge_small_files(self) -> int:
        if not self._job.compact_files or not self._state.until:
            return 0
        return merge_small_files(
            self._executors,
            self._table,
            self._state,
            self._output(),
            self._job.compact_files,
        )

    def _layout(self) -> Layout:
        return Layout(self._job.json_as, dict(self._columns))

    def _output(self) -> Output:
        job = self._job
        return Output(
            self._place,
            "",
            "",
            self._layout(),
            job.partition_by == "date",
            job.compression,
            self._file_bytes,
            noticing=job.evolve,
        )
