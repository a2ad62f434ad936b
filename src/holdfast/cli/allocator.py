"""The C library's allocator, set up for a server whose answers are megabytes.

By default glibc gives freed memory back to the kernel at once, and every answer of a megabyte then
costs hundreds of page faults: reads from memory were four times slower for it. Kept in one arena,
such memory is used again.
"""

import ctypes

__all__ = ["tune_allocator"]

# Names and numbers as in <malloc.h>.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
KEPT_BYTES = 64 * 1024 * 1024
MAPPED_BYTES = 8 * 1024 * 1024


def tune_allocator() -> bool:
    """Have freed memory kept for reuse; whether this system's allocator can be told so."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return all(
        mallopt(option, value)
        for option, value in (
            (M_ARENA_MAX, 1),
            (M_MMAP_THRESHOLD, MAPPED_BYTES),
            (M_TRIM_THRESHOLD, KEPT_BYTES),
        )
    )
