"""Measurements: recorded in each load process, added up over all, and the document of a run."""

from importlib import import_module
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.cli.bench.messages import Delivered, ProgressReport
from holdfast.clock import Clock
from holdfast.errors import HoldfastError

__all__ = [
    "BenchResult",
    "Cleanup",
    "FanoutResult",
    "Latencies",
    "LatencyCounts",
    "LatencySummary",
    "Measurement",
    "Recorder",
    "Second",
    "bench_package",
    "to_json",
]

DOCUMENT_VERSION = 1
LOWEST_US = 1
HIGHEST_US = 3_600_000_000
DIGITS = 3
# The resolution of such a histogram: three digits are 11 bits.
BITS = 11
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99_9": 99.9}
EXAMPLE_CHARACTERS_MAX = 200
# Due times are stamped in microseconds; an operation due at the very start is measured.
SLACK_S = 0.000_002

LatencySummary = dict[str, float | None]


def bench_package(module: str) -> Any:
    """Import a module of the extra `bench`, or say how to install it."""
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise HoldfastError(
            f"This needs a package that is not installed ({package}): "
            "pip install 'holdfast-streams[bench]'."
        ) from None


class LatencyCounts:
    """Counts of latencies, to be recorded in a histogram later.

    Recording each one at once would cost ten times as much. Recording many distinct values at once
    would block the event loop that is measured, so they are rounded to the histogram's resolution.
    """

    __slots__ = ("by_us",)

    def __init__(self) -> None:
        self.by_us: dict[int, int] = {}

    def add(self, latency_s: float) -> None:
        latency_us = int(latency_s * 1_000_000)
        if latency_us >> BITS > 0:
            beyond = latency_us.bit_length() - BITS
            latency_us = latency_us >> beyond << beyond
        counts = self.by_us
        counts[latency_us] = counts.get(latency_us, 0) + 1


class Latencies:
    """An HDR histogram of latencies in microseconds; those beyond an hour count as an hour."""

    def __init__(self) -> None:
        histograms = bench_package("hdrh.histogram")
        self._histogram: Any = histograms.HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)

    @property
    def count(self) -> int:
        return int(self._histogram.get_total_count())

    def record(self, counts: LatencyCounts) -> None:
        record = self._histogram.record_value
        for latency_us, count in counts.by_us.items():
            record(min(max(latency_us, LOWEST_US), HIGHEST_US), count)

    def add(self, encoded: str) -> None:
        """Add an encoded histogram."""
        self._histogram.decode_and_add(encoded.encode())

    def encode(self) -> str:
        """Return the interchange format of HDR histograms: compressed, then base64."""
        encoded: bytes = self._histogram.encode()
        return encoded.decode()

    def at_ms(self, percentile: float) -> float:
        return float(self._histogram.get_value_at_percentile(percentile)) / 1000

    def summary(self) -> LatencySummary:
        """Return percentiles and extremes in milliseconds; None if nothing was recorded."""
        if not self.count:
            return dict.fromkeys(["min", "mean", *PERCENTILES, "max"])
        return {
            "min": self._histogram.get_min_value() / 1000,
            "mean": round(self._histogram.get_mean_value() / 1000, 4),
            **{name: self.at_ms(percentile) for name, percentile in PERCENTILES.items()},
            "max": self._histogram.get_max_value() / 1000,
        }


