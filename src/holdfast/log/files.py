"""The few file operations a log needs, in one place so that tests can make each of them fail."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

_ZEROS = bytes(1 << 20)
# macOS has neither fdatasync nor posix_fallocate, and its fsync leaves data in the drive's cache.
_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)


def _sync_data(descriptor: int) -> None:
    if _FULL_SYNC is not None:
        fcntl.fcntl(descriptor, _FULL_SYNC)
    else:
        os.fdatasync(descriptor)


def _reserve(descriptor: int, size_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
        return
    for at in range(0, size_bytes, len(_ZEROS)):
        os.pwrite(descriptor, _ZEROS[: size_bytes - at], at)


class File(Protocol):
    """An open file that is written at explicit places."""

    def write_at(self, data: bytes, at: int) -> None:
        """Write all of `data` starting at byte `at`."""

    def sync(self) -> None:
        """Return once everything written is on stable storage."""

    def close(self) -> None:
        """Let go of the file."""


class Files(Protocol):
    """A directory's worth of file operations."""

    def names(self, directory: Path) -> list[str]:
        """The names in the directory."""

    def read(self, path: Path) -> bytes:
        """All bytes of a file."""

    def read_start(self, path: Path, size_bytes: int) -> bytes:
        """The first bytes of a file, as many as there are."""

    def create(self, path: Path) -> File:
        """A new, empty file; an old one of that name is replaced."""

    def open(self, path: Path) -> File:
        """A file that is there, to be written."""

    def allocate(self, path: Path, size_bytes: int) -> None:
        """Reserve room on disk under this name."""

    def truncate(self, path: Path, size_bytes: int) -> None:
        """Cut a file to this length."""

    def remove(self, path: Path) -> None:
        """Remove the file if it is there."""

    def sync_directory(self, directory: Path) -> None:
        """Return once creations and removals in the directory are on stable storage."""


class DiskFile:
    """A file of the operating system."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write_at(self, data: bytes, at: int) -> None:
        """Write all of `data`; the system may take it in pieces."""
        written = os.pwrite(self._descriptor, data, at)
        while written < len(data):
            written += os.pwrite(self._descriptor, memoryview(data)[written:], at + written)

    def sync(self) -> None:
        """Flush the data, and of the metadata what is needed to read it back."""
        _sync_data(self._descriptor)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


class DiskFiles:
    """The operating system's files."""

    def names(self, directory: Path) -> list[str]:
        """The names in the directory."""
        return os.listdir(directory)

    def read(self, path: Path) -> bytes:
        """All bytes of a file."""
        return path.read_bytes()

    def read_start(self, path: Path, size_bytes: int) -> bytes:
        """The first bytes of a file, as many as there are."""
        with path.open("rb") as file:
            return file.read(size_bytes)

    def create(self, path: Path) -> File:
        """A new, empty file."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return DiskFile(os.open(path, flags, 0o640))

    def open(self, path: Path) -> File:
        """A file that is there, to be written."""
        return DiskFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def allocate(self, path: Path, size_bytes: int) -> None:
        """Reserve room on disk, or leave nothing behind."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            _reserve(descriptor, size_bytes)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)

    def truncate(self, path: Path, size_bytes: int) -> None:
        """Cut a file to this length."""
        os.truncate(path, size_bytes)

    def remove(self, path: Path) -> None:
        """Remove the file if it is there."""
        path.unlink(missing_ok=True)

    def sync_directory(self, directory: Path) -> None:
        """Wait for the directory itself."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
