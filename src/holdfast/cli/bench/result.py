"""What a run has measured, added up over its processes, and the document it becomes."""

from typing import Any

import msgspec
from msgspec import Struct

from holdfast.cli.bench.latency import Latencies, Summary
from holdfast.cli.bench.messages import Delivered, Progress
from holdfast.cli.bench.streams import Cleanup

__all__ = ["FanoutResult", "Measurement", "Result", "Second", "to_json"]

DOCUMENT_VERSION = 1


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
    """How exact the readers of a fan-out were served."""

    appends: int
    append_latency_ms: Summary
    deliveries: int
    lost: int
    duplicated: int
    reordered: int
    replayed: int
    reconnects: int

    @property
    def exact(self) -> bool:
        """Whether every reader got every message once and in order."""
        return not (self.lost or self.duplicated or self.reordered)


class Result(Struct, frozen=True):
    """The document of a run: what `--json` writes."""

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
    latency_ms: Summary
    latency_histogram: str
    errors: dict[str, int]
    error_examples: dict[str, str]
    series: list[Second]
    fanout: FanoutResult | None
    cleanup: Cleanup

    @property
    def failed(self) -> bool:
        """Whether anything went wrong that was not to be measured."""
        return bool(self.errors) or (self.fanout is not None and not self.fanout.exact)


class _Bucket:
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
        self._seconds: dict[int, _Bucket] = {}

    def add(self, progress: Progress) -> None:
        """Add one process's report."""
        second = self._seconds.setdefault(progress.second, _Bucket())
        second.until_s = max(second.until_s, progress.until_s)
        second.operations += progress.operations
        second.size_bytes += progress.size_bytes
        second.errors += sum(progress.errors.values())
        second.latencies.add(progress.latency)
        self.latencies.add(progress.latency)
        self.operations += progress.operations
        self.size_bytes += progress.size_bytes
        self.warmup_operations += progress.warmup_operations
        self.elapsed_s = max(self.elapsed_s, progress.until_s)
        for kind, count in progress.errors.items():
            self.errors[kind] = self.errors.get(kind, 0) + count
            self.examples.setdefault(kind, progress.examples.get(kind, ""))

    @property
    def error_count(self) -> int:
        """All failures, of whatever kind."""
        return sum(self.errors.values())

    def series(self) -> list[Second]:
        """Second by second."""
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

    def result(
        self,
        *,
        scenario: str,
        url: str,
        started_at_ms: int,
        parameters: dict[str, Any],
        interrupted: bool,
        unsent: int,
        delivered: list[Delivered],
        cleanup: Cleanup,
    ) -> Result:
        """The document of all this."""
        return Result(
            version=DOCUMENT_VERSION,
            scenario=scenario,
            url=url,
            started_at_ms=started_at_ms,
            parameters=parameters,
            interrupted=interrupted,
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
            fanout=_fanout(delivered) if delivered else None,
            cleanup=cleanup,
        )

    def _per_s(self, amount: int) -> float:
        return amount / self.elapsed_s if self.elapsed_s > 0 else 0.0


def _fanout(parts: list[Delivered]) -> FanoutResult:
    latencies = Latencies()
    for part in parts:
        latencies.add(part.append_latency)
    return FanoutResult(
        appends=sum(part.appends for part in parts),
        append_latency_ms=latencies.summary(),
        deliveries=sum(part.deliveries for part in parts),
        lost=sum(part.lost for part in parts),
        duplicated=sum(part.duplicated for part in parts),
        reordered=sum(part.reordered for part in parts),
        replayed=sum(part.replayed for part in parts),
        reconnects=sum(part.reconnects for part in parts),
    )


def to_json(result: Result) -> str:
    """The document as text, for people to read as well."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n"
