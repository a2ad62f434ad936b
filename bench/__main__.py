"""The command line: `python -m bench [--only SCENARIO] [--seconds N] [--rounds N] …`."""

from __future__ import annotations

import os
import resource
import signal
from types import FrameType
from typing import Literal

from cyclopts import App
from rich.console import Console

from bench import append, hotspots, machine, read, report, sse, tools
from bench.process import LOAD_CPU
from bench.scenario import Plan, run_rounds
from bench.servers import ALL, Server

SCENARIOS = {s.SCENARIO.key: s.SCENARIO for s in (append, read, sse)}

app = App(name="bench", help="Holdfast beside its peers, in one run.")


@app.default
def bench(
    *,
    only: list[Literal["append", "read", "sse"]] | None = None,
    servers: list[Literal["holdfast", "node-memory", "node-file", "rust", "nginx"]] | None = None,
    seconds: int = 4,
    rounds: int = 3,
    patience: int = 20,
    with_rust: bool = False,
    profile: bool = False,
    save: bool = True,
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
        _measure(
            console, Plan(seconds, rounds, patience, console), list(only or SCENARIOS), chosen, save
        )
    except tools.MissingError as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit("stopped; scenarios that were finished are kept") from None


def _measure(
    console: Console, plan: Plan, only: list[str], chosen: list[Server], save: bool
) -> None:
    present, missing = _available(console, chosen)
    results = report.load()
    for key in only:
        about = machine.facts() | {"runs": f"{plan.rounds} rounds of {plan.seconds} s"}
        outcome = run_rounds(SCENARIOS[key], present, plan)
        outcome.missing |= missing
        report.store(results, SCENARIOS[key], outcome, about, save)
        report.show(console, results, key)
    report.show_targets(console, results)
    if save:
        console.print(f"written: {os.path.relpath(report.RESULTS_MD)}")


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
