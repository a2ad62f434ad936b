"""The C library's allocator, told what to do with memory that is freed.

By default glibc gives freed memory back to the kernel at once, and every answer of a megabyte then
costs hundreds of page faults: reads from memory were four times slower for it. A server keeps some
for reuse. The storage process is the other way round: what it needed for a flush it gives back.
"""

from __future__ import annotations

import ctypes
from typing import Final

# Names and numbers as in <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

KEPT_BYTES: Final = 32 * 1024 * 1024
MAPPED_BYTES: Final = 8 * 1024 * 1024
_LITTLE_BYTES: Final = 1024 * 1024


def keep_freed_memory() -> bool:
    """Keep some freed memory for reuse; whether this system's allocator can be told so."""
    return _tune(KEPT_BYTES, MAPPED_BYTES)


def give_freed_memory_back() -> bool:
    """Keep next to nothing; whether this system's allocator can be told so."""
    return _tune(_LITTLE_BYTES, _LITTLE_BYTES)


def _tune(kept_bytes: int, mapped_bytes: int) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    # One arena: with the interpreter's lock more of them only spread what is free.
    return all(
        mallopt(option, value)
        for option, value in (
            (_M_ARENA_MAX, 1),
            (_M_MMAP_THRESHOLD, mapped_bytes),
            (_M_TRIM_THRESHOLD, kept_bytes),
        )
    )
