"""The driver's part of an audit: which packs to read, and how to judge the findings.

Packs go out of use and streams change while everything is read, so:

- If a pack is gone before it was read, its bytes are followed from pack to pack, among those that
  are in use then, until they are found.
- A fault in the extents of a stream counts if a second pass over the catalog finds it again: damage
  stays, but a stream that was trimmed or deleted meanwhile is not found again.
- Dead bytes only grow, so what was counted must lie between two listings of the packs.

A pass is one Spark job. Executors read packs, and what those say about streams is shuffled and
sorted. So each pack is read once. The driver gets a report on each pack, without its findings;
these stay with Spark as rows, are joined and counted there, and become a table. Reports on packs
and errors travel through the shuffle as rows of streams that do not exist, numbered from -1
downward.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.format.packs import PackInfo
from holdfast.objects.request_counts import counted_requests
from holdfast.spark.auditing.checks import (
    CATALOG,
    AuditFinding,
    PackReport,
    StreamFact,
    StreamFinding,
    StreamsCheck,
    StreamsReport,
)
from holdfast.spark.auditing.pack_task import AuditTask, PackAuditor
from holdfast.spark.connection import SparkClient
from holdfast.spark.jobs.progress import Progress, watching
from holdfast.spark.jobs.tasks import TaskFailure, add_requests

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASK_BYTES_MIN: Final = 128 * 1024 * 1024
_TASKS_MAX: Final = 10_000
_TASK_PACKS_MAX: Final = 1000
# Findings that depend on every delta.
_UNCERTAIN: Final = frozenset({"rowless", "absent"})


@dataclass
class AuditTotals:
    packs: int = 0
    bytes: int = 0
    extents: int = 0
    dead_bytes: int = 0
    streams: int = 0
    gone: int = 0
    # Those of `FINDINGS`; None if there are none.
    findings: DataFrame | None = None
    # Damage beyond `FINDINGS_MAX`.
    left_out: int = 0


class StoreAudit:
    """One audit of a server's store."""

    def __init__(
        self, spark: SparkSession, server: SparkClient, task: AuditTask, progress: Progress
    ) -> None:
        self._spark = spark
        self._server = server
        # The task of each executor, without packs.
        self._task = task
        self._progress = progress
        self._seen = AuditTotals()
        self._reports: dict[str, PackReport] = {}
        # What the driver finds: little for each pack.
        self._findings: list[AuditFinding] = []
        # What executors find.
        self._found: list[DataFrame] = []
        self._passes: list[AuditPass] = []

    def run(self) -> AuditTotals:
        """Audit everything that is flushed now."""
        self._progress.start("listing packs")
        before = self._flushed()
        packs = self._packs()
        seen = self._seen
        self._findings += [
            AuditFinding("damage", CATALOG, what)
            for what in tiling_faults(packs, before, self._flushed())
        ]
        first = self._pass(packs, deep=True)
        self._take(first)
        self._follow_replaced(packs)
        self._confirm(first)
        self._compare_dead()
        self._check_companions()
        audited = [report for report in self._reports.values() if not report.gone]
        seen.packs = len(audited)
        seen.bytes = sum(report.info.size_bytes for report in audited)
        seen.extents = sum(report.extents for report in audited)
        seen.dead_bytes = sum(report.dead_bytes for report in audited)
        seen.streams = first.streams
        seen.findings = self._all_findings()
        self._progress.done()
        return seen

    def close(self) -> None:
        """Forget the findings that Spark keeps."""
        for each in self._passes:
            if each.rows is not None:
                each.rows.unpersist()

    def _all_findings(self) -> DataFrame | None:
        frames = list(self._found)
        if self._findings:
            rows = [tuple(each) for each in self._findings]
            frames.append(self._spark.createDataFrame(rows, FINDINGS))
        if not frames:
            return None
        # Two packs that are gone may have been merged into one, which was followed twice.
        return reduce(lambda one, other: one.unionByName(other), frames).dropDuplicates()

    def _follow_replaced(self, packs: Sequence[PackInfo]) -> None:
        """Audit the packs that replaced others before these were read."""
        if any(report.gone for report in self._reports.values()):
            through = packs[-1].through
            fresh = [
                pack
                for pack in self._packs()
                if pack.after < through and pack.name not in self._reports
            ]
            self._take(self._pass(fresh, deep=True, follows=True))
        self._seen.gone = sum(report.gone for report in self._reports.values())

    def _take(self, done: AuditPass) -> None:
        for report in done.packs:
            known = self._reports.get(report.name)
            if known is not None and not known.gone:
                # Two packs that are gone were merged into this one, and both were followed.
                continue
            self._reports[report.name] = report
            self._seen.left_out += report.left_out
        if done.found:
            assert done.rows is not None, "what was found is in rows"
            found = done.rows.where("stream is null and kind is not null")
            self._found.append(found.select(*_FINDING))

    def _confirm(self, first: AuditPass) -> None:
        """Keep the findings about streams that a second pass finds again."""
        if not first.suspected:
            return
        again = self._pass(self._packs(), deep=False)
        if not again.suspected:
            return
        assert first.rows is not None, "what was found is in rows"
        assert again.rows is not None, "what was found is in rows"
        # A delta that cannot be read may hold a missing row, or the end of a stream.
        is_whole = all(report.is_whole for report in again.packs if not report.gone)
        uncertain = ", ".join(repr(each) for each in sorted(_UNCERTAIN))
        is_certain = "true" if is_whole else f"code not in ({uncertain})"
        suspects = first.rows.where("stream is not null").select(*_KEY)
        found = again.rows.where("stream is not null").where(is_certain)
        confirmed = found.join(suspects, list(_KEY), "left_semi")
        self._found.append(confirmed.select(*_FINDING))
        if first.left_out and again.left_out:
            self._seen.left_out += min(first.left_out, again.left_out)

    def _compare_dead(self) -> None:
        """Check that the dead bytes found lie between two listings of the catalog."""
        for pack in self._packs():
            report = self._reports.get(pack.name)
            if report is None or report.gone:
                continue
            before, dead = report.info.dead_bytes, report.dead_bytes
            if not before <= dead <= pack.dead_bytes:
                what = f"it counts {before} dead bytes in {pack.name}, which has {dead}"
                self._findings.append(AuditFinding("damage", CATALOG, what))

    def _check_companions(self) -> None:
        """A pack without a delta must be named by one with a delta, or supersede one that is."""
        reports = self._reports.values()
        if any(report.gone or not report.is_whole for report in reports):
            # A pack that was not read may name it.
            return
        named = {name for report in reports for name in report.companions}
        what = "it is in use, but no other pack names it: a rebuild would not find it"
        self._findings += [
            AuditFinding("damage", report.name, what)
            for report in reports
            if not report.info.has_delta
            and report.name not in named
            and not report.supersedes & named
        ]

    def _pass(self, packs: Sequence[PackInfo], *, deep: bool, follows: bool = False) -> AuditPass:
        what = "reading packs" if deep else "checking streams again"
        tasks = [
            replace(self._task, packs=batch, deep=deep, follows=follows)
            for batch in _batches(list(enumerate(packs)))
        ]
        done = run_pass(self._spark, tasks, what, self._progress)
        self._passes.append(done)
        return done

    def _packs(self) -> list[PackInfo]:
        return self._server.collect(lambda client: client.storage.packs())

    def _flushed(self) -> int:
        return int(self._server.run(lambda client: client.storage.store()).flushed)


