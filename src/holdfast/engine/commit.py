"""The commit loop: open batch, batch under way, and what becomes of their answers.

Rules:

- One batch is open; it closes when the log takes it or at `batch_bytes_max`. The log takes it as
  soon as the one before is done: there is no timer, the batch follows the load.
- Every answer waits in the batch it rests on. COMMITTED: the batch is published, then its answers
  go out. FAILED: the batch and every later one are dropped, all their answers become errors.
- UNKNOWN: nothing is undone and no write is taken until the log has settled it. Answers wait as
  long as for any batch: `timeout_s`, after which they become errors that say so.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from holdfast.errors import (
    CommitFailedError,
    CommitUnknownError,
    HoldfastError,
    OverloadedError,
    UnavailableError,
)
from holdfast.format.records import RECORDS_MAX
from holdfast.log.interface import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock, Timer
    from holdfast.engine.counters import Counters
    from holdfast.engine.overlay import Staged
    from holdfast.engine.staged_buckets import StagedBucket
    from holdfast.format.records import Record
    from holdfast.log.interface import Log, Result

    Reply = Callable[[Any, object], None]

_log = logging.getLogger(__name__)


class Batch:
    """Records that become durable together, and the answers that wait for them."""

    __slots__ = ("answers", "buckets", "parts", "position", "records", "size_bytes", "touched")

    def __init__(self, position: int) -> None:
        self.position = position
        self.records: list[Record] = []
        self.parts: list[bytes] = []
        self.size_bytes = 0
        self.touched: list[Staged] = []
        self.buckets: list[StagedBucket] = []
        # (reply, context, outcome): `reply(context, outcome)` once the batch is published.
        self.answers: list[tuple[Reply, Any, object]] = []

    def answer(self, error: HoldfastError | None = None) -> None:
        """Answer everyone who waits, with what they wait for or with this error instead."""
        answers, self.answers = self.answers, []
        for reply, context, outcome in answers:
            try:
                reply(context, outcome if error is None else error)
            except Exception:  # noqa: BLE001 (a defect in one answer must not stop the others)
                _log.exception("an answer could not be given")


class CommitLoop:
    """Feeds batches to the log one at a time."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        counters: Counters,
        *,
        batch_bytes_max: int,
        pending_bytes_max: int,
        timeout_s: float,
        publish: Callable[[Batch], None],
        drop: Callable[[], None],
    ) -> None:
        self._log = log
        self._clock = clock
        self._counters = counters
        self._batch_bytes_max = batch_bytes_max
        self.pending_bytes_max = pending_bytes_max
        self._timeout_s = timeout_s
        self._publish = publish
        self._drop = drop
        self._next_position = 1
        self._open: Batch | None = None
        self._waiting: deque[Batch] = deque()
        self._under_way: Batch | None = None
        self._started_s = 0.0
        self._timer: Timer | None = None
        # Writes are taken while neither is set and not too much is pending. `full` is the reason
        # why there is no room in memory for what would be written.
        self.stalled = False
        self.full = ""
        self.refusals = 0
        self.pending_bytes = 0
        self._on_idle: list[Callable[[], None]] = []

    def start_after(self, position: int) -> None:
        """The first batch will be the one after `position`."""
        self._next_position = position + 1

    @property
    def last_position(self) -> int:
        """The last position handed out, durable or not."""
        return self._next_position - 1

    def check(self) -> None:
        """Raise if no write can be taken now."""
        if self.full:
            self.refusals += 1
            raise OverloadedError(f"Not taken now: {self.full}. Try again later.")
        self.check_log()

    def check_log(self) -> None:
        """Raise if the log takes nothing now."""
        if self.stalled:
            raise UnavailableError(
                "The log has not answered for an earlier write; no write is taken until it has."
            )
        if self.pending_bytes > self.pending_bytes_max:
            raise OverloadedError("Too many bytes are waiting to be written to disk.")

    def batch(self) -> Batch:
        """The open batch, to stage records in."""
        batch = self._open
        if (
            batch is not None
            and batch.size_bytes < self._batch_bytes_max
            and len(batch.records) < RECORDS_MAX
        ):
            return batch
        batch = self._open = Batch(self._next_position)
        self._next_position += 1
        self._waiting.append(batch)
        if self._under_way is None and len(self._waiting) == 1:
            # In the loop's next round, so that requests that arrived together go together.
            self._clock.call_soon(self._take)
        return batch

    def add(self, record: Record, encoded: bytes) -> Batch:
        """Stage a record in the open batch, which is returned."""
        batch = self.batch()
        batch.records.append(record)
        batch.parts.append(encoded)
        size = len(encoded)
        batch.size_bytes += size
        self.pending_bytes += size
        return batch

    def when_idle(self, call: Callable[[], None]) -> None:
        """Run `call` once nothing is pending, at once if that is now."""
        if self._under_way is None and not self._waiting:
            call()
        else:
            self._on_idle.append(call)

    def _take(self) -> None:
        if self._under_way is not None or not self._waiting:
            return
        batch = self._waiting.popleft()
        if batch is self._open:
            self._open = None
        self._under_way = batch
        self._started_s = self._clock.monotonic_s()
        self._timer = self._clock.call_later(self._timeout_s, self._timed_out)
        self._log.append(batch.position, batch.parts, self._done)

    def _done(self, result: Result) -> None:
        batch = self._under_way
        assert batch is not None, "the log answers once for each batch"
        if result.outcome is Outcome.UNKNOWN:
            _log.error("batch %d: outcome unknown: %s", batch.position, result.reason)
            self.stalled = True
            self._log.settle(self._done)
            return
        if self._timer is not None:
            self._timer.cancel()
        if self.stalled:
            _log.warning("batch %d has settled: %s", batch.position, result.outcome.value)
        self._under_way = None
        self.stalled = False
        if result.outcome is Outcome.COMMITTED:
            self.pending_bytes -= batch.size_bytes
            self._counters.committed(batch, self._clock.monotonic_s() - self._started_s)
            try:
                self._publish(batch)
            finally:
                self._take()
        else:
            self._fail(batch, result.reason)
        self._tell_if_idle()

    def _tell_if_idle(self) -> None:
        if self._on_idle and self._under_way is None and not self._waiting:
            calls, self._on_idle = self._on_idle, []
            for call in calls:
                call()

    def _fail(self, batch: Batch, reason: str) -> None:
        _log.error("batch %d failed: %s", batch.position, reason)
        self._counters.commit_failures += 1
        failed = [batch, *self._waiting]
        self._waiting.clear()
        self._open = None
        self.pending_bytes = 0
        self._next_position = batch.position
        self._drop()
        error = CommitFailedError(f"Nothing was stored: {reason}. Try again later.")
        for each in failed:
            each.answer(error)

    def _timed_out(self) -> None:
        batch = self._under_way
        if batch is None:
            return
        _log.error("batch %d: the log has not answered in %g s", batch.position, self._timeout_s)
        self.stalled = True
        error = CommitUnknownError(
            "The log did not answer in time: the write may or may not be stored. "
            "A retry with the same producer headers is safe."
        )
        for each in (batch, *self._waiting):
            each.answer(error)
