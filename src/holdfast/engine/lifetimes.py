"""Renewal and expiry of streams.

Rules:

- A stream past its deadline is gone for everyone at once. The record that removes it is written
  here and carries the deadline, so replay needs no clock.
- A write renews a sliding TTL with its own record. Renewals by reads stay in memory and become a
  record once they have moved the deadline by a tenth of the TTL.
- After its deadline a stream can be saved only by a write that came in time and is still pending.
- Streams in memory wait in a queue of deadlines; the others are found through the catalog's index
  of deadlines. The sweep continues in that index where it stopped the last time.
"""

from __future__ import annotations

from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from holdfast.engine.overlay import Staged
from holdfast.format.records import Kind, Record
from holdfast.storage.catalog import Due

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.engine.commit import CommitLoop
    from holdfast.engine.overlay import Staging
    from holdfast.engine.state import State
    from holdfast.engine.stream import Stream
    from holdfast.storage.catalog import Catalog

_SWEEP_S: Final = 1.0
_SWEEP_STREAMS_MAX: Final = 500
_SWEEP_ENTRIES_MAX: Final = 5000
# A renewal by reads becomes a record once it moved the deadline by one such share of the TTL.
_RENEWAL_SHARE: Final = 10
_SPARE_ENTRIES: Final = 1024
_BEGINNING: Final = Due(-1, 0)


