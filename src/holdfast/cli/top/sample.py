"""What a server said of itself at one moment."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from holdfast.cli.top.exposition import Exposition

__all__ = [
    "BackpressureStats",
    "CacheStats",
    "ColdStats",
    "FlushStats",
    "HotStats",
    "HotStream",
    "Sample",
    "ServerStatus",
    "StorageStats",
    "decode_lenient",
]

_Answer = TypeVar("_Answer")


class ServerStatus(msgspec.Struct, frozen=True):
    """`/cluster/status`; other servers may leave out any of it."""

    mode: str | None = None
    version: str | None = None
    state: str | None = None
    durability: str | None = None
    started_at_ms: int | None = None


class HotStream(msgspec.Struct, frozen=True):
    """One of the streams with the most bytes that are not in packs."""

    stream: str
    hot_bytes: int
    tail: int


class HotStats(msgspec.Struct, frozen=True):
    """What is in memory."""

    bytes: int | None = None
    cost_bytes: int | None = None
    soft_limit_bytes: int | None = None
    hard_limit_bytes: int | None = None
    streams_in_memory: int | None = None
    hottest: tuple[HotStream, ...] = ()


class ColdStats(msgspec.Struct, frozen=True):
    """What is in packs."""

    bytes: int | None = None
    streams: int | None = None
    packs: int | None = None
    pack_bytes: int | None = None


class FlushStats(msgspec.Struct, frozen=True):
    """How the flush does."""

    backlog_log_bytes: int | None = None
    backlog_segments: int | None = None
    in_progress: bool | None = None
    trouble: str | None = None


class BackpressureStats(msgspec.Struct, frozen=True):
    """Whether writes are refused, and why."""

    active: bool | None = None
    reason: str | None = None


class CacheStats(msgspec.Struct, frozen=True):
    """The cache of blocks read from packs."""

    bytes: int | None = None
    limit_bytes: int | None = None


class StorageStats(msgspec.Struct, frozen=True):
    """`/cluster/hot-cold-stats`; all but `hot` are null in memory-only mode."""

    hot: HotStats | None = None
    cold: ColdStats | None = None
    flush: FlushStats | None = None
    backpressure: BackpressureStats | None = None
    cache: CacheStats | None = None


class Sample(msgspec.Struct, frozen=True):
    """All of it; what the server does not have is None."""

    at_ms: int
    at_s: float
    metrics: Exposition
    status: ServerStatus | None = None
    storage: StorageStats | None = None

    @property
    def started_ms(self) -> int | None:
        """When the process started, if it says so."""
        if self.status is not None and self.status.started_at_ms is not None:
            return self.status.started_at_ms
        started_s = self.metrics.value("process_start_time_seconds")
        return None if started_s is None else int(started_s * 1000)


def decode_lenient(body: bytes, kind: type[_Answer]) -> _Answer | None:
    """An answer of this form; None if it is something else, such as another server's page."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
