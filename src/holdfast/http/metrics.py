"""The HTTP counters, and the Prometheus page over all counters of the server.

The hot path only adds to plain integers; metric families are built when the page is rendered.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from holdfast.engine.counters import BUCKETS, Histogram
from holdfast.protocol.names import PARTS_BUCKET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from holdfast.engine.shard import Shard
    from holdfast.engine.tier import Tier
    from holdfast.http.bodies import BodyBudget
    from holdfast.http.mount import Mount
    from holdfast.http.turns import Unsent
    from holdfast.storage.cold import ColdReader
    from holdfast.subscriptions.service import Subscriptions

# The duration of live reads says nothing about the server's speed.
_UNTIMED: Final = frozenset({"long_poll", "sse"})


def counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def histogram(name: str, text: str, counts: Histogram, scale: float = 1.0) -> Metric:
    family = HistogramMetricFamily(name, text)
    family.add_metric([], buckets(counts, scale), counts.total * scale)
    return family


def buckets(histogram: Histogram, scale: float) -> list[tuple[str, float]]:
    """Cumulative counts, as Prometheus takes them."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bits, count in enumerate(histogram.counts[:BUCKETS]):
        total += count
        buckets.append((f"{2**bits * scale:.9g}", total))
    buckets.append(("+Inf", total + histogram.counts[BUCKETS]))
    return buckets


class HttpCounters:
    """Requests by route and status, and their latencies by route."""

    __slots__ = ("connections", "latency_us", "requests")

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.latency_us: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.connections = 0

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count one response."""
        self.requests[route, status] += 1
        if route not in _UNTIMED:
            self.latency_us[route].observe_s(seconds)


class MetricsPage:
    """A Prometheus collector over the plain counters of server and shard."""

    def __init__(
        self,
        http: HttpCounters,
        bodies: BodyBudget,
        unsent: Unsent,
        shard: Shard,
        subscriptions: Subscriptions,
        mount: Mount | None = None,
    ) -> None:
        self._http = http
        self._bodies = bodies
        self._unsent = unsent
        self._shard = shard
        self._subscriptions = subscriptions
        self._mount = mount
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Every metric family, as `docs/metrics.md` lists them."""
        yield from self._collect_http()
        yield from self._collect_engine()
        yield from _storage(self._shard)
        yield from self._collect_subscriptions()
        if self._mount is not None:
            yield from self._mount.metrics()

    def _collect_subscriptions(self) -> Iterator[Metric]:
        driver = self._subscriptions.driver
        yield gauge(
            "holdfast_subscriptions", "Subscriptions that exist.", len(driver.registry.entries)
        )
        yield counter("holdfast_wakes", "Wakes of subscriptions.", driver.wakes)
        yield counter("holdfast_webhook_deliveries", "Webhook requests sent.", driver.deliveries)
        yield counter(
            "holdfast_webhook_failures",
            "Webhook requests that failed or got an unexpected response.",
            driver.failures,
        )

    def _collect_http(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "holdfast_http_requests", "Responses.", labels=["route", "status"]
        )
        for (route, status), count in sorted(self._http.requests.items()):
            requests.add_metric([route, str(status)], count)
        yield requests
        latency = HistogramMetricFamily(
            "holdfast_http_request_seconds",
            "From a request's last byte to its response, without live reads.",
            labels=["route"],
        )
        for route, counts in sorted(self._http.latency_us.items()):
            latency.add_metric([route], buckets(counts, 1e-6), counts.total * 1e-6)
        yield latency
        yield gauge("holdfast_http_connections", "Open connections.", self._http.connections)
        yield gauge(
            "holdfast_http_body_bytes",
            "Bytes of request bodies that are incomplete or wait.",
            self._bodies.held_bytes,
        )
        yield gauge(
            "holdfast_http_unsent_bytes",
            "Bytes of responses that wait for clients that do not read.",
            self._unsent.size_bytes,
        )
        yield counter(
            "holdfast_http_unsent_disconnects",
            "Clients disconnected because too many of these bytes waited.",
            self._unsent.disconnects,
        )
        yield counter(
            "holdfast_http_body_refusals",
            "Requests refused because too many bytes of bodies were held.",
            self._bodies.refusals,
        )

    def _collect_engine(self) -> Iterator[Metric]:
        shard, counters = self._shard, self._shard.counters
        buckets = len(shard.state.buckets) - (PARTS_BUCKET in shard.state.buckets)
        log = shard.log.stats()
        yield counter("holdfast_appends", "Appends made durable.", counters.appends)
        yield counter("holdfast_append_bytes", "Message bytes made durable.", counters.append_bytes)
        yield counter(
            "holdfast_duplicate_appends",
            "Appends recognised as a producer's retry.",
            counters.duplicates,
        )
        yield counter("holdfast_streams_created", "Streams created.", counters.creates)
        yield counter("holdfast_streams_deleted", "Streams deleted.", counters.deletes)
        yield counter("holdfast_streams_expired", "Streams expired.", counters.expirations)
        yield counter("holdfast_forks_created", "Streams created as forks.", counters.forks)
        yield counter("holdfast_snapshots_published", "Snapshots published.", counters.snapshots)
        yield gauge("holdfast_buckets", "Buckets that exist.", buckets)
        yield gauge("holdfast_streams", "Streams that exist.", shard.state.streams)
        yield gauge("holdfast_stored_bytes", "Bytes held in streams.", shard.state.stored_bytes)
        yield gauge("holdfast_live_readers", "Open SSE and long-poll reads.", len(shard.live))
        yield counter("holdfast_commits", "Batches made durable.", counters.batches)
        yield counter(
            "holdfast_commit_failures", "Batches the log refused.", counters.commit_failures
        )
        yield gauge(
            "holdfast_commit_stalled",
            "1 while writes are blocked by an unknown outcome.",
            int(shard.commits.stalled),
        )
        yield histogram(
            "holdfast_commit_seconds", "Time to make a batch durable.", counters.commit_us, 1e-6
        )
        yield histogram("holdfast_batch_records", "Records in a batch.", counters.batch_records)
        yield histogram("holdfast_batch_bytes", "Bytes in a batch.", counters.batch_bytes)
        yield gauge("holdfast_log_bytes", "Bytes of the log on disk.", log.size_bytes)
        yield gauge("holdfast_log_segments", "Segments of the log on disk.", log.segments)


