"""The data directory: its lock, its format, and the file operations of the log.

Everything in it is readable by the server's user alone. The modes are given where files are
created, because the umask belongs to the host if the server runs inside an ASGI application.

The lock belongs to a server and to the storage process, which inherits its descriptor. When a
server is killed, its directory stays locked until the storage process, too, has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shlex
import stat
import threading
from typing import TYPE_CHECKING, Final

from holdfast.errors import DataDirectoryLockedError, HoldfastError, UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_log = logging.getLogger(__name__)
FORMAT: Final = "holdfast-data 1\n"
# The content of the marker until a restore is complete.
UNFINISHED_FORMAT: Final = "unfinished: run holdfast restore again\n"
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
_OTHERS: Final = 0o077
ORPHAN_WAIT_S_MAX: Final = 5.0
_POLL_S: Final = 0.05
_ZEROS: Final = bytes(1 << 20)
# macOS has neither fdatasync nor posix_fallocate, and its fsync leaves data in the drive's cache.
_FULL_SYNC: Final = getattr(fcntl, "F_FULLFSYNC", None)


def _sleep(seconds: float) -> None:
    threading.Event().wait(seconds)


class DataDirectory:
    """A data directory, locked by this process until `close`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.log_path = path / "log"
        self.objects_path = path / "objects"
        self.catalog_path = path / "catalog.sqlite"
        self._lock: int | None = lock

    @classmethod
    def open(cls, path: Path, *, sleep: Callable[[float], object] = _sleep) -> DataDirectory:
        """Create the directory if need be, lock it, and check its format.

        If the storage process of a killed server still has the lock, wait for its end.
        """
        # Absolute, because processes with another working directory are given this path.
        path = path.absolute()
        try:
            make_directory(path)
            directory = cls(path, _lock(path, sleep))
            try:
                _check_format(path)
                make_directory(directory.log_path)
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
        """The descriptor that holds the lock, for the storage process to inherit."""
        assert self._lock is not None, "the directory was closed"
        return self._lock

    def warn_if_exposed(self) -> None:
        """Log one warning if other users can access something here."""
        exposed = [(path, mode) for path, mode in _modes(self.path) if mode & _OTHERS]
        if exposed:
            path, mode = exposed[0]
            more = f", and {len(exposed) - 1} more" if len(exposed) > 1 else ""
            _log.warning(
                "other users may access %s (mode %04o)%s; to keep the data private run: "
                "chmod -R go-rwx %s",
                path,
                mode,
                more,
                shlex.quote(str(self.path)),
            )

    def close(self) -> None:
        """Release the lock; a child process that inherited it keeps it until it ends."""
        if self._lock is None:
            return
        with contextlib.suppress(OSError):
            # The next server must not mistake this process for the child it has to wait for.
            write_holder(self._lock, "")
        os.close(self._lock)
        self._lock = None


def make_directory(path: Path, mode: int = DIRECTORY_MODE) -> None:
    """Create a directory durably; missing parents get the modes that the umask allows."""
    if path.is_dir():
        return
    make_directory(path.parent, 0o777)
    path.mkdir(mode, exist_ok=True)
    _sync_directory(path.parent)


def write_file(path: Path, data: bytes) -> None:
    """Write a small file atomically and durably; it is never readable by others."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    new.rename(path)
    _sync_directory(path.parent)


def _modes(path: Path) -> Iterator[tuple[Path, int]]:
    """The modes of the directory and of what is in it, down to the directories of the store.

    Single objects are left out: there may be many, and their directories protect them.
    """
    for each in (path, *path.glob("*"), *path.glob("log/*"), *path.glob("objects/*")):
        with contextlib.suppress(OSError):
            yield each, stat.S_IMODE(each.stat().st_mode)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(path: Path, sleep: Callable[[float], object]) -> int:
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        _wait_for_lock(path, descriptor, sleep)
        write_holder(descriptor, str(os.getpid()))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_holder(descriptor: int, process: str) -> None:
    # Always the same length and never truncated: a full disk might have no room to grow again.
    os.pwrite(descriptor, process.ljust(20).encode() + b"\n", 0)


def _wait_for_lock(path: Path, descriptor: int, sleep: Callable[[float], object]) -> None:
    polls = round(ORPHAN_WAIT_S_MAX / _POLL_S)
    for poll in range(polls + 1):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        # Without a process id the holder is just starting or ending.
        if holder and _is_alive(holder):
            raise DataDirectoryLockedError(
                f"The data directory {path} is in use by another server (process {holder}). "
                "Stop that one first, or choose another directory with --data-dir."
            )
        if poll == 0:
            _log.warning("%s is locked by the child of a server that has ended: waiting", path)
        sleep(_POLL_S)
    raise DataDirectoryLockedError(
        f"The data directory {path} is locked by a child of a server that has ended"
        f"{f' (process {holder})' if holder else ''}, and still is after {ORPHAN_WAIT_S_MAX:g} s. "
        "Stop that child first, or choose another directory with --data-dir."
    )


def _is_alive(process: str) -> bool:
    """Whether this process may be running; a malformed id counts as running."""
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
        text = marker.read_text("utf-8", "replace")
    except FileNotFoundError:
        _write_format(path)
        return
    if text == UNFINISHED_FORMAT:
        raise UnknownFormatError(
            f"The data directory {path} is half restored: run holdfast restore again."
        )
    if text != FORMAT:
        raise UnknownFormatError(
            f"The data directory {path} has the format {text.strip()[:40]!r}, and this version "
            f"of Holdfast reads {FORMAT.strip()!r}. Use the version that wrote it, or a newer one."
        )


def _write_format(path: Path) -> None:
    # The marker is written before any log, so a directory with a log and no marker has lost it.
    if (path / "log").exists() and any((path / "log").iterdir()):
        raise UnknownFormatError(
            f"The data directory {path} holds a log but no file 'format'. "
            f"If it was written by this version, restore the file with the line {FORMAT!r}."
        )
    write_file(path / "format", FORMAT.encode())


class File:
    """An open file of the operating system, written at explicit positions."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write_at(self, data: bytes, at: int) -> None:
        written = os.pwrite(self._descriptor, data, at)
        while written < len(data):
            written += os.pwrite(self._descriptor, memoryview(data)[written:], at + written)

    def sync(self) -> None:
        """Return once everything written is on stable storage."""
        if _FULL_SYNC is not None:
            fcntl.fcntl(self._descriptor, _FULL_SYNC)
        else:
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class Files:
    """The file operations of a log; tests replace them with ones that fail."""

    def names(self, directory: Path) -> list[str]:
        return os.listdir(directory)

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def read_start(self, path: Path, size_bytes: int) -> bytes:
        """Read the first bytes of a file, or all if it is shorter."""
        with path.open("rb") as file:
            return file.read(size_bytes)

    def create(self, path: Path) -> File:
        """Create an empty file, replacing an old one."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return File(os.open(path, flags, FILE_MODE))

    def open(self, path: Path) -> File:
        """Open an existing file for writing."""
        return File(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def allocate(self, path: Path, size_bytes: int) -> None:
        """Reserve room on disk under this name, or leave nothing behind."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            _reserve(descriptor, size_bytes)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)

    def truncate(self, path: Path, size_bytes: int) -> None:
        os.truncate(path, size_bytes)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def sync_directory(self, directory: Path) -> None:
        """Return once creations and removals in the directory are on stable storage."""
        _sync_directory(directory)


def _reserve(descriptor: int, size_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
        return
    for at in range(0, size_bytes, len(_ZEROS)):
        os.pwrite(descriptor, _ZEROS[: size_bytes - at], at)
