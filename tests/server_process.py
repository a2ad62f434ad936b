"""A real Holdfast server in a process of its own, for tests that talk to it over a socket."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Self

from tests.fork_server import ForkedProcess, spawn

COMMAND = (str(Path(sys.executable).with_name("holdfast")), "serve")
# With these variables a server starts as a program of its own: they are read by imports.
NOT_FORKED = ("HOLDFAST_", "LD_PRELOAD", "MALLOC_", "PYTHONMALLOC")
START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 15.0
_ADDRESS = re.compile(r"(https?)://127\.0\.0\.1:(\d+)")


class ServerProcess:
    """One `holdfast serve` on a port of its own; settings become flags of the same name."""

    def __init__(self, data_dir: Path, **settings: object) -> None:
        settings = {"long_poll_timeout": 0.5, **settings}
        flags = [
            word
            for name, value in settings.items()
            for word in (f"--{name.replace('_', '-')}", str(value))
        ]
        self.data_dir = data_dir
        self._arguments = [*COMMAND, "--listen", "127.0.0.1:0", "--data-dir", str(data_dir), *flags]
        # A file, not a pipe: nobody has to read it for the server to go on.
        self._stderr = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - closed with the process
        self._process: subprocess.Popen[str] | ForkedProcess | None = None
        self.scheme = "http"
        self.port = 0

    @property
    def url(self) -> str:
        """The server's address, without a trailing slash."""
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def streams_url(self) -> str:
        """The URL that stream paths are appended to."""
        return f"{self.url}/v1/stream"

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start the process and wait until it has said where it listens."""
        is_plain = tuple(self._arguments[:2]) == COMMAND
        if is_plain and not any(name.startswith(NOT_FORKED) for name in os.environ):
            self._process = spawn(self._arguments[1:], self._stderr)
        else:
            self._process = subprocess.Popen(
                self._arguments, stdout=subprocess.PIPE, stderr=self._stderr, text=True
            )
        address = self._wait_for_address(self._process)
        if address is None:
            status, stderr = self.kill(), self.stderr()
            self._stderr.close()
            raise AssertionError(
                f"{' '.join(self._arguments)} did not say where it listens "
                f"(exit status {status}); its stderr:\n{stderr}"
            )
        self.scheme, self.port = address[1], int(address[2])
        return self

    def _wait_for_address(
        self, process: subprocess.Popen[str] | ForkedProcess
    ) -> re.Match[str] | None:
        assert process.stdout is not None
        deadline = Timer(START_DEADLINE_S, process.kill)
        deadline.start()
        try:
            for line in process.stdout:
                if found := _ADDRESS.search(line):
                    return found
        finally:
            deadline.cancel()
        return None

    def stderr(self) -> str:
        """Everything the server has written to stderr."""
        self._stderr.seek(0)
        return self._stderr.read()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for the process to end, and return its exit status."""
        assert self._process is not None
        try:
            return self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            if self._process.stdout:
                self._process.stdout.close()

    def stop(self) -> int:
        """End the process the polite way, with SIGTERM."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> int:
        """End the process the way a crash does, with SIGKILL."""
        self.signal(signal.SIGKILL)
        return self.wait()

    @property
    def running(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.running:
            self.stop()
        elif self._process is not None:
            self.wait()
        self._stderr.close()
