"""The upstream suite once more, with every read from packs.

A proxy has the server flush before it passes a read on, so that what is read has just left memory.
Meanwhile packs are merged and collected as garbage, idle streams leave memory at once, and nothing
that was read from packs is kept.
"""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import httpx
import pytest

from tests.conformance.suite import DEADLINE_S, SETTINGS, check_upstream_suite
from tests.moto_server import MotoServer
from tests.server_process import ServerProcess
from tests.storage_stats import metrics
from tests.tcp_proxy import TcpProxy

pytestmark = pytest.mark.slow

ALL_COLD = {
    "hot_bytes_soft": 1,
    "block_cache_bytes": 0,
    "streams_cached_max": 1,
    "merge_packs": 4,
    "garbage_grace": 0,
    "log_level": "warning",
    **SETTINGS,
}
# Of about 1,200 reads some 900 find bytes; the others are at the tail, or refused.
COLD_READS_MIN = 600
READS_PER_COLLECTION = 20

Before = Callable[[bytes], None]


@pytest.fixture(params=["directory", "s3"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    if request.param == "directory":
        with ServerProcess(tmp_path / "data", **ALL_COLD) as server:
            yield server
        return
    with MotoServer() as moto:
        settings = moto.settings(moto.new_bucket())
        with ServerProcess(tmp_path / "data", **ALL_COLD, **settings) as server:
            yield server


def flush_before_reads(client: httpx.Client) -> Before:
    reads = count(1)

    def before(piece: bytes) -> None:
        if piece.startswith(b"GET "):
            client.post("/cluster/flush").raise_for_status()
            if next(reads) % READS_PER_COLLECTION == 0:
                client.post("/cluster/collect-garbage").raise_for_status()

    return before


@pytest.mark.timeout(DEADLINE_S)
def test_cold_reads_pass_the_upstream_suite(
    server: ServerProcess, vitest: Path, tmp_path: Path
) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        with TcpProxy(server.port, flush_before_reads(client)) as proxy:
            url = f"http://127.0.0.1:{proxy.port}"
            check_upstream_suite(vitest, url, tmp_path / "report.json")
        done = metrics(client)
    assert done["holdfast_cold_reads_total"] > COLD_READS_MIN
    assert done["holdfast_cold_fetches_total"] > COLD_READS_MIN / 2
    assert done["holdfast_evictions_total"] > 500
    assert done["holdfast_merges_total"] > 50
    assert done["holdfast_objects_removed_total"] > 50
    # A fetch may fail: without a time of grace its pack can be collected right after it was merged.
    for name in ("merge_failures", "flush_retries", "storage_restarts"):
        assert done[f"holdfast_{name}_total"] == 0, name
