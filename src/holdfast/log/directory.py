"""The data directory: who may use it, and which format it is in.

The lock belongs to a server and to the child that inherits its descriptor: after a kill of the
server the directory stays locked until the child, which ends by itself, is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from typing import TYPE_CHECKING, Final

from holdfast.errors import DataDirectoryLockedError, HoldfastError, UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_log = logging.getLogger(__name__)
FORMAT: Final = "holdfast-data 1\n"
# What the marker says until a restore is complete.
UNFINISHED_FORMAT: Final = "unfinished: run holdfast restore again\n"
ORPHAN_WAIT_S_MAX: Final = 5.0
_POLL_S: Final = 0.05


def _sleep(seconds: float) -> None:
    threading.Event().wait(seconds)


class DataDirectory:
    """A data directory held by this process until `close`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.log_path = path / "log"
        self.objects_path = path / "objects"
        self.catalog_path = path / "catalog.sqlite"
        self._lock: int | None = lock

    @classmethod
    def open(cls, path: Path, *, sleep: Callable[[float], object] = _sleep) -> DataDirectory:
        """Create the directory if need be, lock it, and check its format.

        What a server that is gone has left behind is waited for, through `sleep`.
        """
        # Others are told of it, and may be elsewhere or go there.
        path = path.absolute()
        try:
            _make(path)
            directory = cls(path, _lock(path, sleep))
            try:
                _check_format(path)
                _make(directory.log_path)
            except BaseException:
                directory.close()
                raise
        except OSError as error:
            raise HoldfastError(
                f"The data directory {path} cannot be used: {error.strerror or error}. "
                "Choose another with --data-dir, or mend its permissions."
            ) from error
        return directory

    @property
    def lock_descriptor(self) -> int:
        """The descriptor that holds the lock, for a child to inherit."""
        assert self._lock is not None, "the directory was closed"
        return self._lock

    def close(self) -> None:
        """Give up the lock; a child that has inherited it keeps it until it ends."""
        if self._lock is None:
            return
        with contextlib.suppress(OSError):
            # Whoever comes next must not take this process for the child it has to wait for.
            _write_holder(self._lock, "")
        os.close(self._lock)
        self._lock = None


def _make(path: Path) -> None:
    """Create a directory durably: with its parents, and the entry that each has in its own."""
    if path.is_dir():
        return
    _make(path.parent)
    path.mkdir(exist_ok=True)
    _sync(path.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(path: Path, sleep: Callable[[float], object]) -> int:
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        _wait_for_lock(path, descriptor, sleep)
        _write_holder(descriptor, str(os.getpid()))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _write_holder(descriptor: int, process: str) -> None:
    # Always of one length and never cut: on a full disk there might be no room to grow again.
    os.pwrite(descriptor, process.ljust(20).encode() + b"\n", 0)


def _wait_for_lock(path: Path, descriptor: int, sleep: Callable[[float], object]) -> None:
    polls = round(ORPHAN_WAIT_S_MAX / _POLL_S)
    for poll in range(polls + 1):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        # Without a number the holder is just coming or going.
        if holder and _is_alive(holder):
            raise DataDirectoryLockedError(
                f"The data directory {path} is in use by another server (process {holder}). "
                "Stop that one first, or choose another directory with --data-dir."
            )
        if poll == 0:
            _log.warning("%s is locked by what another server has left behind: waiting", path)
        sleep(_POLL_S)
    raise DataDirectoryLockedError(
        f"The data directory {path} is locked by a child of a server that has ended"
        f"{f' (process {holder})' if holder else ''}, and still is after {ORPHAN_WAIT_S_MAX:g} s. "
        "Stop that child first, or choose another directory with --data-dir."
    )


def _is_alive(process: str) -> bool:
    """Whether there is such a process; anything that cannot be one counts as such."""
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError, ValueError):
        pass
    return True


def _check_format(path: Path) -> None:
    marker = path / "format"
    try:
        found = marker.read_text("utf-8", "replace")
    except FileNotFoundError:
        _write_format(path)
        return
    if found == UNFINISHED_FORMAT:
        raise UnknownFormatError(
            f"The data directory {path} is half restored: run holdfast restore again."
        )
    if found != FORMAT:
        raise UnknownFormatError(
            f"The data directory {path} has the format {found.strip()[:40]!r}, and this version "
            f"of Holdfast reads {FORMAT.strip()!r}. Use the version that wrote it, or a newer one."
        )


def _write_format(path: Path) -> None:
    # The marker comes before any log, so a directory with a log and no marker lost it.
    if (path / "log").exists() and any((path / "log").iterdir()):
        raise UnknownFormatError(
            f"The data directory {path} holds a log but no file 'format'. "
            f"If it was written by this version, restore the file with the line {FORMAT!r}."
        )
    temporary = path / "format.new"
    temporary.write_text(FORMAT)
    with temporary.open() as file:
        os.fsync(file.fileno())
    temporary.rename(path / "format")
    _sync(path)
