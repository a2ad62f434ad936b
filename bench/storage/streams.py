"""Very many streams with little in each: memory after a flush, restart, first reads."""

from __future__ import annotations

import random
import time

from bench.client import PageReader
from bench.scenario import Plan
from bench.servers import PREFIX
from bench.storage.figures import Figure, Measured, Sizes, Step
from bench.storage.node import Node, create_streams, node, rss_mb

BODY_BYTES = 100
READS = 2000


def _run(plan: Plan, sizes: Sizes) -> Measured:
    what = f"{sizes.streams:,} streams of {BODY_BYTES} B"
    with node("streams") as made:
        made.start()
        started_s = time.perf_counter()
        refused = create_streams(made, sizes.streams, BODY_BYTES)["failed"]
        created_s = time.perf_counter() - started_s
        plan.console.print(f"    {what} created in {created_s:.1f} s, {refused:,} refused")
        flush_s = made.flush()
        server_mb, child_mb = rss_mb(made.pid), rss_mb(made.child_pid)
        plan.console.print(
            f"    flushed in {flush_s:.1f} s: server {server_mb:.0f} MB, child {child_mb:.0f} MB"
        )
        made.stop()
        ready_s = made.start()
        plan.console.print(f"    ready again in {ready_s:.2f} s")
        times_ms = _first_reads(made, sizes.streams)
        if made.status()["streams"] != sizes.streams:
            raise RuntimeError(f"{made.status()['streams']} streams are left of {sizes.streams}")
    p50_ms, p99_ms = (times_ms[len(times_ms) * percent // 100] for percent in (50, 99))
    plan.console.print(f"    first reads: p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms")
    reads = f"{what}: first read of a stream after the restart"
    return Measured(
        [
            Figure(f"{what}: server's memory after the flush", server_mb, "{:,.0f} MB", 300),
            Figure(f"{what}: storage process's memory then", child_mb, "{:,.0f} MB"),
            Figure(f"{what}: restart to ready", ready_s, "{:.2f} s", 3),
            Figure(f"{reads}, p50", p50_ms, "{:.2f} ms"),
            Figure(f"{reads}, p99", p99_ms, "{:.2f} ms", 10),
            Figure(f"{what}: created per second", sizes.streams / created_s),
            Figure(f"{what}: responses of 503 meanwhile", refused),
        ]
    )


def _first_reads(made: Node, streams: int) -> list[float]:
    """Read random streams, none twice; the times in order of length."""
    chosen = random.Random(1).sample(range(streams), min(READS, streams))
    times_ms = []
    with PageReader(made.port) as reader:
        for number in chosen:
            started_s = time.perf_counter()
            page = reader.read(f"{PREFIX}{number}", "-1")
            times_ms.append((time.perf_counter() - started_s) * 1e3)
            if page.size_bytes != BODY_BYTES or not page.up_to_date:
                raise RuntimeError(f"stream {number} has {page.size_bytes} B, not {BODY_BYTES}")
    return sorted(times_ms)


STEP = Step(
    "streams",
    f"Each stream is created with its {BODY_BYTES} B in one PUT and default settings; what is "
    "refused is sent again, after the time that the response says. Then everything is flushed, the "
    "server stopped by SIGTERM and started again. Ready is the first 200 of `/readyz/local`, "
    f"counted from starting the process. {READS:,} random streams are read right after that, one "
    "at a time over one connection, each once. The block cache is cold then, the page cache of the "
    "operating system warm.",
    _run,
)
