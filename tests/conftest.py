"""Which tests share a process, in what order they run, and what every run says at its end."""

import signal
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter
from xdist.scheduler import LoadFileScheduling

SPARK = "tests/spark"
# Files that take long come first, so that short ones are left when a worker has nothing else to do,
# and all end at about the same time. Spark takes every processor there is, and the upstream suites
# have streams that live for a second or two: they come when Spark is done.
FIRST = tuple(
    f"tests/{name}"
    for name in ("spark", "crash", "browser", "proxy", "cli", "docs", "http", "conformance")
)


class _Files(LoadFileScheduling):
    """Files go to workers whole, and the Spark tests all to one: a JVM takes seconds to start."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(f"{SPARK}/") else super()._split_scope(nodeid)


def pytest_configure() -> None:
    """Take Ctrl-C: what a shell runs in the background ignores it, and so do its processes."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Files | None:
    """Take our order instead of xdist's, unless another one was asked for."""
    if config.getvalue("dist") != "loadfile":
        return None
    # It would start with the files that hold the most tests, which are the quick ones.
    config.option.loadscopereorder = False
    return _Files(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; apart from that the order stays."""
    items.sort(key=lambda item: _rank(item.nodeid))


def _rank(nodeid: str) -> int:
    folders = [at for at, folder in enumerate(FIRST) if nodeid.startswith(f"{folder}/")]
    return folders[0] if folders else len(FIRST)


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say loudly what was skipped: a missing tool must not look like a success."""
    reasons = {
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    }
    for reason in sorted(reasons):
        terminalreporter.write_line(f"!!! SKIPPED: {reason}", yellow=True, bold=True)
