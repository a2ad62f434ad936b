"""The processes below one of ours."""

from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Everything that a process started, and what that started."""
    found, open_ones = [], [pid]
    while open_ones:
        for children in Path(f"/proc/{open_ones.pop()}/task").glob("*/children"):
            try:
                below = [int(each) for each in children.read_text().split()]
            except OSError:
                continue
            found += below
            open_ones += below
    return found


def executors(pid: int) -> list[int]:
    """The JVMs of the executors of a driver in local-cluster mode."""
    return [each for each in descendants(pid) if "CoarseGrainedExecutorBackend" in _command(each)]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("latin-1")
    except OSError:
        return ""
