"""A directory that is becoming a data directory: locked, marked, and not taken for one before.

Until everything is there the file `format` says so in words, which a server refuses to start on,
and `restoring` names the backup, so that the same restore can be run again where it was cut short.
The real `format` is written last.
"""

import fcntl
import os
from pathlib import Path
from typing import Self

import msgspec

from holdfast.clock import Clock
from holdfast.errors import DataDirectoryLockedError, SettingsError
from holdfast.log.directory import FORMAT, UNFINISHED_FORMAT, DiskFiles

__all__ = ["UnfinishedDirectory"]

# What may be there before anything was restored: a lock alone says nothing, and a file system of
# its own comes with a directory.
_NOTHING = frozenset({"lock", "lost+found", "format.new", "restoring.new"})


class _Mark(msgspec.Struct):
    """What `restoring` says."""

    backup: str
    store: str
    identity: str


class UnfinishedDirectory:
    """The target of a restore, held until `close`."""

    def __init__(self, path: Path, lock: int, mark: _Mark, *, is_finished: bool) -> None:
        self.path = path
        self.catalog_path = path / "catalog.sqlite"
        self.log_path = path / "log"
        # What its object store is marked with.
        self.identity = mark.identity
        # An attempt before this one got everything done but removing its mark.
        self.is_finished = is_finished
        self._lock = lock

    @classmethod
    def open(cls, path: Path, backup: str, store: str, clock: Clock) -> Self:
        """Make, lock and mark the directory; raises unless it is empty or marked the same."""
        mark = _Mark(backup, store, f"{clock.random_u64():016x}")
        # Before anything is changed, and again once nobody else can.
        _found_mark(path, mark)
        _make(path)
        lock = _lock(path)
        try:
            found = _found_mark(path, mark)
            if found is None:
                _write(path / "format", UNFINISHED_FORMAT)
                _write(path / "restoring", msgspec.json.encode(mark).decode())
            is_finished = found is not None and _format(path) == FORMAT
        except BaseException:
            os.close(lock)
            raise
        return cls(path, lock, found or mark, is_finished=is_finished)

    def finish(self) -> None:
        """Everything is there and durable: make it a data directory."""
        files = DiskFiles()
        if not self.is_finished:
            files.sync_directory(self.log_path)
            files.sync_directory(self.path)
            _write(self.path / "format", FORMAT)
        (self.path / "restoring").unlink()
        files.sync_directory(self.path)

    def close(self) -> None:
        """Give up the lock."""
        _write_holder(self._lock, "")
        os.close(self._lock)


def _make(path: Path) -> None:
    """Create the directory durably, with those above it."""
    new = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in new:
        DiskFiles().sync_directory(each.parent)


def _lock(path: Path) -> int:
    """Take the lock that a server takes, so that none starts meanwhile."""
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DataDirectoryLockedError(
            f"{path} is in use by a server or another restore. Choose another with --data-dir."
        ) from None
    _write_holder(descriptor, str(os.getpid()))
    return descriptor


def _write_holder(descriptor: int, process: str) -> None:
    os.pwrite(descriptor, process.ljust(20).encode() + b"\n", 0)


def _format(path: Path) -> str | None:
    try:
        return (path / "format").read_text("utf-8", "replace")
    except FileNotFoundError:
        return None


def _found_mark(path: Path, wanted: _Mark) -> _Mark | None:
    """The mark of an earlier attempt at the same; None if the directory is empty or missing."""
    try:
        found = msgspec.json.decode((path / "restoring").read_bytes(), type=_Mark)
    except FileNotFoundError:
        _check_empty(path)
        return None
    except msgspec.DecodeError as error:
        raise SettingsError(
            f"{path / 'restoring'} is damaged: {error}. Empty the directory, and start again."
        ) from None
    if (found.backup, found.store) != (wanted.backup, wanted.store):
        raise SettingsError(
            f"In {path} the backup {found.backup} is half restored, with the object store "
            f"{found.store}. Go on with that (--backup {found.backup}), or empty both and start "
            "again."
        )
    return found


def _check_empty(path: Path) -> None:
    if not path.exists():
        return
    names = {each.name for each in path.iterdir()} - _NOTHING
    if names == {"format"} and _format(path) == UNFINISHED_FORMAT:
        return
    if names:
        raise SettingsError(
            f"{path} is not empty: it holds {min(names)!r} for one. A backup is restored "
            "into an empty directory only; choose another with --data-dir."
        )


def _write(path: Path, text: str) -> None:
    """Write a small file whole, durably."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    DiskFiles().sync_directory(path.parent)
