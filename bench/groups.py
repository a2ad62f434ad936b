"""Benchmarks on Holdfast's server alone: groups of steps with servers, data and figures each."""

from __future__ import annotations

import resource
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from subprocess import SubprocessError
from typing import Any

from bench import machine
from bench.client import UnexpectedResponseError
from bench.clients.steps import STEPS as CLIENT_STEPS
from bench.process import ServerFailedError, machine_busy_s
from bench.proxy.steps import STEPS as PROXY_STEPS
from bench.scenario import Plan, wait_for_quiet
from bench.spark import folding, many, planning, tables, writing
from bench.storage import catch_up, flushing, ingest, recovery, streams
from bench.storage.figures import FULL, Sizes, Step
from bench.surface import access, bootstrap, changes, fork

FAILURES = (ServerFailedError, UnexpectedResponseError, OSError, RuntimeError, SubprocessError)


@dataclass(frozen=True, slots=True)
class Group:
    """Steps that share a section of RESULTS.md."""

    key: str
    title: str
    note: str
    steps: dict[str, Step]


STORAGE = Group(
    "storage",
    "Storage",
    "Holdfast alone, with packs in a local directory: what the tiered storage is to reach. The "
    "server and its storage process share one core, the load has the other. Sizes in MB and GB are "
    "decimal.",
    {module.STEP.key: module.STEP for module in (streams, ingest, flushing, catch_up, recovery)},
)
SURFACE = Group(
    "surface",
    "Bootstrap, forks, changes, access control",
    "Holdfast alone, with what its wider HTTP surface is to reach. The server and its storage "
    "process share one core, the load has the other.",
    {module.STEP.key: module.STEP for module in (bootstrap, fork, changes, access)},
)
CLIENT = Group(
    "client",
    "The Python client",
    "`holdfast.client` and `durable-streams` from PyPI, each as its documentation recommends, "
    "against Holdfast with everything in memory. One client process has one core, the server the "
    "other. Both run on the event loop of the standard library; ours on uvloop as well, which "
    "comes with it.",
    {step.key: step for step in CLIENT_STEPS},
)
SPARK = Group(
    "spark",
    "The pipeline on Spark",
    "The data source and the jobs on PySpark, in `local` mode with all cores, beside what Spark "
    "does by itself with Parquet. Packs are in a local directory, and everything is in the page "
    "cache.",
    {module.STEP.key: module.STEP for module in (tables, folding, planning, many, writing)},
)
PROXY = Group(
    "proxy",
    "The proxy",
    "Responses of an upstream on loopback, recorded in streams while they arrive. The server has "
    "one core, the upstream and the load share the other.",
    {step.key: step for step in PROXY_STEPS},
)
GROUPS = (STORAGE, SURFACE, CLIENT, SPARK, PROXY)


def run_step(group: Group, key: str, plan: Plan, sizes: Sizes) -> dict[str, Any]:
    """Run one step; what it found, or why it found nothing, as results.json keeps it."""
    step = group.steps[key]
    plan.console.print(f"[dim]{group.key} · {key}[/dim]", highlight=False)
    wait_for_quiet(plan.patience_s)
    result: dict[str, Any] = {
        "note": step.note,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": machine.commit(),
        "full_size": sizes == FULL,
        "figures": [],
        "failure": "",
    }
    started_s, busy_s, ours_s = time.monotonic(), machine_busy_s(), _ours_s()
    try:
        found = step.run(plan, sizes)
    except FAILURES as error:
        plan.console.print(f"[red]{key}: {error}[/red]", highlight=False)
        return result | {"failure": str(error).splitlines()[0]}
    seconds = time.monotonic() - started_s
    others_s = machine_busy_s() - busy_s - (_ours_s() - ours_s) - found.orphans_s
    return result | {
        "figures": [asdict(figure) for figure in found.figures],
        "seconds": seconds,
        "others": max(0.0, others_s / seconds),
    }


def _ours_s() -> float:
    """CPU seconds of this process and of all that it waited for: a step ends its servers itself."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
