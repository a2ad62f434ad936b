"""kill -9 while responses are recorded: they end once, nothing of what was read is lost."""

import signal
import subprocess
import time
from collections.abc import Iterator
from random import Random

import pytest

from holdfast import failpoints
from tests.crash.conftest import MakeServer
from tests.crash.proxy_callers import SETTINGS, Caller, call_until, client_of
from tests.crash.storage_kills import TINY, check_data
from tests.server_process import START_DEADLINE_S, ServerProcess
from tests.storage_stats import until
from tests.thorough import some_of
from tests.upstreams import Upstream

KILLS = {"in memory": 2, "in packs": 3}
LONGEST_RUN_S = 0.4
POINTS = (
    "proxy.starting=kill",
    "proxy.begun=kill@20",
    "proxy.ended=kill@20",
    "proxy.starting=kill@30",
)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as running:
        yield running


def make_callers(upstream: Upstream, seed: int) -> list[Caller]:
    return [
        *(Caller(upstream, 10 * seed + each, f"session {each}") for each in range(3)),
        *(Caller(upstream, 10 * seed + each, None) for each in range(3, 5)),
    ]


def check(server: ServerProcess, callers: list[Caller]) -> None:
    with client_of(server) as client:
        for caller in callers:
            caller.check(client)
        answer = client.get("/metrics").text
    assert "holdfast_proxy_upstreams 0.0" in answer


def check_at_last(server: ServerProcess, callers: list[Caller]) -> None:
    """Another start finds nothing left to be ended, and the data is sound."""
    assert server.stop() == 0
    check_data(server)
    server.start()
    check(server, callers)
    with client_of(server) as client:
        text = client.get("/metrics").text
    assert 'holdfast_proxy_responses_total{outcome="failed"} 0.0' in text


def wait_for(callers: list[Caller], random: Random) -> None:
    until(lambda: all(caller.promises for caller in callers))
    # The moment is the point of the test: nothing that could be awaited would be as arbitrary.
    time.sleep(random.uniform(0, LONGEST_RUN_S))


@pytest.mark.spec("proxy 5.3-1", "proxy 5.3-2", "proxy 5.2-4")
@pytest.mark.parametrize("storage", some_of(["in memory", "in packs"], 1))
def test_kills_at_any_moment(make_server: MakeServer, upstream: Upstream, storage: str) -> None:
    """Once all is flushed at once, and streams leave memory, so that recovery meets cold ones."""
    random = Random(storage)
    server = make_server(**SETTINGS, **(TINY if storage == "in packs" else {}))
    callers = make_callers(upstream, random.randrange(100))
    for _ in range(KILLS[storage]):
        server.start()
        check(server, callers)
        call_until(callers, server, lambda: wait_for(callers, random))
    server.start()
    check(server, callers)
    server.kill()
    check_data(server)


@pytest.mark.slow
def test_kills_at_every_step(
    make_server: MakeServer, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one kill leaves is there for the next; with the very first response, and later."""
    server, callers = make_server(**SETTINGS), make_callers(upstream, 3)
    for point in POINTS:
        monkeypatch.setenv(failpoints.VARIABLE, point)
        server.start()
        call_until(callers, server, lambda: until(lambda: not server.running))
        assert server.wait() == -signal.SIGKILL
    monkeypatch.delenv(failpoints.VARIABLE)
    server.start()
    check(server, callers)
    server.kill()
    check_data(server)


@pytest.mark.slow
def test_kills_during_recovery(
    make_server: MakeServer, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ends what a crash left open is killed as well, again and again."""
    server, callers = make_server(**SETTINGS, **TINY), make_callers(upstream, 7)
    server.start()
    call_until(callers, server, lambda: until(lambda: all(each.promises > 4 for each in callers)))
    for visit in (1, 3):
        monkeypatch.setenv(failpoints.VARIABLE, f"proxy.recovering=kill@{visit}")
        ended = subprocess.run(
            server._arguments, capture_output=True, timeout=START_DEADLINE_S, check=False
        )
        assert ended.returncode == -signal.SIGKILL
    monkeypatch.delenv(failpoints.VARIABLE)
    server.start()
    check(server, callers)
    check_at_last(server, callers)
