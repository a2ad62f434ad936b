"""How many requests this process has sent to object stores in the cloud, by kind.

Jobs report them, since they cost money and time. Retries inside obstore are not seen here.
"""

from __future__ import annotations

from collections import Counter
from threading import Lock

__all__ = ["count_request", "counted_requests"]

_lock = Lock()
_counts: Counter[str] = Counter()


def count_request(kind: str, number: int = 1, *, size_bytes: int = 0) -> None:
    """Count requests (`get`, `put`, `head`, `list`, `delete`), and the bytes read or written."""
    with _lock:
        _counts[kind] += number
        if size_bytes:
            _counts["bytes_read" if kind == "get" else "bytes_written"] += size_bytes


def counted_requests() -> Counter[str]:
    """The counts so far; the difference of two tells what happened in between."""
    with _lock:
        return _counts.copy()
