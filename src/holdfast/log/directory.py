"""The data directory: who may use it, and which format it is in."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Final

from holdfast.errors import DataDirectoryLockedError, HoldfastError, UnknownFormatError

if TYPE_CHECKING:
    from pathlib import Path

FORMAT: Final = "holdfast-data 1\n"


class DataDirectory:
    """A data directory held by this process until `close`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.log_path = path / "log"
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> DataDirectory:
        """Create the directory if need be, lock it, and check its format."""
        try:
            _make(path)
            directory = cls(path, _lock(path))
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

    def close(self) -> None:
        """Give up the lock."""
        with contextlib.suppress(OSError):
            os.close(self._lock)


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


def _lock(path: Path) -> int:
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise DataDirectoryLockedError(
            f"The data directory {path} is in use by another server"
            f"{f' (process {holder})' if holder else ''}. "
            "Stop that one first, or choose another directory with --data-dir."
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    return descriptor


def _check_format(path: Path) -> None:
    marker = path / "format"
    try:
        found = marker.read_text("utf-8", "replace")
    except FileNotFoundError:
        _write_format(path)
        return
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
