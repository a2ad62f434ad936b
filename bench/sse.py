"""1,000 SSE readers of one stream: paced appends for latency, then as fast as readers follow."""

from __future__ import annotations

import json
import subprocess
import sys

from bench import fanout, tools
from bench.client import Client, Request
from bench.process import LOAD_CPU, Running, pinned, stop
from bench.scenario import Metrics, Plan, Scenario, disturbance

WAIT_BEYOND_S = 120
# Servers end an SSE connection after about 60 s, and all phases run over the same connections.
PHASE_SECONDS_MAX = 10


def _run(target: Running, plan: Plan) -> dict[str, Metrics]:
    path = target.server.prefix + "sse"
    with Client(target.port) as client:
        client.send(Request("PUT", path, headers={"Content-Type": fanout.CONTENT_TYPE}))
    seconds = min(plan.seconds, PHASE_SECONDS_MAX)
    arguments = [str(target.port), path, str(target.pid), str(seconds)]
    generator = subprocess.Popen(
        pinned(LOAD_CPU, [sys.executable, "-m", "bench.fanout", *arguments]),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=tools.BENCH_DIR.parent,
    )
    try:
        timeout_s = len(fanout.PHASES) * seconds + WAIT_BEYOND_S
        output = generator.communicate(timeout=timeout_s)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        raise RuntimeError("the SSE generator did not finish") from None
    finally:
        stop(generator)
    if generator.returncode != 0:
        raise RuntimeError(f"the SSE generator failed: {output.strip().splitlines()[-1:]}")
    metrics: dict[str, Metrics] = json.loads(output.splitlines()[-1])
    for case, m in metrics.items():
        plan.console.print(
            f"    {case}: {m['per_s']:,.0f} deliveries/s, p50 {m['p50_ms']:.1f} ms, "
            f"p99 {m['p99_ms']:.1f} ms, generator {m['generator_busy']:.0%} busy, "
            f"{m['failed']:.0f} missing{disturbance(m['others'])}",
            highlight=False,
        )
    return metrics


SCENARIO = Scenario(
    key="sse",
    title="SSE fan-out",
    note=(
        f"{fanout.READERS:,} readers of one stream, {fanout.MESSAGE_BYTES} B messages. A delivery "
        f"is one message at one reader, however many share an event. Unpaced, writers wait while "
        f"readers are on average {fanout.LAG_MAX} messages behind."
    ),
    cases=tuple(phase.case for phase in fanout.PHASES),
    run=_run,
)
