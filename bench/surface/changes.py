"""One reader of a bucket's changes while many streams are appended to at a steady rate."""

from __future__ import annotations

import json
import subprocess
import sys

from bench import tools
from bench.process import LOAD_CPU, pinned, stop
from bench.scenario import Plan
from bench.storage.figures import Figure, Measured, Sizes, Step
from bench.storage.node import create_streams, node
from bench.surface.feed import APPEND_BYTES, CONNECTIONS

WAIT_BEYOND_S = 120
# Times the plan's seconds, and less than an SSE connection lives.
SECONDS_TIMES = 5
SECONDS_MAX = 40
LAG_MS_MAX = 1000


def _run(plan: Plan, sizes: Sizes) -> Measured:
    seconds = min(SECONDS_TIMES * plan.seconds, SECONDS_MAX)
    with node("changes") as made:
        made.start()
        create_streams(made, sizes.feed_streams, 0)
        numbers = (made.port, made.pid, seconds, sizes.feed_streams, sizes.feed_per_s)
        found = _follow([str(number) for number in numbers], seconds)
    plan.console.print(f"    {found}", highlight=False)
    what = f"{sizes.feed_streams:,} streams, {sizes.feed_per_s:,} appends/s for {seconds} s"
    wanted_per_s = 0.99 * sizes.feed_per_s
    on_time = found["p99_ms"] <= LAG_MS_MAX and found["per_s"] >= wanted_per_s
    kept_up = on_time and not found["missing"]
    return Measured(
        [
            Figure(f"{what}: the reader kept up (1) or not (0)", float(kept_up), at_least=1),
            Figure(f"{what}: lag p50", found["p50_ms"], "{:,.1f} ms"),
            Figure(f"{what}: lag p99", found["p99_ms"], "{:,.1f} ms", LAG_MS_MAX),
            Figure(f"{what}: longest lag", found["max_ms"], "{:,.1f} ms"),
            Figure(f"{what}: appends/s acknowledged", found["per_s"], at_least=wanted_per_s),
            Figure(f"{what}: changes that did not come", found["missing"], at_most=0),
            Figure(f"{what}: CPU of the server for each", found["cpu_us"], "{:.1f} µs"),
            Figure(f"{what}: server busy", found["server_busy"] * 100, "{:.0f} %"),
            Figure(f"{what}: load generator busy", found["busy"] * 100, "{:.0f} %"),
        ]
    )


def _follow(arguments: list[str], seconds: int) -> dict[str, float]:
    generator = subprocess.Popen(
        pinned(LOAD_CPU, [sys.executable, "-m", "bench.surface.feed", *arguments]),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=tools.BENCH_DIR.parent,
    )
    try:
        printed = generator.communicate(timeout=seconds + WAIT_BEYOND_S)[0]
    except subprocess.TimeoutExpired:
        raise RuntimeError("the load generator did not finish") from None
    finally:
        stop(generator)
    lines = printed.decode(errors="replace").strip().splitlines()
    if generator.returncode != 0:
        raise RuntimeError(f"the load generator failed: {lines[-1:]}")
    found: dict[str, float] = json.loads(lines[-1])
    return found


STEP = Step(
    "changes",
    f"Appends of {APPEND_BYTES} B to all streams in turn, at a steady rate over {CONNECTIONS} "
    "connections, and one reader of `changes?live=sse` of their bucket. The lag of a change is the "
    "time from sending the append, not from its response, to the arrival of the event about it. "
    "Load and reader are one process. Kept up: the rate was reached, every change came, and "
    f"99 % of them within {LAG_MS_MAX / 1000:g} s.",
    _run,
)
