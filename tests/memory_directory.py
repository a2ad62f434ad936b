"""A temporary directory for what syncs a lot, where no disk is the point of the test."""

from pathlib import Path
from tempfile import TemporaryDirectory

# A sync takes no time there. It may be small, as in a container: only for small files.
_SHARED_MEMORY = Path("/dev/shm")


def memory_directory() -> TemporaryDirectory[str]:
    """A directory in memory if there is any, as a context manager that gives its path."""
    parent = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    return TemporaryDirectory(prefix="holdfast-", dir=parent)
