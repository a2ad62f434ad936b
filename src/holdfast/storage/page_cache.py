"""Whether the files of a database are in the system's page cache.

The files are opened once and stay open. SQLite's locks are POSIX locks, and a process gives up all
its locks on a file when it closes any descriptor of that file. Without them another process could
take itself for the only one, and remove the write-ahead log that this one is reading.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from mmap import MAP_SHARED, PAGESIZE, PROT_READ
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Pages are checked in steps of this size, up to the first one that is not in the page cache.
_STEP_BYTES: Final = 64 * 1024 * 1024
# States of pages that are not there: the lowest bit says so, the others are reserved.
_ABSENT: Final = bytes(range(0, 256, 2))


class CachedFiles:
    """Files that may come and go; closed together with this object."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        # By device and inode: a file may be replaced by another of its name.
        self._descriptors: dict[tuple[int, int], int] = {}
        weakref.finalize(self, _close_all, self._descriptors)

    def are_resident(self) -> bool:
        """Whether all are in the page cache as a whole; False if the system does not say.

        One that does not exist counts as such.
        """
        return all(map(self._is_resident, self._paths))

    def _is_resident(self, path: Path) -> bool:
        try:
            found = path.stat()
            key = found.st_dev, found.st_ino
            if key not in self._descriptors:
                self._descriptors[key] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return found.st_size == 0 or _is_mapped_resident(self._descriptors[key], found.st_size)
        except FileNotFoundError:
            return True
        except OSError:
            return False


def _close_all(descriptors: dict[tuple[int, int], int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)


def _is_mapped_resident(descriptor: int, size: int) -> bool:
    # The calls release the GIL. Mapping a file reads nothing of it.
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    start = libc.mmap(
        None, ctypes.c_size_t(size), PROT_READ, MAP_SHARED, descriptor, ctypes.c_long(0)
    )
    if start == ctypes.c_void_p(-1).value:
        return False
    try:
        for at in range(0, size, _STEP_BYTES):
            length = min(_STEP_BYTES, size - at)
            pages = (length + PAGESIZE - 1) // PAGESIZE
            states = (ctypes.c_ubyte * pages)()
            step = ctypes.c_void_p(start + at)
            if libc.mincore(step, ctypes.c_size_t(length), states):
                return False
            if len(bytes(states).translate(None, _ABSENT)) < pages:
                return False
        return True
    finally:
        libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(size))
