"""The operating system's files, with faults and delays that a test asks for."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

from holdfast.log.directory import File, Files

if TYPE_CHECKING:
    from pathlib import Path


class Faults:
    """Errors that operations are to fail with."""

    def __init__(self) -> None:
        self._faults: dict[str, list[int]] = {}

    def fail(self, operation: str, code: int = errno.EIO, times: int = 1) -> None:
        """Make the next `times` calls of this operation fail with `code`."""
        self._faults.setdefault(operation, []).extend([code] * times)

    def heal(self) -> None:
        """Forget all faults that did not occur yet."""
        self._faults.clear()

    def take(self, operation: str) -> OSError | None:
        """The next error for this operation, if any."""
        queue = self._faults.get(operation)
        if not queue:
            return None
        code = queue.pop(0)
        return OSError(code, os.strerror(code))

    def meet(self, operation: str) -> None:
        """Raise the next error for this operation, if any."""
        error = self.take(operation)
        if error is not None:
            raise error


class FaultyFile(File):
    """A file whose writes and syncs fail on command."""

    def __init__(self, inner: File, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def write_at(self, data: bytes, at: int) -> None:
        """Write, or write only a part and fail."""
        error = self._faults.take("write")
        if error is None:
            self._inner.write_at(data, at)
            return
        self._inner.write_at(data[: len(data) // 2], at)
        raise error

    def sync(self) -> None:
        """Sync, or fail after the data has been handed over."""
        self._faults.meet("sync")
        self._inner.sync()

    def close(self) -> None:
        self._inner.close()


class FaultyFiles(Faults, Files):
    """Files on disk whose operations fail on command, without any effect."""

    def create(self, path: Path) -> File:
        self.meet("create")
        return FaultyFile(super().create(path), self)

    def open(self, path: Path) -> File:
        self.meet("open")
        return FaultyFile(super().open(path), self)

    def allocate(self, path: Path, size_bytes: int) -> None:
        self.meet("allocate")
        super().allocate(path, size_bytes)

    def truncate(self, path: Path, size_bytes: int) -> None:
        self.meet("truncate")
        super().truncate(path, size_bytes)

    def remove(self, path: Path) -> None:
        self.meet("remove")
        super().remove(path)

    def sync_directory(self, directory: Path) -> None:
        self.meet("sync_directory")
        super().sync_directory(directory)


class HangingFiles(FaultyFiles):
    """Files whose operations can also be made to hang."""

    def __init__(self) -> None:
        super().__init__()
        self._held: str | None = None
        self._stuck = threading.Event()
        self._released = threading.Event()

    def hold(self, operation: str) -> None:
        """Make the next call of this operation wait for `release`."""
        self._stuck.clear()
        self._released.clear()
        self._held = operation

    def wait_until_stuck(self, timeout_s: float) -> bool:
        """Wait until a call hangs; returns whether one does."""
        return self._stuck.wait(timeout_s)

    def release(self) -> None:
        """Let the hanging call continue."""
        self._held = None
        self._released.set()

    def take(self, operation: str) -> OSError | None:
        if operation == self._held:
            self._stuck.set()
            assert self._released.wait(30), "nobody released it"
        return super().take(operation)
