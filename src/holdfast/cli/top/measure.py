"""Samples of a server, and the figures of the interval between two of them. No I/O, no clock.

Rules:

- A rate needs two samples of the same process. After a restart all counters start again: the first
  sample after it has no rates, and no rate is ever negative.
- A restart is detected by another start time or, if the server does not report one, by a counter
  that fell.
- Gauges come from `/cluster/hot-cold-stats` if the server has it, else from the metrics.
- The figures are a contract: `--json` prints them. Keys are only ever added. A figure that the
  server does not report, or that is not defined yet (a rate after a restart, a latency without
  commits), is null.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final, TypeVar

import msgspec
from msgspec.structs import asdict
from prometheus_client.parser import text_string_to_metric_families

from holdfast.errors import BadAnswerError

__all__ = [
    "Exposition",
    "Figures",
    "HottestStream",
    "Sample",
    "ServerStatus",
    "StorageStats",
    "decode_lenient",
    "measure",
    "parse_exposition",
    "quantile",
]

REQUESTS: Final = "holdfast_http_requests_total"
# Routes that only observe the server; our own requests use them.
_OBSERVING: Final = frozenset({"health", "ready", "status", "metrics", "openapi", "storage_stats"})

Labels = Mapping[str, str]
T = TypeVar("T")


class Exposition:
    """All samples of a page of metrics, by name."""

    def __init__(self, samples: Mapping[str, list[tuple[Labels, float]]]) -> None:
        self._samples = samples

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._samples)

    def total(self, name: str, where: Callable[[Labels], bool] = lambda _: True) -> float | None:
        """Return the sum of a metric's samples with such labels; None if the page lacks it."""
        if name not in self._samples:
            return None
        return sum(value for labels, value in self._samples[name] if where(labels))

    def buckets(self, histogram: str) -> dict[float, float]:
        """Return the cumulative counts of a histogram by upper bound."""
        counts: defaultdict[float, float] = defaultdict(float)
        for labels, value in self._samples.get(f"{histogram}_bucket", ()):
            counts[float(labels.get("le", "inf"))] += value
        return dict(counts)


def parse_exposition(page: bytes) -> Exposition:
    """Parse Prometheus' text format; raise BadAnswerError if it is something else."""
    samples: defaultdict[str, list[tuple[Labels, float]]] = defaultdict(list)
    try:
        for family in text_string_to_metric_families(page.decode()):
            if family.type == "counter" and not family.samples:
                # A counter with labels that has not counted anything yet.
                samples[f"{family.name}_total"] = []
            for sample in family.samples:
                samples[sample.name].append((sample.labels, sample.value))
    # The parser raises IndexError, KeyError and more.
    except Exception:  # noqa: BLE001
        raise BadAnswerError("/metrics is not in Prometheus' text format.") from None
    return Exposition(samples)


def quantile(share: float, before: Mapping[float, float], after: Mapping[float, float]) -> float:
    """Estimate a quantile of what a histogram counted between two pages; NaN if that is nothing.

    Like Prometheus, assume an even distribution within a bucket. Values above the last bound count
    as that bound.
    """
    counted = [(bound, after[bound] - before.get(bound, 0.0)) for bound in sorted(after)]
    total = counted[-1][1] if counted else 0.0
    if total <= 0:
        return float("nan")
    rank = share * total
    for (low, below), (high, up_to) in pairwise([(0.0, 0.0), *counted]):
        if up_to >= rank:
            inside = up_to - below
            if high == float("inf") or inside <= 0:
                return low
            return low + (high - low) * (rank - below) / inside
    return counted[-1][0]


class ServerStatus(msgspec.Struct, frozen=True):
    """`/cluster/status`; other servers may leave out any field."""

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
    bytes: int | None = None
    cost_bytes: int | None = None
    soft_limit_bytes: int | None = None
    hard_limit_bytes: int | None = None
    streams_in_memory: int | None = None
    hottest: tuple[HotStream, ...] = ()


class ColdStats(msgspec.Struct, frozen=True):
    bytes: int | None = None
    streams: int | None = None
    packs: int | None = None
    pack_bytes: int | None = None


class FlushStats(msgspec.Struct, frozen=True):
    backlog_log_bytes: int | None = None
    backlog_segments: int | None = None
    in_progress: bool | None = None
    trouble: str | None = None


class BackpressureStats(msgspec.Struct, frozen=True):
    active: bool | None = None
    reason: str | None = None


class CacheStats(msgspec.Struct, frozen=True):
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
    """What a server reported at one moment; what it does not have is None."""

    at_ms: int
    at_s: float
    metrics: Exposition
    status: ServerStatus | None = None
    storage: StorageStats | None = None

    @property
    def started_ms(self) -> int | None:
        if self.status is not None and self.status.started_at_ms is not None:
            return self.status.started_at_ms
        started_s = self.metrics.total("process_start_time_seconds")
        return None if started_s is None else int(started_s * 1000)


