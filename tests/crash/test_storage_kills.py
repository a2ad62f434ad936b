"""kill -9 of the storage process, and of the server, between any two steps that storage takes.

Failpoints are passed in the storage process: there `kill` ends itself, `kill-parent` the server.
Each process counts its own visits, so a storage process that takes over passes where its
predecessor was killed, and is killed later.
"""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import httpx
import pytest

from holdfast import failpoints
from tests.crash.conftest import MakeServer
from tests.crash.storage_kills import (
    TINY,
    check_data,
    check_promises,
    kill_child,
    orphans,
    until,
    write_while,
)
from tests.crash.storage_writers import make_writers
from tests.moto_server import MotoServer
from tests.server_process import ServerProcess
from tests.storage_stats import metrics, stats
from tests.thorough import THOROUGH, some_of

POINTS = [name for name in failpoints.NAMES if name.startswith(("flush.", "merge.", "garbage."))]
# Far enough into the work that there is something to lose.
VISITS = {"flush": 20, "merge": 10, "garbage": 5}
# The step that `make test` kills at.
QUICK = ("flush.uploaded",)
SEEDS = (1, 3)
KILLS = 6 if THOROUGH else 3


@pytest.fixture
def arm(monkeypatch):
    """Arm a failpoint in servers that are started from now on."""

    def arm(name: str, action: str) -> None:
        visits = VISITS[name.partition(".")[0]]
        monkeypatch.setenv(failpoints.VARIABLE, f"{name}={action}@{visits}")

    return arm


def collect(client: httpx.Client) -> None:
    """Have garbage collected; no matter if server or child are killed by that."""
    with suppress(httpx.TransportError):
        client.post("/cluster/collect-garbage")


async def until_collected(server: ServerProcess, client: httpx.Client) -> None:
    """Orphans are collected, as soon as nothing is being merged."""

    def no_orphans() -> bool:
        collect(client)
        return not orphans(server)

    await until(no_orphans)


async def until_flushed(client: httpx.Client) -> None:
    """A child that is killed again answers 503; the one after it gets further."""
    await until(lambda: client.post("/cluster/flush").status_code == 204)
    assert stats(client)["flush"]["trouble"] is None


async def until_server_is_killed(server: ServerProcess, client: httpx.Client) -> None:
    def is_gone() -> bool:
        collect(client)
        return not server.running

    await until(is_gone)


async def until_child_is_killed(client: httpx.Client) -> None:
    def was_restarted() -> bool:
        collect(client)
        return metrics(client)["holdfast_storage_restarts_total"] >= 1

    await until(was_restarted)


@pytest.mark.parametrize(
    "point", some_of(sorted(POINTS, key=QUICK.__contains__, reverse=True), len(QUICK))
)
def test_kill_at_every_step(point: str, arm, make_server: MakeServer, monkeypatch) -> None:
    server, writers = make_server(**TINY), make_writers(POINTS.index(point))

    async def kill_the_server(client: httpx.Client) -> None:
        await write_while(server, writers, lambda: until_server_is_killed(server, client))
        assert server.wait() == -signal.SIGKILL

    async def kill_the_child(client: httpx.Client) -> None:
        await check_promises(server, writers)
        assert metrics(client)["holdfast_storage_restarts_total"] == 0
        await write_while(server, writers, lambda: until_child_is_killed(client))
        assert stats(client)["flush"]["process_restarts"] >= 1
        await until_flushed(client)
        await check_promises(server, writers)
        assert "the storage process was killed by signal 9; starting another" in server.stderr()

    async def have_it_clean(client: httpx.Client) -> None:
        await until_flushed(client)
        assert stats(client)["hot"]["bytes"] == 0
        await until_collected(server, client)
        await check_promises(server, writers)

    arm(point, "kill-parent")
    run(server, kill_the_server)
    # Whoever was at work then can have left one object without a row: a flush, and a merge.
    assert len(orphans(server)) <= 2
    arm(point, "kill")
    run(server, kill_the_child)
    assert server.stop() == 0
    monkeypatch.delenv(failpoints.VARIABLE)
    run(server, have_it_clean)
    assert all(writer.promises for writer in writers), "somebody was never answered"
    assert server.stop() == 0
    check_data(server)


def run(server: ServerProcess, scenario) -> None:
    """Start the server at once, whatever is left of the last one, and run a scenario with it."""
    server.start()
    with httpx.Client(base_url=server.url, timeout=30) as client:
        asyncio.run(scenario(client))


@pytest.fixture(scope="module")
def moto() -> Iterator[MotoServer]:
    with MotoServer() as server:
        yield server


@pytest.mark.thorough
@pytest.mark.parametrize("seed", some_of(SEEDS, 1))
def test_kills_at_any_moment(seed: int, make_server: MakeServer) -> None:
    kill_again_and_again(make_server(**TINY), seed)


@pytest.mark.slow
def test_kills_with_packs_in_s3(make_server: MakeServer, moto: MotoServer) -> None:
    kill_again_and_again(make_server(**TINY, **moto.settings(moto.new_bucket())), 4)


def kill_again_and_again(server: ServerProcess, seed: int) -> None:
    writers, random = make_writers(10 + seed), Random(seed)

    async def scenario() -> None:
        server.start()
        for _ in range(KILLS):
            await write_while(server, writers, lambda: kill_somebody(server, random))
            if not server.running:
                assert server.wait() == -signal.SIGKILL
                server.start()
            await check_promises(server, writers)
        with httpx.Client(base_url=server.url, timeout=30) as client:
            await until_flushed(client)
            if (server.data_dir / "objects").exists():
                await until_collected(server, client)
        await check_promises(server, writers)

    asyncio.run(scenario())
    assert all(writer.promises for writer in writers), "somebody was never answered"
    assert server.stop() == 0
    check_data(server)


async def kill_somebody(server: ServerProcess, random: Random) -> None:
    # The moment is the point of the test: nothing that could be awaited would be as arbitrary.
    await asyncio.sleep(random.uniform(0.05, 0.5))
    if random.random() < 0.5:
        await until(lambda: kill_child(server))
        await asyncio.sleep(random.uniform(0.0, 0.3))
    else:
        server.signal(signal.SIGKILL)
        await until(lambda: not server.running)
