"""256 B appends over 1,000 streams, at 64 and at 256 connections."""

from __future__ import annotations

from bench.client import Request, length_of, send_all
from bench.load import Load, measure, warm_up
from bench.process import Running
from bench.scenario import Metrics, Plan, Scenario

STREAMS = 1000
APPEND_BYTES = 256
CONTENT_TYPE = "application/octet-stream"
CONNECTIONS = (64, 256)


def create_streams(target: Running) -> None:
    """Create the streams that the load appends to."""
    headers = {"Content-Type": CONTENT_TYPE}
    paths = (f"{target.server.prefix}{i}" for i in range(STREAMS))
    send_all(target.port, [Request("PUT", path, headers=headers) for path in paths])


def load(target: Running, connections: int) -> Load:
    """Describe the append load for one server."""
    arguments = (target.server.prefix, str(STREAMS), str(APPEND_BYTES), CONTENT_TYPE)
    return Load("append.lua", arguments, connections)


def _run(target: Running, plan: Plan) -> dict[str, Metrics]:
    checked = target.server.speaks_protocol
    if checked:
        create_streams(target)
    acknowledged = 0
    metrics = {}
    for connections in CONNECTIONS:
        acknowledged += warm_up(target, load(target, connections))
        sample = measure(target, load(target, connections), plan.seconds)
        acknowledged += sample.succeeded
        metrics[str(connections)] = sample.metrics
        plan.console.print(f"    {connections} connections: {sample}", highlight=False)
    if checked:
        _check_stored(target, acknowledged)
    return metrics


def _check_stored(target: Running, acknowledged: int) -> None:
    """Insist that what was acknowledged is in the streams: a fast answer alone is not an append."""
    paths = (f"{target.server.prefix}{i}" for i in range(STREAMS))
    heads = send_all(target.port, [Request("HEAD", path) for path in paths])
    stored = sum(length_of(head) for head in heads) // APPEND_BYTES
    if stored < acknowledged:
        raise RuntimeError(f"{acknowledged} appends acknowledged, {stored} found in the streams")


SCENARIO = Scenario(
    key="append",
    title="Appends",
    note=f"{APPEND_BYTES} B appends over {STREAMS:,} streams, one at a time per connection.",
    cases=tuple(map(str, CONNECTIONS)),
    run=_run,
    needs_protocol=False,
)
