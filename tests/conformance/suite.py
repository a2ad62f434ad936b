"""The upstream conformance suite, pinned in package.json: installed, run, and its report read.

The suite is vitest's to run. npm 10 and 11 both install the lock file.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
# The suite's webhook receivers are on loopback.
SETTINGS = {"webhooks_allow": "http://127.0.0.1:*,http://localhost:*"}
# Counted in version 0.3.6, so that a filter gone wrong cannot pass for a success.
EXPECTED_TESTS = 338
INSTALL_DEADLINE_S = 300
SUITE_DEADLINE_S = 300
DEADLINE_S = INSTALL_DEADLINE_S + SUITE_DEADLINE_S
# Against hangs only: the suite's own limit of 5 s is a matter of luck on a busy machine.
TEST_DEADLINE_MS = 30_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """One upstream test as vitest reported it."""

    name: str
    status: str
    messages: tuple[str, ...]

    def __str__(self) -> str:
        message = self.messages[0] if self.messages else "no message"
        return f"{self.status}: {self.name}\n    {message.splitlines()[0]}"


def install(npm: str) -> None:
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


def check_upstream_suite(vitest: Path, url: str, report: Path, token: str = "") -> None:
    """Run the suite against the server at `url`, and fail with the names of what failed."""
    ours = _run(vitest, url, report, token)
    wrong = [outcome for outcome in ours if outcome.status != "passed"]
    if wrong:
        listing = "\n".join(str(outcome) for outcome in wrong)
        pytest.fail(f"{len(wrong)} of {len(ours)} upstream tests:\n{listing}", pytrace=False)
    assert len(ours) == EXPECTED_TESTS


def _run(vitest: Path, url: str, report: Path, token: str) -> list[Outcome]:
    done = subprocess.run(
        [
            str(vitest),
            "run",
            "--reporter=json",
            f"--outputFile={report}",
            f"--testTimeout={TEST_DEADLINE_MS}",
        ],
        cwd=HERE,
        env={**os.environ, "HOLDFAST_URL": url, "HOLDFAST_TOKEN": token},
        timeout=SUITE_DEADLINE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    if not report.is_file():
        pytest.fail(f"vitest wrote no report:\n{done.stdout}{done.stderr}", pytrace=False)
    return _outcomes(json.loads(report.read_text()))


def _outcomes(report: dict[str, Any]) -> list[Outcome]:
    return [
        Outcome(test["fullName"], test["status"], tuple(test["failureMessages"]))
        for file in report["testResults"]
        for test in file["assertionResults"]
    ]
