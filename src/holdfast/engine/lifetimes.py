"""Lifetimes: how streams are renewed, and how they end.

Rules:

- A stream past its deadline is gone for everyone at once. The record that removes it is issued
  here, carries the deadline, and is what replay goes by: replay never asks a clock.
- A write renews a sliding TTL by its own record. Renewals by reads gather in memory and become a
  record once they have moved the deadline by a share of the TTL.
- Once the deadline has passed only a write that came in time, and is on its way to the log, can
  save the stream.
- Streams in memory wait in a queue of deadlines; those that are not are found by the catalog's
  index of deadlines. The sweep goes through that index once, from where it stopped the last time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.engine.expiry import ExpiryQueue
from holdfast.engine.overlay import Staged
from holdfast.format.records import Kind, Record, encode
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
# A renewal by reads becomes a record once it moved the deadline by this share of the TTL.
_RENEWAL_SHARE: Final = 10
_BEGINNING: Final = Due(-1, 0)


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
        # Everything up to here in the catalog's index was looked at.
        self._swept = _BEGINNING
        self._staging = staging
        self._commits = commits
        self._clock = clock
        self._queue = ExpiryQueue(state)
        self._stopped = False
        # Streams that were due, and were saved by writes that are pending.
        self._saved: list[Stream] = []
        # Streams with a renewal, or with their removal, on its way to the log.
        self._renewing: set[int] = set()
        self._expiring: set[int] = set()

    def recovered(self) -> None:
        """The state was replayed: watch all its streams."""
        for stream in self._state.by_number.values():
            self._queue.add(stream)

    def start(self) -> None:
        """Look for streams that are due from now on."""
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
        """A read renews a sliding TTL; most renewals stay in memory."""
        ttl_s = stream.meta.ttl_s
        if ttl_s is None or stream.meta.expires_at_ms is not None or stream.gone:
            return
        now_ms = self._clock.now_ms()
        deadline_ms = now_ms + ttl_s * 1000
        assert stream.deadline_ms is not None
        assert stream.recorded_deadline_ms is not None
        if deadline_ms <= stream.deadline_ms or stream.deadline_ms <= now_ms:
            # Once it has expired only a write that came in time can save it.
            return
        stream.deadline_ms = deadline_ms
        moved_ms = deadline_ms - stream.recorded_deadline_ms
        if moved_ms * _RENEWAL_SHARE > ttl_s * 1000 and stream.number not in self._renewing:
            self._record(stream)

    def _record(self, stream: Stream) -> None:
        """Make a record of the deadline, unless no write is taken."""
        if self._commits.stalled or self._commits.full or self._staging.is_gone(stream):
            return
        assert stream.deadline_ms is not None, "only streams with a deadline are renewed"
        record = Record(Kind.TOUCH, stream.number, stream.deadline_ms)
        self._commits.add(record, encode(record))
        self._renewing.add(stream.number)

    def lapsed(self, staged: Staged, now_ms: int) -> bool:
        """Whether the stream has expired; if so its removal is staged."""
        if not staged.expired(now_ms):
            return False
        assert staged.deadline_ms is not None
        self._staging.remove(staged, Record(Kind.EXPIRE, staged.number, staged.deadline_ms))
        self._expiring.add(staged.number)
        return True

    def _expire(self, stream: Stream) -> None:
        """Stage the removal of a published stream past its deadline, once."""
        if self._commits.stalled or self._staging.is_gone(stream):
            return
        staged = self._staging.overlay.get(stream.meta.name) or Staged.over(stream)
        self.lapsed(staged, self._clock.now_ms())

    def stop(self) -> None:
        """Look no more."""
        self._stopped = True

    def _sweep(self) -> None:
        if self._stopped:
            return
        self._clock.call_later(_SWEEP_S, self._sweep)
        saved, self._saved = self._saved, []
        for stream in saved:
            self._queue.add(stream)
        self._sweep_round()

    def _sweep_round(self) -> None:
        """Stage the removal of some streams that are due, and go on in the loop's next round."""
        commits = self._commits
        if commits.stalled or commits.pending_bytes > commits.pending_bytes_max:
            return
        due = self._queue.take_due(self._clock.now_ms(), _SWEEP_STREAMS_MAX)
        due += self._due_in_catalog(_SWEEP_STREAMS_MAX - len(due))
        kept = 0
        for stream in due:
            self._expire(stream)
            if not self._staging.is_gone(stream):
                # A write on its way to the log has renewed it: the next sweep looks again.
                self._saved.append(stream)
                kept += 1
        if kept < len(due) == _SWEEP_STREAMS_MAX:
            self._clock.call_soon(self._sweep_round)

    def _due_in_catalog(self, streams_max: int) -> list[Stream]:
        """Streams that are due and were not in memory; they are now."""
        state = self._state
        due: list[Stream] = []
        looked_at = 0
        while self._catalog is not None and len(due) < streams_max:
            page = self._catalog.due(self._clock.now_ms(), self._swept, streams_max - len(due))
            looked_at += len(page)
            if not page or looked_at > _SWEEP_ENTRIES_MAX:
                # The rest in the next sweep.
                break
            self._swept = page[-1]
            for entry in page:
                # Those in memory are in the queue, with the deadline they have by now.
                if entry.number not in state.by_number:
                    stream = state.find_number(entry.number)
                    if stream is not None:
                        # At once: what is pending cannot be pushed out by the next that comes.
                        self._expire(stream)
                        due.append(stream)
        return due

    def loaded(self, stream: Stream) -> None:
        """A stream came into memory: watch it."""
        self._queue.add(stream)

    def evicted(self, stream: Stream) -> None:
        """A stream left memory: the sweep has to find it in the catalog."""
        if stream.deadline_ms is not None:
            entry = Due(stream.deadline_ms, stream.number)
            if entry <= self._swept:
                self._swept = Due(entry.deadline_ms, entry.number - 1)

    def is_recorded(self, stream: Stream) -> bool:
        """Whether the log knows all there is to know of the deadline; if not it will."""
        if stream.number in self._renewing or stream.number in self._expiring:
            return False
        if stream.deadline_ms == stream.recorded_deadline_ms:
            return True
        self._record(stream)
        return False

    def published(self, record: Record, stream: Stream) -> None:
        """A record other than an append is durable."""
        if record.kind == Kind.CREATE:
            self._queue.add(stream)
        elif record.kind == Kind.EXPIRE:
            self._expiring.discard(record.stream)
        elif record.kind == Kind.TOUCH:
            self._renewing.discard(record.stream)

    def dropped(self) -> None:
        """A batch failed: renewals and removals that were pending are to be tried again."""
        for number in self._expiring:
            stream = self._state.find_number(number)
            if stream is not None:
                self._queue.add(stream)
        self._expiring.clear()
        self._renewing.clear()
