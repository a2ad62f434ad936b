"""Failpoints: named places between two steps where a test can make this process fail.

`HOLDFAST_FAILPOINTS` arms them: `flush.uploaded=kill` kills the process when it gets there,
`merge.uploaded=kill@3` the third time. Actions: `kill` (SIGKILL to this process), `kill-parent`
(SIGKILL to the process that started this one), `error` (an I/O error). Simulations set `hook`
instead. An unarmed failpoint costs a test of an empty dictionary; none is on the append path.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE: Final = "HOLDFAST_FAILPOINTS"
# All failpoints, so that tests can go through them and misspelt names are rejected.
_STEPS: Final = {
    "flush": "started gathered uploaded committed",
    "catalog": "warm",
    "merge": "started uploading uploaded committed",
    "garbage": "removed",
    "backup": (
        "started log_copied catalog_copied pack_copied packs_copied snapshot_copied "
        "snapshots_copied finished"
    ),
    "restore": (
        "pack_copied packs_copied snapshot_copied snapshots_copied catalog_copied log_copied"
    ),
    "repair": "rebuilt",
    "snapshot": "uploaded published",
    "snapshot_job": "planned folded published",
    "replay": "planned created appending appended closed",
    "compact": "planned uploaded swapped finished",
    "archive": "planned writing staged ready decided moving moved removing committed",
    "batch": "checked decided publishing published finished",
    "proxy": "starting begun ended recovering",
    "transcripts": "planned writing staged noted committed summed",
}
NAMES: Final = tuple(f"{task}.{step}" for task, steps in _STEPS.items() for step in steps.split())


class _Armed:
    def __init__(self, action: str, visits: int) -> None:
        self.action = action
        self.visits = visits


def _parse(text: str) -> dict[str, _Armed]:
    armed = {}
    for item in filter(None, text.split(",")):
        name, _, action = item.partition("=")
        action, _, visits = action.partition("@")
        if name not in NAMES or action not in {"kill", "kill-parent", "error"}:
            raise ValueError(f"{VARIABLE}: unknown failpoint or action in {item!r}")
        armed[name] = _Armed(action, int(visits or 1))
    return armed


_armed: dict[str, _Armed] = _parse(os.environ.get(VARIABLE, ""))
hook: Callable[[str], None] | None = None


def failpoint(name: str) -> None:
    """Fail here if a test has armed this failpoint."""
    if hook is not None:
        hook(name)
    if not _armed or name not in _armed:
        return
    armed = _armed[name]
    armed.visits -= 1
    if armed.visits:
        return
    if armed.action == "error":
        raise OSError(errno.EIO, f"failpoint {name}")
    os.kill(os.getpid() if armed.action == "kill" else os.getppid(), signal.SIGKILL)
