"""What the HTTP side counts, and the Prometheus page made of all counts.

The hot path only adds to plain integers; everything is put into Prometheus' form when asked for.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from holdfast.engine.counters import Histogram
from holdfast.http.metric_families import buckets, counter, gauge, histogram
from holdfast.http.storage_metrics import storage_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from holdfast.engine.shard import Shard
    from holdfast.http.mount import Mount
    from holdfast.subscriptions.service import Subscriptions

# How long live reads last says nothing of the server's speed.
_UNTIMED: Final = frozenset({"long_poll", "sse"})


class HttpCounters:
    """Requests by route and status, and their latencies by route."""

    __slots__ = ("connections", "latency_us", "requests")

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.latency_us: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.connections = 0

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count one answer."""
        self.requests[route, status] += 1
        if route not in _UNTIMED:
            self.latency_us[route].observe_s(seconds)


class MetricsPage:
    """A Prometheus collector over the plain counters of server and shard."""

    def __init__(
        self,
        http: HttpCounters,
        shard: Shard,
        subscriptions: Subscriptions,
        mount: Mount | None = None,
    ) -> None:
        self._http = http
        self._shard = shard
        self._subscriptions = subscriptions
        self._mount = mount
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        """The page in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Every metric family, as `docs/metrics.md` lists them."""
        yield from self._collect_http()
        yield from self._collect_engine()
        yield from storage_metrics(self._shard)
        yield from self._collect_subscriptions()
        if self._mount is not None:
            yield from self._mount.metrics()

    def _collect_subscriptions(self) -> Iterator[Metric]:
        driver = self._subscriptions.driver
        yield gauge(
            "holdfast_subscriptions", "Subscriptions that exist.", len(driver.registry.entries)
        )
        yield counter("holdfast_wakes", "Wakes of subscriptions.", driver.wakes)
        yield counter(
            "holdfast_webhook_deliveries", "Webhook requests sent.", driver.webhooks.deliveries
        )
        yield counter(
            "holdfast_webhook_failures",
            "Webhook requests that were not answered as they should.",
            driver.webhooks.failures,
        )

    def _collect_http(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "holdfast_http_requests", "Answered requests.", labels=["route", "status"]
        )
        for (route, status), count in sorted(self._http.requests.items()):
            requests.add_metric([route, str(status)], count)
        yield requests
        latency = HistogramMetricFamily(
            "holdfast_http_request_seconds",
            "From a request's last byte to its answer, live reads left out.",
            labels=["route"],
        )
        for route, counts in sorted(self._http.latency_us.items()):
            latency.add_metric([route], buckets(counts, 1e-6), counts.total * 1e-6)
        yield latency
        yield gauge("holdfast_http_connections", "Open connections.", self._http.connections)

    def _collect_engine(self) -> Iterator[Metric]:
        shard, counters = self._shard, self._shard.counters
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
        yield gauge("holdfast_buckets", "Buckets that exist.", len(shard.state.buckets))
        yield gauge("holdfast_streams", "Streams that exist.", shard.state.streams)
        yield gauge("holdfast_stored_bytes", "Message bytes held.", shard.state.stored_bytes)
        yield gauge("holdfast_live_readers", "Open SSE and long-poll reads.", len(shard.live))
        yield counter("holdfast_commits", "Batches made durable.", counters.batches)
        yield counter(
            "holdfast_commit_failures", "Batches the log refused.", counters.commit_failures
        )
        yield gauge(
            "holdfast_commit_stalled",
            "1 while an unknown outcome keeps writes out.",
            int(shard.stalled),
        )
        yield histogram(
            "holdfast_commit_seconds", "Time to make a batch durable.", counters.commit_us, 1e-6
        )
        yield histogram("holdfast_batch_records", "Records in a batch.", counters.batch_records)
        yield histogram("holdfast_batch_bytes", "Bytes in a batch.", counters.batch_bytes)
        yield gauge("holdfast_log_bytes", "Bytes of the log on disk.", log.size_bytes)
        yield gauge("holdfast_log_segments", "Segments of the log on disk.", log.segments)
