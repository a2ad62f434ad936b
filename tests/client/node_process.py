"""The reference server of the protocol, from npm, in a process of its own.

What it runs is pinned in node_server/package-lock.json, and installed when that has changed.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

HERE = Path(__file__).parent / "node_server"
INSTALL_DEADLINE_S = 300
START_DEADLINE_S = 30
STOP_DEADLINE_S = 15


@contextmanager
def node_server() -> Iterator[str]:
    """Run the reference server; its URL."""
    node = _require("node")
    _install(_require("npm"))
    process = subprocess.Popen(
        [node, str(HERE / "server.mjs")], cwd=HERE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield _wait_for_address(process)
    finally:
        process.terminate()
        process.communicate(timeout=STOP_DEADLINE_S)


def _require(program: str) -> str:
    """Its path. Without it these tests are skipped, except where CI relies on them."""
    found = shutil.which(program)
    if found is None:
        reason = f"the client did NOT run against the reference server: no {program} here"
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return found


def _install(npm: str) -> None:
    stamp = HERE / "node_modules" / ".holdfast-installed"
    wanted = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()
    with (HERE / ".install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several pytest workers may come here at once
        if stamp.is_file() and stamp.read_text() == wanted:
            return
        # lmdb comes prebuilt as an optional package: no install script has to run.
        done = subprocess.run(
            [npm, "ci", "--ignore-scripts"],
            cwd=HERE,
            timeout=INSTALL_DEADLINE_S,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.fail(f"npm ci failed:\n{done.stdout}{done.stderr}", pytrace=False)
        stamp.write_text(wanted)


def _wait_for_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    deadline = Timer(START_DEADLINE_S, process.kill)
    deadline.start()
    try:
        for line in process.stdout:
            if line.startswith("http://"):
                return line.strip()
    finally:
        deadline.cancel()
    pytest.fail("the reference server did not say where it listens", pytrace=False)
