"""Prometheus' metric families from plain numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from holdfast.engine.counters import BUCKETS, Histogram

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def counter(name: str, text: str, value: float) -> Metric:
    """A total since start."""
    return CounterMetricFamily(name, text, value=value)


def gauge(name: str, text: str, value: float) -> Metric:
    """A number that goes up and down."""
    return GaugeMetricFamily(name, text, value=value)


def histogram(name: str, text: str, counts: Histogram, scale: float = 1.0) -> Metric:
    """A distribution."""
    family = HistogramMetricFamily(name, text)
    family.add_metric([], buckets(counts, scale), counts.total * scale)
    return family


def buckets(histogram: Histogram, scale: float) -> list[tuple[str, float]]:
    """Cumulative counts, as Prometheus wants them."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bits, count in enumerate(histogram.counts[:BUCKETS]):
        total += count
        buckets.append((f"{2**bits * scale:.9g}", total))
    buckets.append(("+Inf", total + histogram.counts[BUCKETS]))
    return buckets