def decode_lenient(body: bytes, kind: type[T]) -> T | None:
    """Decode JSON; None if it has another form, such as another server's page."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class ServerFigures(msgspec.Struct, frozen=True, kw_only=True):
    version: str | None = None
    mode: str | None = None
    state: str | None = None
    durability: str | None = None
    uptime_s: float | None = None


class StreamFigures(msgspec.Struct, frozen=True, kw_only=True):
    total: int | None = None
    in_memory: int | None = None
    buckets: int | None = None
    stored_bytes: int | None = None


class AppendFigures(msgspec.Struct, frozen=True, kw_only=True):
    per_s: float | None = None
    bytes_per_s: float | None = None
    duplicates_per_s: float | None = None


class RequestFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Responses, and those with an error; without requests that only observe, such as our own."""

    per_s: float | None = None
    refused_per_s: float | None = None
    failed_per_s: float | None = None


class ReaderFigures(msgspec.Struct, frozen=True, kw_only=True):
    live: int | None = None
    connections: int | None = None


class CommitFigures(msgspec.Struct, frozen=True, kw_only=True):
    per_s: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None
    failures_per_s: float | None = None
    stalled: bool | None = None


class HotFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What is in memory, and its limits."""

    bytes: int | None = None
    cost_bytes: int | None = None
    soft_limit_bytes: int | None = None
    hard_limit_bytes: int | None = None


class ColdFigures(ColdStats, frozen=True, kw_only=True):
    """What is in packs."""

    reads_per_s: float | None = None


class FlushFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What waits to get from the log into packs."""

    backlog_bytes: int | None = None
    backlog_segments: int | None = None
    in_progress: bool | None = None
    bytes_per_s: float | None = None
    trouble: str | None = None


class BackpressureFigures(BackpressureStats, frozen=True, kw_only=True):
    """Whether writes are refused for lack of memory."""

    refused_per_s: float | None = None


class CacheFigures(CacheStats, frozen=True, kw_only=True):
    """The cache of blocks read from packs."""

    hit_rate: float | None = None
    hit_rate_since_start: float | None = None