def _storage(shard: Shard) -> Iterator[Metric]:
    """None where everything is kept in memory."""
    if shard.tier is None or shard.reader.cold is None:
        return
    yield from _memory(shard, shard.tier)
    yield from _work(shard.tier)
    yield from _cold_reads(shard.reader.cold)


def _memory(shard: Shard, tier: Tier) -> Iterator[Metric]:
    state = shard.state
    yield gauge("holdfast_hot_bytes", "Message bytes that are not in packs.", tier.hot_bytes)
    yield gauge("holdfast_hot_cost_bytes", "Their cost in memory.", tier.cost_bytes)
    yield gauge("holdfast_streams_in_memory", "Streams in memory.", len(state.by_number))
    yield counter("holdfast_rehydrations", "Streams brought back into memory.", state.loads)
    yield counter("holdfast_evictions", "Idle streams that left memory.", tier.evictions)
    yield gauge(
        "holdfast_write_backpressure",
        "1 while appends are refused for lack of memory.",
        int(bool(shard.commits.full)),
    )
    yield counter(
        "holdfast_write_backpressure_refusals",
        "Writes refused for lack of memory.",
        shard.commits.refusals,
    )
    yield counter(
        "holdfast_write_delay_seconds",
        "Time that batches waited so that writers come at the pace of the flush.",
        shard.commits.delayed_s,
    )


def _work(tier: Tier) -> Iterator[Metric]:
    done = tier.worker.counters
    yield gauge("holdfast_flush_in_progress", "1 while a flush is under way.", int(tier.flushing))
    yield gauge("holdfast_flushed_position", "Position that packs cover.", tier.flushed)
    yield counter("holdfast_flushes", "Flushes carried out.", done.flushes)
    yield counter("holdfast_flush_seconds", "Time spent in flushes.", done.flush_us * 1e-6)
    yield counter("holdfast_flush_retries", "Flushes that failed and were repeated.", tier.retries)
    yield counter("holdfast_flush_bytes", "Message bytes flushed.", done.data_bytes)
    yield counter("holdfast_packs_written", "Packs written by flush and merge.", done.packs)
    yield counter("holdfast_pack_bytes", "Bytes of the packs written.", done.pack_bytes)
    yield counter("holdfast_merges", "Merges of packs.", done.merges)
    yield counter("holdfast_merge_seconds", "Time spent in merges.", done.merge_us * 1e-6)
    yield counter("holdfast_merge_bytes", "Bytes of merged packs.", done.merged_bytes)
    yield counter("holdfast_merge_failures", "Merges that failed.", done.merge_failures)
    yield counter("holdfast_pack_swaps", "Swaps requested by jobs.", done.swaps)
    yield counter(
        "holdfast_objects_removed", "Objects removed by garbage collection.", done.objects_removed
    )
    yield counter("holdfast_objects_removed_bytes", "Bytes of removed objects.", done.removed_bytes)
    yield counter(
        "holdfast_storage_restarts", "Restarts of the storage process.", tier.worker.restarts
    )


def _cold_reads(cold: ColdReader) -> Iterator[Metric]:
    counters, cache = cold.blocks.counters, cold.blocks.cache
    yield counter("holdfast_cold_reads", "Reads from packs.", counters.reads)
    yield counter("holdfast_cold_read_bytes", "Message bytes read from packs.", counters.read_bytes)
    yield counter("holdfast_cold_fetches", "Requests to the object store.", counters.fetches)
    yield counter("holdfast_cold_fetch_bytes", "Bytes fetched.", counters.fetched_bytes)
    yield counter(
        "holdfast_cold_fetch_failures", "Failed requests to the store.", counters.fetch_failures
    )
    yield counter(
        "holdfast_cold_fetches_shared",
        "Reads that shared the request of another.",
        counters.joined,
    )
    yield gauge("holdfast_block_cache_bytes", "Bytes in the block cache.", cache.size_bytes)
    yield counter("holdfast_block_cache_hits", "Blocks found in the cache.", counters.cache_hits)
    yield counter(
        "holdfast_block_cache_misses", "Blocks not found in the cache.", counters.cache_misses
    )
