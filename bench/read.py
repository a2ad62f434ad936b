"""Catch-up reads of 1 KiB and of 1 MiB streams over 32 connections."""

from __future__ import annotations

from bench.client import Client, Request, send_all
from bench.load import Load, measure, warm_up
from bench.process import Running
from bench.scenario import Metrics, Plan, Scenario

APPEND_BYTES = 1024
CONNECTIONS = 32
CONTENT_TYPE = {"Content-Type": "application/octet-stream"}

# case: (streams, appends of 1 KiB in each)
CASES = {"1 KiB": (100, 1), "1 MiB": (4, 1024)}


def _run(target: Running, plan: Plan) -> dict[str, Metrics]:
    metrics = {}
    for case, (streams, appends) in CASES.items():
        prefix = f"{target.server.prefix}{case.replace(' ', '')}-"
        _prepare(target, prefix, streams, appends)
        answered = _check_answer(target, prefix + "0", appends * APPEND_BYTES)
        load = Load("read.lua", (prefix, str(streams)), CONNECTIONS)
        warm_up(target, load)
        sample = measure(target, load, plan.seconds)
        # wrk counts the heads too: an answer cut short anywhere would show as fewer bytes.
        if sample.bytes_per_s < sample.per_s * answered * 0.99:
            raise RuntimeError(f"{case} reads: fewer bytes arrived than {answered} per answer")
        metrics[case] = sample.metrics | {"answer_bytes": answered}
        plan.console.print(f"    {case}: {sample}", highlight=False)
    return metrics


def _prepare(target: Running, prefix: str, streams: int, appends: int) -> None:
    paths = [f"{prefix}{i}" for i in range(streams)]
    send_all(target.port, [Request("PUT", path, headers=CONTENT_TYPE) for path in paths])
    body = bytes(range(256)) * (APPEND_BYTES // 256)
    order = [path for _ in range(appends) for path in paths]
    send_all(target.port, [Request("POST", path, body, CONTENT_TYPE) for path in order])


def _check_answer(target: Running, path: str, expected_bytes: int) -> int:
    """Read one stream as the load will; return how many bytes a single answer carries."""
    with Client(target.port) as client:
        body = client.send(Request("GET", f"{path}?offset=-1")).body
    if len(body) != expected_bytes:
        raise RuntimeError(f"a catch-up of {expected_bytes} bytes was answered with {len(body)}")
    return len(body)


SCENARIO = Scenario(
    key="read",
    title="Catch-up reads",
    note=f"Whole streams from offset -1 over {CONNECTIONS} connections; appended 1 KiB at a time.",
    cases=tuple(CASES),
    run=_run,
)
