"""Forks of one large stream: from memory, and from packs."""

from __future__ import annotations

import time

from bench.client import Client, Request
from bench.scenario import Plan
from bench.storage.figures import MB, Figure, Measured, Sizes, Step
from bench.storage.node import CONTENT_TYPE, UNLIMITED, Node, node

FORKS = 100
APPEND_BYTES = 4_000_000
SOURCE = "/v1/stream/forks/source"
HEADERS = {"Content-Type": CONTENT_TYPE}


def _run(plan: Plan, sizes: Sizes) -> Measured:
    with node("fork") as made:
        made.start(*UNLIMITED)
        appends = max(2, int(sizes.fork_mb * MB) // APPEND_BYTES)
        _write(made, appends)
        plan.console.print(f"    {appends * APPEND_BYTES / MB:,.0f} MB written", highlight=False)
        hot = _fork(plan, made, "hot", appends)
        made.flush()
        made.stop()
        made.start()
        made.settle()
        cold = _fork(plan, made, "cold", appends)
    what = f"fork of {appends * APPEND_BYTES / MB:,.0f} MB"
    return Measured(
        [
            figure
            for name, times_ms in (("hot", hot), ("cold", cold))
            for figure in (
                Figure(f"{what}, {name} source: p50", _at(times_ms, 50), "{:.2f} ms", 5),
                Figure(f"{what}, {name} source: p99", _at(times_ms, 99), "{:.2f} ms", 5),
            )
        ]
    )


def _write(made: Node, appends: int) -> None:
    made.send(Request("PUT", SOURCE, headers=HEADERS))
    body = bytes(range(250)) * (APPEND_BYTES // 250)
    for _ in range(appends):
        made.send(Request("POST", SOURCE, body, HEADERS))


def _fork(plan: Plan, made: Node, name: str, appends: int) -> list[float]:
    """Fork at offsets all over the stream; the times in order of length."""
    times_ms = []
    with Client(made.port) as client:
        for number in range(FORKS):
            offset = number % appends * APPEND_BYTES + APPEND_BYTES
            headers = {"Stream-Forked-From": SOURCE, "Stream-Fork-Offset": f"{offset:020d}"}
            started_s = time.perf_counter()
            response = client.request("PUT", f"/v1/stream/forks/{name}-{number}", headers=headers)
            times_ms.append((time.perf_counter() - started_s) * 1e3)
            if response.status != 201 or int(response.headers["stream-next-offset"]) != offset:
                raise RuntimeError(f"a fork was answered with {response.status}: {response.body!r}")
        _check(client, f"/v1/stream/forks/{name}-0")
    times_ms.sort()
    p50_ms, p99_ms = _at(times_ms, 50), _at(times_ms, 99)
    plan.console.print(f"    {name}: p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms", highlight=False)
    return times_ms


def _check(client: Client, path: str) -> None:
    body = client.send(Request("GET", f"{path}?max_bytes=1000")).body
    if body != bytes(range(250)) * 4:
        raise RuntimeError(f"{path} does not start as its source does")


def _at(times_ms: list[float], percent: int) -> float:
    return times_ms[len(times_ms) * percent // 100]


STEP = Step(
    "fork",
    f"One stream in appends of {APPEND_BYTES / MB:g} MB; {FORKS} forks of it, one after the other "
    "over one connection, at offsets all over it, each timed by its client and on disk when it is "
    "answered. Hot: all of the source is in memory, with the hot limits raised. Cold: after a "
    "flush and a restart with default settings.",
    _run,
)
