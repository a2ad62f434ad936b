"""Conducts one run: shows it, prints what came of it, and says how the process ends."""

import sys
from pathlib import Path
from typing import Any

from holdfast.cli.bench.display import watching
from holdfast.cli.bench.latency import Latencies
from holdfast.cli.bench.messages import Work
from holdfast.cli.bench.options import Common
from holdfast.cli.bench.plot import draw
from holdfast.cli.bench.report import UNITS, print_report
from holdfast.cli.bench.result import Result, to_json
from holdfast.cli.bench.run import Plan, run
from holdfast.cli.bench.streams import Setup
from holdfast.cli.bench.target import Target
from holdfast.cli.bench.worker import run_loop
from holdfast.cli.terminal import EXIT_FAILED, EXIT_INTERRUPTED
from holdfast.errors import HoldfastError

__all__ = ["conduct"]


def conduct(
    scenario: str, common: Common, target: Target, setup: Setup, work: Work, chosen: dict[str, Any]
) -> int:
    """Run a scenario, and write its result wherever that is wanted; the exit code."""
    # Before anything is made on a server: is there what the measurement needs?
    Latencies()
    parameters = {
        "processes": common.processes,
        "duration": common.duration,
        "warmup": common.warmup,
        "rate": common.rate,
        "timeout": common.timeout,
        "seed": common.seed,
        **chosen,
    }
    plan = Plan(
        scenario=scenario,
        target=target,
        setup=setup,
        work=work,
        parameters=parameters,
        processes=common.processes,
        # Clients that ask one time have no second time for the measurement.
        warmup_s=0.0 if chosen.get("once") else common.warmup,
        duration_s=common.duration,
        rate=parameters["rate"],
        timeout_s=common.timeout,
        seed=common.seed,
    )
    try:
        with watching(f"bench {scenario}", UNITS[scenario], common.duration) as watcher:
            result: Result = run_loop(run(plan, watcher))
        _write(result, common)
    except KeyboardInterrupt:
        # Before the run could take care of it, or after.
        return EXIT_INTERRUPTED
    if result.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if result.failed else 0


def _write(result: Result, common: Common) -> None:
    if common.json == "-":
        sys.stdout.write(to_json(result))
    else:
        from rich.console import Console  # noqa: PLC0415

        print_report(result, Console())
        if common.json is not None:
            _write_file(Path(common.json), to_json(result))
    if common.plot is not None:
        draw(result, common.plot)


def _write_file(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise HoldfastError(f"{path} cannot be written: {error.strerror}.") from None
