"""What both clients are given to do, and how their processes response.

The published client has an environment of its own, without Holdfast: this needs the standard
library alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Values = dict[str, float]
Work = Callable[..., Awaitable[Values]]

JSON = "application/json"
MESSAGE_BYTES = 100
READY = "ready"


def message(number: int) -> dict[str, object]:
    """A value whose JSON has 100 bytes, without spaces."""
    return {"number": number, "text": "x" * (81 - len(str(number)))}


def percentile_ms(times_s: list[float], percent: int) -> float:
    return sorted(times_s)[len(times_s) * percent // 100] * 1e3


async def append_one_by_one(append: Callable[[Any], Awaitable[object]], count: int) -> Values:
    """Append messages, each after the response to the one before."""
    times_s = []
    for number in range(count):
        value = message(number)
        started_s = time.perf_counter()
        await append(value)
        times_s.append(time.perf_counter() - started_s)
    return {"p50_ms": percentile_ms(times_s, 50), "p99_ms": percentile_ms(times_s, 99)}


class Tail:
    """How far one live read is: connected, and behind its last message."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self.received = 0
        # On a clock that all processes share.
        self.ended_s = 0.0

    def take(self, messages: int, wanted: int) -> bool:
        """Count messages; whether these were the last ones."""
        self.received += messages
        self.ended_s = time.monotonic()
        return self.received >= wanted


async def tail_all(
    follow: Callable[[int, Tail], Awaitable[None]],
    tails: int,
    settled: Callable[[], Awaitable[None]] | None = None,
) -> Values:
    """Have many tails run until each has all its messages.

    Once all are connected, whoever started this process writes to the streams.
    """
    started_s = time.monotonic()
    all_tails = [Tail() for _ in range(tails)]
    tasks = [asyncio.create_task(follow(*numbered)) for numbered in enumerate(all_tails)]
    for tail in all_tails:
        await tail.connected.wait()
    if settled is not None:
        await settled()
    connected_s = time.monotonic() - started_s
    print(READY, flush=True)
    await asyncio.gather(*tasks)
    return {
        "connected_s": connected_s,
        "ended_s": max(tail.ended_s for tail in all_tails),
        "received": sum(tail.received for tail in all_tails),
    }


def run(works: Mapping[str, Work]) -> None:
    """`python -m MODULE LOOP WORK ARGUMENTS`: do one work, and print what was measured as JSON."""
    loop, name, arguments = sys.argv[1:]
    if loop == "uvloop":
        import uvloop  # noqa: PLC0415 - only one of the environments has it

        measured = uvloop.run(works[name](**json.loads(arguments)))
    else:
        measured = asyncio.run(works[name](**json.loads(arguments)))
    print(json.dumps(measured), flush=True)
