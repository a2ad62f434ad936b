"""What one load process has measured and not reported yet."""

from holdfast.cli.bench.latency import Latencies, LatencyCounts
from holdfast.cli.bench.messages import Progress
from holdfast.clock import Clock

__all__ = ["Recorder"]

EXAMPLE_CHARACTERS_MAX = 200
# Stamps are in microseconds, and what is due at the very start belongs to the measurement.
SLACK_S = 0.000_002


class Recorder:
    """Counts operations, failures and latencies; a report takes them out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._from_s = self._end_s = float("inf")
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
        """Take what is due from then on for the measurement, and what was before for warm-up."""
        self._from_s = from_s
        self._end_s = end_s

    def succeeded(self, due_s: float, size_bytes: int) -> None:
        """An operation that was due then is done now."""
        if due_s < self._from_s - SLACK_S:
            self.warmup_operations += 1
            return
        self._last_s = now_s = self._clock.monotonic_s()
        self._latencies.add(now_s - due_s)
        self.operations += 1
        self.size_bytes += size_bytes

    def failed(self, kind: str, example: bytes | str = "") -> None:
        """Count a failure, in the warm-up too; the first of a kind is kept as an example."""
        self._errors[kind] = self._errors.get(kind, 0) + 1
        if kind not in self._examples:
            text = example.decode(errors="replace") if isinstance(example, bytes) else example
            self._examples[kind] = " ".join(text.split())[:EXAMPLE_CHARACTERS_MAX]

    def report(self) -> Progress:
        """Everything since the last report."""
        now_s = self._clock.monotonic_s()
        latencies = Latencies()
        latencies.record(self._latencies)
        progress = Progress(
            second=self._seconds,
            # Answers after the end count, and so does the time until the last of them.
            until_s=max(0.0, max(self._last_s, min(now_s, self._end_s)) - self._from_s),
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
