"""kill -9 at any moment, again and again: what was answered stays, once and in order.

A killed process loses nothing that it has written; what a power cut does to unsynced bytes is for
`test_torn_log` and the tests of the log itself.
"""

import asyncio
import os
import subprocess
import time
from collections.abc import Callable
from random import Random

import pytest

from tests.crash.conftest import MakeServer
from tests.crash.wire import Lost, Wire
from tests.crash.writers import Appender, Changer, Producer, Writer
from tests.server_process import START_DEADLINE_S, ServerProcess
from tests.thorough import THOROUGH, some_of

KILLS = 10 if THOROUGH else 4
# `make test-crash` has more of them.
SEEDS = range(1, 1 + int(os.environ.get("CRASH_SEEDS", "3")))
LONGEST_RUN_S = 0.5


def make_writers(seed: int) -> list[Writer]:
    return [
        Appender("plain"),
        Appender("shared", authors=3),
        Appender("pipelined", window=8),
        Producer("producer"),
        Producer("pipelined-producer", window=8),
        Producer("json", messages=3),
        Producer("pipelined-json", window=4, messages=2),
        *(Changer(f"changer-{index}", seed * 100 + index) for index in range(4)),
    ]


async def check(server: ServerProcess, writers: list[Writer]) -> None:
    async with await Wire.open(server.port) as wire:
        for writer in writers:
            await writer.check(wire)


async def write_until_killed(server: ServerProcess, writers: list[Writer], run_s: float) -> None:
    """Let all write at once, kill the server, and raise what any of them found wrong."""
    tasks = [asyncio.create_task(writer.write(server.port)) for writer in writers]
    # The moment is the point of the test: nothing that could be awaited would be as arbitrary.
    await asyncio.wait(tasks, timeout=run_s, return_when=asyncio.FIRST_COMPLETED)
    server.kill()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if not isinstance(outcome, Lost):
            raise outcome


async def crash_again_and_again(
    server: ServerProcess, writers: list[Writer], random: Random, kills: int
) -> None:
    for _ in range(kills):
        server.start()
        await check(server, writers)
        await write_until_killed(server, writers, random.uniform(0.01, LONGEST_RUN_S))
    server.start()
    await check(server, writers)
    # A graceful end and another start change nothing either.
    assert server.stop() == 0
    server.start()
    await check(server, writers)
    assert all(writer.promises for writer in writers), "somebody was never answered"


@pytest.mark.thorough
@pytest.mark.spec("base 4-2", "base 4-3", "base 4-4", "base 4.1-4")
@pytest.mark.parametrize("seed", some_of(SEEDS, 1))
def test_what_was_acknowledged_survives_every_kill(make_server: MakeServer, seed: int) -> None:
    random = Random(seed)
    asyncio.run(crash_again_and_again(make_server(), make_writers(seed), random, KILLS))


@pytest.mark.slow
def test_kills_while_segments_rotate(make_server: MakeServer) -> None:
    server = make_server(wal_segment_bytes=16_384, wal_zero_ahead_bytes=4096)
    asyncio.run(crash_again_and_again(server, make_writers(6), Random(6), 6))
    assert len(list((server.data_dir / "log").glob("*.seg"))) > 10


@pytest.mark.slow
def test_kills_during_recovery(make_server: MakeServer) -> None:
    """Recovery itself writes (a new segment) and removes (what is no part of the log)."""
    server, writers, random = (
        make_server(wal_segment_bytes=16_384, wal_zero_ahead_bytes=4096),
        make_writers(7),
        Random(7),
    )

    async def scenario() -> None:
        for _ in range(3):
            server.start()
            await check(server, writers)
            await write_until_killed(server, writers, 0.3)
            for moment in ("locked", "segment", "random"):
                kill_during_start(server, moment, random)
        server.start()
        await check(server, writers)

    asyncio.run(scenario())


def kill_during_start(server: ServerProcess, moment: str, random: Random) -> None:
    """Start the server and kill it once it holds the lock, makes a segment, or at some time."""
    log = server.data_dir / "log"
    before = set(log.iterdir())
    process = subprocess.Popen(
        server._arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        reached: Callable[[], object] = {
            "locked": lambda: (server.data_dir / "lock").read_text().strip() == str(process.pid),
            "segment": lambda: set(log.iterdir()) - before,
            "random": lambda: False,
        }[moment]
        patience_s = random.uniform(0.1, 0.4) if moment == "random" else START_DEADLINE_S
        ends_s = time.monotonic() + patience_s
        while not reached() and time.monotonic() < ends_s:
            assert process.poll() is None, "the server ended by itself"
            time.sleep(0.0002)
        assert moment == "random" or reached(), f"the server was never {moment}"
    finally:
        process.kill()
        process.wait()
