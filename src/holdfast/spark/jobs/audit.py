"""The job `audit`: verify every pack in use, and the catalog against the packs.

- Every byte of every pack is read, and matches its checksum.
- The catalog agrees with each pack's footer, and about each extent in use with the pack's
  directory; in JSON streams, messages end where extents end.
- The extents of each stream cover it from its start to its tail, across all packs, and the tail is
  that of the last delta that has the stream.
- The deltas cover each position of the log once, up to the last flush.

Nothing is changed, and a token that may read everything suffices. Messages that are not flushed yet
and snapshots are not audited.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from holdfast.errors import SettingsError
from holdfast.settings.options import option
from holdfast.spark.connection import SparkClient
from holdfast.spark.jobs.options import StoreOptions
from holdfast.spark.jobs.progress import Progress
from holdfast.spark.jobs.result import JobResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Audit", "Audited", "run"]

_SHOWN_MAX: Final = 100
_FILES_MAX: Final = 16


@dataclass(frozen=True, kw_only=True)
class Audit(StoreOptions):
    """Verify every byte of every pack, and that the catalog says what the packs say."""

    report: str = option(
        "Directory for a table of the findings, as Spark reaches it: Parquet with kind, where and "
        "what. Replaced by each run.",
        "",
        path=True,
    )
    via: Literal["auto", "store", "server"] = option(
        "Read packs from the store, through the server, or from whichever is reachable.", "auto"
    )


@dataclass(frozen=True)
class Audited(JobResult):
    packs: int
    bytes: int
    extents: int
    dead_bytes: int
    streams: int
    # Packs that were merged before they could be read; their bytes were audited elsewhere.
    merged_meanwhile: int
    damage: int
    notes: int
    # The first hundred findings. The report has up to 1000 of each pack and of each part of the
    # streams; further damage is counted.
    findings: list[str]


def run(spark: SparkSession, job: Audit, progress: Progress) -> Audited:
    from holdfast.spark.auditing.audit import FINDINGS, StoreAudit  # noqa: PLC0415
    from holdfast.spark.auditing.pack_task import AuditTask  # noqa: PLC0415

    # Fails before the work, not after it.
    _prepare(job.report)
    with SparkClient(job.server) as server:
        store = server.run(lambda client: client.storage.store())
        task = AuditTask(job.server, job.place(store.store), store.store_id, job.via)
        audit = StoreAudit(spark, server, task, progress)
        try:
            seen = audit.run()
            counts = {"damage": 0, "note": 0}
            first: list[str] = []
            if seen.findings is not None:
                counts |= dict(seen.findings.groupBy("kind").count().collect())
                # Damage first, since only the first findings are shown.
                shown = seen.findings.orderBy("kind", "where", "what").limit(_SHOWN_MAX)
                first = [f"{row['where']}: {row['what']}" for row in shown.collect()]
            if job.report:
                none = spark.createDataFrame([], FINDINGS)
                findings = none if seen.findings is None else seen.findings
                findings.coalesce(_FILES_MAX).write.mode("overwrite").parquet(job.report)
        finally:
            audit.close()
    damage = seen.left_out + counts["damage"]
    return Audited(
        ok=not damage,
        packs=seen.packs,
        bytes=seen.bytes,
        extents=seen.extents,
        dead_bytes=seen.dead_bytes,
        streams=seen.streams,
        merged_meanwhile=seen.gone,
        damage=damage,
        notes=counts["note"],
        findings=first,
    )


def _prepare(report: str) -> None:
    """Create the directory of the report, unless it is a URL, which only Spark can reach."""
    if report and "://" not in report:
        try:
            Path(report).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(
                f"The report {report} cannot be written: {error.strerror}."
            ) from None
