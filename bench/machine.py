"""Facts about this machine and the versions of everything measured, for the head of the results."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from bench import tools

SYNCS = 200


def facts() -> dict[str, str]:
    """Return what a reader needs to judge the numbers, as printable text by name."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "cpu": f"{_cpu_model()}, {os.cpu_count()} cores",
        "memory": _memory(),
        "kernel": f"{platform.system()} {platform.release()}",
        "fdatasync of 4 KiB": _fdatasync(),
        "load average before": load,
        "versions": ", ".join(f"{name} {version}" for name, version in _versions().items()),
    }


def commit() -> str:
    """Return the short commit, marked when the tree differs from it."""
    head = _output(["git", "rev-parse", "--short", "HEAD"]) or "none yet"
    # The results are written by the run itself and do not make the measured code another.
    written = [":!bench/results.json", ":!bench/RESULTS.md"]
    changed = _output(["git", "status", "--porcelain", "--", ".", *written])
    return f"{head} (dirty)" if changed else head


def _versions() -> dict[str, str]:
    package = tools.NODE_DIR / "node_modules" / "@durable-streams" / "server" / "package.json"
    found = {
        "Holdfast": _distribution("holdfast-streams"),
        "Python": platform.python_version(),
        "uvloop": _distribution("uvloop"),
        "Node": _output(["node", "--version"]).removeprefix("v"),
        "@durable-streams/server": json.loads(package.read_text())["version"]
        if package.exists()
        else "",
        "crate durable-streams": tools.RUST_CRATE.partition("@")[2]
        if tools.RUST_SERVER.exists()
        else "",
        "PyPI durable-streams": tools.PUBLISHED_CLIENT.partition("==")[2]
        if tools.PUBLISHED_DIR.exists()
        else "",
        "nginx": _program_version("nginx", "-v").rpartition("/")[2],
        "wrk": _program_version("wrk", "-v").partition(" [")[0].removeprefix("wrk "),
    }
    return {name: version for name, version in found.items() if version}


def _distribution(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _program_version(program: str, flag: str) -> str:
    try:
        return _output([tools.find(program), flag]).partition("\n")[0]
    except tools.MissingError:
        return ""


def _output(command: list[str]) -> str:
    """Return what a command prints, wherever it prints it; nothing if it cannot run."""
    try:
        done = subprocess.run(
            command, cwd=tools.BENCH_DIR.parent, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    if done.returncode != 0 and command[0] == "git":
        return ""
    return (done.stdout or done.stderr).strip()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory() -> str:
    total_kib = int(Path("/proc/meminfo").read_text().split()[1])
    return f"{total_kib / 2**20:.0f} GiB"


def _fdatasync() -> str:
    """Time the disk alone: durable appends can be no better than this, whoever makes them."""
    tools.WORK_DIR.mkdir(exist_ok=True)
    path = tools.WORK_DIR / "fdatasync"
    times_ms = []
    with path.open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            file.write(bytes(4096))
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            times_ms.append((time.perf_counter() - start) * 1e3)
    path.unlink()
    times_ms.sort()
    return f"p50 {statistics.median(times_ms):.2f} ms, p99 {times_ms[SYNCS * 99 // 100]:.2f} ms"
