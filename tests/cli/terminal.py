"""A program in a terminal of its own, whose screen can be read."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

import pyte

DEADLINE_S = 30.0
CTRL_C = b"\x03"
CTRL_D = b"\x04"
_DIRECTIONS = {"stdin": "<", "stdout": ">", "stderr": "2>"}
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Runs `arguments` in it; `text` is what a person would see, `written` all that came.

    A stream that is given goes elsewhere instead.
    """

    def __init__(self, arguments, columns=80, lines=24, *, options=None, streams=None, **variables):
        self._master, self._slave = pty.openpty()
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.output = b""
        self._set_size(columns, lines)
        self.settings_before = self.settings
        options, streams = options or {}, streams or {}
        env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        env = options.pop("env", env)
        env |= {"TERM": "xterm-256color", "TERMINAL": os.ttyname(self._slave), **variables}
        for name in ("COLUMNS", "LINES"):
            env.pop(name, None)
        # A terminal that is opened first is the session's own: Ctrl-C works then.
        ours = [f'{each}"$TERMINAL"' for name, each in _DIRECTIONS.items() if name not in streams]
        self.process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" {" ".join(ours)}', "sh", *arguments],
            start_new_session=True,
            env=env,
            **options,
            **streams,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    @property
    def settings(self):
        """How the terminal is set, such as whether it echoes."""
        return termios.tcgetattr(self._slave)

    @property
    def is_cooked(self):
        return bool(self.settings[3] & termios.ECHO and self.settings[3] & termios.ICANON)

    @property
    def text(self):
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def written(self):
        """All that was written so far, escapes included."""
        return self.output.decode(errors="replace")

    @property
    def plain(self):
        """The same without escapes."""
        return _ESCAPES.sub("", self.written).replace("\r\n", "\n")

    @property
    def in_other_screen(self):
        """Whether the program has taken the whole screen, and not given it back."""
        return self.output.rfind(b"\x1b[?1049h") > self.output.rfind(b"\x1b[?1049l")

    @property
    def is_cursor_hidden(self):
        return self.output.rfind(b"\x1b[?25l") > self.output.rfind(b"\x1b[?25h")

    def type(self, keys):
        os.write(self._master, keys)

    def resize(self, columns, lines):
        self._set_size(columns, lines)
        self._screen.resize(lines, columns)

    def wait_for(self, seen):
        """Read what comes until `seen()`, or a text on the screen, is there."""
        deadline = time.monotonic() + DEADLINE_S
        wanted = (lambda: seen in self.text) if isinstance(seen, str) else seen
        while not wanted():
            if time.monotonic() > deadline:
                raise AssertionError(f"not seen: {seen!r}; the screen is:\n{self.text}")
            self._read(0.1)

    def end(self):
        """Wait for the program's end, and return its exit status."""
        self.wait_for(lambda: self.process.poll() is not None)
        while self._read(0.05):
            pass
        return self.process.returncode

    def _read(self, timeout_s):
        if not select.select([self._master], [], [], timeout_s)[0]:
            return False
        output = os.read(self._master, 65536)
        self.output += output
        self._stream.feed(output)
        return True

    def _set_size(self, columns, lines):
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
