"""Every error code and every metric is in the documentation, and nothing else is."""

import asyncio
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.clock import SystemClock
from holdfast.errors import error_classes
from holdfast.http.node import Node
from holdfast.settings import load_settings
from tools.coverage_page import ROOT

# Errors of the start, which no response carries.
START_ONLY = {"invalid_settings", "data_directory_locked", "unknown_format", "log_corrupt"}


def documented(page: str, pattern: str) -> set[str]:
    """The first column of the page's tables, where it matches."""
    return set(re.findall(rf"^\| `({pattern})", (ROOT / "docs" / page).read_text(), re.MULTILINE))


def test_every_error_code_is_documented_with_its_status() -> None:
    pages = "".join((ROOT / "docs" / page).read_text() for page in ("http.md", "subscriptions.md"))
    rows = re.findall(r"^\| `([A-Za-z_]+)`(\*?) \| (\d{3}) \|", pages, re.MULTILINE)
    assert {code: (int(status), star == "*") for code, star, status in rows} == {
        code: (cls.status, cls.retryable)
        for code, cls in error_classes().items()
        if code not in START_ONLY
    }


@pytest.fixture
def metrics_text(tmp_path: Path) -> str:
    async def render() -> str:
        settings = load_settings(file=None, env={}, flags={"data_dir": str(tmp_path / "data")})
        node = Node(settings, SystemClock())
        try:
            node.app.counters.answered("append", 204, 0.001)
            return node.app.metrics.render().decode()
        finally:
            await node.close()

    return asyncio.run(render())


def test_every_metric_is_documented_and_exists(metrics_text: str) -> None:
    families = text_string_to_metric_families(metrics_text)
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert documented("metrics.md", "holdfast_[a-z_]+") == names
