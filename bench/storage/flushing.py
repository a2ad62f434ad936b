"""What flushing costs the append path: the same load with and without it, in turn."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from bench.load import measure, run_until
from bench.process import cpu_of_tree
from bench.scenario import Plan, wait_for_quiet
from bench.scenarios import APPEND_BYTES, STREAMS
from bench.storage.figures import Figure, Measured, Sizes, Step
from bench.storage.node import NEVER_FLUSHING, appends, create_streams, node

CONNECTIONS = 256
# Times the plan's seconds: several flushes have to fall into one measurement.
SECONDS_TIMES = 5
# The default soft limit: about where the first flush starts.
WARM_UP_COST_BYTES = 96 * 2**20


@dataclass(frozen=True, slots=True)
class _Run:
    per_s: float
    p99_ms: float
    child_us: float
    flushes: float
    failed: int


def _run(plan: Plan, _sizes: Sizes) -> Measured:
    flushing: list[_Run] = []
    without: list[_Run] = []
    for number in range(plan.rounds):
        turns = [("on", (), flushing), ("off", NEVER_FLUSHING, without)]
        for name, flags, runs in turns if number % 2 == 0 else reversed(turns):
            wait_for_quiet(plan.patience_s)
            label = f"round {number + 1}/{plan.rounds}, flushing {name}"
            runs.append(_measure(plan, label, flags))
    on_per_s = statistics.median(run.per_s for run in flushing)
    off_per_s = statistics.median(run.per_s for run in without)
    ratio = on_per_s / off_per_s
    times = f"{plan.rounds} × {SECONDS_TIMES * plan.seconds} s each"
    what = f"{APPEND_BYTES} B appends at {CONNECTIONS} connections"
    return Measured(
        [
            Figure(f"{what}, {times}: flushing on / off", ratio, "{:.2f}", at_least=0.8),
            Figure(f"{what}: per second with flushing", on_per_s),
            Figure(f"{what}: per second without", off_per_s),
            Figure(f"{what}: p99 with flushing", _median(flushing, "p99_ms"), "{:.1f} ms"),
            Figure(f"{what}: p99 without", _median(without, "p99_ms"), "{:.1f} ms"),
            Figure(
                f"{what}: CPU of the child for each", _median(flushing, "child_us"), "{:.2f} µs"
            ),
            Figure(f"{what}: flushes in one measurement", _median(flushing, "flushes")),
            Figure(f"{what}: refused or failed", sum(run.failed for run in flushing)),
        ]
    )


def _median(runs: list[_Run], name: str) -> float:
    return float(statistics.median(getattr(run, name) for run in runs))


def _measure(plan: Plan, label: str, flags: tuple[str, ...]) -> _Run:
    with node("flushing") as made:
        made.start(*flags)
        create_streams(made, STREAMS, 0)
        load = appends(STREAMS, APPEND_BYTES, CONNECTIONS)

        def warm() -> bool:
            metrics = made.metrics()
            cost_bytes = metrics["holdfast_hot_cost_bytes"]
            return bool(metrics["holdfast_flushes_total"]) or cost_bytes >= WARM_UP_COST_BYTES

        run_until(made.running, load, warm)
        child = made.child_pid
        flushes_before, spent_before = made.metrics()["holdfast_flushes_total"], cpu_of_tree(child)
        sample = measure(made.running, load, SECONDS_TIMES * plan.seconds)
        flushes = made.metrics()["holdfast_flushes_total"] - flushes_before
        spent_s = (cpu_of_tree(child) - spent_before).total_s
    found = _Run(
        sample.per_s,
        sample.p99_ms,
        spent_s * 1e6 / sample.succeeded,
        flushes,
        sample.failed,
    )
    plan.console.print(
        f"    {label}: {sample}; {flushes:.0f} flushes, {found.child_us:.2f} µs the child's",
        highlight=False,
    )
    return found


STEP = Step(
    "flushing",
    f"{APPEND_BYTES} B appends over {STREAMS:,} streams, as in the scenario above, for several "
    "flushes at a time; with default settings and with limits too high to be reached, in turn, "
    "each over a fresh directory and from the point on at which the first flush starts. The "
    "storage process, the child, shares the server's core, as it inherits where it may run: with a "
    "core of its own, flushing would cost less.",
    _run,
)
