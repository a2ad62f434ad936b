"""What access control costs the append path: the same load with and without it, in turn."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections import defaultdict

import jwt

from bench.client import Request, send_all
from bench.load import Load, Sample, measure, warm_up
from bench.scenario import Plan, wait_for_quiet
from bench.scenarios import APPEND_BYTES, CONTENT_TYPE, STREAMS
from bench.servers import PREFIX
from bench.storage.figures import Figure, Measured, Sizes, Step
from bench.storage.node import node

CONNECTIONS = 256
SCOPE = "write:bench"
TOKEN = "holdfast_" + "benchmark" * 4
SECRET = "a secret of the benchmark, long enough"
VALID_S = 86_400
OFF, BEARER, JWT = "off", "bearer token", "JWT"


def _modes() -> dict[str, tuple[tuple[str, ...], str]]:
    """Flags of the server, and what its clients send."""
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    claims = {"sub": "bench", "scope": SCOPE, "exp": int(time.time()) + VALID_S}
    signed = jwt.encode(claims, SECRET, algorithm="HS256")
    return {
        OFF: ((), ""),
        BEARER: (("--access-tokens", f"bench {digest} {SCOPE}"), TOKEN),
        JWT: (("--access-jwt-secret", SECRET), signed),
    }


def _run(plan: Plan, _sizes: Sizes) -> Measured:
    modes = list(_modes().items())
    samples: dict[str, list[Sample]] = defaultdict(list)
    for number in range(plan.rounds):
        turn = number % len(modes)
        for name, (flags, token) in modes[turn:] + modes[:turn]:
            wait_for_quiet(plan.patience_s)
            sample = _measure(plan, flags, token)
            samples[name].append(sample)
            label = f"round {number + 1}/{plan.rounds}, {name}"
            plan.console.print(f"    {label}: {sample}", highlight=False)
    rates = {name: statistics.median(each.per_s for each in samples[name]) for name in samples}
    what = f"{APPEND_BYTES} B appends at {CONNECTIONS} connections"
    times = f"{plan.rounds} × {plan.seconds} s each"
    ratios = [
        Figure(f"{what}, {times}: {name} / off", rates[name] / rates[OFF], "{:.3f}", at_least=0.95)
        for name in (BEARER, JWT)
    ]
    return Measured(
        [
            *ratios,
            *(Figure(f"{what}: per second, {name}", rates[name]) for name in rates),
            Figure(
                f"{what}: failed", sum(each.failed for found in samples.values() for each in found)
            ),
        ]
    )


def _measure(plan: Plan, flags: tuple[str, ...], token: str) -> Sample:
    with node("access") as made:
        made.start(*flags)
        headers = {"Content-Type": CONTENT_TYPE}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        paths = (f"{PREFIX}{number}" for number in range(STREAMS))
        send_all(made.port, [Request("PUT", path, headers=headers) for path in paths])
        sizes = (PREFIX, str(STREAMS), str(APPEND_BYTES), CONTENT_TYPE)
        load = Load("append.lua", (*sizes, token) if token else sizes, CONNECTIONS)
        warm_up(made.running, load)
        sample = measure(made.running, load, plan.seconds)
    if sample.failed > sample.succeeded // 100:
        raise RuntimeError(f"{sample.failed} appends failed")
    return sample


STEP = Step(
    "access",
    f"{APPEND_BYTES} B appends over {STREAMS:,} streams, as in the first scenario: without access "
    "control; with one token of the server, scoped to the bucket; and with one JWT (HS256). In "
    "turn, each over a fresh directory. The load sends the token only where it is needed, so the "
    "bytes of the header are part of the cost.",
    _run,
)
