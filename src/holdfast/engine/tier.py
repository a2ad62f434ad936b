"""The tier: when the log is cut and flushed, and what leaves memory then.

Rules:

- One flush is under way at a time. It takes everything up to a cut of the log; what is written
  meanwhile is the next generation.
- Past the soft limit, or past an age, the log is cut. Past the hard limit nothing is taken until a
  flush has made room: the writer is told to come back later.
- Only once the storage worker says that the catalog covers the cut are bytes let go and the log
  trimmed. A flush that fails is asked for again, later and later, until it succeeds.
- A stream without anything pending, waiting or unrecorded may leave memory. The last ones used
  stay, up to a number.
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
# Streams whose bytes are let go in one round of the event loop.
_STREAMS_PER_ROUND: Final = 500
# How many streams that cannot leave memory are passed over to find one that can.
_PASSED_OVER_MAX: Final = 8


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
        # What is being flushed: from the cut until the last byte of it is let go.
        self._flushing: Generation | None = None
        self._flushing_cost = self._flushing_bytes = 0
        self._cut: Cut | None = None
        self._dirty_since_s: float | None = None
        self._retry_s = _RETRY_S_MIN
        self._waiting: list[Callable[[HoldfastError | None], None]] = []
        self._waiting_for_cut: list[Callable[[HoldfastError | None], None]] = []
        self._stopped = False
        # Why the last attempt to flush failed; empty while all is well.
        self.trouble = ""
        self.flushed = 0
        self.evictions = 0
        self.retries = 0

    def start(self, flushed: int) -> None:
        """Take up work once the log is replayed; the catalog covers `flushed`."""
        self.flushed = flushed
        self._log.trim(flushed)
        self._state.on_load = self._loaded
        self._clock.call_later(_TICK_S, self._tick)
        self.published()

    def stop(self) -> None:
        """Start no more flushes: the log has everything."""
        self._stopped = True

    # Cost and limits.

    @property
    def cost_bytes(self) -> int:
        """What all that is not in packs, or not let go yet, takes up."""
        state = self._state
        return state.generation.cost_bytes(state.appended_bytes) + self._flushing_cost

    @property
    def hot_bytes(self) -> int:
        """Message bytes that are not in packs, or not let go yet."""
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
    def flushing(self) -> bool:
        """Whether a flush is under way."""
        return self._flushing is not None

    def published(self) -> None:
        """Something was written: see whether it is time to flush, or to take no more."""
        cost_bytes = self.cost_bytes
        if cost_bytes > self.hard_bytes:
            self._commits.full = self._why_full()
        elif self._commits.full:
            self._commits.full = ""
            _log.info("there is room again: appends are taken")
        if self._flushing is None and cost_bytes > self.soft_bytes:
            self._begin()

    def _why_full(self) -> str:
        if not self._commits.full:
            _log.warning("the hot limit is reached: no append is taken until a flush is done")
        if self.trouble:
            return f"the hot limit is reached and packs cannot be written: {self.trouble}"
        return "the hot limit is reached: appends come faster than they can be flushed"

    # Flushing.

    def flush(self, done: Callable[[HoldfastError | None], None]) -> None:
        """Flush everything that is durable now; `done` once it is in packs, or has failed once."""
        if self._flushing is not None:
            # What is under way may have been cut before the caller's last write.
            self._waiting_for_cut.append(done)
        elif not self._state.generation.records:
            done(None)
        else:
            self._waiting.append(done)
            self._begin()

    def _tick(self) -> None:
        """Flush by age, so that a quiet server's log does not stay for ever."""
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
            self._tell_waiting(UnavailableError("The server is shutting down."))
            return
        self._dirty_since_s = None
        # Until the cut is there the present generation goes on, so it is what is flushing.
        self._flushing = self._state.generation
        self._log.cut(self._was_cut)

    def _was_cut(self, cut: Cut) -> None:
        """The state is exactly what the log up to the cut adds up to."""
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
        self.worker.submit(FlushLog(segments), self._answered)

    def _answered(self, answer: int | HoldfastError) -> None:
        """The worker has flushed up to a position, or could not."""
        cut, flushing = self._cut, self._flushing
        assert cut is not None
        assert flushing is not None
        if isinstance(answer, HoldfastError):
            self._failed(answer)
            return
        assert answer >= cut.through, "a flush covers its cut"
        if self.trouble:
            _log.info("packs can be written again")
        self.trouble, self._retry_s = "", _RETRY_S_MIN
        self.flushed = answer
        self._state.journal.flushed(answer)
        self._log.trim(cut.through)
        self._let_go(flushing, 0)

    def _failed(self, error: HoldfastError) -> None:
        self.trouble = error.message
        self.retries += 1
        _log.error("a flush failed, again in %.1f s: %s", self._retry_s, error.message)
        if self._commits.full:
            self._commits.full = self._why_full()
        self._tell_waiting(error)
        if not self._stopped:
            self._clock.call_later(self._retry_s, self._submit)
        self._retry_s = min(2 * self._retry_s, _RETRY_S_MAX)

    def _tell_waiting(self, error: HoldfastError) -> None:
        # Those who came later wait for the flush after this one, which may take as long.
        waiting = self._waiting + self._waiting_for_cut
        self._waiting, self._waiting_for_cut = [], []
        for done in waiting:
            done(error)

    # What leaves memory.

    def _let_go(self, flushed: Generation, at: int) -> None:
        """Let go of what is in packs now, some streams in each round."""
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
        self._evict()
        at += _STREAMS_PER_ROUND
        if at < len(flushed.streams):
            self._clock.call_soon(self._let_go, flushed, at)
        else:
            self._finish()

    def _finish(self) -> None:
        if self._flushing is not None:
            # Streams and generations refer to one another, and the collector rests.
            self._flushing.streams.clear()
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
        """A stream came back from the catalog: make room for it."""
        self._lifetimes.loaded(stream)
        self._evict(stream)

    def _evict(self, wanted: Stream | None = None) -> None:
        """Forget the streams that were not used for longest, but never the one just wanted."""
        clean = self._state.clean
        passed_over = 0
        while len(clean) > self._streams_cached_max and passed_over < _PASSED_OVER_MAX:
            stream = next(iter(clean.values()))
            if stream is not wanted and self._may_leave(stream):
                self._state.evict(stream)
                self._lifetimes.evicted(stream)
                self.evictions += 1
            else:
                clean.move_to_end(stream.number)
                passed_over += 1

    def _may_leave(self, stream: Stream) -> bool:
        return (
            stream.readers is None
            and stream.meta.name not in self._staging.overlay
            and self._lifetimes.is_recorded(stream)
        )
