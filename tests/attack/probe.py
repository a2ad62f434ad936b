"""A well-behaved client in a process of its own, which measures how long the server makes it wait.

Run as a program, it asks for `/healthz` and appends to a stream in turn until its standard input
ends, and then prints what it measured.
"""

import http.client
import json
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Waits:
    """The longest waits for a response, in seconds, and what was not answered with success."""

    requests: int
    worst_health_s: float
    worst_append_s: float
    failures: list[str]


class Probe:
    """Measures while the block runs; `waits` is there afterwards.

    The stream at `path` has to exist. `token` is sent with appends if it is given. With the
    server's `durability` set to memory, waits are the server's own and not those of the disk.
    """

    waits: Waits

    def __init__(self, port: int, path: str, token: str = "") -> None:
        arguments = [sys.executable, "-m", "tests.attack.probe", str(port), path, token]
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "measuring\n"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        output, _ = self._process.communicate(timeout=2 * DEADLINE_S)
        self.waits = Waits(**json.loads(output))


def resident_bytes(pid: int) -> int:
    """The memory that a process has in use."""
    return _memory(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """The most memory that a process had in use since it started."""
    return _memory(pid, "VmHWM")


def _memory(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"the process has no {field}")


def measure(port: int, path: str, token: str) -> Waits:
    """Send requests on one connection until standard input ends."""
    headers = {"Content-Type": "text/plain"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    worst = {"GET": 0.0, "POST": 0.0}
    failures: list[str] = []
    requests = 0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)

    def call(method: str, target: str, body: bytes | None, headers: dict[str, str]) -> None:
        started_s = time.monotonic()
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            response.read()
            if response.status >= 300:
                failures.append(f"{method}: {response.status}")
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{method}: {error!r}")
            connection.close()
        worst[method] = max(worst[method], time.monotonic() - started_s)

    # The first requests also open the connection, and load what the server needs for them.
    call("GET", "/healthz", None, {})
    call("POST", path, b"x", headers)
    worst = {"GET": 0.0, "POST": 0.0}
    print("measuring", flush=True)
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        call("GET", "/healthz", None, {})
        call("POST", path, b"x", headers)
        requests += 2
    return Waits(requests, worst["GET"], worst["POST"], failures)


if __name__ == "__main__":
    found = measure(int(sys.argv[1]), sys.argv[2], sys.argv[3])
    print(json.dumps({name: getattr(found, name) for name in Waits.__slots__}))
