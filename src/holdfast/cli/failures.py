"""How commands say that they failed, to people and to programs."""

from __future__ import annotations

import json
from typing import Final

__all__ = ["EXIT_BROKEN_PIPE", "EXIT_FAILED", "EXIT_INTERRUPTED", "EXIT_USAGE", "failure_line"]

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
