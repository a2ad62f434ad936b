"""The job `compact`: rewrite groups of packs, each in a Spark task.

Packs are sorted by stream and offset, so a merge brings each stream's bytes together in few
extents. Dead bytes are dropped.

Rules:

- Each group is swapped in by itself, by a compare-and-set on the server. If the server's own
  merging was faster, the swap is refused, nothing has changed, and the packs are planned anew.
- Only packs that existed when the job began are rewritten, so it ends however much is written.
- Packs in use are pinned, so that none is removed while it is read.
- The job can be killed at any moment; the next run continues from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from holdfast.clock import SystemClock
from holdfast.errors import SettingsError
from holdfast.failpoints import failpoint
from holdfast.settings.options import option
from holdfast.spark.connection import SparkClient, parse_size
from holdfast.spark.jobs.options import StoreOptions
from holdfast.spark.jobs.progress import Progress
from holdfast.spark.jobs.result import JobResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.client import StoreInfo
    from holdfast.format.packs import PackInfo
    from holdfast.spark.compaction import CompactionLimits, PackGroup, RewriteOutcome

__all__ = ["Compact", "Compacted", "run"]

# How often packs are planned anew after the server's own merging was faster.
_ROUNDS_MAX: Final = 5
_MIN_PACKS_MAX: Final = 100
_TARGET_BYTES_MIN: Final = 1024


@dataclass(frozen=True, kw_only=True)
class Compact(StoreOptions):
    """Rewrite packs: merge neighbours, bring each stream's bytes together, drop dead bytes."""

    target_size: str = option("Merge neighbouring packs up to this size, such as 512m.", "1g")
    dead_share: float = option(
        "Rewrite a pack if at least this share of it is dead, above 0 up to 1.", 0.2
    )
    min_packs: int = option("Merge no fewer packs than this, 2 to 100.", 2)
    max_messages: int = option(
        "Messages in one task; each takes 20 bytes in its temporary files.",
        20_000_000,
    )
    flush: bool = option("Flush the log first, so that everything is in packs.", True)
    dry_run: bool = option("Only report what would be done.", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if parse_size(self.target_size, "'target_size'") < _TARGET_BYTES_MIN:
            raise SettingsError(f"'target_size' is at least 1k, not {self.target_size!r}.")
        if not 0 < self.dead_share <= 1:
            raise SettingsError(f"'dead_share' is above 0 and up to 1, not {self.dead_share:g}.")
        if not 2 <= self.min_packs <= _MIN_PACKS_MAX:
            raise SettingsError(f"'min_packs' is from 2 to {_MIN_PACKS_MAX}, not {self.min_packs}.")
        if self.max_messages < 1:
            raise SettingsError(f"'max_messages' is at least 1, not {self.max_messages}.")


@dataclass(frozen=True)
class Compacted(JobResult):
    """What was done, or would be done in a dry run, to the packs that existed at the start."""

    dry_run: bool
    packs_before: int
    packs_after: int
    bytes_before: int
    bytes_after: int
    # Bytes of messages that were no longer needed.
    dropped_bytes: int
    # Groups of packs that became one pack each.
    groups: int
    # Refused swaps, and the groups that were left because of that in the end.
    refused: int
    left: int
    # Packs that cannot be read, and why.
    damaged: list[str]


@dataclass
class _Tally:
    groups: int = 0
    refused: int = 0
    dropped_bytes: int = 0
    # Names of packs that could not be read.
    unreadable: set[str] = field(default_factory=set)
    damaged: list[str] = field(default_factory=list)

    def take(self, group: PackGroup, outcome: RewriteOutcome) -> None:
        if outcome.result == "done":
            self.groups += 1
            self.dropped_bytes += outcome.dropped_bytes
        elif outcome.result == "unreadable":
            named = {name for name in group.names if name in outcome.message}
            self.unreadable |= named or set(group.names)
            self.damaged.append(outcome.message)
        else:
            self.refused += 1


def run(spark: SparkSession, job: Compact, progress: Progress) -> Compacted:
    from holdfast.spark.compaction import CompactionLimits, plan_groups  # noqa: PLC0415

    limits = CompactionLimits(
        parse_size(job.target_size, "'target_size'"),
        job.dead_share,
        job.min_packs,
        job.max_messages,
    )
    with SparkClient(job.server) as server:
        if job.flush and not job.dry_run:
            progress.start("flushing")
            server.run(lambda client: client.storage.flush())
        progress.start("planning")
        packs = _packs(server)
        if job.dry_run:
            progress.done()
            return _foreseen(packs, plan_groups(packs, limits))
        return _Compaction(spark, job, server, limits, progress).run(packs)


class _Compaction:
    def __init__(
        self,
        spark: SparkSession,
        job: Compact,
        server: SparkClient,
        limits: CompactionLimits,
        progress: Progress,
    ) -> None:
        self._spark = spark
        self._job = job
        self._server = server
        self._limits = limits
        self._progress = progress
        self._tally = _Tally()

    def run(self, before: Sequence[PackInfo]) -> Compacted:
        from holdfast.spark.compaction import pinned  # noqa: PLC0415 (only where jobs run)

        through = max((pack.through for pack in before), default=0)
        store = self._server.run(lambda client: client.storage.store())
        with pinned(self._server, f"compact-{SystemClock().random_u64():016x}"):
            # Listed again: packs that went out of use before the pin may be gone.
            groups = self._plan(through)
            for _ in range(_ROUNDS_MAX):
                if not groups:
                    break
                failpoint("compact.planned")
                self._rewrite(groups, store)
                groups = self._plan(through)
            failpoint("compact.finished")
        after = _up_to(through, _packs(self._server))
        self._progress.done()
        tally = self._tally
        return Compacted(
            ok=not tally.damaged,
            dry_run=False,
            packs_before=len(before),
            packs_after=len(after),
            bytes_before=sum(pack.size_bytes for pack in before),
            bytes_after=sum(pack.size_bytes for pack in after),
            dropped_bytes=tally.dropped_bytes,
            groups=tally.groups,
            refused=tally.refused,
            left=len(groups),
            damaged=tally.damaged,
        )

    def _plan(self, through: int) -> list[PackGroup]:
        from holdfast.spark.compaction import plan_groups  # noqa: PLC0415 (only where jobs run)

        packs = _up_to(through, _packs(self._server))
        return plan_groups(packs, self._limits, self._tally.unreadable)

    def _rewrite(self, groups: Sequence[PackGroup], store: StoreInfo) -> None:
        from holdfast.spark.compaction import Rewrite, rewrite  # noqa: PLC0415
        from holdfast.spark.jobs.tasks import run_tasks  # noqa: PLC0415 (only where jobs run)

        place = self._job.place(store.store)
        tasks = [Rewrite(group, self._job.server, place, store.store_id) for group in groups]
        outcomes = run_tasks(
            self._spark, tasks, rewrite, what="rewriting packs", progress=self._progress
        )
        for group, outcome in zip(groups, outcomes, strict=True):
            self._tally.take(group, outcome)


def _packs(server: SparkClient) -> list[PackInfo]:
    return server.collect(lambda client: client.storage.packs())


def _up_to(through: int, packs: Sequence[PackInfo]) -> list[PackInfo]:
    return [pack for pack in packs if pack.through <= through]


def _foreseen(packs: Sequence[PackInfo], groups: Sequence[PackGroup]) -> Compacted:
    size_bytes = sum(pack.size_bytes for pack in packs)
    dead_bytes = sum(group.dead_bytes for group in groups)
    return Compacted(
        ok=True,
        dry_run=True,
        packs_before=len(packs),
        packs_after=len(packs) - sum(len(group.packs) - 1 for group in groups),
        bytes_before=size_bytes,
        bytes_after=size_bytes - dead_bytes,
        dropped_bytes=dead_bytes,
        groups=len(groups),
        refused=0,
        left=0,
        damaged=[],
    )
