"""Runs wrk on its own core against a running server and measures what the server spent."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench import tools
from bench.process import LOAD_CPU, Running, machine_busy_s, pinned, stop
from bench.scenario import disturbance

WARM_UP_S = 1
WAIT_BEYOND_S = 60
UNTIL_SECONDS_MAX = 600
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Load:
    """One wrk run: which script, its arguments, how many connections."""

    script: str
    arguments: tuple[str, ...]
    connections: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What one wrk run measured. `failed`: responses of 400 and above, timeouts, lost sockets."""

    succeeded: int
    per_s: float
    bytes_per_s: float
    p50_ms: float
    p99_ms: float
    user_us: float
    system_us: float
    failed: int
    others: float
    """Cores' worth of work neither the server's nor the load's: noise in the numbers."""

    def __str__(self) -> str:
        return (
            f"{self.per_s:,.0f}/s, {self.bytes_per_s / 2**20:,.0f} MiB/s, "
            f"p50 {self.p50_ms:.2f} ms, p99 {self.p99_ms:.2f} ms, "
            f"{self.user_us + self.system_us:,.1f} µs CPU, "
            f"{self.failed} failed{disturbance(self.others)}"
        )

    @property
    def metrics(self) -> dict[str, float]:
        return {
            "per_s": self.per_s,
            "mib_per_s": self.bytes_per_s / 2**20,
            "p50_ms": self.p50_ms,
            "p99_ms": self.p99_ms,
            "cpu_us": self.user_us + self.system_us,
            "user_us": self.user_us,
            "system_us": self.system_us,
            "failed": self.failed,
            "others": self.others,
        }


def measure(target: Running, load: Load, seconds: int) -> Sample:
    """Run the load for some seconds and return what it saw and what the server spent."""
    before, busy_before, load_before = target.cpu(), machine_busy_s(), _children_s()
    summary = _wrk(target, load, seconds)
    spent = target.cpu() - before
    others_s = machine_busy_s() - busy_before - spent.total_s - (_children_s() - load_before)
    # Only what succeeded counts: refusing is cheap.
    succeeded = max(1, summary["requests"] - summary["failed"])
    duration_s = summary["duration_us"] / 1e6
    return Sample(
        succeeded=succeeded,
        per_s=succeeded / duration_s,
        bytes_per_s=summary["bytes"] / duration_s,
        p50_ms=summary["p50_us"] / 1e3,
        p99_ms=summary["p99_us"] / 1e3,
        user_us=spent.user_s * 1e6 / succeeded,
        system_us=spent.system_s * 1e6 / succeeded,
        failed=summary["failed"] + summary["timeouts"] + summary["socket_errors"],
        others=max(0.0, others_s / duration_s),
    )


def warm_up(target: Running, load: Load) -> int:
    """Run the load briefly, for compilers and caches; return how many requests succeeded."""
    summary = _wrk(target, load, WARM_UP_S)
    return summary["requests"] - summary["failed"]


def run_until(
    target: Running, load: Load, reached: Callable[[], bool], seconds_max: int = UNTIL_SECONDS_MAX
) -> dict[str, int]:
    """Run the load until something is reached; return wrk's own counts."""
    with _started(target, load, seconds_max) as wrk:
        while not reached():
            if wrk.poll() is not None:
                summary = _summary(wrk.communicate()[0])
                raise RuntimeError(f"the load did not get there in {seconds_max} s: {summary}")
            time.sleep(LOOK_S)
        # Then wrk ends early, and says what it counted all the same.
        wrk.send_signal(signal.SIGINT)
        return _summary(wrk.communicate(timeout=WAIT_BEYOND_S)[0])


def _children_s() -> float:
    """CPU seconds of the children waited for: between two calls around a run, wrk's own."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _wrk(target: Running, load: Load, seconds: int) -> dict[str, int]:
    with _started(target, load, seconds) as wrk:
        return _summary(wrk.communicate(timeout=seconds + WAIT_BEYOND_S)[0])


@contextmanager
def _started(target: Running, load: Load, seconds: int) -> Iterator[subprocess.Popen[bytes]]:
    script = str(tools.BENCH_DIR / "lua" / load.script)
    command = [tools.find("wrk"), "-t1", f"-c{load.connections}", f"-d{seconds}s"]
    command += ["--timeout", "10s", "-s", script, target.url, "--", *load.arguments]
    wrk = subprocess.Popen(
        pinned(LOAD_CPU, command),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=tools.BENCH_DIR.parent,
    )
    try:
        yield wrk
    finally:
        stop(wrk)


def _summary(printed: bytes) -> dict[str, int]:
    output = printed.decode(errors="replace")
    for line in output.splitlines():
        if line.startswith("SUMMARY "):
            summary: dict[str, int] = json.loads(line.removeprefix("SUMMARY "))
            return summary
    raise RuntimeError(f"wrk printed no summary:\n{output}")
