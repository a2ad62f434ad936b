"""Gigabytes of appends with default settings: memory, refusals, and how large the packs get."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass

from bench.load import run_until
from bench.process import WORK_DIR
from bench.scenario import Plan
from bench.storage.figures import GB, MB, MIB, Figure, Measured, Sizes, Step
from bench.storage.node import MemoryWatch, Node, appends, create_streams, node

STREAMS = 10_000
CONNECTIONS = 256
LARGE_BYTES = 4096
SMALL_BYTES = 100
PROGRESS_S = 5.0
PEAK_MB = 768
PUT_MIB = 32
# The log, the packs, and what merging writes again, whose sources stay for a day.
DISK_TIMES = 3


@dataclass(frozen=True, slots=True)
class _Ingested:
    what: str
    seconds: float
    appended_bytes: float
    peak_mb: float
    server_peak_mb: float
    child_peak_mb: float
    refused: int
    hot_bytes: int
    puts: float
    merges: float
    flushed_bytes: float

    @property
    def mib_per_put(self) -> float:
        return self.flushed_bytes / MIB / max(1.0, self.puts)


def _run(plan: Plan, sizes: Sizes) -> Measured:
    needed_bytes = DISK_TIMES * sizes.ingest_bytes
    WORK_DIR.mkdir(exist_ok=True)
    if shutil.disk_usage(WORK_DIR).free < needed_bytes:
        raise RuntimeError(f"this takes {needed_bytes / GB:.0f} GB of disk, which are not free")
    large = _ingest(plan, LARGE_BYTES, sizes.ingest_bytes)
    small = _ingest(plan, SMALL_BYTES, sizes.small_appends_bytes)
    peak = Figure(f"{small.what}: peak of server and child", small.peak_mb, "{:,.0f} MB")
    refused = Figure(f"{small.what}: responses of 503", small.refused)
    return Measured([*_memory(large), peak, refused, *_puts(large), *_puts(small)])


def _ingest(plan: Plan, size_bytes: int, total_bytes: int) -> _Ingested:
    total = f"{total_bytes / GB:g} GB" if total_bytes >= GB else f"{total_bytes / MB:g} MB"
    what = f"{total} in appends of {size_bytes:,} B"
    with node(f"ingest-{size_bytes}") as made:
        made.start()
        create_streams(made, STREAMS, 0)
        load = appends(STREAMS, size_bytes, CONNECTIONS, "ingest.lua")
        with MemoryWatch(made) as memory:
            progress = _Progress(plan, made, memory, total_bytes)
            started_s = time.perf_counter()
            refused = run_until(made.running, load, progress.reached)["failed"]
            seconds = time.perf_counter() - started_s
            hot_bytes = made.hot_bytes()
            metrics = _once_flushed(made)
        appended_bytes = metrics["holdfast_append_bytes_total"]
        merges = metrics["holdfast_merges_total"]
        found = _Ingested(
            what=what,
            seconds=seconds,
            appended_bytes=appended_bytes,
            peak_mb=memory.peak_mb,
            server_peak_mb=memory.server_peak_mb,
            child_peak_mb=memory.child_peak_mb,
            refused=refused,
            hot_bytes=hot_bytes,
            puts=metrics["holdfast_packs_written_total"] - merges,
            merges=merges,
            flushed_bytes=metrics["holdfast_flush_bytes_total"],
        )
    plan.console.print(
        f"    {what}: {seconds:.1f} s, peak {found.peak_mb:.0f} MB (server "
        f"{found.server_peak_mb:.0f}, child {found.child_peak_mb:.0f}), {refused:,} refused, "
        f"{found.puts:.0f} packs of {found.mib_per_put:.1f} MiB, {merges:.0f} merges",
        highlight=False,
    )
    return found


class _Progress:
    """Says now and then how far it is, and in the end that it is there."""

    def __init__(self, plan: Plan, made: Node, memory: MemoryWatch, total_bytes: int) -> None:
        self._plan = plan
        self._node = made
        self._memory = memory
        self._total_bytes = total_bytes
        self._said_s = time.monotonic()

    def reached(self) -> bool:
        appended_bytes = self._node.metrics()["holdfast_append_bytes_total"]
        if time.monotonic() - self._said_s >= PROGRESS_S:
            self._said_s = time.monotonic()
            self._plan.console.print(
                f"    {appended_bytes / GB:.2f} of {self._total_bytes / GB:g} GB, "
                f"{self._memory.now_mb:.0f} MB of memory",
                highlight=False,
            )
        return appended_bytes >= self._total_bytes


def _once_flushed(made: Node) -> dict[str, float]:
    """The metrics once no flush is under way, so that what was begun is counted whole."""
    while (metrics := made.metrics())["holdfast_flush_in_progress"]:
        time.sleep(0.1)
    return metrics


def _memory(found: _Ingested) -> list[Figure]:
    what = found.what
    return [
        Figure(f"{what}: peak of server and child", found.peak_mb, "{:,.0f} MB", PEAK_MB),
        Figure(f"{what}: peak of the server alone", found.server_peak_mb, "{:,.0f} MB"),
        Figure(f"{what}: peak of the child alone", found.child_peak_mb, "{:,.0f} MB"),
        Figure(f"{what}: message bytes in memory at the end", found.hot_bytes / MB, "{:,.0f} MB"),
        Figure(f"{what}: rate", found.appended_bytes / MB / found.seconds, "{:,.1f} MB/s"),
        Figure(f"{what}: responses of 503", found.refused),
    ]


def _puts(found: _Ingested) -> list[Figure]:
    if not found.puts:
        return []
    what = f"{found.what} to {STREAMS:,} streams"
    return [
        Figure(f"{what}: flushed per PUT", found.mib_per_put, "{:,.1f} MiB", at_least=PUT_MIB),
        Figure(f"{what}: PUTs of flushes", found.puts),
        Figure(f"{what}: PUTs of merges", found.merges),
    ]


STEP = Step(
    "ingest",
    f"Appends to {STREAMS:,} streams over {CONNECTIONS} connections with default settings. After a "
    "503 a connection waits as long as the response says. Memory is the resident set of the server "
    "and of the storage process, sampled every 100 ms and added; the peaks of each alone are the "
    "kernel's own and need not fall together. PUTs are the packs that flushes wrote; nothing was "
    "flushed by hand. Merging writes packs as well, which are counted apart.",
    _run,
)
