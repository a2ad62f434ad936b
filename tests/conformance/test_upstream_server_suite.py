"""The upstream conformance suite against real servers."""

import hashlib
from pathlib import Path

import pytest

from tests.conformance.suite import DEADLINE_S, SETTINGS, check_upstream_suite
from tests.server_process import ServerProcess
from tests.thorough import some_of

TOKEN = "a token with enough bits for a test"


@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.parametrize("durability", some_of(["fsync", "memory"], 1))
@pytest.mark.spec("base 9-1", "base 9.1-2", "base 9.1-3", "base 9.1-7", "base 9.1-8")
@pytest.mark.spec("forks 4.2-1", "forks 4.2-2", "forks 4.2-3", "forks 4.2-5", "forks 4.2-6")
@pytest.mark.spec("forks 4.2-7", "forks 4.2-8", "forks 4.2-9", "forks 4.2-10", "forks 4.2-12")
@pytest.mark.spec("forks 4.2-18", "forks 4.2-21", "forks 4.2-22", "forks 4.2-23", "forks 4.2-24")
@pytest.mark.spec("forks 4.2-25", "forks 4.2-26", "forks 4.2-27", "forks 4.2-28")
@pytest.mark.spec("forks 4.2-32", "forks 4.2-33", "forks 4.2-34", "forks 4.2-35", "forks 4.2-37")
@pytest.mark.spec("forks 5.1-3", "forks 8-6", "forks 9.1-1", "forks 9.1-2")
@pytest.mark.spec(
    "subscriptions 6.2-5", "subscriptions 6.2-6", "subscriptions 6.2-9", "subscriptions 6.2-10"
)
@pytest.mark.spec(
    "subscriptions 6.3-2", "subscriptions 6.4-1", "subscriptions 6.4-4", "subscriptions 6.5-1"
)
@pytest.mark.spec(
    "subscriptions 7.1-3", "subscriptions 7.1-5", "subscriptions 7.1-8", "subscriptions 7.1-9"
)
@pytest.mark.spec("subscriptions 7.2-6")
def test_server_passes_the_upstream_suite(durability: str, vitest: Path, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", durability=durability, **SETTINGS) as server:
        check_upstream_suite(vitest, server.url, tmp_path / "report.json")


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S)
def test_server_with_access_control_passes_the_upstream_suite(vitest: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    tokens.write_text(f'[[token]]\nname = "suite"\nsha256 = "{digest}"\nscopes = ["admin:*"]\n')
    settings = SETTINGS | {"access_tokens_file": str(tokens)}
    with ServerProcess(tmp_path / "data", **settings) as server:
        check_upstream_suite(vitest, server.url, tmp_path / "report.json", TOKEN)
