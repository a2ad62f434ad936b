"""The operating system's files, with faults and delays that a test asks for."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

from holdfast.log.files import DiskFiles

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.log.files import File


class FaultyFile:
    """A file whose writes and syncs fail when its `FaultyFiles` says so."""

    def __init__(self, inner: File, faults: FaultyFiles) -> None:
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
        error = self._faults.take("sync")
        if error is not None:
            raise error
        self._inner.sync()

    def close(self) -> None:
        """Close the file."""
        self._inner.close()


class FaultyFiles(DiskFiles):
    """Files on disk whose operations fail the next `n` times on command."""

    def __init__(self) -> None:
        self._faults: dict[str, list[int]] = {}

    def fail(self, operation: str, code: int = errno.EIO, times: int = 1) -> None:
        """Make the next `times` calls of this operation fail with `code`."""
        self._faults.setdefault(operation, []).extend([code] * times)

    def heal(self) -> None:
        """Forget all faults that were not used up."""
        self._faults.clear()

    def take(self, operation: str) -> OSError | None:
        """The error that is due for this operation, if any."""
        queue = self._faults.get(operation)
        if not queue:
            return None
        code = queue.pop(0)
        return OSError(code, os.strerror(code))

    def create(self, path: Path) -> File:
        """Create a file, or fail."""
        error = self.take("create")
        if error is not None:
            raise error
        return FaultyFile(super().create(path), self)

    def allocate(self, path: Path, size_bytes: int) -> None:
        """Reserve room, or fail."""
        error = self.take("allocate")
        if error is not None:
            raise error
        super().allocate(path, size_bytes)

    def truncate(self, path: Path, size_bytes: int) -> None:
        """Cut a file, or fail and leave it as it is."""
        error = self.take("truncate")
        if error is not None:
            raise error
        super().truncate(path, size_bytes)


class HangingFiles(FaultyFiles):
    """Files whose operations can also be made to wait."""

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
        """Wait until a call waits; whether one does."""
        return self._stuck.wait(timeout_s)

    def release(self) -> None:
        """Let the call that waits go on."""
        self._held = None
        self._released.set()

    def take(self, operation: str) -> OSError | None:
        """Wait if told to, then fail if told to."""
        if operation == self._held:
            self._stuck.set()
            assert self._released.wait(30), "nobody released it"
        return super().take(operation)
