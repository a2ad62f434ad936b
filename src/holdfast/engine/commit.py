"""The commit loop: hands batches to the log one at a time, and sends the replies they hold.

Rules:

- One batch is open. It closes when it is handed to the log or reaches `batch_bytes_max`. The log
  gets it as soon as the one before is done; there is no timer, so batches grow with the load. Only
  while memory runs out the tier has batches wait, so that writers come at the pace of the flush.
- Every reply waits in the batch it depends on. COMMITTED: the batch is published, then its replies
  are sent. FAILED: this batch and every later one are dropped, and their replies become errors.
- UNKNOWN: nothing is undone, and no write is accepted until the log has settled the outcome.
  Replies wait up to `timeout_s`, as for any batch, and then become errors that say so.
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
from holdfast.format.records import RECORDS_MAX, encode
from holdfast.log.interface import CommitOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock, Timer
    from holdfast.engine.counters import Counters
    from holdfast.engine.overlay import Staged, StagedBucket
    from holdfast.format.records import Record
    from holdfast.log.interface import CommitResult, Log

    Reply = Callable[[Any, object], None]

_log = logging.getLogger(__name__)


class Batch:
    """Records that become durable together, and the replies that wait for them."""

    __slots__ = (
        "buckets",
        "new_producers",
        "parts",
        "position",
        "records",
        "replies",
        "size_bytes",
        "touched",
    )

    def __init__(self, position: int) -> None:
        self.position = position
        self.records: list[Record] = []
        self.parts: list[bytes] = []
        self.size_bytes = 0
        self.touched: list[Staged] = []
        self.buckets: list[StagedBucket] = []
        # Streams, once for each producer that they did not know before.
        self.new_producers: list[Staged] = []
        # (reply, context, outcome): `reply(context, outcome)` is called when it is published.
        self.replies: list[tuple[Reply, Any, object]] = []

    def send_replies(self, error: HoldfastError | None = None) -> None:
        """Send every waiting reply: its outcome, or `error` instead."""
        replies, self.replies = self.replies, []
        for reply, context, outcome in replies:
            try:
                reply(context, outcome if error is None else error)
            except Exception:  # noqa: BLE001 (a defect in one reply must not stop the others)
                _log.exception("a reply could not be sent")


def reply_after(batch: Batch | None, reply: Reply, context: Any, outcome: object) -> None:
    """Reply once the batch is published, at once if the outcome depends on none."""
    if batch is None:
        reply(context, outcome)
    else:
        batch.replies.append((reply, context, outcome))


class CommitLoop:
    """The open batch, the batches waiting behind it, and the one in the log's hands."""

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
        # Writes are rejected while `stalled` or `full` is set, or too many bytes are pending.
        # `full` holds the reason why memory has no room for more writes, and `room_bytes` is how
        # many pending ones it has room for.
        self.stalled = False
        self.full = ""
        self.room_bytes = pending_bytes_max
        self.refusals = 0
        self.pending_bytes = 0
        # When the log gets the next batch, and how long batches have waited in all.
        self._soonest_s = self._latest_s = 0.0
        self._may_pause = True
        self._pause: Timer | None = None
        self._paused_s = 0.0
        self.delayed_s = 0.0
        self._on_idle: list[Callable[[], None]] = []

    def start_after(self, position: int) -> None:
        self._next_position = position + 1

    @property
    def last_position(self) -> int:
        """The last position assigned to a batch, durable or not."""
        return self._next_position - 1

    def check(self) -> None:
        """Raise if writes are rejected now."""
        if self.full:
            self.refusals += 1
            raise OverloadedError(f"Writes are rejected: {self.full}. Try again later.")
        self.check_log()
        if self.pending_bytes > self.room_bytes:
            self.refusals += 1
            raise OverloadedError(
                "Writes are rejected: those that wait for the disk reach the hot limit. "
                "Try again later."
            )

    def check_log(self) -> None:
        """Raise if the log accepts nothing now."""
        if self.stalled:
            raise UnavailableError(
                "The outcome of an earlier write is unknown; no write is accepted until it is."
            )
        if self.pending_bytes > self.pending_bytes_max:
            raise OverloadedError("Too many bytes are waiting to be written to disk.")

    def batch(self) -> Batch:
        """The open batch, which has room for at least one record."""
        if self._open is not None:
            return self._open
        batch = self._open = Batch(self._next_position)
        self._next_position += 1
        self._waiting.append(batch)
        if self._under_way is None and len(self._waiting) == 1:
            # In the event loop's next round, so that requests that arrived together share a batch.
            self._clock.call_soon(self._commit_next)
        return batch

    def add(self, record: Record) -> Batch:
        """Add a record to the open batch, which is returned."""
        encoded = encode(record)
        batch = self._open or self.batch()
        batch.records.append(record)
        batch.parts.append(encoded)
        size = len(encoded)
        batch.size_bytes += size
        self.pending_bytes += size
        if batch.size_bytes >= self._batch_bytes_max or len(batch.records) >= RECORDS_MAX:
            self._open = None
        return batch

    def begin_append(self, records: list[Record]) -> None:
        """Add the first records of a write; `add` of its last one puts it into the same batch.

        A batch is durable as a whole, so all records of the write are stored, or none.
        """
        batch = self._open or self.batch()
        if len(batch.records) + len(records) >= RECORDS_MAX:
            self._open = None
            batch = self.batch()
        parts = [encode(record) for record in records]
        batch.records += records
        batch.parts += parts
        size = sum(map(len, parts))
        batch.size_bytes += size
        self.pending_bytes += size

    def when_idle(self, call: Callable[[], None]) -> None:
        """Run `call` as soon as nothing is pending."""
        if self._under_way is None and not self._waiting:
            call()
        else:
            self._on_idle.append(call)

    def stop_pausing(self) -> None:
        """Give the log every batch as soon as it takes it: the server shuts down."""
        self._may_pause = False
        self.wait(0.0, 0.0)

    def wait(self, soonest_s: float, latest_s: float) -> None:
        """Give the log the next batch at a time.

        It is the earlier time if memory has room for the batch and for as much again, which its
        writers are about to send.
        """
        self._soonest_s, self._latest_s = (soonest_s, latest_s) if self._may_pause else (0.0, 0.0)
        if self._pause is not None:
            self._pause.cancel()
            self._end_pause()

    def _end_pause(self) -> None:
        self._pause = None
        self.delayed_s += self._clock.monotonic_s() - self._paused_s
        self._commit_next()

    def _commit_next(self) -> None:
        if self._under_way is not None or not self._waiting or self._pause is not None:
            return
        if self._latest_s:
            has_room = 2 * self.pending_bytes <= self.room_bytes
            due_s = self._soonest_s if has_room else self._latest_s
            self._paused_s = self._clock.monotonic_s()
            if due_s > self._paused_s:
                self._pause = self._clock.call_later(due_s - self._paused_s, self._end_pause)
                return
        batch = self._waiting.popleft()
        if batch is self._open:
            self._open = None
        self._under_way = batch
        self._started_s = self._clock.monotonic_s()
        self._timer = self._clock.call_later(self._timeout_s, self._timed_out)
        self._log.append(batch.position, batch.parts, self._done)

    def _done(self, result: CommitResult) -> None:
        batch = self._under_way
        assert batch is not None, "the log reports once for each batch"
        if result.outcome is CommitOutcome.UNKNOWN:
            _log.error("batch %d: unknown outcome: %s", batch.position, result.reason)
            self.stalled = True
            self._log.settle(self._done)
            return
        if self._timer is not None:
            self._timer.cancel()
        if self.stalled:
            _log.warning("batch %d is settled: %s", batch.position, result.outcome.value)
        self._under_way = None
        self.stalled = False
        if result.outcome is CommitOutcome.COMMITTED:
            self.pending_bytes -= batch.size_bytes
            self._counters.committed(batch, self._clock.monotonic_s() - self._started_s)
            try:
                self._publish(batch)
            finally:
                self._commit_next()
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
            each.send_replies(error)

    def _timed_out(self) -> None:
        batch = self._under_way
        if batch is None:
            return
        _log.error("batch %d: no outcome from the log in %g s", batch.position, self._timeout_s)
        self.stalled = True
        error = CommitUnknownError(
            "The log did not answer in time: the write may or may not be stored. "
            "A retry with the same producer headers is safe."
        )
        for each in (batch, *self._waiting):
            each.send_replies(error)
