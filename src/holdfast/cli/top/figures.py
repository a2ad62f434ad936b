"""The figures of one interval: what the screen shows, and as JSON a contract.

Keys are only ever added. A figure that the server does not give, or that makes no sense yet (a
rate after a restart, a latency without commits), is null.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "Appends",
    "Backpressure",
    "Cache",
    "Cold",
    "Commits",
    "Figures",
    "Flush",
    "Hot",
    "HottestStream",
    "Readers",
    "Requests",
    "ServerFacts",
    "Streams",
]


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Who answers."""

    version: str | None = None
    mode: str | None = None
    state: str | None = None
    durability: str | None = None
    uptime_s: float | None = None


class Streams(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is."""

    total: int | None = None
    in_memory: int | None = None
    buckets: int | None = None
    stored_bytes: int | None = None


class Appends(msgspec.Struct, frozen=True, kw_only=True):
    """What was made durable."""

    per_s: float | None = None
    bytes_per_s: float | None = None
    duplicates_per_s: float | None = None


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """Answers, and those with an error; without requests that only look, such as our own."""

    per_s: float | None = None
    refused_per_s: float | None = None
    failed_per_s: float | None = None


class Readers(msgspec.Struct, frozen=True, kw_only=True):
    """Who is there."""

    live: int | None = None
    connections: int | None = None


class Commits(msgspec.Struct, frozen=True, kw_only=True):
    """How the log does."""

    per_s: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None
    failures_per_s: float | None = None
    stalled: bool | None = None


class Hot(msgspec.Struct, frozen=True, kw_only=True):
    """What is in memory, and the limits of that."""

    bytes: int | None = None
    cost_bytes: int | None = None
    soft_limit_bytes: int | None = None
    hard_limit_bytes: int | None = None


class Cold(msgspec.Struct, frozen=True, kw_only=True):
    """What is in packs."""

    bytes: int | None = None
    streams: int | None = None
    packs: int | None = None
    pack_bytes: int | None = None
    reads_per_s: float | None = None


class Flush(msgspec.Struct, frozen=True, kw_only=True):
    """What waits to get from the log into packs."""

    backlog_bytes: int | None = None
    backlog_segments: int | None = None
    in_progress: bool | None = None
    bytes_per_s: float | None = None
    trouble: str | None = None


class Backpressure(msgspec.Struct, frozen=True, kw_only=True):
    """Whether writes are refused for want of memory."""

    active: bool | None = None
    reason: str | None = None
    refused_per_s: float | None = None


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """The cache of blocks read from packs."""

    bytes: int | None = None
    limit_bytes: int | None = None
    hit_rate: float | None = None
    hit_rate_since_start: float | None = None


class HottestStream(msgspec.Struct, frozen=True, kw_only=True):
    """One of the streams with the most bytes that are not in packs."""

    stream: str
    hot_bytes: int
    tail: int
    bytes_per_s: float | None = None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One document: a server over one interval, or that it could not be reached."""

    at_ms: int
    url: str
    reachable: bool = True
    unreachable_since_ms: int | None = None
    error: str | None = None
    restarted: bool = False
    interval_s: float | None = None
    server: ServerFacts = ServerFacts()
    streams: Streams = Streams()
    appends: Appends = Appends()
    requests: Requests = Requests()
    readers: Readers = Readers()
    commits: Commits = Commits()
    hot: Hot = Hot()
    cold: Cold = Cold()
    flush: Flush = Flush()
    backpressure: Backpressure = Backpressure()
    cache: Cache = Cache()
    hottest: tuple[HottestStream, ...] = ()
    missing: tuple[str, ...] = ()
