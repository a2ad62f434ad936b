"""Counters of the engine: plain integers on the hot path, read when metrics are collected."""

from __future__ import annotations

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


class Counters:
    """Totals since start."""

    __slots__ = (
        "append_bytes",
        "appends",
        "batch_bytes",
        "batch_records",
        "batches",
        "commit_failures",
        "commit_us",
        "creates",
        "deletes",
        "duplicates",
        "expirations",
        "forks",
        "snapshots",
    )

    def __init__(self) -> None:
        self.appends = 0
        self.append_bytes = 0
        self.duplicates = 0
        self.creates = 0
        self.deletes = 0
        self.expirations = 0
        self.forks = 0
        self.snapshots = 0
        self.batches = 0
        self.commit_failures = 0
        self.batch_records = Histogram()
        self.batch_bytes = Histogram()
        self.commit_us = Histogram()

    def committed(self, batch: Batch, seconds: float) -> None:
        self.batches += 1
        self.batch_records.observe(len(batch.records))
        self.batch_bytes.observe(batch.size_bytes)
        self.commit_us.observe_s(seconds)
