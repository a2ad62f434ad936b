"""Failpoints: named places between two steps where a test can make this process fail.

`HOLDFAST_FAILPOINTS` arms them: `flush.uploaded=kill` kills the process when it gets there,
`merge.uploaded=kill@3` the third time. Actions: `kill` (SIGKILL to this process), `kill-parent`
(SIGKILL to the process that started this one), `error` (an I/O error). A simulation sets `hook`
instead. Unarmed, passing one costs a look at an empty dictionary; none is on the append path.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE: Final = "HOLDFAST_FAILPOINTS"
# Every failpoint there is, so that tests can go through all of them and misspelt ones are refused.
NAMES: Final = (
    "flush.started",
    "flush.gathered",
    "flush.uploaded",
    "flush.committed",
    "merge.started",
    "merge.uploading",
    "merge.uploaded",
    "merge.committed",
    "garbage.removed",
    "backup.started",
    "backup.log_copied",
    "backup.catalog_copied",
    "backup.pack_copied",
    "backup.packs_copied",
    "backup.snapshot_copied",
    "backup.snapshots_copied",
    "backup.finished",
    "restore.pack_copied",
    "restore.packs_copied",
    "restore.snapshot_copied",
    "restore.snapshots_copied",
    "restore.catalog_copied",
    "restore.log_copied",
    "repair.rebuilt",
    "snapshot.uploaded",
    "snapshot.published",
    "snapshot_job.planned",
    "snapshot_job.folded",
    "snapshot_job.published",
    "replay.planned",
    "replay.created",
    "replay.appending",
    "replay.appended",
    "replay.closed",
    "compact.planned",
    "compact.uploaded",
    "compact.swapped",
    "compact.finished",
    "archive.planned",
    "archive.writing",
    "archive.staged",
    "archive.ready",
    "archive.decided",
    "archive.moving",
    "archive.moved",
    "archive.removing",
    "archive.committed",
    "proxy.starting",
    "proxy.begun",
    "proxy.ended",
    "proxy.recovering",
    "transcripts.planned",
    "transcripts.writing",
    "transcripts.staged",
    "transcripts.noted",
    "transcripts.committed",
    "transcripts.summed",
)


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
            raise ValueError(f"{VARIABLE}: there is no failpoint or action like {item!r}")
        armed[name] = _Armed(action, int(visits or 1))
    return armed


_armed: dict[str, _Armed] = _parse(os.environ.get(VARIABLE, ""))
hook: Callable[[str], None] | None = None


def failpoint(name: str) -> None:
    """Fail here if a test wants it."""
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
