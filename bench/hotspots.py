"""Profiles Holdfast under the append load with py-spy, best effort: what is on the CPU."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import tools
from bench.load import measure, warm_up
from bench.process import LOAD_CPU, Running, pinned, running, stop
from bench.scenarios import append_load, create_streams
from bench.servers import HOLDFAST

CONNECTIONS = 256
RATE_HZ = 200
TOP = 25
LINE_NUMBER = re.compile(r":\d+\)$")


def show(console: Console, seconds: int) -> None:
    """Run the append load twice, once undisturbed for CPU times and once sampled; print the top."""
    HOLDFAST.require()
    seconds = max(seconds, 5)
    with running(HOLDFAST) as target:
        create_streams(target)
        load = append_load(target, CONNECTIONS)
        warm_up(target, load)
        sample = measure(target, load, seconds)
        console.print(
            f"{sample}; {sample.system_us:.1f} µs of the CPU in the kernel", highlight=False
        )
        stacks = _record(target, seconds)
    own, cumulative = _weigh(stacks)
    _print(console, "Time in the function itself", own, sum(stacks.values()))
    _print(console, "Time in the function and what it calls", cumulative, sum(stacks.values()))


def _record(target: Running, seconds: int) -> Counter[str]:
    """Sample the server's stacks under load; each is `outermost;…;innermost`, with its count."""
    raw = tools.WORK_DIR / "py-spy.raw"
    command = [tools.py_spy(), "record", "--pid", str(target.pid), "--duration", str(seconds)]
    command += ["--rate", str(RATE_HZ), "--format", "raw", "--nonblocking", "--output", str(raw)]
    spy = subprocess.Popen(
        pinned(LOAD_CPU, command),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        measure(target, append_load(target, CONNECTIONS), seconds + 1)
        complaint = spy.communicate(timeout=30)[1].decode(errors="replace")
    finally:
        stop(spy)
    if spy.returncode != 0 or not raw.exists():
        raise tools.MissingError(f"py-spy could not sample (it needs ptrace): {complaint.strip()}")
    return _read_stacks(raw)


def _read_stacks(raw: Path) -> Counter[str]:
    stacks: Counter[str] = Counter()
    for line in raw.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        stacks[stack] += int(count)
    return stacks


def _weigh(stacks: Counter[str]) -> tuple[Counter[str], Counter[str]]:
    own: Counter[str] = Counter()
    cumulative: Counter[str] = Counter()
    for stack, count in stacks.items():
        frames = [LINE_NUMBER.sub(")", frame) for frame in stack.split(";")]
        own[frames[-1]] += count
        for frame in set(frames):
            cumulative[frame] += count
    return own, cumulative


def _print(console: Console, title: str, weights: Counter[str], total: int) -> None:
    table = Table("share", "function", title=title)
    for frame, count in weights.most_common(TOP):
        table.add_row(f"{count / max(1, total):.1%}", frame)
    console.print(table)
