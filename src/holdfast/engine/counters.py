"""Counters of the engine: plain integers on the hot path, read when metrics are collected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.engine.commit import Batch

BUCKETS: Final = 28


class Histogram:
    """Counts by powers of two: bucket i counts values up to 2**i that no bucket before it counts.

    Durations are in microseconds.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (BUCKETS + 1)
        self.total = 0

    def observe(self, value: int) -> None:
        """Count a number from 0 on; larger ones than all limits go to the last bucket."""
        bits = (value - 1).bit_length() if value else 0
        self.counts[bits if bits < BUCKETS else BUCKETS] += 1
        self.total += value

    def observe_s(self, seconds: float) -> None:
        """Count a duration; a fraction of a microsecond rounds its bucket up."""
        value = int(seconds * 1e6)
        bits = value.bit_length()
        self.counts[bits if bits < BUCKETS else BUCKETS] += 1
        self.total += value


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    appends: int = 0
    append_bytes: int = 0
    duplicates: int = 0
    creates: int = 0
    deletes: int = 0
    expirations: int = 0
    forks: int = 0
    snapshots: int = 0
    batches: int = 0
    commit_failures: int = 0
    batch_records: Histogram = field(default_factory=Histogram)
    batch_bytes: Histogram = field(default_factory=Histogram)
    commit_us: Histogram = field(default_factory=Histogram)

    def committed(self, batch: Batch, seconds: float) -> None:
        self.batches += 1
        self.batch_records.observe(len(batch.records))
        self.batch_bytes.observe(batch.size_bytes)
        self.commit_us.observe_s(seconds)
