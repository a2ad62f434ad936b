"""The command line: `python -m bench [--only SCENARIO] [--seconds N] [--rounds N] …`."""

from __future__ import annotations

import os
import resource
import signal
from types import FrameType
from typing import Literal, get_args

from cyclopts import App
from rich.console import Console

from bench import hotspots, machine, report, tools
from bench.groups import CLIENT, PROXY, SPARK, STORAGE, SURFACE, Group, run_step
from bench.process import LOAD_CPU
from bench.scenario import Plan, run_rounds
from bench.scenarios import SCENARIOS
from bench.servers import ALL, HOLDFAST, Server
from bench.storage.figures import FULL, TRIAL, Sizes

Only = Literal[
    "append",
    "read",
    "sse",
    "storage",
    "bootstrap",
    "fork",
    "changes",
    "access",
    "client",
    "spark",
    "proxy",
]

app = App(name="bench", help="Holdfast beside its peers, in one run.")


@app.default
def bench(
    *,
    only: list[Only] | None = None,
    servers: list[Literal["holdfast", "node-memory", "node-file", "rust", "nginx"]] | None = None,
    seconds: int = 4,
    rounds: int = 3,
    patience: int = 20,
    with_rust: bool = False,
    profile: bool = False,
    save: bool = True,
    quick: bool = False,
    steps: list[Literal["streams", "ingest", "flushing", "catch-up", "recovery"]] | None = None,
    spark_steps: list[Literal["tables", "snapshot", "planning", "many", "write"]] | None = None,
    streams: int = FULL.streams,
    gigabytes: float = FULL.gigabytes,
    stream_mib: int = FULL.stream_mib,
    hard_mib: int = FULL.hard_mib,
) -> None:
    """Measure every server that can run here and write bench/RESULTS.md.

    Parameters
    ----------
    only
        Scenarios to run; all of them by default.
    servers
        Servers to run; all of them by default.
    seconds
        Length of each measurement.
    rounds
        How often each is repeated; medians are reported.
    patience
        Seconds to wait, before each server's turn, for other work on the machine to end.
    with_rust
        Build the Rust server first (cargo, minutes) if it is not there.
    profile
        Profile Holdfast under the append load instead of measuring.
    save
        Write results.json and RESULTS.md; otherwise only print.
    quick
        A trial: everything small, once and briefly, nothing saved.
    steps
        Steps of the storage scenario to run; all of them by default.
    spark_steps
        Steps of the Spark scenario to run; all of them by default.
    streams
        Storage: how many streams there are in the first step; less for a trial.
    gigabytes
        Storage: how much is appended to find the peak of memory; less for a trial.
    stream_mib
        Storage: size of the stream that is caught up with; less for a trial.
    hard_mib
        Storage: hard limit of the log that is recovered; less than the default for a trial.
    """
    console = Console()
    _prepare_process()
    try:
        tools.require_wrk()
        if profile:
            hotspots.show(console, seconds)
            return
        chosen = [server for server in ALL if servers is None or server.key in servers]
        if with_rust:
            tools.build_rust()
        plan = Plan(1, 1, 0, console) if quick else Plan(seconds, rounds, patience, console)
        save = save and not quick
        wanted = set(get_args(Only)) if only is None else set(only)
        _measure(plan, [key for key in SCENARIOS if key in wanted], chosen, save)
        sizes = TRIAL if quick else Sizes(streams, gigabytes, stream_mib, hard_mib)
        if STORAGE.key in wanted:
            _measure_group(plan, STORAGE, list(steps or STORAGE.steps), sizes, save)
        _measure_group(plan, SURFACE, [key for key in SURFACE.steps if key in wanted], sizes, save)
        if CLIENT.key in wanted:
            _measure_group(plan, CLIENT, list(CLIENT.steps), sizes, save)
        if SPARK.key in wanted:
            chosen_steps = [key for key in SPARK.steps if not spark_steps or key in spark_steps]
            _measure_group(plan, SPARK, chosen_steps, sizes, save)
        if PROXY.key in wanted:
            _measure_group(plan, PROXY, list(PROXY.steps), sizes, save)
        if save:
            console.print(f"written: {os.path.relpath(report.RESULTS_MD)}")
    except tools.MissingError as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit("stopped; scenarios that were finished are kept") from None


def _measure(plan: Plan, only: list[str], chosen: list[Server], save: bool) -> None:
    if not only:
        return
    present, missing = _available(plan.console, chosen)
    results = report.load()
    for key in only:
        about = _about(plan)
        outcome = run_rounds(SCENARIOS[key], present, plan)
        outcome.missing |= missing
        report.store(results, SCENARIOS[key], outcome, about, save)
        report.show(plan.console, results, key)
    report.show_targets(plan.console, results)


def _measure_group(plan: Plan, group: Group, steps: list[str], sizes: Sizes, save: bool) -> None:
    if not steps:
        return
    HOLDFAST.require()
    results = report.load()
    about = _about(plan)
    for step in steps:
        found = run_step(group, step, plan, sizes)
        report.store_step(results, group, step, found, about, save)
    report.show_group(plan.console, group, results[group.key])


def _about(plan: Plan) -> dict[str, str]:
    return machine.facts() | {"runs": f"{plan.rounds} rounds of {plan.seconds} s"}


def _available(console: Console, chosen: list[Server]) -> tuple[list[Server], dict[str, str]]:
    present = []
    missing = {}
    for server in chosen:
        try:
            server.require()
            present.append(server)
        except tools.MissingError as error:
            console.print(f"[yellow]{server.title} is left out: {error}[/yellow]", highlight=False)
            missing[server.key] = str(error)
    return present, missing


def _prepare_process() -> None:
    """Keep off the server's core, allow many sockets, and stop children on SIGTERM too."""
    os.sched_setaffinity(0, {LOAD_CPU})
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    app()