class ExpiryQueue:
    """Streams in memory with a deadline, soonest first.

    A renewal does not touch the heap: an entry that comes due too early is pushed again with the
    stream's current deadline. Deadlines only move later, so none is missed, and one entry per
    stream is enough, however often it is evicted and loaded. Entries of removed streams stay until
    they come due, or until they outnumber the others.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._heap: list[tuple[int, int]] = []
        self._watched: set[int] = set()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, stream: Stream) -> None:
        """Watch a stream, if it has a deadline."""
        if stream.deadline_ms is None or stream.number in self._watched:
            return
        if len(self._heap) > 2 * len(self._state.by_number) + _SPARE_ENTRIES:
            self._rebuild()
        if stream.number not in self._watched:
            self._watched.add(stream.number)
            heappush(self._heap, (stream.deadline_ms, stream.number))

    def take_due(self, now_ms: int, streams_max: int) -> list[Stream]:
        """Remove and return streams whose deadline has passed."""
        due: list[Stream] = []
        while self._heap and self._heap[0][0] <= now_ms and len(due) < streams_max:
            _, number = heappop(self._heap)
            stream = self._state.by_number.get(number)
            if stream is not None and stream.deadline_ms is not None:
                if stream.deadline_ms > now_ms:
                    heappush(self._heap, (stream.deadline_ms, number))
                    continue
                due.append(stream)
            self._watched.discard(number)
        return due

    def _rebuild(self) -> None:
        self._heap = [
            (stream.deadline_ms, stream.number)
            for stream in self._state.by_number.values()
            if stream.deadline_ms is not None
        ]
        heapify(self._heap)
        self._watched = {number for _, number in self._heap}


def _read_due(catalog: Catalog, now_ms: int, after: Due) -> None:
    """Read what a round of the sweep will look up."""
    for due in catalog.due(now_ms, after, _SWEEP_STREAMS_MAX):
        catalog.find_sources(catalog.find_number(due.number))


class Lifetimes:
    """The deadlines of a shard's streams."""

    def __init__(
        self,
        state: State,
        staging: Staging,
        commits: CommitLoop,
        clock: Clock,
        catalog: Catalog | None = None,
    ) -> None:
        self._state = state
        self._catalog = catalog
        # The sweep's position in the catalog's index.
        self._swept = _BEGINNING
        self._staging = staging
        self._commits = commits
        self._clock = clock
        self._queue = ExpiryQueue(state)
        self._stopped = False
        # Whether a round waits for the catalog.
        self._reading = False
        # Streams that were due but have a pending write that renews them.
        self._saved: list[Stream] = []
        # Streams with a pending record of their renewal, or of their removal.
        self._renewing: set[int] = set()
        self._expiring: set[int] = set()

    def recovered(self) -> None:
        """Watch all streams once the log is replayed."""
        for stream in self._state.by_number.values():
            self._queue.add(stream)

    def start(self) -> None:
        self._clock.call_later(_SWEEP_S, self._sweep)

    def has_ended(self, stream: Stream) -> bool:
        """Whether a published stream is past its deadline; if so its removal is staged."""
        now_ms = self._clock.now_ms()
        if stream.deadline_ms is None or stream.deadline_ms > now_ms:
            return False
        self._expire(stream)
        staged = self._staging.overlay.get(stream.meta.name)
        return staged is None or self._staging.is_gone(stream) or staged.expired(now_ms)

    def renew(self, stream: Stream) -> None:
        """Renew a sliding TTL for a read; most renewals stay in memory."""
        ttl_s = stream.meta.ttl_s
        if ttl_s is None or stream.meta.expires_at_ms is not None or stream.gone:
            return
        now_ms = self._clock.now_ms()
        deadline_ms = now_ms + ttl_s * 1000
        assert stream.deadline_ms is not None
        assert stream.recorded_deadline_ms is not None
        if deadline_ms <= stream.deadline_ms or stream.deadline_ms <= now_ms:
            # An expired stream can be saved only by a write that came in time.
            return
        stream.deadline_ms = deadline_ms
        moved_ms = deadline_ms - stream.recorded_deadline_ms
        if moved_ms * _RENEWAL_SHARE > ttl_s * 1000 and stream.number not in self._renewing:
            self._record(stream)

    def _record(self, stream: Stream) -> None:
        """Record the deadline in the log, unless writes are rejected now."""
        if self._commits.stalled or self._commits.full or self._staging.is_gone(stream):
            return
        assert stream.deadline_ms is not None, "only streams with a deadline are renewed"
        record = Record(Kind.TOUCH, stream.number, stream.deadline_ms)
        self._commits.add(record)
        self._renewing.add(stream.number)

    def lapsed(self, staged: Staged, now_ms: int) -> bool:
        """Whether a staged stream is past its deadline; if so its removal is staged."""
        if not staged.expired(now_ms):
            return False
        assert staged.deadline_ms is not None
        self._staging.remove(staged, Record(Kind.EXPIRE, staged.number, staged.deadline_ms))
        self._expiring.add(staged.number)
        return True

    def _expire(self, stream: Stream) -> None:
        """Stage the removal of a published stream past its deadline, unless it is pending."""
        if self._commits.stalled or self._staging.is_gone(stream):
            return
        staged = self._staging.overlay.get(stream.meta.name) or Staged.over(stream)
        self.lapsed(staged, self._clock.now_ms())

    def stop(self) -> None:
        self._stopped = True

    def _sweep(self) -> None:
        if self._stopped:
            return
        self._clock.call_later(_SWEEP_S, self._sweep)
        saved, self._saved = self._saved, []
        for stream in saved:
            self._queue.add(stream)
        self._next_round()

    def _next_round(self) -> None:
        """Sweep once what the catalog has to say can be read without waiting for the disk."""
        catalog = self._catalog
        if catalog is None or not catalog.may_wait:
            self._sweep_round()
        elif not self._reading:
            self._reading = True
            job = partial(_read_due, now_ms=self._clock.now_ms(), after=self._swept)
            catalog.warm(job).then(self._read)

    def _read(self, _: object) -> None:
        self._reading = False
        if not self._stopped:
            self._sweep_round()

    def _sweep_round(self) -> None:
        """Stage the removal of some due streams, and continue in the event loop's next round."""
        commits = self._commits
        if commits.stalled or commits.pending_bytes > commits.pending_bytes_max:
            return
        due = self._queue.take_due(self._clock.now_ms(), _SWEEP_STREAMS_MAX)
        due += self._due_in_catalog(_SWEEP_STREAMS_MAX - len(due))
        kept = 0
        for stream in due:
            self._expire(stream)
            if not self._staging.is_gone(stream):
                # A pending write has renewed it: the next sweep looks again.
                self._saved.append(stream)
                kept += 1
        if kept < len(due) == _SWEEP_STREAMS_MAX:
            self._clock.call_soon(self._next_round)

    def _due_in_catalog(self, streams_max: int) -> list[Stream]:
        """Load due streams that are not in memory."""
        state = self._state
        due: list[Stream] = []
        looked_at = 0
        while self._catalog is not None and len(due) < streams_max:
            page = self._catalog.due(self._clock.now_ms(), self._swept, streams_max - len(due))
            looked_at += len(page)
            if not page or looked_at > _SWEEP_ENTRIES_MAX:
                # The next sweep does the rest.
                break
            self._swept = page[-1]
            for entry in page:
                # Streams in memory are in the queue, with their current deadline.
                if entry.number not in state.by_number:
                    stream = state.find_number(entry.number)
                    if stream is not None:
                        # At once: a pending removal keeps it from being evicted by the next.
                        self._expire(stream)
                        due.append(stream)
        return due

    def loaded(self, stream: Stream) -> None:
        self._queue.add(stream)

    def evicted(self, stream: Stream) -> None:
        """Make the sweep find an evicted stream in the catalog."""
        if stream.deadline_ms is not None:
            entry = Due(stream.deadline_ms, stream.number)
            if entry <= self._swept:
                self._swept = Due(entry.deadline_ms, entry.number - 1)

    def is_recorded(self, stream: Stream) -> bool:
        """Whether the log has the current deadline; if not, a record of it is added."""
        if stream.number in self._renewing or stream.number in self._expiring:
            return False
        if stream.deadline_ms == stream.recorded_deadline_ms:
            return True
        self._record(stream)
        return False

    def published(self, record: Record, stream: Stream) -> None:
        """A record other than an append is published."""
        if record.kind == Kind.CREATE:
            self._queue.add(stream)
        elif record.kind == Kind.EXPIRE:
            self._expiring.discard(record.stream)
        elif record.kind == Kind.TOUCH:
            self._renewing.discard(record.stream)

    def dropped(self) -> None:
        """Try pending renewals and removals again: a batch failed."""
        for number in self._expiring:
            stream = self._state.find_number(number)
            if stream is not None:
                self._queue.add(stream)
        self._expiring.clear()
        self._renewing.clear()
