"""The upstream conformance suite against real servers."""

import hashlib
from pathlib import Path

import pytest

from tests.conformance.suite import DEADLINE_S, SETTINGS, check_upstream_suite
from tests.server_process import ServerProcess

TOKEN = "a token with enough bits for a test"


@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.parametrize("durability", ["fsync", "memory"])
@pytest.mark.spec("base 9-1", "base 9.1-2", "base 9.1-3", "base 9.1-7", "base 9.1-8")
def test_server_passes_the_upstream_suite(durability: str, vitest: Path, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", durability=durability, **SETTINGS) as server:
        check_upstream_suite(vitest, server.url, tmp_path / "report.json")


@pytest.mark.timeout(DEADLINE_S)
def test_server_with_access_control_passes_the_upstream_suite(vitest: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    tokens.write_text(f'[[token]]\nname = "suite"\nsha256 = "{digest}"\nscopes = ["admin:*"]\n')
    settings = SETTINGS | {"access_tokens_file": str(tokens)}
    with ServerProcess(tmp_path / "data", **settings) as server:
        check_upstream_suite(vitest, server.url, tmp_path / "report.json", TOKEN)
