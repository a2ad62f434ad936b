"""Catch-up of one large stream: from memory, and from packs."""

from __future__ import annotations

import statistics
import time

from bench.client import PageReader
from bench.load import run_until
from bench.scenario import Plan
from bench.servers import PREFIX
from bench.storage.figures import MIB, Figure, Measured, Sizes, Step
from bench.storage.node import NEVER_FLUSHING, Node, appends, create_streams, node

APPEND_BYTES = 1024
CONNECTIONS = 64
PASSES = 5
SETTLE_S = 0.5
PATH = f"{PREFIX}0"


def _run(plan: Plan, sizes: Sizes) -> Measured:
    with node("catch-up") as made:
        made.start(*NEVER_FLUSHING)
        size_bytes = _write(made, sizes.stream_mib * MIB)
        plan.console.print(f"    {size_bytes / MIB:.0f} MiB written", highlight=False)
        hot = _say(plan, "hot", [_pass(made, size_bytes) for _ in range(PASSES)])
        flush_s = made.flush()
        plan.console.print(f"    flushed in {flush_s:.1f} s", highlight=False)
        first, again = [], []
        for _ in range(PASSES):
            made.stop()
            made.start()
            made.settle()
            first.append(_pass(made, size_bytes))
            again.append(_pass(made, size_bytes))
        cold, repeated = _say(plan, "cold", first), _say(plan, "cold, second pass", again)
    what = f"catch-up of {size_bytes / MIB:.0f} MiB"
    return Measured(
        [
            Figure(f"{what}: cold / hot", cold / hot, "{:.2f}", at_least=0.7),
            Figure(f"{what}: cold again / hot", repeated / hot, "{:.2f}"),
            Figure(f"{what}: hot", hot, "{:,.0f} MiB/s"),
            Figure(f"{what}: cold", cold, "{:,.0f} MiB/s"),
        ]
    )


def _write(made: Node, size_bytes: int) -> int:
    create_streams(made, 1, 0)
    load = appends(1, APPEND_BYTES, CONNECTIONS)
    run_until(
        made.running, load, lambda: made.metrics()["holdfast_append_bytes_total"] >= size_bytes
    )
    # wrk was stopped with appends on their way: some may come yet.
    stored_bytes = -1
    while stored_bytes != (now_bytes := int(made.metrics()["holdfast_stored_bytes"])):
        stored_bytes = now_bytes
        time.sleep(SETTLE_S)
    return stored_bytes


def _pass(made: Node, size_bytes: int) -> float:
    with PageReader(made.port) as reader:
        started_s = time.perf_counter()
        read_bytes = reader.catch_up(PATH)
        seconds = time.perf_counter() - started_s
    if read_bytes != size_bytes:
        raise RuntimeError(f"a catch-up gave {read_bytes} of {size_bytes} bytes")
    return size_bytes / MIB / seconds


def _say(plan: Plan, name: str, passes: list[float]) -> float:
    median = statistics.median(passes)
    each = ", ".join(f"{rate:,.0f}" for rate in passes)
    plan.console.print(f"    {name}: {median:,.0f} MiB/s (of {each})", highlight=False)
    return median


STEP = Step(
    "catch-up",
    f"One stream in appends of {APPEND_BYTES:,} B, read from -1 to its tail by one client over one "
    f"connection in the server's own pages. Medians of {PASSES} passes. Hot: all of it is in "
    "memory, with the hot limits raised. Cold: after a flush and a restart with default settings, "
    "a restart before every pass, once the storage process is up. Again: the pass after that one; "
    "the stream is larger than the block cache. The page cache is warm throughout.",
    _run,
)
