"""The tier: decides when to flush the log to packs, and what leaves memory afterwards.

Rules:

- One flush runs at a time. It covers everything up to a cut of the log; later writes belong to the
  next generation.
- The log is cut past the soft limit, or past an age. Past the hard limit writes are rejected until
  a flush has made room; writes that wait for the disk count.
- From half way between the limits on, batches wait. The bytes that go to the log in a second are
  half way from there as many as the flush writes, and fewer the closer the hard limit is.
- Bytes are released and the log is trimmed only once the storage worker reports that the catalog
  covers the cut. A failed flush is repeated with growing pauses until it succeeds.
- A stream may be evicted if it has no pending write, no live reader and no unrecorded renewal. Up
  to a limit, the most recently used ones stay.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError, UnavailableError
from holdfast.storage.commands import FlushLog
from holdfast.storage.flush import SegmentRef

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock
    from holdfast.engine.commit import CommitLoop
    from holdfast.engine.lifetimes import Lifetimes
    from holdfast.engine.overlay import Staging
    from holdfast.engine.state import State
    from holdfast.engine.stream import Generation, Stream
    from holdfast.log.interface import Cut, Log
    from holdfast.storage.commands import Worker

_log = logging.getLogger(__name__)
_TICK_S: Final = 1.0
_RETRY_S_MIN: Final = 0.2
_RETRY_S_MAX: Final = 10.0
# Streams whose bytes are released in one round of the event loop.
_STREAMS_PER_ROUND: Final = 500
# How long a batch waits at most.
_WAIT_S_MAX: Final = 1.0
# How many streams that cannot be evicted are skipped to find one that can.
_SKIPPED_MAX: Final = 8


class Tier:
    """Keeps the memory of a shard bounded."""

    def __init__(
        self,
        state: State,
        staging: Staging,
        lifetimes: Lifetimes,
        commits: CommitLoop,
        log: Log,
        worker: Worker,
        clock: Clock,
        *,
        soft_bytes: int,
        hard_bytes: int,
        flush_age_s: float,
        streams_cached_max: int,
    ) -> None:
        self._state = state
        self._staging = staging
        self._lifetimes = lifetimes
        self._commits = commits
        self._log = log
        self.worker = worker
        self._clock = clock
        self.soft_bytes = soft_bytes
        self.hard_bytes = hard_bytes
        self._flush_age_s = flush_age_s
        self._streams_cached_max = streams_cached_max
        # The generation being flushed, from the cut until its last byte is released.
        self._flushing: Generation | None = None
        self._flushing_cost = self._flushing_bytes = 0
        self._cut: Cut | None = None
        self._began_s = 0.0
        # The mark past which batches wait, and the cost and the time of the last one past it.
        self._mark_bytes = (soft_bytes + hard_bytes) // 2
        self._last_cost = 0
        self._last_s: float | None = None
        # How long the last large flush took, and how much writers have lately sent at once.
        self._flush_s_per_byte = 0.0
        self._burst_bytes = self._burst_bytes_min = (hard_bytes - self._mark_bytes) // 8
        self._dirty_since_s: float | None = None
        self._retry_s = _RETRY_S_MIN
        self._waiting: list[Callable[[HoldfastError | None], None]] = []
        self._waiting_for_cut: list[Callable[[HoldfastError | None], None]] = []
        self._stopped = False
        # Why the last flush failed; empty after a success.
        self.trouble = ""
        self.flushed = 0
        self.evictions = 0
        self.retries = 0

    def start(self, flushed: int) -> None:
        """Start after replay; the catalog covers the log up to `flushed`."""
        self.flushed = flushed
        self._log.trim(flushed)
        self._state.on_load = self._loaded
        self._clock.call_later(_TICK_S, self._tick)
        self.published()

    def stop(self) -> None:
        """Start no more flushes; the log has everything."""
        self._stopped = True
        self._commits.stop_pausing()

    @property
    def cost_bytes(self) -> int:
        """The memory taken by everything that is not in packs, or not released yet."""
        state = self._state
        return state.generation.cost_bytes(state.appended_bytes) + self._flushing_cost

    @property
    def hot_bytes(self) -> int:
        """Message bytes that are not in packs, or not released yet."""
        state = self._state
        return state.appended_bytes - state.generation.started_bytes + self._flushing_bytes

    @property
    def changed(self) -> list[Stream]:
        """Streams that changed since the last flush."""
        flushing, present = self._flushing, self._state.generation
        if flushing is None or flushing is present:
            return present.streams
        return [each for each in flushing.streams if each.generation is flushing] + present.streams

    @property
    def unflushed_snapshots(self) -> set[str]:
        """The objects of published snapshots that the catalog may not know yet."""
        present, flushing = self._state.generation.snapshots, self._flushing
        return present if flushing is None else present | flushing.snapshots

    @property
    def flushing(self) -> bool:
        return self._flushing is not None

    def published(self) -> None:
        """Check the limits after a write: flush, or reject further writes."""
        cost_bytes = self.cost_bytes
        if cost_bytes > self.hard_bytes:
            self._commits.full = self._why_full()
        elif self._commits.full:
            self._commits.full = ""
            _log.info("memory has room again: appends are accepted")
        self._commits.room_bytes = min(
            self._commits.pending_bytes_max, self.hard_bytes - cost_bytes
        )
        if self._flushing is None and cost_bytes > self.soft_bytes:
            self._begin()
        if self._mark_bytes < cost_bytes <= self.hard_bytes:
            soonest_s = self._next_s(cost_bytes)
            self._commits.wait(soonest_s, self._clock.monotonic_s() + _WAIT_S_MAX)
        elif self._last_s is not None:
            # Past the hard limit, only writes that free memory or add little are accepted.
            self._last_s = None
            self._commits.wait(0.0, 0.0)

    def _next_s(self, cost_bytes: int) -> float:
        """When the log gets the next batch: once what the last one added has had its time."""
        now_s, last_s, last_cost = self._clock.monotonic_s(), self._last_s, self._last_cost
        self._last_cost, self._last_s = cost_bytes, now_s
        if last_s is None or not self._flushing_cost:
            return 0.0
        # A flush that takes longer than the last one is slower.
        flush_s = max(now_s - self._began_s, self._flushing_cost * self._flush_s_per_byte)
        added_bytes = max(0, cost_bytes - last_cost)
        # Writers that got their replies are about to send as much again. There must be room for
        # that when the next batch is in memory, and the same once more is on its way.
        self._burst_bytes = max(self._burst_bytes, self._commits.pending_bytes + added_bytes)
        held_bytes = cost_bytes + 2 * self._burst_bytes
        # From 0 at the mark to 1 at the limit.
        share = (held_bytes - self._mark_bytes) / max(1, self.hard_bytes - self._mark_bytes)
        share = min(1.0, share)
        needed_s = flush_s * share * added_bytes
        spare = self._flushing_cost * (1.0 - share)
        wait_s = needed_s / spare if needed_s < spare * _WAIT_S_MAX else _WAIT_S_MAX
        return last_s + wait_s

    def _why_full(self) -> str:
        if not self._commits.full:
            _log.warning("the hot limit is reached: appends are rejected until a flush is done")
        if self.trouble:
            return f"the hot limit is reached and packs cannot be written: {self.trouble}"
        return "the hot limit is reached: appends come faster than they can be flushed"

    def flush(self, done: Callable[[HoldfastError | None], None]) -> None:
        """Flush everything durable; `done` is called when it is in packs, or after one failure."""
        if self._flushing is not None:
            # The flush that is running may have been cut before the caller's last write.
            self._waiting_for_cut.append(done)
        elif not self._state.generation.records:
            done(None)
        else:
            self._waiting.append(done)
            self._begin()

    def _tick(self) -> None:
        """Flush by age, so that the log of a quiet server does not stay forever."""
        if self._stopped:
            return
        self._clock.call_later(_TICK_S, self._tick)
        now_s = self._clock.monotonic_s()
        if self._flushing is not None or not self._state.generation.records:
            self._dirty_since_s = None
        elif self._dirty_since_s is None:
            self._dirty_since_s = now_s
        elif now_s - self._dirty_since_s >= self._flush_age_s:
            self._begin()

    def _begin(self) -> None:
        if self._stopped:
            self._fail_waiting(UnavailableError("The server is shutting down."))
            return
        self._dirty_since_s = None
        self._began_s = self._clock.monotonic_s()
        # Until the cut is done, writes still go to the generation that will be flushed.
        self._flushing = self._state.generation
        self._log.cut(self._was_cut)

    def _was_cut(self, cut: Cut) -> None:
        """Flush what the log has up to the cut, which is exactly the current state."""
        self._flushing = self._state.next_generation()
        appended_bytes = self._state.appended_bytes
        self._flushing_bytes = appended_bytes - self._flushing.started_bytes
        self._flushing_cost = self._flushing.cost_bytes(appended_bytes)
        self._cut = cut
        self._submit()

    def _submit(self) -> None:
        cut = self._cut
        assert cut is not None, "a flush follows a cut"
        segments = [
            SegmentRef(segment.path, segment.end, segment.last_position) for segment in cut.segments
        ]
        self.worker.submit(FlushLog(segments), self._was_flushed)

    def _was_flushed(self, through: int | HoldfastError) -> None:
        cut, flushing = self._cut, self._flushing
        assert cut is not None
        assert flushing is not None
        if isinstance(through, HoldfastError):
            self._retry(through)
            return
        assert through >= cut.through, "a flush covers its cut"
        if self.trouble:
            _log.info("packs can be written again")
        elif 2 * self._flushing_cost >= self.soft_bytes:
            # One that failed at first took as long as the trouble, which is over.
            took_s = self._clock.monotonic_s() - self._began_s
            self._flush_s_per_byte = took_s / self._flushing_cost
        self.trouble, self._retry_s = "", _RETRY_S_MIN
        self.flushed = through
        self._state.journal.flushed(through)
        self._log.trim(cut.through)
        self._release(flushing, 0)

    def _retry(self, error: HoldfastError) -> None:
        self.trouble = error.message
        self.retries += 1
        _log.error("a flush failed, retrying in %.1f s: %s", self._retry_s, error.message)
        if self._commits.full:
            self._commits.full = self._why_full()
        self._fail_waiting(error)
        if not self._stopped:
            self._clock.call_later(self._retry_s, self._submit)
        self._retry_s = min(2 * self._retry_s, _RETRY_S_MAX)

    def _fail_waiting(self, error: HoldfastError) -> None:
        # Also callers that wait for the next flush: it cannot start before this one succeeds.
        waiting = self._waiting + self._waiting_for_cut
        self._waiting, self._waiting_for_cut = [], []
        for done in waiting:
            done(error)

    def _release(self, flushed: Generation, at: int) -> None:
        """Release the memory of flushed streams, some in each round of the event loop."""
        state = self._state
        for stream in flushed.streams[at : at + _STREAMS_PER_ROUND]:
            unchanged = stream.generation is flushed
            if stream.gone and not stream.deleted:
                if unchanged:
                    self._forget_removed(stream)
                    stream.generation = None
                continue
            state.names.discard(stream.meta.name)
            stream.forget_before(stream.tail if unchanged else stream.cut_tail)
            if unchanged:
                stream.generation = None
                state.clean[stream.number] = stream
                state.hidden.pop(stream.number, None)
            self._staging.forget_producers(stream)
            stream.forget_flushed_producers()
        self._evict()
        at += _STREAMS_PER_ROUND
        if at < len(flushed.streams):
            self._clock.call_soon(self._release, flushed, at)
        else:
            self._finish()

    def _finish(self) -> None:
        if self._flushing is not None:
            # Breaks the reference cycle of streams and generations: collections are very rare.
            self._flushing.streams.clear()
        self._burst_bytes = max(self._burst_bytes_min, 7 * self._burst_bytes // 8)
        self._flushing, self._cut = None, None
        self._flushing_cost = self._flushing_bytes = 0
        waiting, self._waiting = self._waiting, self._waiting_for_cut
        self._waiting_for_cut = []
        for done in waiting:
            done(None)
        if self._waiting and not self._state.generation.records:
            self._finish()
            return
        self.published()
        if self._waiting and self._flushing is None:
            self._begin()

    def _forget_removed(self, stream: Stream) -> None:
        state = self._state
        state.removed_numbers.discard(stream.number)
        if state.removed.get(stream.meta.name) == stream.number:
            del state.removed[stream.meta.name]

    def _loaded(self, stream: Stream) -> None:
        """Watch a stream that was loaded from the catalog, and make room for it."""
        self._lifetimes.loaded(stream)
        self._evict(stream)

    def _evict(self, wanted: Stream | None = None) -> None:
        """Evict the least recently used streams, but never the one that was just wanted."""
        clean = self._state.clean
        skipped = 0
        while len(clean) > self._streams_cached_max and skipped < _SKIPPED_MAX:
            stream = next(iter(clean.values()))
            if stream is not wanted and self._may_leave(stream):
                self._state.evict(stream)
                self._lifetimes.evicted(stream)
                self.evictions += 1
            else:
                clean.move_to_end(stream.number)
                skipped += 1

    def _may_leave(self, stream: Stream) -> bool:
        return (
            stream.readers is None
            and stream.meta.name not in self._staging.overlay
            and self._lifetimes.is_recorded(stream)
        )