class HottestStream(HotStream, frozen=True, kw_only=True):
    bytes_per_s: float | None = None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One JSON document: a server over one interval, or that it could not be reached."""

    at_ms: int
    url: str
    reachable: bool = True
    unreachable_since_ms: int | None = None
    error: str | None = None
    restarted: bool = False
    interval_s: float | None = None
    server: ServerFigures = ServerFigures()
    streams: StreamFigures = StreamFigures()
    appends: AppendFigures = AppendFigures()
    requests: RequestFigures = RequestFigures()
    readers: ReaderFigures = ReaderFigures()
    commits: CommitFigures = CommitFigures()
    hot: HotFigures = HotFigures()
    cold: ColdFigures = ColdFigures()
    flush: FlushFigures = FlushFigures()
    backpressure: BackpressureFigures = BackpressureFigures()
    cache: CacheFigures = CacheFigures()
    hottest: tuple[HottestStream, ...] = ()
    missing: tuple[str, ...] = ()


def measure(url: str, before: Sample | None, after: Sample) -> Figures:
    """Return the figures between two samples; without rates if there is only one."""
    restarted = before is not None and _restarted(before, after)
    return _Interval(None if restarted else before, after).figures(url, restarted)


def _restarted(before: Sample, after: Sample) -> bool:
    if before.started_ms is not None and after.started_ms is not None:
        return before.started_ms != after.started_ms
    return any(
        (before.metrics.total(name) or 0) > (after.metrics.total(name) or 0)
        for name in after.metrics.names
        if name.startswith("holdfast_") and name.endswith("_total")
    )


class _Interval:
    """Two samples of one process."""

    def __init__(self, before: Sample | None, after: Sample) -> None:
        self._before = before
        self._after = after
        self._elapsed_s = after.at_s - before.at_s if before else 0.0

    def figures(self, url: str, restarted: bool) -> Figures:
        after = self._after
        storage = after.storage or StorageStats()
        hot = storage.hot or HotStats()
        return Figures(
            at_ms=after.at_ms,
            url=url,
            restarted=restarted,
            interval_s=round(self._elapsed_s, 3) if self._before else None,
            server=self._server(after.status or ServerStatus()),
            streams=StreamFigures(
                total=self._gauge("holdfast_streams"),
                in_memory=_or(hot.streams_in_memory, self._gauge("holdfast_streams_in_memory")),
                buckets=self._gauge("holdfast_buckets"),
                stored_bytes=self._gauge("holdfast_stored_bytes"),
            ),
            appends=AppendFigures(
                per_s=self._rate("holdfast_appends_total"),
                bytes_per_s=self._rate("holdfast_append_bytes_total"),
                duplicates_per_s=self._rate("holdfast_duplicate_appends_total"),
            ),
            requests=RequestFigures(
                per_s=self._rate(REQUESTS, _with_status("")),
                refused_per_s=self._rate(REQUESTS, _with_status("4")),
                failed_per_s=self._rate(REQUESTS, _with_status("5")),
            ),
            readers=ReaderFigures(
                live=self._gauge("holdfast_live_readers"),
                connections=self._gauge("holdfast_http_connections"),
            ),
            commits=CommitFigures(
                per_s=self._rate("holdfast_commits_total"),
                p50_s=self._quantile(0.5),
                p99_s=self._quantile(0.99),
                failures_per_s=self._rate("holdfast_commit_failures_total"),
                stalled=self._flag("holdfast_commit_stalled"),
            ),
            hot=HotFigures(
                bytes=_or(hot.bytes, self._gauge("holdfast_hot_bytes")),
                cost_bytes=_or(hot.cost_bytes, self._gauge("holdfast_hot_cost_bytes")),
                soft_limit_bytes=hot.soft_limit_bytes,
                hard_limit_bytes=hot.hard_limit_bytes,
            ),
            cold=ColdFigures(
                **asdict(storage.cold or ColdStats()),
                reads_per_s=self._rate("holdfast_cold_reads_total"),
            ),
            flush=self._flush(storage.flush),
            backpressure=self._backpressure(storage.backpressure),
            cache=self._cache(storage.cache),
            hottest=self._hottest(hot),
            missing=self._missing(),
        )

    def _server(self, status: ServerStatus) -> ServerFigures:
        started_ms = self._after.started_ms
        return ServerFigures(
            version=status.version,
            mode=status.mode,
            state=status.state,
            durability=status.durability,
            # By two clocks, the server's and ours.
            uptime_s=None if started_ms is None else max(0, self._after.at_ms - started_ms) / 1000,
        )

    def _flush(self, flush: FlushStats | None) -> FlushFigures:
        in_progress = self._flag("holdfast_flush_in_progress")
        if flush is None and in_progress is None:
            # In memory-only mode nothing is ever flushed.
            return FlushFigures()
        flush = flush or FlushStats(
            backlog_log_bytes=self._gauge("holdfast_log_bytes"),
            backlog_segments=self._gauge("holdfast_log_segments"),
            in_progress=in_progress,
        )
        return FlushFigures(
            backlog_bytes=flush.backlog_log_bytes,
            backlog_segments=flush.backlog_segments,
            in_progress=flush.in_progress,
            bytes_per_s=self._rate("holdfast_flush_bytes_total"),
            trouble=flush.trouble,
        )

    def _backpressure(self, stats: BackpressureStats | None) -> BackpressureFigures:
        stats = stats or BackpressureStats(active=self._flag("holdfast_write_backpressure"))
        return BackpressureFigures(
            **asdict(stats),
            refused_per_s=self._rate("holdfast_write_backpressure_refusals_total"),
        )

    def _cache(self, stats: CacheStats | None) -> CacheFigures:
        stats = stats or CacheStats(bytes=self._gauge("holdfast_block_cache_bytes"))
        hits, misses = "holdfast_block_cache_hits_total", "holdfast_block_cache_misses_total"
        total = self._after.metrics.total
        return CacheFigures(
            **asdict(stats),
            hit_rate=_share(self._gained(hits), self._gained(misses)),
            hit_rate_since_start=_share(total(hits), total(misses)),
        )

    def _hottest(self, hot: HotStats) -> tuple[HottestStream, ...]:
        before = self._before.storage.hot if self._before and self._before.storage else None
        tails = {each.stream: each.tail for each in before.hottest} if before else {}
        return tuple(
            HottestStream(
                **asdict(each),
                bytes_per_s=self._per_s(_gain(tails.get(each.stream), each.tail)),
            )
            for each in hot.hottest
        )

    def _missing(self) -> tuple[str, ...]:
        after = self._after
        present = {
            "holdfast metrics": any(name.startswith("holdfast_") for name in after.metrics.names),
            "/cluster/status": after.status is not None,
            "/cluster/hot-cold-stats": after.storage is not None,
        }
        return tuple(name for name, is_present in present.items() if not is_present)

    def _gauge(self, name: str) -> int | None:
        value = self._after.metrics.total(name)
        return None if value is None or not math.isfinite(value) else int(value)

    def _flag(self, name: str) -> bool | None:
        value = self._after.metrics.total(name)
        return None if value is None else bool(value)

    def _rate(self, name: str, where: Callable[[Labels], bool] = lambda _: True) -> float | None:
        return self._per_s(self._gained(name, where))

    def _gained(self, name: str, where: Callable[[Labels], bool] = lambda _: True) -> float | None:
        if self._before is None:
            return None
        before, after = self._before.metrics, self._after.metrics
        return _gain(before.total(name, where), after.total(name, where))

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


def _with_status(start: str) -> Callable[[Labels], bool]:
    return lambda labels: (
        labels.get("route") not in _OBSERVING and labels.get("status", "").startswith(start)
    )


def _or(value: int | None, default: int | None) -> int | None:
    return default if value is None else value


def _gain(before: float | None, after: float | None) -> float | None:
    """Return how much a counter grew; None if it started again."""
    if before is None or after is None or after < before:
        return None
    return after - before


def _share(part: float | None, rest: float | None) -> float | None:
    if part is None or rest is None or part + rest <= 0:
        return None
    return round(part / (part + rest), 4)
