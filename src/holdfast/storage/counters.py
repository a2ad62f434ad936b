"""What cold reads count."""

from __future__ import annotations


class ColdCounters:
    """Totals since start."""

    __slots__ = (
        "cache_hits",
        "cache_misses",
        "fetch_failures",
        "fetched_bytes",
        "fetches",
        "joined",
        "read_bytes",
        "reads",
    )

    def __init__(self) -> None:
        self.reads = 0
        self.read_bytes = 0
        self.cache_hits = 0
        self.cache_misses = 0
        # Reads that waited for a fetch that somebody else had started.
        self.joined = 0
        self.fetches = 0
        self.fetched_bytes = 0
        self.fetch_failures = 0
