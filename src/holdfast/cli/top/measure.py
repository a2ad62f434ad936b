"""Two samples become figures; nothing here does I/O or reads a clock.

Rules:

- A rate needs two samples of the same process. After a restart all counters begin anew: the first
  sample after it has no rates, and none is ever negative.
- A restart is seen by another time of start; of a server that does not tell it, by a counter that
  fell.
- Gauges come from `/cluster/hot-cold-stats` where that is there, and else from the metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from holdfast.cli.top.exposition import Labels, quantile
from holdfast.cli.top.figures import (
    Appends,
    Backpressure,
    Cache,
    Cold,
    Commits,
    Figures,
    Flush,
    Hot,
    HottestStream,
    Readers,
    Requests,
    ServerFacts,
    Streams,
)
from holdfast.cli.top.sample import (
    BackpressureStats,
    CacheStats,
    ColdStats,
    FlushStats,
    HotStats,
    Sample,
    ServerStatus,
    StorageStats,
)

__all__ = ["measure"]

REQUESTS: Final = "holdfast_http_requests_total"
# Requests that only look at the server; ours are among them.
_LOOKING: Final = frozenset({"health", "ready", "status", "metrics", "openapi", "storage_stats"})


def measure(url: str, before: Sample | None, after: Sample) -> Figures:
    """The figures of the interval between two samples; without rates if there is only one."""
    restarted = before is not None and _restarted(before, after)
    return _Interval(url, None if restarted else before, after).figures(restarted)


def _restarted(before: Sample, after: Sample) -> bool:
    if before.started_ms is not None and after.started_ms is not None:
        return before.started_ms != after.started_ms
    return any(
        _fell(before.metrics.value(name), after.metrics.value(name))
        for name in after.metrics.names
        if name.startswith("holdfast_") and name.endswith("_total")
    )


def _fell(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after < before


class _Interval:
    """Looks figures up in two samples of one process."""

    def __init__(self, url: str, before: Sample | None, after: Sample) -> None:
        self._url = url
        self._before = before
        self._after = after
        self._elapsed_s = after.at_s - before.at_s if before else 0.0
        self._storage = after.storage or StorageStats()
        self._hot = self._storage.hot or HotStats()

    def figures(self, restarted: bool) -> Figures:
        return Figures(
            at_ms=self._after.at_ms,
            url=self._url,
            restarted=restarted,
            interval_s=round(self._elapsed_s, 3) if self._before else None,
            server=self._server(),
            streams=self._streams(),
            appends=self._appends(),
            requests=self._requests(),
            readers=Readers(
                live=self._gauge("holdfast_live_readers"),
                connections=self._gauge("holdfast_http_connections"),
            ),
            commits=self._commits(),
            hot=self._hot_figures(),
            cold=self._cold(),
            flush=self._flush(),
            backpressure=self._backpressure(),
            cache=self._cache(),
            hottest=self._hottest(),
            missing=self._missing(),
        )

    def _server(self) -> ServerFacts:
        status, started_ms = self._after.status or ServerStatus(), self._after.started_ms
        return ServerFacts(
            version=status.version,
            mode=status.mode,
            state=status.state,
            durability=status.durability,
            # By two clocks, the server's and ours.
            uptime_s=None if started_ms is None else max(0, self._after.at_ms - started_ms) / 1000,
        )

    def _streams(self) -> Streams:
        in_memory = self._hot.streams_in_memory
        return Streams(
            total=self._gauge("holdfast_streams"),
            in_memory=self._gauge("holdfast_streams_in_memory") if in_memory is None else in_memory,
            buckets=self._gauge("holdfast_buckets"),
            stored_bytes=self._gauge("holdfast_stored_bytes"),
        )

    def _appends(self) -> Appends:
        return Appends(
            per_s=self._rate("holdfast_appends_total"),
            bytes_per_s=self._rate("holdfast_append_bytes_total"),
            duplicates_per_s=self._rate("holdfast_duplicate_appends_total"),
        )

    def _requests(self) -> Requests:
        def answered(status: str) -> Callable[[Labels], bool]:
            return lambda labels: (
                labels.get("route") not in _LOOKING and labels.get("status", "").startswith(status)
            )

        return Requests(
            per_s=self._rate(REQUESTS, answered("")),
            refused_per_s=self._rate(REQUESTS, answered("4")),
            failed_per_s=self._rate(REQUESTS, answered("5")),
        )

    def _commits(self) -> Commits:
        return Commits(
            per_s=self._rate("holdfast_commits_total"),
            p50_s=self._quantile(0.5),
            p99_s=self._quantile(0.99),
            failures_per_s=self._rate("holdfast_commit_failures_total"),
            stalled=self._flag("holdfast_commit_stalled"),
        )

    def _hot_figures(self) -> Hot:
        hot = self._hot
        return Hot(
            bytes=self._gauge("holdfast_hot_bytes") if hot.bytes is None else hot.bytes,
            cost_bytes=(
                self._gauge("holdfast_hot_cost_bytes") if hot.cost_bytes is None else hot.cost_bytes
            ),
            soft_limit_bytes=hot.soft_limit_bytes,
            hard_limit_bytes=hot.hard_limit_bytes,
        )

    def _cold(self) -> Cold:
        cold = self._storage.cold or ColdStats()
        return Cold(
            bytes=cold.bytes,
            streams=cold.streams,
            packs=cold.packs,
            pack_bytes=cold.pack_bytes,
            reads_per_s=self._rate("holdfast_cold_reads_total"),
        )

    def _flush(self) -> Flush:
        flush = self._storage.flush
        if flush is None and self._flag("holdfast_flush_in_progress") is None:
            # In memory-only mode nothing is ever flushed, so nothing waits for it.
            return Flush()
        flush = flush or FlushStats(
            backlog_log_bytes=self._gauge("holdfast_log_bytes"),
            backlog_segments=self._gauge("holdfast_log_segments"),
            in_progress=self._flag("holdfast_flush_in_progress"),
        )
        return Flush(
            backlog_bytes=flush.backlog_log_bytes,
            backlog_segments=flush.backlog_segments,
            in_progress=flush.in_progress,
            bytes_per_s=self._rate("holdfast_flush_bytes_total"),
            trouble=flush.trouble,
        )

    def _backpressure(self) -> Backpressure:
        told = self._storage.backpressure or BackpressureStats(
            active=self._flag("holdfast_write_backpressure")
        )
        return Backpressure(
            active=told.active,
            reason=told.reason,
            refused_per_s=self._rate("holdfast_write_backpressure_refusals_total"),
        )

    def _cache(self) -> Cache:
        told = self._storage.cache or CacheStats(bytes=self._gauge("holdfast_block_cache_bytes"))
        hits, misses = "holdfast_block_cache_hits_total", "holdfast_block_cache_misses_total"
        values = self._after.metrics.value
        return Cache(
            bytes=told.bytes,
            limit_bytes=told.limit_bytes,
            hit_rate=_share(self._gained(hits), self._gained(misses)),
            hit_rate_since_start=_share(values(hits), values(misses)),
        )

    def _hottest(self) -> tuple[HottestStream, ...]:
        tails = _tails(self._before)
        return tuple(
            HottestStream(
                stream=each.stream,
                hot_bytes=each.hot_bytes,
                tail=each.tail,
                bytes_per_s=self._per_s(_gain(tails.get(each.stream), each.tail)),
            )
            for each in self._hot.hottest
        )

    def _missing(self) -> tuple[str, ...]:
        after = self._after
        known = any(name.startswith("holdfast_") for name in after.metrics.names)
        there = {
            "holdfast metrics": known,
            "/cluster/status": after.status is not None,
            "/cluster/hot-cold-stats": after.storage is not None,
        }
        return tuple(name for name, is_there in there.items() if not is_there)

    def _gauge(self, name: str) -> int | None:
        value = self._after.metrics.value(name)
        return None if value is None or not math.isfinite(value) else int(value)

    def _flag(self, name: str) -> bool | None:
        value = self._after.metrics.value(name)
        return None if value is None else bool(value)

    def _rate(self, name: str, where: Callable[[Labels], bool] = lambda _: True) -> float | None:
        return self._per_s(self._gained(name, where))

    def _gained(self, name: str, where: Callable[[Labels], bool] = lambda _: True) -> float | None:
        if self._before is None:
            return None
        return _gain(
            self._before.metrics.total(name, where), self._after.metrics.total(name, where)
        )

    def _per_s(self, gained: float | None) -> float | None:
        if gained is None or self._elapsed_s <= 0:
            return None
        return round(gained / self._elapsed_s, 3)

    def _quantile(self, share: float) -> float | None:
        if self._before is None:
            return None
        name = "holdfast_commit_seconds"
        value = quantile(
            share, self._before.metrics.buckets(name), self._after.metrics.buckets(name)
        )
        return None if math.isnan(value) else round(value, 9)


def _tails(sample: Sample | None) -> dict[str, int]:
    """Where the hottest streams ended then."""
    if sample is None or sample.storage is None or sample.storage.hot is None:
        return {}
    return {each.stream: each.tail for each in sample.storage.hot.hottest}


def _gain(before: float | None, after: float | None) -> float | None:
    """How much a counter grew; None if it did not, but began anew."""
    if before is None or after is None or after < before:
        return None
    return after - before


def _share(part: float | None, rest: float | None) -> float | None:
    if part is None or rest is None or part + rest <= 0:
        return None
    return round(part / (part + rest), 4)
