"""The longest log that can be left behind: appended until the hard limit, killed, started again."""

from __future__ import annotations

import time

from bench.load import run_until
from bench.scenario import Plan
from bench.storage.figures import FULL, MB, MIB, Figure, Measured, Sizes, Step
from bench.storage.node import Node, appends, create_streams, node

STREAMS = 1000
APPEND_BYTES = 100
CONNECTIONS = 256
PROGRESS_S = 5.0
# How the default limits stand to each other.
SOFT_SHARE = 0.375


def _run(plan: Plan, sizes: Sizes) -> Measured:
    with node("recovery") as made:
        made.start(*_limits(sizes))
        create_streams(made, STREAMS, 0)
        _break_store(made)
        filled = _fill(plan, made)
        records = filled["holdfast_appends_total"] + filled["holdfast_streams_created_total"]
        log_mb = filled["holdfast_log_bytes"] / MB
        plan.console.print(f"    killed with {records:,.0f} records, {log_mb:.0f} MB of log")
        orphans_s = made.kill()
        _mend_store(made)
        ready_s = made.start()
        stored_bytes = made.metrics()["holdfast_stored_bytes"]
        if stored_bytes < filled["holdfast_append_bytes_total"]:
            raise RuntimeError(f"{stored_bytes:.0f} bytes are left of what was acknowledged")
        plan.console.print(f"    ready again in {ready_s:.2f} s", highlight=False)
    what = f"a log of {APPEND_BYTES} B appends at the hard limit"
    return Measured(
        [
            Figure(f"{what}: SIGKILL, then restart to ready", ready_s, "{:.2f} s", 5),
            Figure(f"{what}: records", records),
            Figure(f"{what}: bytes", log_mb, "{:,.0f} MB"),
        ],
        orphans_s,
    )


def _limits(sizes: Sizes) -> tuple[str, ...]:
    if sizes.hard_mib == FULL.hard_mib:
        return ()
    hard_bytes = sizes.hard_mib * MIB
    soft_bytes = int(hard_bytes * SOFT_SHARE)
    return ("--hot-bytes-soft", str(soft_bytes), "--hot-bytes-hard", str(hard_bytes))


def _break_store(made: Node) -> None:
    """Put a file where the objects' directory is: not even root can write a pack there."""
    objects = made.data_dir / "objects"
    objects.rename(made.data_dir / "objects.away")
    objects.touch()


def _mend_store(made: Node) -> None:
    objects = made.data_dir / "objects"
    objects.unlink()
    (made.data_dir / "objects.away").rename(objects)


def _fill(plan: Plan, made: Node) -> dict[str, float]:
    """Append until the server takes no more; its metrics then."""
    said_s = time.monotonic()

    def full() -> bool:
        nonlocal said_s
        metrics = made.metrics()
        if time.monotonic() - said_s >= PROGRESS_S:
            said_s = time.monotonic()
            cost_mb = metrics["holdfast_hot_cost_bytes"] / MB
            plan.console.print(f"    {cost_mb:.0f} MB of cost in memory", highlight=False)
        return bool(metrics["holdfast_write_backpressure"])

    run_until(made.running, appends(STREAMS, APPEND_BYTES, CONNECTIONS), full)
    metrics = made.metrics()
    if metrics["holdfast_flushes_total"] or not metrics["holdfast_flush_retries_total"]:
        raise RuntimeError("the flush was to fail, and did not")
    return metrics


STEP = Step(
    "recovery",
    f"{APPEND_BYTES} B appends over {STREAMS:,} streams while no pack can be written, until the "
    "server refuses more; then SIGKILL, and a start with the store mended. Flushes are retried all "
    "the while. Ready is the first 200 of `/readyz/local`, the wait for the old storage process to "
    "end included; every acknowledged byte is there then. Small messages are the worst case: the "
    "limit is on cost, to which each record adds 128 B.",
    _run,
)
