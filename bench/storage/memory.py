"""How much memory the server and its storage process take up, now and at most."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.storage.figures import MB
from bench.storage.node import Node, children_of

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
