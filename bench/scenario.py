"""What a scenario is, and how runs are interleaved: rounds outside, servers rotating."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from bench.client import UnexpectedResponseError
from bench.process import Running, ServerFailedError, machine_busy_s, running
from bench.servers import Server

Metrics = dict[str, float]

OTHERS_SHOWN = 0.2
QUIET_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how often everything runs, and where progress is shown."""

    seconds: int
    rounds: int
    patience_s: int
    """How long to wait for the machine to fall quiet before each server's turn."""
    console: Console


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of load. `run` measures one running server once and returns metrics by case."""

    key: str
    title: str
    note: str
    cases: tuple[str, ...]
    run: Callable[[Running, Plan], dict[str, Metrics]]
    needs_protocol: bool = True


@dataclass(slots=True)
class Outcome:
    """Medians by server and case, what could not be measured, and what was found wrong."""

    servers: dict[str, dict[str, Metrics]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def run_rounds(scenario: Scenario, servers: Sequence[Server], plan: Plan) -> Outcome:
    """Measure every server once per round and take medians over the rounds."""
    outcome = Outcome()
    samples: dict[str, dict[str, list[Metrics]]] = defaultdict(lambda: defaultdict(list))
    contestants = [s for s in servers if s.speaks_protocol or not scenario.needs_protocol]
    for number in range(plan.rounds):
        turn = number % len(contestants)
        for server in contestants[turn:] + contestants[:turn]:
            if server.key in outcome.missing:
                continue
            label = f"{scenario.key} · round {number + 1}/{plan.rounds} · {server.title}"
            plan.console.print(f"[dim]{label}[/dim]", highlight=False)
            wait_for_quiet(plan.patience_s)
            try:
                with running(server) as target:
                    measured = scenario.run(target, plan)
            except (ServerFailedError, UnexpectedResponseError, OSError, RuntimeError) as error:
                plan.console.print(f"[red]{server.title}: {error}[/red]", highlight=False)
                outcome.missing[server.key] = str(error).splitlines()[0]
                continue
            for case, metrics in measured.items():
                samples[server.key][case].append(metrics)
    for key, cases in samples.items():
        outcome.servers[key] = {case: _medians(runs) for case, runs in cases.items()}
    return outcome


def wait_for_quiet(patience_s: int) -> None:
    """Give other work on the machine a chance to end; measure anyway when it does not."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        busy_s = machine_busy_s()
        time.sleep(QUIET_LOOK_S)
        if (machine_busy_s() - busy_s) / QUIET_LOOK_S < OTHERS_SHOWN:
            return


def disturbance(others: float) -> str:
    """Say, where it matters, how much of a core was used by neither the server nor the load."""
    return f", others used {others:.0%} of a core" if others > OTHERS_SHOWN else ""


def _medians(runs: list[Metrics]) -> Metrics:
    """Take each metric's median, except failures, which are summed: none may be hidden."""
    merged = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    merged["failed"] = sum(run.get("failed", 0) for run in runs)
    merged["others"] = max(run["others"] for run in runs)
    merged["slowest_per_s"] = min(run["per_s"] for run in runs)
    merged["fastest_per_s"] = max(run["per_s"] for run in runs)
    return merged
