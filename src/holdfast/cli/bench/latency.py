"""Latencies as HDR histograms: exact counts, three digits of value, merged without loss."""

from typing import Any

from holdfast.cli.bench.extras import extra

__all__ = ["PERCENTILES", "Latencies", "LatencyCounts", "Summary"]

LOWEST_US = 1
HIGHEST_US = 3_600_000_000
DIGITS = 3
# Three digits are 11 bits in such a histogram.
BITS = 11
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99_9": 99.9}

Summary = dict[str, float | None]


class LatencyCounts:
    """How often each latency occurred, to be recorded later.

    Recording each at once would cost ten times as much. And many distinct ones at once would keep
    an event loop from what it measures: so they are counted as precisely as they will be recorded.
    """

    __slots__ = ("by_us",)

    def __init__(self) -> None:
        self.by_us: dict[int, int] = {}

    def add(self, latency_s: float) -> None:
        """Count one."""
        latency_us = int(latency_s * 1_000_000)
        if latency_us >> BITS > 0:
            beyond = latency_us.bit_length() - BITS
            latency_us = latency_us >> beyond << beyond
        counts = self.by_us
        counts[latency_us] = counts.get(latency_us, 0) + 1


class Latencies:
    """How long things took, in microseconds; those beyond an hour count as an hour."""

    def __init__(self) -> None:
        self._histogram: Any = _histograms().HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)

    @property
    def count(self) -> int:
        """How many were recorded."""
        return int(self._histogram.get_total_count())

    def record(self, counts: LatencyCounts) -> None:
        """Add what was counted."""
        record = self._histogram.record_value
        for latency_us, count in counts.by_us.items():
            record(min(max(latency_us, LOWEST_US), HIGHEST_US), count)

    def add(self, encoded: str) -> None:
        """Add what another one has recorded."""
        self._histogram.decode_and_add(encoded.encode())

    def encode(self) -> str:
        """All of it, in the interchange format of HDR histograms: compressed, then base64."""
        encoded: bytes = self._histogram.encode()
        return encoded.decode()

    def at_ms(self, percentile: float) -> float:
        """The latency that so many percent did not exceed."""
        return float(self._histogram.get_value_at_percentile(percentile)) / 1000

    def summary(self) -> Summary:
        """The usual percentiles and extremes in milliseconds; null where nothing was recorded."""
        if not self.count:
            return dict.fromkeys(["min", "mean", *PERCENTILES, "max"])
        return {
            "min": self._histogram.get_min_value() / 1000,
            "mean": round(self._histogram.get_mean_value() / 1000, 4),
            **{name: self.at_ms(percentile) for name, percentile in PERCENTILES.items()},
            "max": self._histogram.get_max_value() / 1000,
        }


def _histograms() -> Any:
    return extra("hdrh.histogram")
