"""Scans of a bucket with a million streams: what a plan costs, and what is left of it."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from bench.spark.generated import BUCKET, generate
from tests.server_process import ServerProcess
from tests.storage_stats import until

STREAMS = 1_000_000
MESSAGE_BYTES = 88
PLAN_S_MAX = 3.0
# Before, all extents were read for the smallest batch: 97 s.
UNTIL_S_MAX = 10.0
WIRE_BYTES_MAX = 50_000_000
TICKS = os.sysconf("SC_CLK_TCK")

# The streams are made before the first test.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = tmp_path_factory.mktemp("many") / "data"
    generate(path, STREAMS, message_bytes=MESSAGE_BYTES)
    with ServerProcess(path) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client


def timed(client: httpx.Client, below: str, **query: object) -> tuple[float, httpx.Response]:
    begun_s = time.monotonic()
    answer = client.get(f"/{BUCKET}/streams/scan{below}", params=query)
    assert answer.status_code == 200, answer.text
    return time.monotonic() - begun_s, answer


def test_plan_by_packs(client: httpx.Client) -> None:
    """By default, since there are many streams; with what workers ask for about every pack."""
    seconds, answer = timed(client, "", partitions=16)
    plan = answer.json()
    sizes = [len(answer.content)]
    for pack in plan["packs"]:
        took_s, streams = timed(client, "/pack", pack=pack["name"])
        seconds += took_s
        sizes.append(len(streams.content))
    assert plan["partitions"] == []
    assert len(plan["parts"]) >= 12
    assert sum(part["messages"] for part in plan["parts"]) == STREAMS
    assert seconds <= PLAN_S_MAX
    assert sum(sizes) <= WIRE_BYTES_MAX


def test_end_of_a_small_batch(client: httpx.Client) -> None:
    for after in (0, 500):
        seconds, answer = timed(client, "/until", bytes=8_000_000, after=after)
        assert 7_000_000 <= answer.json()["bytes"] <= 8_100_000
        assert seconds <= UNTIL_S_MAX


def test_nothing_goes_on_for_clients_that_have_left(
    client: httpx.Client, server: ServerProcess
) -> None:
    for below in ("scan?by=names", "scan/ranges", "scan/until"):
        with suppress(httpx.TimeoutException):
            client.get(f"/{BUCKET}/streams/{below}", timeout=0.3)
    # All ranges take half a minute.
    until(lambda: is_idle(server.pid), deadline_s=10)


def is_idle(pid: int) -> bool:
    before = cpu_s(pid)
    time.sleep(1)
    return cpu_s(pid) - before < 0.25


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / TICKS
