"""How commands say that they failed, to people and to programs."""

from __future__ import annotations

import json
import os
import sys
from typing import Final, TextIO

__all__ = [
    "EXIT_BROKEN_PIPE",
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_USAGE",
    "failure_line",
    "give_up",
    "say",
]

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141


def failure_line(code: str, message: str, *, as_json: bool) -> str:
    """What went wrong in one line, whatever the message contains."""
    said = " ".join(message.split())
    if not as_json:
        return f"holdfast: {said}"
    return json.dumps({"error": {"code": code, "message": said}}, ensure_ascii=False)


def say(line: str) -> None:
    """Say something on stderr. If nobody can hear it, the command goes on all the same."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        give_up(sys.stderr)


def give_up(stream: TextIO) -> None:
    """Let what is left in a stream's buffer, and all that follows, go nowhere.

    Python would try once more at its end, complain, and change the exit code.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