def _batches(
    packs: Sequence[tuple[int, PackInfo]],
) -> Iterator[tuple[tuple[int, PackInfo], ...]]:
    """The packs of each task: one large pack, or several small ones."""
    total = sum(pack.size_bytes for _, pack in packs)
    enough = max(_TASK_BYTES_MIN, total // _TASKS_MAX)
    batch: list[tuple[int, PackInfo]] = []
    size_bytes = 0
    for each in packs:
        batch.append(each)
        size_bytes += each[1].size_bytes
        if size_bytes >= enough or len(batch) >= _TASK_PACKS_MAX:
            yield tuple(batch)
            batch, size_bytes = [], 0
    if batch:
        yield tuple(batch)


def tiling_faults(packs: Sequence[PackInfo], before: int, after: int) -> Iterator[str]:
    """Faults unless the deltas cover each position of the log from 0 to `flushed` once.

    `flushed` was between `before` and `after` when the packs were listed.
    """
    at = 0
    for pack in packs:
        if not pack.has_delta:
            continue
        if pack.after > at:
            yield f"positions {at + 1} to {pack.after} are in no pack: {pack.name} comes next"
        elif pack.after < at:
            yield f"{pack.name} overlaps with the pack before it, which ends at {at}"
        at = max(at, pack.through)
    if not before <= at <= after:
        yield f"packs reach position {at}, but the catalog says {before}"


_TASKS: Final = "at int not null, data binary not null"
_FACTS: Final = (
    "stream bigint not null, kind int not null, at bigint not null, end bigint not null, "
    "start bigint not null, tail bigint not null, pack int not null, name string not null, "
    "report binary"
)
_FACT_TYPES: Final = (
    pa.int64(),
    pa.int32(),
    pa.int64(),
    pa.int64(),
    pa.int64(),
    pa.int64(),
    pa.int32(),
    pa.string(),
)
_REPORT_AT: Final = len(_FACT_TYPES)
FINDINGS: Final = "kind string, where string, what string"
# A row is a finding, or a report. A finding about a stream has its key.
_FOUND: Final = f"{FINDINGS}, stream bigint, code string, at bigint, report binary"
_FINDING: Final = ("kind", "where", "what")
_KEY: Final = ("stream", "code", "at")
_FOUND_NAMES: Final = ("kind", "where", "what", "stream", "code", "at", "report")
_FOUND_TYPES: Final = (
    *(pa.string(), pa.string(), pa.string()),
    *(pa.int64(), pa.string(), pa.int64(), pa.binary()),
)
_ROWS_MAX: Final = 16_384


@dataclass
class AuditPass:
    # Without their findings.
    packs: list[PackReport] = field(default_factory=list)
    streams: int = 0
    # Findings about packs, and about streams.
    found: int = 0
    suspected: int = 0
    # Findings about streams beyond `FINDINGS_MAX`.
    left_out: int = 0
    rows: DataFrame | None = None

    def take(self, report: Any) -> None:
        match report:
            case PackReport():
                self.packs.append(report)
                self.found += report.found
            case StreamsReport():
                self.streams += report.streams
                self.suspected += report.found
                self.left_out += report.left_out
            case Counter():
                add_requests(report)
            case TaskFailure():
                raise report.rebuilt()


def run_pass(
    spark: SparkSession, tasks: Sequence[AuditTask], what: str, progress: Progress
) -> AuditPass:
    """Run the tasks and check all streams; raises the errors of executors."""
    done = AuditPass()
    if not tasks:
        return done
    rows = [(at, pickle.dumps(task)) for at, task in enumerate(tasks)]
    done.rows = (
        spark.createDataFrame(rows, _TASKS)
        .repartitionById(len(rows), "at")
        .mapInArrow(_auditing(), _FACTS)
        .repartition("stream")
        .sortWithinPartitions("stream", "kind", "at")
        .mapInArrow(_checking(), _FOUND)
        .persist()
    )
    with watching(spark, progress, what):
        # Fills what is kept, so that the findings are looked at without reading packs again.
        reports = done.rows.where("report is not null").select("report").collect()
    for row in reports:
        done.take(pickle.loads(row.report))  # noqa: S301 (our own)
    return done


def _auditing() -> Callable[[Iterable[pa.RecordBatch]], Any]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield from _run_task(at, pickle.loads(data))  # noqa: S301 (the driver made it)

    return run


def _run_task(at: int, task: AuditTask) -> Iterator[pa.RecordBatch]:
    """Run one task. Spark does not retry our own errors: they are returned."""
    reports: list[Any] = []
    before = counted_requests()
    try:
        with SparkClient(task.connection) as server:
            for found in PackAuditor(task, server):
                if isinstance(found, PackReport):
                    reports.append(found)
                else:
                    yield from _fact_batches(found)
    except HoldfastError as error:
        reports.append(TaskFailure(type(error), error.message))
    reports.append(counted_requests() - before)
    yield _report_batch(at, reports)


def _fact_batches(facts: Sequence[StreamFact]) -> Iterator[pa.RecordBatch]:
    for first in range(0, len(facts), _ROWS_MAX):
        some = facts[first : first + _ROWS_MAX]
        columns = [
            pa.array(values, kind)
            for values, kind in zip(zip(*some, strict=True), _FACT_TYPES, strict=True)
        ]
        yield _batch([*columns, pa.nulls(len(some), pa.binary())])


def _report_batch(at: int, reports: Sequence[Any]) -> pa.RecordBatch:
    blank = StreamFact(-1 - at, 0, 0)
    columns = [
        pa.array([value] * len(reports), kind)
        for value, kind in zip(blank, _FACT_TYPES, strict=True)
    ]
    return _batch([*columns, pa.array([pickle.dumps(each) for each in reports], pa.binary())])


def _batch(columns: list[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(columns, [*StreamFact._fields, "report"])


def _checking() -> Callable[[Iterable[pa.RecordBatch]], Any]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check = StreamsCheck()
        for batch in batches:
            columns = [column.to_pylist() for column in batch.columns]
            for data in columns.pop(_REPORT_AT):
                if data is not None:
                    yield from _found_batches(pickle.loads(data))  # noqa: S301 (our own)
            check.take(fact for fact in map(StreamFact, *columns) if fact.stream >= 0)
        yield from _found_batches(check.finish())

    return run


def _found_batches(report: Any) -> Iterator[pa.RecordBatch]:
    """The findings of a report, each in a row, and then the report without them."""
    findings: list[Any] = []
    if isinstance(report, PackReport | StreamsReport):
        findings, report.findings = report.findings, []
        report.found = len(findings)
    blank = (None, None, None)
    rows: list[tuple[Any, ...]] = [
        (*each.finding(), *each.key, None)
        if isinstance(each, StreamFinding)
        else (*each, *blank, None)
        for each in findings
    ]
    rows.append((*blank, *blank, pickle.dumps(report)))
    columns = [
        pa.array(values, kind)
        for values, kind in zip(zip(*rows, strict=True), _FOUND_TYPES, strict=True)
    ]
    yield pa.RecordBatch.from_arrays(columns, list(_FOUND_NAMES))
