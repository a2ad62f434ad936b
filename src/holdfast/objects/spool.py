"""Bytes that a merge writes before it can send them, kept in memory or in a nameless file."""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import IO, TYPE_CHECKING

from holdfast.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path


class FileSpool:
    """Takes bytes in order and returns any part of them; beyond `held_bytes` they are in a file.

    The file has no name and is closed together with the spool, so a crash leaves nothing behind.
    Without a `directory` it is in the one for temporary files.
    """

    def __init__(self, held_bytes: int, directory: Path | None = None) -> None:
        self._held_bytes = held_bytes
        self._directory = directory
        self._held = bytearray()
        self._file: IO[bytes] | None = None
        # How many bytes are in the file.
        self._filed = 0

    def write(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > self._held_bytes:
            try:
                self._move_to_file()
            except OSError as error:
                raise StoreError(
                    f"A temporary file in {self._directory or tempfile.gettempdir()} cannot be "
                    f"written: {error.strerror or error}."
                ) from error

    def read(self, at: int, size: int) -> bytes:
        held = memoryview(self._held)[max(0, at - self._filed) : max(0, at + size - self._filed)]
        if self._file is None or at >= self._filed:
            return bytes(held)
        return os.pread(self._file.fileno(), min(size, self._filed - at), at) + held

    def _move_to_file(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115 (closed with the spool)
            weakref.finalize(self, self._file.close)
        with memoryview(self._held) as view:
            written = 0
            while written < len(view):
                written += self._file.write(view[written:])
        self._filed += written
        self._held.clear()
