"""A real Chromium, driven by playwright in a process of its own.

    with Chromium() as chromium:
        page = chromium.open()
        page.call("goto", url)
        page.wait("document.title === 'ready'")

playwright is pinned in package-lock.json, and installed when that has changed. The browser is the
system's: nothing is downloaded but a package of JavaScript.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any, Self

import pytest

HERE = Path(__file__).parent
NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL_DEADLINE_S = 300
START_DEADLINE_S = 60
CALL_DEADLINE_S = 40
WAIT_DEADLINE_S = 20
STOP_DEADLINE_S = 15


class Chromium:
    """One browser; its pages have nothing in common unless they are opened beside each other."""

    def __init__(self) -> None:
        node, browser = _require("node"), _require(*NAMES)
        _install(_require("npm"))
        self._process = subprocess.Popen(
            [node, str(HERE / "driver.mjs"), browser],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.version = self._answer(START_DEADLINE_S)

    def open(self, beside: "Page | None" = None) -> "Page":
        """A new page: a new visitor's, or another tab of the one who has `beside` open."""
        at = self.call(None, "open", [None if beside is None else beside.at])
        return Page(self, at)

    def call(self, page: int | None, method: str, args: list[Any]) -> Any:
        """The result of a method, of the browser or of one of its pages."""
        assert self._process.stdin is not None
        said = {"page": page, "method": method, "args": args}
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()
        return self._answer(CALL_DEADLINE_S)

    def _answer(self, timeout_s: float) -> Any:
        assert self._process.stdout is not None
        deadline = Timer(timeout_s, self._process.kill)
        deadline.start()
        try:
            line = self._process.stdout.readline()
        finally:
            deadline.cancel()
        assert line, f"the browser ended, or did not answer within {timeout_s} s"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._process.communicate(timeout=STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


class Page:
    """A page; `call` has all of playwright's methods whose arguments and results are JSON."""

    def __init__(self, chromium: Chromium, at: int) -> None:
        self._chromium = chromium
        self.at = at

    def call(self, method: str, *args: Any) -> Any:
        """The result of a method of the page."""
        return self._chromium.call(self.at, method, list(args))

    def wait(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        self.call("waitForFunction", expression, None, {"timeout": WAIT_DEADLINE_S * 1000})

    @property
    def errors(self) -> list[str]:
        """What the page's scripts threw, and nobody caught."""
        found = self._chromium.call(None, "errorsOf", [self.at])
        assert isinstance(found, list)
        return found

    def leave(self) -> None:
        """Close all tabs of this visitor, and forget what they stored."""
        self._chromium.call(None, "closeContext", [self.at])


def _require(*names: str) -> str:
    """The path of one of these. Without it nothing here runs, which CI takes for a failure."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        reason = f"no page was opened in a real browser: there is no {names[0]} here"
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
