"""Which tests share a process, and what every run of the tests says at its end."""

from typing import Any

import pytest
from _pytest.terminal import TerminalReporter
from xdist.scheduler import LoadFileScheduling

SPARK = "tests/spark"


class _Files(LoadFileScheduling):
    """Files go to workers whole, and the Spark tests all to one: a JVM takes seconds to start."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(f"{SPARK}/") else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Files | None:
    """Take our order instead of xdist's, unless another one was asked for."""
    return _Files(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say loudly what was skipped: a missing tool must not look like a success."""
    reasons = {
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    }
    for reason in sorted(reasons):
        terminalreporter.write_line(f"!!! SKIPPED: {reason}", yellow=True, bold=True)
