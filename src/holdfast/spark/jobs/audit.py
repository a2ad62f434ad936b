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

import msgspec

from holdfast.errors import SettingsError
from holdfast.settings.options import option
from holdfast.spark.connection import SparkClient
from holdfast.spark.jobs.options import StoreOptions
from holdfast.spark.jobs.progress import Progress
from holdfast.spark.jobs.result import JobResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from holdfast.spark.auditing.checks import AuditFinding

__all__ = ["Audit", "Audited", "run"]

_SHOWN_MAX: Final = 100


@dataclass(frozen=True, kw_only=True)
class Audit(StoreOptions):
    """Verify every byte of every pack, and that the catalog says what the packs say."""

    report: str = option("File to write all findings to, a line of JSON each.", "", path=True)
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
    # The first findings; the report has all.
    findings: list[str]


def run(spark: SparkSession, job: Audit, progress: Progress) -> Audited:
    from holdfast.spark.auditing.audit import StoreAudit  # noqa: PLC0415 (only where jobs run)
    from holdfast.spark.auditing.pack_task import AuditTask  # noqa: PLC0415

    report = Path(job.report) if job.report else None
    if report is not None:
        # Fails before the work, not after it.
        _put(_unfinished(report), b"")
    with SparkClient(job.server) as server:
        store = server.run(lambda client: client.storage.store())
        task = AuditTask(job.server, job.place(store.store), store.store_id, job.via)
        seen = StoreAudit(spark, server, task, progress).run()
    # Damage first, since only the first findings are shown.
    findings = sorted(seen.findings, key=lambda found: found.kind)
    damage = seen.left_out + sum(found.kind == "damage" for found in findings)
    if report is not None:
        _put(_unfinished(report), _lines(findings, seen.left_out))
        _unfinished(report).replace(report)
    return Audited(
        ok=not damage,
        packs=seen.packs,
        bytes=seen.bytes,
        extents=seen.extents,
        dead_bytes=seen.dead_bytes,
        streams=seen.streams,
        merged_meanwhile=seen.gone,
        damage=damage,
        notes=sum(found.kind == "note" for found in findings),
        findings=[str(found) for found in findings[:_SHOWN_MAX]],
    )


def _lines(findings: Sequence[AuditFinding], left_out: int) -> bytes:
    lines = [msgspec.json.encode(found) for found in findings]
    if left_out:
        lines.append(msgspec.json.encode({"kind": "damage", "left_out": left_out}))
    return b"".join(line + b"\n" for line in lines)


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}.unfinished")


def _put(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise SettingsError(f"The report {path} cannot be written: {error.strerror}.") from None
