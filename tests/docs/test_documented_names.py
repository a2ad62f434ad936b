"""Every error code and every metric is in the documentation, and nothing else is."""

import asyncio
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.clock import SystemClock
from holdfast.errors import error_classes
from holdfast.http.app import TREE
from holdfast.http.openapi import response_codes
from holdfast.node.node import Node
from holdfast.settings import load_settings
from tools.coverage_page import ROOT


def documented(page: str, pattern: str) -> set[str]:
    """The first column of the page's tables, where it matches."""
    return set(re.findall(rf"^\| `({pattern})", (ROOT / "docs" / page).read_text(), re.MULTILINE))


def test_every_error_code_is_in_the_one_table_with_its_status_and_whether_to_retry() -> None:
    page = (ROOT / "docs/http.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\d{3}) \| (yes|no) \| \S.* \|$", page, re.MULTILINE)
    assert len({code for code, _, _ in rows}) == len(rows)
    assert {code: (int(status), retry == "yes") for code, status, retry in rows} == {
        code: (cls.status, cls.retryable)
        for code, cls in error_classes().items()
        if code in response_codes()
    }


def test_every_route_is_in_the_documentation_of_the_metrics() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    (listed,) = re.findall(r"routes are (.+?) \|", page)
    # Set by handlers, or where there is no route.
    elsewhere = {"long_poll", "sse", "proxy", "proxy_read", "unknown"}
    assert set(re.findall(r"`(\w+)`", listed)) == labels() | elsewhere


def labels() -> set[str]:
    resources = [
        *TREE.fixed.values(),
        *TREE.of_bucket.values(),
        *TREE.of_stream.values(),
        TREE.stream,
        TREE.bucket,
        TREE.snapshot,
    ]
    found = {route.label for resource in resources for route in resource.routes.values()}
    return found | {"subscription"}


@pytest.fixture
def metrics_text(tmp_path: Path) -> str:
    async def render() -> str:
        flags = {"data_dir": str(tmp_path / "data"), "proxy_secret": "a secret of the proxy's"}
        settings = load_settings(file=None, env={}, flags=flags)
        node = Node(settings, SystemClock())
        try:
            node.app.counters.count("append", 204, 0.001)
            return node.app.metrics.render().decode()
        finally:
            await node.close()

    return asyncio.run(render())


def test_every_metric_is_documented_and_exists(metrics_text: str) -> None:
    families = text_string_to_metric_families(metrics_text)
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert documented("metrics.md", "holdfast_[a-z_]+") == names
