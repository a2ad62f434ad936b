"""The driver's part of an audit: which packs are looked at, and what to make of what is found.

Packs go out of use and streams change while all of this is read, so:

- A pack that is gone before it was read is looked for again, among those that are in use then,
  and its bytes are followed from pack to pack until they are found.
- What seems wrong with the extents of a stream counts if a second pass over the catalog finds the
  same: damage stays, and a stream that was trimmed or deleted meanwhile does not look so again.
- What two lists of packs must agree on is compared as a range: dead bytes only ever grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from holdfast.format.packs import PackInfo
from holdfast.spark.auditing.findings import Finding, PackReport
from holdfast.spark.auditing.looking import Look
from holdfast.spark.auditing.one_pack import CATALOG
from holdfast.spark.auditing.passes import Pass, run_pass
from holdfast.spark.connection import SparkClient, SparkConnection
from holdfast.spark.jobs.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.objects.locations import StoreLocation

__all__ = ["Audit", "Seen", "tiling_faults"]

_TASK_BYTES_MIN: Final = 128 * 1024 * 1024
_TASKS_MAX: Final = 10_000
_TASK_PACKS_MAX: Final = 1000
# What depends on every delta there is.
_UNCERTAIN: Final = frozenset({"rowless", "absent"})


@dataclass
class Seen:
    """What was looked at and what was found."""

    packs: int = 0
    bytes: int = 0
    extents: int = 0
    dead_bytes: int = 0
    streams: int = 0
    gone: int = 0
    findings: list[Finding] = field(default_factory=list)
    # Damage beyond what is kept of a pack or of a part of the streams.
    left_out: int = 0


class Audit:
    """One audit of a server."""

    def __init__(
        self,
        spark: SparkSession,
        server: SparkClient,
        connection: SparkConnection,
        place: StoreLocation,
        store_id: str,
        via: str,
        progress: Progress,
    ) -> None:
        self._spark = spark
        self._server = server
        self._connection = connection
        self._place = place
        self._store_id = store_id
        self._via = via
        self._progress = progress
        self._seen = Seen()
        self._reports: dict[str, PackReport] = {}

    def run(self) -> Seen:
        """Look at everything that is flushed now."""
        self._progress.start("listing packs")
        before = self._flushed()
        packs = self._packs()
        seen = self._seen
        seen.findings += [
            Finding("damage", CATALOG, what)
            for what in tiling_faults(packs, before, self._flushed())
        ]
        first = self._pass(packs, deep=True)
        self._take(first)
        self._look_for_the_gone(packs)
        self._confirm(first)
        self._compare_dead()
        self._check_companions()
        looked_at = [report for report in self._reports.values() if not report.gone]
        seen.packs = len(looked_at)
        seen.bytes = sum(report.info.size_bytes for report in looked_at)
        seen.extents = sum(report.extents for report in looked_at)
        seen.dead_bytes = sum(report.dead_bytes for report in looked_at)
        seen.streams = first.streams
        self._progress.done()
        return seen

    def _look_for_the_gone(self, packs: Sequence[PackInfo]) -> None:
        """Look at the packs that took the place of others before these were read."""
        if any(report.gone for report in self._reports.values()):
            through = packs[-1].through
            fresh = [
                pack
                for pack in self._packs()
                if pack.after < through and pack.name not in self._reports
            ]
            self._take(self._pass(fresh, deep=True, follows=True))
        self._seen.gone = sum(report.gone for report in self._reports.values())

    def _take(self, done: Pass) -> None:
        for report in done.packs:
            known = self._reports.get(report.name)
            if known is not None and not known.gone:
                # Two of those that are gone have become one, and both were followed.
                continue
            self._reports[report.name] = report
            self._seen.findings += report.findings
            self._seen.left_out += report.left_out

    def _confirm(self, first: Pass) -> None:
        """Keep what a second look at the streams finds again."""
        if not first.findings:
            return
        again = self._pass(self._packs(), deep=False)
        # A delta that cannot be read may have a row that is missed, or say that a stream ended.
        is_whole = all(report.is_whole for report in again.packs if not report.gone)
        known = {found.key for found in first.findings}
        self._seen.findings += [
            found.finding()
            for found in sorted(again.findings, key=lambda found: found.key)
            if found.key in known and (is_whole or found.code not in _UNCERTAIN)
        ]
        if first.left_out and again.left_out:
            self._seen.left_out += min(first.left_out, again.left_out)

    def _compare_dead(self) -> None:
        """What the catalog says of dead bytes, before and after, has what was found between."""
        for pack in self._packs():
            report = self._reports.get(pack.name)
            if report is None or report.gone:
                continue
            before, dead = report.info.dead_bytes, report.dead_bytes
            if not before <= dead <= pack.dead_bytes:
                what = f"it says that {before} bytes of {pack.name} are dead, and {dead} are"
                self._seen.findings.append(Finding("damage", CATALOG, what))

    def _check_companions(self) -> None:
        """Packs without a delta are named by one that has, or take the place of one that is."""
        reports = self._reports.values()
        if any(report.gone or not report.is_whole for report in reports):
            # One may be named by what was not read.
            return
        named = {name for report in reports for name in report.companions}
        what = "it is in use, and no other pack names it: a rebuild would not find it"
        self._seen.findings += [
            Finding("damage", report.name, what)
            for report in reports
            if not report.info.has_delta
            and report.name not in named
            and not report.supersedes & named
        ]

    def _pass(self, packs: Sequence[PackInfo], *, deep: bool, follows: bool = False) -> Pass:
        what = "reading packs" if deep else "looking at the streams again"
        looks = [
            Look(batch, self._connection, self._place, self._store_id, self._via, deep, follows)
            for batch in _batches(list(enumerate(packs)))
        ]
        return run_pass(self._spark, looks, what, self._progress)

    def _packs(self) -> list[PackInfo]:
        return self._server.collect(lambda client: client.storage.packs())

    def _flushed(self) -> int:
        return int(self._server.run(lambda client: client.storage.store()).flushed)


def _batches(
    packs: Sequence[tuple[int, PackInfo]],
) -> Iterator[tuple[tuple[int, PackInfo], ...]]:
    """Packs that make a task: one that is large, or as many as are worth one."""
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
    """Where the deltas do not stand for the log from 0 to `flushed`, each position once.

    The packs were listed when `flushed` was somewhere from `before` to `after`.
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
        yield f"it says that packs reach position {before}, and they reach {at}"
