"""A run of the job `archive`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from holdfast.errors import DataLossError, SettingsError
from holdfast.failpoints import failpoint
from holdfast.spark.archiving.erasing import TableEraser
from holdfast.spark.archiving.files import FileOutput, WrittenFiles, write_task
from holdfast.spark.archiving.layout import (
    TableLayout,
    add_kinds,
    given_columns,
    inferred_columns,
    new_columns,
    widened,
)
from holdfast.spark.archiving.place import TablePlace
from holdfast.spark.archiving.table import new_batch
from holdfast.spark.archiving.table_run import (
    OpenedTable,
    TableRun,
    grouped,
    open_table,
    sample,
)
from holdfast.spark.connection import parse_size
from holdfast.spark.jobs.archive import Archive, Archived
from holdfast.spark.jobs.progress import Progress
from holdfast.spark.jobs.tasks import Executors
from holdfast.spark.reading.planning import ReadPlan


def archive(executors: Executors, job: Archive, progress: Progress) -> Archived:
    """Bring the table up to the current end of the bucket."""
    place = TablePlace.of(job.to, job.to_endpoint, job.to_region, os.environ)
    given = given_columns(job.schema)
    opening = open_table(job, place, job.bucket, json_as=job.json_as, partition_by=job.partition_by)
    with opening as opened:
        run = _ArchiveRun(executors, job, progress, opened)
        run.use_schema(given)
        return run.archive()


@dataclass
class _Totals:
    batches: int = 0
    rows: int = 0
    payload_bytes: int = 0
    file_bytes: int = 0
    files: int = 0
    raw_rows: int = 0
    rest_rows: int = 0
    erased_rows: int = 0
    erased_files: int = 0

    def add(self, written: list[WrittenFiles]) -> None:
        self.batches += 1
        for each in written:
            self.files += len(each.files)
            self.rows += sum(file.rows for file in each.files)
            self.file_bytes += sum(file.size_bytes for file in each.files)
            self.payload_bytes += each.payload_bytes
            self.raw_rows += each.raw_rows
            self.rest_rows += each.rest_rows


class _ArchiveRun(TableRun):
    def __init__(
        self, executors: Executors, job: Archive, progress: Progress, opened: OpenedTable
    ) -> None:
        super().__init__(executors, job, progress, opened)
        self._archive = job
        # Empty until they are given, or inferred from the first messages.
        self._columns = dict(self.state.columns)
        self._totals = _Totals()

    @property
    def layout(self) -> TableLayout:
        return TableLayout(self._archive.json_as, dict(self._columns))

    def output(self, folder: str, stem: str) -> FileOutput:
        return replace(
            super().output(folder, stem),
            by_date=self._archive.partition_by == "date",
            noticing=self._archive.evolve,
        )

    def use_schema(self, given: Mapping[str, str]) -> None:
        """Use the columns of the option `schema`, if the table has or may get them."""
        if not given:
            return
        if not self._columns:
            self._columns = dict(given)
            return
        may_become = self._widened(given) if self._archive.evolve else {}
        for field, kind in given.items():
            known = self._columns.get(field)
            if kind in {known, may_become.get(field)} or (known is None and self._archive.evolve):
                continue
            raise SettingsError(
                f"'schema': {field!r} is {known or 'not a column'} in the table at "
                f"{self.place.name}, which cannot become {kind}"
                + (
                    "; archive to another place."
                    if known
                    else " without 'evolve'; set it, or archive to another place."
                )
            )
        self._columns |= given

    def archive(self) -> Archived:
        self.progress.start("planning", None, "")
        latest = self.feed.latest()
        if self._archive.deletes == "apply":
            self._erase(latest)
        up_to_date = self.after >= latest or self._is_worthwhile(latest)
        if up_to_date:
            self.add_batches(latest)
        merged = self.merge_small_files()
        self.progress.done()
        return Archived(
            table=self.place.name,
            format=self._archive.format,
            bucket=self._archive.bucket,
            after=self.after,
            until=self.state.until,
            up_to_date=up_to_date,
            merged_files=merged,
            columns=dict(self.state.columns),
            **vars(self._totals),
        )

    def _is_worthwhile(self, latest: str) -> bool:
        """Whether enough is new for the option `min_bytes`."""
        if not self._archive.min_bytes:
            return True
        least = parse_size(self._archive.min_bytes, "'min_bytes'")
        end = self.feed.until(self.after, least)
        return end.until < latest or end.bytes >= least

    def _erase(self, latest: str) -> None:
        """Remove the rows of streams that are deleted."""
        eraser = TableEraser(
            self.executors,
            self.feed.source,
            self.table,
            self.state,
            self.output,
            self.max_bytes,
        )
        eraser.erase(self.feed.server, latest)
        self.state = eraser.state
        self._totals.erased_rows = eraser.rows
        self._totals.erased_files = eraser.files

    def add_batch(self, after: str, until: str, size_bytes: int) -> None:
        try:
            self._add_batch(after, until, size_bytes)
        except DataLossError:
            if self._archive.deletes == "keep" or self.feed.trimmed(after, until):
                raise
            # Only deletions, which this table is to follow.
            self._add_batch(after, until, size_bytes, missing_ok=True)

    def _add_batch(
        self, after: str, until: str, size_bytes: int, *, missing_ok: bool = False
    ) -> None:
        plan, each_bytes = self.plan(after, until, size_bytes, missing_ok=missing_ok)
        failpoint("archive.planned")
        if not plan.slices:
            return
        if self._archive.json_as == "columns" and not self._columns:
            self.progress.start("sampling messages", None, "")
            self._columns = inferred_columns(sample(plan))
        batch = new_batch(self.state, until)
        written = self._write(plan, each_bytes, size_bytes, *self.table.begin(batch))
        if any(each.files for each in written) and self._evolved(written):
            # Written once more, with the columns that were missing.
            self.table.discard(batch, [file for each in written for file in each.files])
            batch = new_batch(self.state, until)
            written = self._write(plan, each_bytes, size_bytes, *self.table.begin(batch))
        files = [file for each in written for file in each.files]
        failpoint("archive.staged")
        if not files:
            self.table.discard(batch)
            return
        self.progress.start("committing", None, "")
        self.commit(batch, files)
        failpoint("archive.committed")
        self._totals.add(written)

    def _write(
        self, plan: ReadPlan, each_bytes: int, size_bytes: int, folder: str, stem: str
    ) -> list[WrittenFiles]:
        tasks = grouped(plan, each_bytes, size_bytes)
        return self.run_tasks(
            tasks, partial(write_task, self.output(folder, stem)), "writing files"
        )

    def _evolved(self, written: list[WrittenFiles]) -> bool:
        """Whether new fields have got columns, or columns have become wider."""
        if self._archive.json_as != "columns" or not self._archive.evolve:
            return False
        found: dict[str, str] = {}
        wider: dict[str, str] = {}
        for each in written:
            add_kinds(found, each.unknown)
            wider |= each.wider
        changes = new_columns(self._columns, found) | self._widened(wider)
        self._columns |= changes
        return bool(changes)

    def _widened(self, kinds: Mapping[str, str]) -> dict[str, str]:
        """The columns that these kinds make wider, if the table's format can do that."""
        return widened(self._columns, kinds) if self.table.widens else {}
