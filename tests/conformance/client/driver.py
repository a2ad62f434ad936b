"""The adapter in a process of its own, as the suite's runner has it."""

import json
import subprocess
from pathlib import Path
from threading import Timer
from typing import Any, Self

START_SCRIPT = Path(__file__).with_name("run-adapter")
ANSWER_DEADLINE_S = 30.0


class AdapterProcess:
    """Commands in, results out. A command may be sent before the result of another one is read."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._process = subprocess.Popen(
            [str(START_SCRIPT)],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> Self:
        self.initialized = self.call({"type": "init", "serverUrl": self._server_url})
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.call({"type": "shutdown"})
        self._process.communicate(timeout=ANSWER_DEADLINE_S)

    def call(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send a command, and wait for its result."""
        self.send(command)
        return self.result()

    def send(self, command: dict[str, Any]) -> None:
        self.send_line(json.dumps(command))

    def send_line(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = Timer(ANSWER_DEADLINE_S, self._process.kill)
        deadline.start()
        try:
            line = self._process.stdout.readline()
        finally:
            deadline.cancel()
        assert line.endswith("\n"), "the adapter has ended, or did not answer in time"
        result: dict[str, Any] = json.loads(line)
        return result

    def wait(self) -> int:
        """Wait until the process has ended by itself."""
        return self._process.wait(ANSWER_DEADLINE_S)
