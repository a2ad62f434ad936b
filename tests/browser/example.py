"""The example `resumable_chat` as a process, and its page as somebody sees it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Self

from tests.browser.chromium import Page

RUN = Path(__file__).parents[2] / "examples" / "resumable_chat" / "run.py"
START_DEADLINE_S = 30
STOP_DEADLINE_S = 20
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/")


class Example:
    """`run.py`, with settings of its own as environment variables."""

    def __init__(self, **settings: object) -> None:
        ours = {name: str(value) for name, value in settings.items()}
        self._process = subprocess.Popen(
            [sys.executable, str(RUN)],
            env=os.environ | {"PORT": "0", **ours},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.url = ""

    def start(self) -> Self:
        """Wait until it has said where the page is."""
        assert self._process.stdout is not None
        deadline = Timer(START_DEADLINE_S, self._process.kill)
        deadline.start()
        try:
            line = self._process.stdout.readline()
        finally:
            deadline.cancel()
        found = _ADDRESS.search(line)
        if found is None:
            raise AssertionError(f"the example did not start:\n{self._process.communicate()[1]}")
        self.url = found[0]
        return self

    def stop(self, how: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        """End it as Ctrl-C does; its exit status, and what it wrote to stderr."""
        self._process.send_signal(how)
        try:
            _, stderr = self._process.communicate(timeout=STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        return self._process.returncode, stderr

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.stop()


class ChatPage:
    """The page: questions, and answers by their place in the conversation, from 0."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.page.call("goto", url)

    def ask(self, question: str) -> None:
        """Send a question, once the page takes one."""
        self.page.call("bringToFront")  # tabs behind others draw little, and clicks wait for that
        self.page.wait("!document.getElementById('send').disabled")
        self.page.call("fill", "#prompt", question)
        self.page.call("click", "#send")

    def stop(self) -> None:
        """Press Stop."""
        self.page.call("click", "#stop:enabled")

    def reload(self) -> None:
        """Reload the page."""
        self.page.call("reload")

    def wait_for_answer(self, at: int, text: str, outcome: str) -> None:
        """Wait until an answer reads exactly so, and is this far."""
        row = f"document.querySelectorAll('article')[{at}]"
        try:
            self.page.wait(
                f"{row}?.dataset.outcome === {json.dumps(outcome)}"
                f" && {row}.querySelector('.answer').textContent === {json.dumps(text)}"
            )
        except AssertionError as error:
            raise AssertionError(
                f"answer {at} is not {outcome!r} with {text!r}; there is {self.conversation()}"
            ) from error

    def conversation(self) -> list[list[str]]:
        """Question, answer and outcome of every turn, as they can be read."""
        rows = "[...document.querySelectorAll('article')]"
        read = self.page.call(
            "evaluate", f"{rows}.map(row => [...row.children].map(part => part.textContent))"
        )
        assert isinstance(read, list)
        return read
