"""A command with a real terminal: what it writes there, and what somebody types."""

import errno
import os
import pty
import re
import select
import struct
import subprocess
import termios
from fcntl import ioctl
from typing import Self

from tests.cli.holdfast_command import DEADLINE_S, HOLDFAST, Command

CTRL_C = b"\x03"
CTRL_D = b"\x04"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """One command on a terminal of its own; a stream that is given goes elsewhere instead."""

    def __init__(
        self, command: Command, *arguments: str, columns: int = 80, **streams: int
    ) -> None:
        self._ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._written = b""
        env = command.env | {"TERM": "xterm-256color", "COLUMNS": str(columns)}
        self._process = subprocess.Popen(
            [HOLDFAST, *arguments],
            **({"stdin": theirs, "stdout": theirs, "stderr": theirs} | streams),
            env=env,
            cwd=command.home,
            # The terminal becomes the process's own, so that Ctrl-C is a signal to it.
            start_new_session=True,
            preexec_fn=lambda: ioctl(theirs, termios.TIOCSCTTY, 0) and None,  # noqa: PLW1509 (no threads)
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    @property
    def written(self) -> str:
        """All that is on the terminal so far, escapes included."""
        return self._written.decode(errors="replace")

    @property
    def text(self) -> str:
        """The same without escapes."""
        return _ESCAPES.sub("", self.written).replace("\r\n", "\n")

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._ours, keys)

    def wait_for(self, text: str) -> None:
        """Until this is on the terminal."""
        while text not in self.text:
            assert self._read(), f"{text!r} did not come: {self.written!r}"

    def wait(self) -> int:
        """Until the command has ended; its status."""
        while self._read():
            pass
        return self._process.wait(DEADLINE_S)

    def _read(self) -> bool:
        """More, unless that was the end."""
        ready, _, _ = select.select([self._ours], [], [], DEADLINE_S)
        assert ready, f"nothing happens: {self.written!r}"
        try:
            piece = os.read(self._ours, 65536)
        except OSError as error:
            # What Linux says once nobody has the other side any more.
            if error.errno != errno.EIO:
                raise
            return False
        self._written += piece
        return bool(piece)
