"""What a server says of its storage, and waiting until it says something else."""

import time
from collections.abc import Callable
from typing import Any

import httpx

# Against hangs: far longer than anything here takes.
DEADLINE_S = 30.0


def metrics(client: httpx.Client) -> dict[str, float]:
    """All samples without labels, by name."""
    samples = {}
    for line in client.get("/metrics").text.splitlines():
        name, _, value = line.partition(" ")
        if line and line[0] != "#" and "{" not in name:
            samples[name] = float(value)
    return samples


def stats(client: httpx.Client) -> dict[str, Any]:
    """`GET /cluster/hot-cold-stats`."""
    answer = client.get("/cluster/hot-cold-stats")
    assert answer.status_code == 200, answer.text
    return answer.json()


def flush(client: httpx.Client) -> None:
    """Have everything in packs."""
    answer = client.post("/cluster/flush")
    assert answer.status_code == 204, answer.text


def until(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> Any:
    """Ask again and again until the answer is true; the answer."""
    ends_s = time.monotonic() + deadline_s
    while not (answer := condition()):
        assert time.monotonic() < ends_s, "what was waited for has not happened"
        # Only so that asking does not take all the processor's time.
        time.sleep(0.01)
    return answer
