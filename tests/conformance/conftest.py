"""npm and vitest, and the suite that the latter runs."""

import fcntl
import hashlib
import os
import shutil
from pathlib import Path

import pytest

from tests.conformance.suite import HERE, install


@pytest.fixture(scope="module")
def npm() -> str:
    """The path of npm. Without it the suite is skipped, except where CI relies on it."""
    found = shutil.which("npm")
    if found is None:
        reason = "the upstream conformance suite did NOT run: npm is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def vitest(npm: str) -> Path:
    """The path of vitest, installed when the lock file differs from the one last installed."""
    modules = HERE / "node_modules"
    stamp = modules / ".holdfast-installed"
    wanted = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()
    with (HERE / ".install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several pytest workers may come here at once
        if not (stamp.is_file() and stamp.read_text() == wanted):
            install(npm)
            stamp.write_text(wanted)
    return modules / ".bin" / "vitest"
