"""A Holdfast server that can be stopped, killed and started again over the same data."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.client import Client, Request
from bench.load import Load, run_until
from bench.process import (
    WORK_DIR,
    Running,
    ServerFailedError,
    cpu_of_tree,
    free_port,
    launch,
    not_ready,
    stop,
)
from bench.servers import HOLDFAST, PREFIX
from bench.storage.figures import MB

READY_TIMEOUT_S = 120.0
READY_LOOK_S = 0.005
FLUSH_TIMEOUT_S = 300.0
ORPHAN_TIMEOUT_S = 10.0
CONTENT_TYPE = "application/octet-stream"
CREATING_CONNECTIONS = 256
UNLIMITED = ("--hot-bytes-soft", str(2**40), "--hot-bytes-hard", str(2**40))
NEVER_FLUSHING = (*UNLIMITED, "--flush-age", "31536000")


class Node:
    """One data directory and the server over it, while there is one."""

    def __init__(self, run_dir: Path) -> None:
        self.data_dir = run_dir / "data"
        self._log_path = run_dir / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None
        # Storage processes that were seen, by pid, with the time each was started at.
        self._children: dict[int, str] = {}
        self.port = 0

    @property
    def running(self) -> Running:
        """The server as loads take it."""
        return Running(HOLDFAST, self.pid, self.port)

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is started"
        return self._process.pid

    @property
    def child_pid(self) -> int:
        """The storage process."""
        found = children_of(self.pid)
        if not found:
            raise ServerFailedError("the server has no storage process")
        return found[0]

    def start(self, *flags: str) -> float:
        """Start the server, by default with default settings; the seconds until it is ready."""
        self.port = free_port()
        started_s = time.perf_counter()
        process = launch([*HOLDFAST.command(self.port, self.data_dir), *flags], self._log_path)
        self._process = process
        status = 0
        while time.perf_counter() - started_s < READY_TIMEOUT_S and process.poll() is None:
            with contextlib.suppress(OSError), Client(self.port) as client:
                status = client.request("GET", "/readyz/local").status
            if status == 200:
                ready_s = time.perf_counter() - started_s
                self._client = Client(self.port, FLUSH_TIMEOUT_S)
                return ready_s
            time.sleep(READY_LOOK_S)
        raise not_ready(process, status, self._log_path)

    def stop(self) -> None:
        """End the server as an operator would, and see that nothing of it is left."""
        process, self._process = self._process, None
        if process is None:
            return
        self._remember_children(process.pid)
        self._disconnect()
        stop(process)
        self._end_orphans()

    def kill(self) -> float:
        """SIGKILL the server; CPU seconds of its storage process, which ends by itself then."""
        process, self._process = self._process, None
        assert process is not None, "the server is started"
        self._remember_children(process.pid)
        spent_s = sum(cpu_of_tree(pid).total_s for pid in self._children)
        self._disconnect()
        process.kill()
        process.wait()
        return spent_s

    def close(self) -> None:
        """End whatever runs."""
        try:
            self.stop()
        finally:
            self._end_orphans()

    def flush(self) -> float:
        """Have everything flushed; the seconds it took."""
        started_s = time.perf_counter()
        self.send(Request("POST", "/cluster/flush"))
        return time.perf_counter() - started_s

    def settle(self) -> None:
        """Wait until the storage process is up and has nothing to do."""
        self.send(Request("POST", "/cluster/collect-garbage"))

    def status(self) -> dict[str, Any]:
        """The shard's part of `/cluster/status`."""
        status: dict[str, Any] = json.loads(self.send(Request("GET", "/cluster/status")))
        shard: dict[str, Any] = status["shards"][0]
        return shard

    def hot_bytes(self) -> int:
        """Message bytes in memory."""
        stats = json.loads(self.send(Request("GET", "/cluster/hot-cold-stats")))
        return int(stats["hot"]["bytes"])

    def metrics(self) -> dict[str, float]:
        """Every metric without labels, by its name."""
        page = self.send(Request("GET", "/metrics")).decode()
        lines = (line for line in page.splitlines() if not line.startswith("#") and "{" not in line)
        return {name: float(value) for name, value in (line.split()[:2] for line in lines)}

    def send(self, request: Request) -> bytes:
        assert self._client is not None, "the server is started"
        return self._client.send(request).body

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    def _remember_children(self, pid: int) -> None:
        self._children.update((child, _started_at(child)) for child in children_of(pid))

    def _end_orphans(self) -> None:
        """Wait for storage processes that outlive their server, and end what does not go."""
        deadline_s = time.monotonic() + ORPHAN_TIMEOUT_S
        while self._children:
            # A pid alone may have become somebody else's.
            left = {pid: at for pid, at in self._children.items() if at and _started_at(pid) == at}
            self._children = left
            if time.monotonic() > deadline_s:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


@contextmanager
def node(key: str) -> Iterator[Node]:
    """A node over a fresh directory, which is removed in the end, whatever happened."""
    run_dir = WORK_DIR / "run" / f"storage-{key}"
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(parents=True)
    made = Node(run_dir)
    try:
        yield made
    finally:
        try:
            made.close()
        finally:
            shutil.rmtree(run_dir, ignore_errors=True)


def create_streams(made: Node, count: int, size_bytes: int) -> dict[str, int]:
    """Create streams named by number, each with some bytes in it, as one append."""
    load = Load(
        "create.lua", (PREFIX, str(count), str(size_bytes), CONTENT_TYPE), CREATING_CONNECTIONS
    )
    return run_until(made.running, load, lambda: made.status()["streams"] >= count)


def appends(count: int, size_bytes: int, connections: int, script: str = "append.lua") -> Load:
    """Appends to the first of the streams that `create_streams` makes, in turn."""
    return Load(script, (PREFIX, str(count), str(size_bytes), CONTENT_TYPE), connections)


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.extend(map(int, children.read_text().split()))
    return found


def _started_at(pid: int) -> str:
    """When a process was started, in ticks since boot; empty if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


SAMPLE_S = 0.1


def rss_mb(pid: int, field: str = "VmRSS") -> float:
    """Resident memory of one process: private, shared and mapped files together."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / MB
    return 0.0


class MemoryWatch:
    """Samples the sum over the server and its children while it is entered."""

    def __init__(self, node: Node) -> None:
        self._pid = node.pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.now_mb = self.peak_mb = 0.0
        # The most that each ever had, as the kernel kept it; perhaps not at the same time.
        self.server_peak_mb = self.child_peak_mb = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            # A process may end between two looks.
            with contextlib.suppress(OSError):
                self._sample()

    def _sample(self) -> None:
        children = children_of(self._pid)
        self.now_mb = rss_mb(self._pid) + sum(map(rss_mb, children))
        self.peak_mb = max(self.peak_mb, self.now_mb)
        self.server_peak_mb = rss_mb(self._pid, "VmHWM")
        child_mb = sum(rss_mb(pid, "VmHWM") for pid in children)
        self.child_peak_mb = max(self.child_peak_mb, child_mb)
