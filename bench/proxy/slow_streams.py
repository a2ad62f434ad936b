"""Many slow upstreams at once, each with a reader: what arrives, and how late."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from bench.process import cpu_of_tree
from bench.proxy.rig import rig
from bench.scenario import Plan
from bench.storage.figures import Figure, Measured, Sizes, Step

PER_S = 20
SECONDS = 20
LOAD_TIMEOUT_S = 180.0


def _run(_plan: Plan, sizes: Sizes) -> Measured:
    streams, chunks = sizes.proxy_streams, PER_S * SECONDS
    with rig("slow") as made:
        numbers = (made.node.port, made.upstream_port, streams, chunks, PER_S)
        command = [sys.executable, "-m", "bench.proxy.load", *map(str, numbers)]
        cpu, started_s = cpu_of_tree(made.node.pid), time.monotonic()
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LOAD_TIMEOUT_S
        )
        if done.returncode:
            raise RuntimeError(f"the load failed: {done.stderr.strip().splitlines()[-1:]}")
        spent_s = (cpu_of_tree(made.node.pid) - cpu).total_s
        elapsed_s = time.monotonic() - started_s
    found = json.loads(done.stdout)
    what = f"{streams} upstreams of {PER_S} chunks/s, {SECONDS} s"
    return Measured(
        [
            Figure(f"{what}: chunk delay, p99", found["p99_ms"], "{:.1f} ms", at_most=250),
            Figure(f"{what}: bytes missing", found["missing"], at_most=0),
            Figure(f"{what}: chunk delay, p50", found["p50_ms"], "{:.1f} ms"),
            Figure(f"{what}: chunk delay, longest", found["max_ms"], "{:.1f} ms"),
            Figure(f"{what}: server busy", spent_s / elapsed_s, "{:.0%} of a core"),
            Figure(f"{what}: readers busy", found["busy"], "{:.0%} of a core"),
            Figure(
                f"{what}: CPU of the server per chunk",
                spent_s * 1e6 / streams / chunks,
                "{:.0f} µs",
            ),
        ]
    )


STEP = Step(
    "slow-streams",
    "Upstreams that send 64 B at a time, all called through the proxy by one client and read over "
    "SSE from the start, one reader each. A chunk's delay is from when the upstream sends it until "
    "its reader has it: parsed, framed, on disk, published, encoded. The server has one core; the "
    "upstream and the readers share the other.",
    _run,
)
