"""The upstream conformance suite against real servers."""

from pathlib import Path

import pytest

from tests.conformance.suite import DEADLINE_S, check_upstream_suite
from tests.server_process import ServerProcess


@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.parametrize("durability", ["fsync", "memory"])
@pytest.mark.spec("base 9-1", "base 9.1-2", "base 9.1-3", "base 9.1-7", "base 9.1-8")
def test_server_passes_the_upstream_suite(durability: str, vitest: Path, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", durability=durability) as server:
        check_upstream_suite(vitest, server.url, tmp_path / "report.json")
