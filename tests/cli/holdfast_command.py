"""The command `holdfast` with a home directory of its own, in this process or in another."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from holdfast.cli.main import main
from tests.cli.own_logging import own_logging

BIN = Path(sys.executable).parent
HOLDFAST = str(BIN / "holdfast")
DEADLINE_S = 60


class Command:
    """Runs commands against one server."""

    def __init__(self, home: Path, url: str = "", **variables: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if _is_kept(name)}
        self.home = home
        self.env = kept | {
            "HOME": str(home),
            "PATH": f"{BIN}:{kept.get('PATH', '')}",
            **({"HOLDFAST_URL": url} if url else {}),
            **variables,
        }

    def with_env(self, **variables: str) -> "Command":
        """The same with other variables; an empty one is removed."""
        new = type(self)(self.home)
        merged = self.env | variables
        new.env = {name: value for name, value in merged.items() if value}
        return new

    def run(self, *arguments: str, stdin: bytes | str = b"") -> subprocess.CompletedProcess[str]:
        """Run a command in this process to its end, whatever that is."""
        stdout = TextIOWrapper(BytesIO(), encoding="utf-8", write_through=True)
        stderr = StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            _stdin(stdin.encode() if isinstance(stdin, str) else stdin),
            redirect_stdout(stdout),
            redirect_stderr(stderr),
            own_logging(),
        ):
            patch.chdir(self.home)
            for name in os.environ.keys() - self.env.keys():
                patch.delenv(name)
            for name, value in self.env.items():
                patch.setenv(name, value)
            status = main(arguments)
        assert isinstance(stdout.buffer, BytesIO)
        printed = stdout.buffer.getvalue().decode(errors="surrogateescape")
        return subprocess.CompletedProcess(list(arguments), status, printed, stderr.getvalue())

    def run_process(
        self, *arguments: str, stdin: bytes | str = b""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a process of its own to its end, whatever that is."""
        sent = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [HOLDFAST, *arguments],
            input=sent,
            capture_output=True,
            env=self.env,
            cwd=self.home,
            timeout=DEADLINE_S,
            check=False,
        )
        stdout = done.stdout.decode(errors="surrogateescape")
        stderr = done.stderr.decode(errors="surrogateescape")
        assert "Traceback" not in stderr, stderr
        return subprocess.CompletedProcess(done.args, done.returncode, stdout, stderr)

    def __call__(self, *arguments: str, stdin: bytes | str = b"") -> str:
        """Run a command that succeeds; what it prints on stdout."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str, stdin: bytes | str = b"") -> list[dict[str, Any]]:
        """Run a command that succeeds with `--json`; its documents."""
        return [json.loads(line) for line in self(*arguments, "--json", stdin=stdin).splitlines()]

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a line of bash."""
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", script],
            capture_output=True,
            text=True,
            env=self.env,
            cwd=self.home,
            timeout=DEADLINE_S,
            check=False,
        )

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a command that goes on until something ends it."""
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            [HOLDFAST, *arguments], env=self.env, cwd=self.home, **(streams | options)
        )


@contextmanager
def _stdin(data: bytes) -> Iterator[None]:
    """Standard input of this process is a pipe that gives `data`."""
    reading, writing = os.pipe()

    def write() -> None:
        with suppress(BrokenPipeError), open(writing, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(data)

    kept = os.dup(0)
    os.dup2(reading, 0)
    os.close(reading)
    thread = Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        thread.join()


def interrupt(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """End a command as Ctrl-C does; its status and what it said on stderr."""
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=DEADLINE_S)
    return process.returncode, stderr.decode()


def _is_kept(name: str) -> bool:
    return not name.startswith("HOLDFAST_") and name not in {"XDG_CONFIG_HOME", "NO_COLOR"}
