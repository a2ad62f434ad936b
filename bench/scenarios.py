"""The load that all servers are compared under: appends, catch-up reads, SSE fan-out."""

from __future__ import annotations

import json
import subprocess
import sys

from bench import fanout, tools
from bench.client import Client, Request, length_of, send_all
from bench.load import Load, measure, warm_up
from bench.process import LOAD_CPU, Running, pinned, stop
from bench.scenario import Metrics, Plan, Scenario, disturbance

STREAMS = 1000
APPEND_BYTES = 256
CONTENT_TYPE = "application/octet-stream"
APPEND_CONNECTIONS = (64, 256)


def create_streams(target: Running) -> None:
    """Create the streams that the load appends to."""
    headers = {"Content-Type": CONTENT_TYPE}
    paths = (f"{target.server.prefix}{i}" for i in range(STREAMS))
    send_all(target.port, [Request("PUT", path, headers=headers) for path in paths])


def append_load(target: Running, connections: int) -> Load:
    """Describe the append load for one server."""
    arguments = (target.server.prefix, str(STREAMS), str(APPEND_BYTES), CONTENT_TYPE)
    return Load("append.lua", arguments, connections)


def _run_append(target: Running, plan: Plan) -> dict[str, Metrics]:
    checked = target.server.speaks_protocol
    if checked:
        create_streams(target)
    acknowledged = 0
    metrics = {}
    for connections in APPEND_CONNECTIONS:
        acknowledged += warm_up(target, append_load(target, connections))
        sample = measure(target, append_load(target, connections), plan.seconds)
        acknowledged += sample.succeeded
        metrics[str(connections)] = sample.metrics
        plan.console.print(f"    {connections} connections: {sample}", highlight=False)
    if checked:
        _check_stored(target, acknowledged)
    return metrics


def _check_stored(target: Running, acknowledged: int) -> None:
    """Check that all acknowledged appends are stored: a fast response alone is not an append."""
    paths = (f"{target.server.prefix}{i}" for i in range(STREAMS))
    heads = send_all(target.port, [Request("HEAD", path) for path in paths])
    stored = sum(length_of(head) for head in heads) // APPEND_BYTES
    if stored < acknowledged:
        raise RuntimeError(f"{acknowledged} appends acknowledged, {stored} found in the streams")


APPEND = Scenario(
    key="append",
    title="Appends",
    note=f"{APPEND_BYTES} B appends over {STREAMS:,} streams, one at a time per connection.",
    cases=tuple(map(str, APPEND_CONNECTIONS)),
    run=_run_append,
    needs_protocol=False,
)


READ_APPEND_BYTES = 1024
READ_CONNECTIONS = 32
READ_HEADERS = {"Content-Type": "application/octet-stream"}

# case: (streams, appends of 1 KiB in each)
READ_CASES = {"1 KiB": (100, 1), "1 MiB": (4, 1024)}


def _run_read(target: Running, plan: Plan) -> dict[str, Metrics]:
    metrics = {}
    for case, (streams, appends) in READ_CASES.items():
        prefix = f"{target.server.prefix}{case.replace(' ', '')}-"
        _prepare(target, prefix, streams, appends)
        answered = _check_answer(target, prefix + "0", appends * READ_APPEND_BYTES)
        load = Load("read.lua", (prefix, str(streams)), READ_CONNECTIONS)
        warm_up(target, load)
        sample = measure(target, load, plan.seconds)
        # wrk counts the heads too: an response cut short anywhere would show as fewer bytes.
        if sample.bytes_per_s < sample.per_s * answered * 0.99:
            raise RuntimeError(f"{case} reads: fewer bytes arrived than {answered} per response")
        metrics[case] = sample.metrics | {"answer_bytes": answered}
        plan.console.print(f"    {case}: {sample}", highlight=False)
    return metrics


def _prepare(target: Running, prefix: str, streams: int, appends: int) -> None:
    paths = [f"{prefix}{i}" for i in range(streams)]
    send_all(target.port, [Request("PUT", path, headers=READ_HEADERS) for path in paths])
    body = bytes(range(256)) * (READ_APPEND_BYTES // 256)
    order = [path for _ in range(appends) for path in paths]
    send_all(target.port, [Request("POST", path, body, READ_HEADERS) for path in order])


def _check_answer(target: Running, path: str, expected_bytes: int) -> int:
    """Read one stream as the load will; return how many bytes a single response carries."""
    with Client(target.port) as client:
        body = client.send(Request("GET", f"{path}?offset=-1")).body
    if len(body) != expected_bytes:
        raise RuntimeError(f"a catch-up of {expected_bytes} bytes was answered with {len(body)}")
    return len(body)


READ = Scenario(
    key="read",
    title="Catch-up reads",
    note=(
        f"Whole streams from offset -1 over {READ_CONNECTIONS} connections; "
        "appended 1 KiB at a time."
    ),
    cases=tuple(READ_CASES),
    run=_run_read,
)


WAIT_BEYOND_S = 120
# Servers end an SSE connection after about 60 s, and all phases run over the same connections.
PHASE_SECONDS_MAX = 10


def _run_sse(target: Running, plan: Plan) -> dict[str, Metrics]:
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


SSE = Scenario(
    key="sse",
    title="SSE fan-out",
    note=(
        f"{fanout.READERS:,} readers of one stream, {fanout.MESSAGE_BYTES} B messages. A delivery "
        f"is one message at one reader, however many share an event. Unpaced, writers wait while "
        f"readers are on average {fanout.LAG_MAX} messages behind."
    ),
    cases=tuple(phase.case for phase in fanout.PHASES),
    run=_run_sse,
)


SCENARIOS = {scenario.key: scenario for scenario in (APPEND, READ, SSE)}