class Recorder:
    """What one load process has measured since its last report."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.from_s = self._end_s = float("inf")
        self._last_s = 0.0
        self._seconds = 0
        self._clear()

    def _clear(self) -> None:
        self.operations = 0
        self.size_bytes = 0
        self.warmup_operations = 0
        self._latencies = LatencyCounts()
        self._errors: dict[str, int] = {}
        self._examples: dict[str, str] = {}

    def measure(self, from_s: float, end_s: float) -> None:
        """Measure operations that are due from `from_s` on; earlier ones are warm-up."""
        self.from_s = from_s
        self._end_s = end_s

    def succeeded(self, due_s: float, size_bytes: int) -> None:
        """Count an operation that was due at `due_s` and has just ended."""
        if due_s < self.from_s - SLACK_S:
            self.warmup_operations += 1
            return
        self._last_s = now_s = self.clock.monotonic_s()
        self._latencies.add(now_s - due_s)
        self.operations += 1
        self.size_bytes += size_bytes

    def failed(self, kind: str, example: bytes | str = "") -> None:
        """Count a failure, also during the warm-up; keep the first example of each kind."""
        self._errors[kind] = self._errors.get(kind, 0) + 1
        if kind not in self._examples:
            text = example.decode(errors="replace") if isinstance(example, bytes) else example
            self._examples[kind] = " ".join(text.split())[:EXAMPLE_CHARACTERS_MAX]

    def report(self) -> ProgressReport:
        """Return everything since the last report."""
        now_s = self.clock.monotonic_s()
        latencies = Latencies()
        latencies.record(self._latencies)
        progress = ProgressReport(
            second=self._seconds,
            # Responses after the end count, and so does the time until the last of them.
            until_s=max(0.0, max(self._last_s, min(now_s, self._end_s)) - self.from_s),
            operations=self.operations,
            size_bytes=self.size_bytes,
            warmup_operations=self.warmup_operations,
            errors=self._errors,
            examples=self._examples,
            latency=latencies.encode(),
        )
        self._seconds += 1
        self._clear()
        return progress


class Second(Struct, frozen=True):
    """One second of the measurement; the last one may be longer or shorter."""

    second: int
    length_s: float
    operations: int
    bytes: int
    errors: int
    p50_ms: float | None
    p99_ms: float | None


class FanoutResult(Struct, frozen=True):
    """Whether the readers of a fan-out got every message once and in order."""

    appends: int
    append_latency_ms: LatencySummary
    deliveries: int
    lost: int
    duplicated: int
    reordered: int
    replayed: int
    reconnects: int

    @classmethod
    def of(cls, parts: list[Delivered]) -> "FanoutResult":
        """Add up the parts of all processes."""
        latencies = Latencies()
        for part in parts:
            latencies.add(part.append_latency)
        counts = [name for name in cls.__struct_fields__ if name != "append_latency_ms"]
        sums = {name: sum(getattr(part, name) for part in parts) for name in counts}
        return cls(append_latency_ms=latencies.summary(), **sums)

    @property
    def exact(self) -> bool:
        return not (self.lost or self.duplicated or self.reordered)


class Cleanup(Struct, frozen=True):
    """How many streams were deleted at the end of a run."""

    streams_deleted: int
    streams_left: int


class BenchResult(Struct, frozen=True):
    """The document that `--json` writes."""

    version: int
    scenario: str
    url: str
    started_at_ms: int
    parameters: dict[str, Any]
    interrupted: bool
    elapsed_s: float
    operations: int
    operations_per_s: float
    bytes: int
    megabytes_per_s: float
    warmup_operations: int
    unsent_operations: int
    latency_ms: LatencySummary
    latency_histogram: str
    errors: dict[str, int]
    error_examples: dict[str, str]
    series: list[Second]
    fanout: FanoutResult | None
    cleanup: Cleanup

    @property
    def failed(self) -> bool:
        """Whether any request failed, or a reader did not get every message once and in order."""
        return bool(self.errors) or (self.fanout is not None and not self.fanout.exact)


class _SecondSum:
    """One second so far, over all processes."""

    def __init__(self) -> None:
        self.until_s = 0.0
        self.operations = self.size_bytes = self.errors = 0
        self.latencies = Latencies()


class Measurement:
    """The sum of all reports so far."""

    def __init__(self) -> None:
        self.operations = self.size_bytes = self.warmup_operations = 0
        self.elapsed_s = 0.0
        self.errors: dict[str, int] = {}
        self.examples: dict[str, str] = {}
        self.latencies = Latencies()
        self._seconds: dict[int, _SecondSum] = {}

    def add(self, progress: ProgressReport) -> None:
        """Add one process's report."""
        second = self._seconds.setdefault(progress.second, _SecondSum())
        second.until_s = max(second.until_s, progress.until_s)
        second.errors += sum(progress.errors.values())
        for each in (second, self):
            each.operations += progress.operations
            each.size_bytes += progress.size_bytes
            each.latencies.add(progress.latency)
        self.warmup_operations += progress.warmup_operations
        self.elapsed_s = max(self.elapsed_s, progress.until_s)
        for kind, count in progress.errors.items():
            self.errors[kind] = self.errors.get(kind, 0) + count
            self.examples.setdefault(kind, progress.examples.get(kind, ""))

    def series(self) -> list[Second]:
        seconds = []
        before_s = 0.0
        for number, each in sorted(self._seconds.items()):
            measured = each.latencies.count > 0
            seconds.append(
                Second(
                    second=number,
                    length_s=round(max(0.0, each.until_s - before_s), 6),
                    operations=each.operations,
                    bytes=each.size_bytes,
                    errors=each.errors,
                    p50_ms=each.latencies.at_ms(50) if measured else None,
                    p99_ms=each.latencies.at_ms(99) if measured else None,
                )
            )
            before_s = max(before_s, each.until_s)
        return seconds

    def result(self, *, unsent: int, delivered: list[Delivered], **run: Any) -> BenchResult:
        """Return the document; `run` has the fields that are not measured."""
        return BenchResult(
            version=DOCUMENT_VERSION,
            elapsed_s=round(self.elapsed_s, 6),
            operations=self.operations,
            operations_per_s=round(self._per_s(self.operations), 3),
            bytes=self.size_bytes,
            megabytes_per_s=round(self._per_s(self.size_bytes) / 1_000_000, 6),
            warmup_operations=self.warmup_operations,
            unsent_operations=unsent,
            latency_ms=self.latencies.summary(),
            latency_histogram=self.latencies.encode(),
            errors=dict(sorted(self.errors.items())),
            error_examples={kind: text for kind, text in sorted(self.examples.items()) if text},
            series=self.series(),
            fanout=FanoutResult.of(delivered) if delivered else None,
            **run,
        )

    def _per_s(self, amount: int) -> float:
        return amount / self.elapsed_s if self.elapsed_s > 0 else 0.0


def to_json(result: BenchResult) -> str:
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n"
