"""Starts servers on their own core, says what CPU time they used, ends them by their own pid."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.client import Client
from bench.servers import Server

BENCH_DIR = Path(__file__).parent
WORK_DIR = BENCH_DIR / ".work"
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
LOG_LINES_SHOWN = 12

_CPUS = sorted(os.sched_getaffinity(0))
SERVER_CPU = _CPUS[0]
LOAD_CPU = _CPUS[-1]


class ServerFailedError(Exception):
    """A server did not start or did not response; the message ends with the end of its log."""


@dataclass(frozen=True, slots=True)
class CpuTime:
    """CPU seconds of a process and its descendants, threads included."""

    user_s: float
    system_s: float

    def __sub__(self, other: CpuTime) -> CpuTime:
        return CpuTime(self.user_s - other.user_s, self.system_s - other.system_s)

    @property
    def total_s(self) -> float:
        return self.user_s + self.system_s


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is up and answered its first request."""

    server: Server
    pid: int
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cpu(self) -> CpuTime:
        return cpu_of_tree(self.pid)


def cpu_of_tree(pid: int) -> CpuTime:
    """Sum utime and stime over a process, its reaped children and its living descendants."""
    ticks = os.sysconf("SC_CLK_TCK")
    user = system = 0
    pids = [pid]
    while pids:
        current = pids.pop()
        try:
            # The second field, the command, may hold spaces: count from its closing parenthesis.
            fields = Path(f"/proc/{current}/stat").read_text().rpartition(")")[2].split()
            for children in Path(f"/proc/{current}/task").glob("*/children"):
                pids.extend(map(int, children.read_text().split()))
        except (FileNotFoundError, ProcessLookupError):
            continue
        user += int(fields[11]) + int(fields[13])
        system += int(fields[12]) + int(fields[14])
    return CpuTime(user / ticks, system / ticks)


def machine_busy_s() -> float:
    """CPU seconds that all cores have been busy since boot, whoever kept them so."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def pinned(cpu: int, command: list[str]) -> list[str]:
    """Return the command bound to one core. taskset execs, so the pid stays the command's own."""
    return ["taskset", "-c", str(cpu), *command]


@contextmanager
def running(server: Server) -> Iterator[Running]:
    """Start a server with a fresh data directory; on exit end it and remove the directory."""
    run_dir = WORK_DIR / "run" / server.key
    shutil.rmtree(run_dir, ignore_errors=True)
    data_dir = run_dir / "data"
    data_dir.mkdir(parents=True)
    log_path = run_dir / "log"
    port = free_port()
    process = launch(server.command(port, data_dir), log_path)
    try:
        _wait_ready(server, process, port, log_path)
        yield Running(server, process.pid, port)
    finally:
        stop(process)
        shutil.rmtree(run_dir, ignore_errors=True)


def launch(command: list[str], log_path: Path) -> subprocess.Popen[bytes]:
    """Start a server on its core; what it says is added to a file."""
    with log_path.open("ab") as log:
        return subprocess.Popen(
            pinned(SERVER_CPU, command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C reaches the bench alone, which then ends its children in order.
            start_new_session=True,
            env={**os.environ, "NODE_ENV": "production"},
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """End one child: SIGTERM, then SIGKILL if it does not go."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_ready(
    server: Server, process: subprocess.Popen[bytes], port: int, log_path: Path
) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    method = "PUT" if server.speaks_protocol else "POST"
    status = 0
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with Client(port) as client:
                status = client.request(method, server.prefix + "ready").status
        except OSError:
            time.sleep(0.05)
            continue
        if 200 <= status < 300:
            return
        time.sleep(0.05)
    raise not_ready(process, status, log_path)


def not_ready(process: subprocess.Popen[bytes], status: int, log_path: Path) -> ServerFailedError:
    """Say why a server did not become ready: whether it ended, and what it printed last."""
    ending = log_path.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    state = "exited" if process.poll() is not None else f"last status {status or 'none'}"
    why = f"did not become ready ({state}): {ending[-1] if ending else 'it printed nothing'}"
    return ServerFailedError("\n".join([why, *ending[:-1]]))
