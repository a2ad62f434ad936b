"""How long it takes to import a client."""

from __future__ import annotations

import subprocess

from bench.clients.contest import OURS_UVLOOP, Client, contestants, figures, take_turns
from bench.clients.work import Values
from bench.scenario import Plan
from bench.storage.figures import Measured, Sizes, Step

PACKAGES = {"ours": "holdfast.client", "published": "durable_streams"}
TIMED = "import time; began = time.perf_counter(); import {}; print(time.perf_counter() - began)"
TIMES = 5


def _run(plan: Plan, _sizes: Sizes) -> Measured:
    clients = [client for client in contestants(plan) if client is not OURS_UVLOOP]
    samples = take_turns(plan, clients, "import", _measure)
    return Measured(figures("import", samples, "ms", "{:.0f} ms", less_is_better=True))


def _measure(client: Client, _name: str) -> Values:
    """The shortest of a few: the first one may have to compile."""
    command = [client.python, "-c", TIMED.format(PACKAGES[client.module])]
    times_s = [float(subprocess.check_output(command)) for _ in range(TIMES)]
    return {"ms": min(times_s) * 1e3}


STEP = Step(
    "importing",
    "`import holdfast.client` and `import durable_streams` in a new process, the shortest of "
    f"{TIMES} attempts.",
    _run,
)
