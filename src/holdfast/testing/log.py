"""A log whose every outcome a test decides, and a worker that lives in a test's time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from holdfast.log.interface import Batch, Cut, LogStats, Outcome, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.clock import Clock, Timer

    Job = tuple[Callable[..., None], tuple[Any, ...]]

_JOB_US: Final = (200, 4000)


class ScriptedLog:
    """Keeps batches in memory and answers only when `answer` is called.

    `batches` is what survives: hand it to another `ScriptedLog` to restart after a crash.
    """

    def __init__(self, batches: list[Batch] | None = None) -> None:
        self.batches: list[Batch] = batches if batches is not None else []
        self.under_way: Batch | None = None
        self.settling = False
        self._done: Callable[[Result], None] | None = None
        self._post: Callable[..., object] | None = None
        self._cuts: deque[tuple[Callable[[Cut], None], Cut]] = deque()
        # The last position that is no longer among the batches.
        self._trimmed = 0

    def replay(self, after: int) -> Iterator[Batch]:
        """The batches answered COMMITTED, or settled so."""
        self._trimmed = max(self._trimmed, after)
        return iter([batch for batch in self.batches if batch.position > after])

    def start(self, post: Callable[..., object]) -> None:
        """Make ready to append."""
        self._post = post

    def append(self, position: int, parts: list[bytes], done: Callable[[Result], None]) -> None:
        """Hold the batch until `answer`."""
        assert self.under_way is None, "one batch at a time"
        assert position == self._last_position + 1, "positions have no gaps"
        self.under_way = Batch(position, b"".join(parts))
        self._done = done

    def settle(self, done: Callable[[Result], None]) -> None:
        """Hold the question until `answer`."""
        assert self.under_way is not None, "only an unknown outcome needs settling"
        self.settling = True
        self._done = done

    def answer(self, outcome: Outcome, *, stored: bool | None = None) -> None:
        """Give the batch under way this outcome; `stored` tells what is true for UNKNOWN."""
        assert self.under_way is not None, "no batch is under way"
        assert self._done is not None, "the outcome was given already"
        self._give_cuts()
        done, self._done = self._done, None
        keeps = outcome is Outcome.COMMITTED or (outcome is Outcome.UNKNOWN and stored)
        if keeps and self.under_way not in self.batches:
            self.batches.append(self.under_way)
        if outcome is not Outcome.UNKNOWN:
            self.under_way = None
            self.settling = False
        done(Result(outcome, "" if outcome is Outcome.COMMITTED else "as the test wants it"))

    def cut(self, done: Callable[[Cut], None]) -> None:
        """Tell what is committed now, before anything else is answered; there are no segments."""
        assert self._post is not None, "start() comes before cut()"
        unsettled = self.under_way
        through = self._last_position if unsettled is None else unsettled.position - 1
        self._cuts.append((done, Cut(through, ())))
        self._post(self._give_cuts)

    def _give_cuts(self) -> None:
        while self._cuts:
            done, cut = self._cuts.popleft()
            done(cut)

    @property
    def _last_position(self) -> int:
        last = self.batches[-1].position if self.batches else 0
        return max(last, self._trimmed)

    def trim(self, through: int) -> None:
        """Forget batches up to `through`."""
        self._trimmed = max(self._trimmed, min(through, self._last_position))
        self.batches[:] = [batch for batch in self.batches if batch.position > through]

    def stats(self) -> LogStats:
        """Bytes of the batches kept."""
        return LogStats(sum(len(batch.body) for batch in self.batches), 1)

    def close(self) -> None:
        """Nothing to let go of."""


class ClockWorker:
    """A `Worker` without a thread: its jobs take some of a clock's time, one after the other.

    All of a job's effects come at the end of its time. For a crash between two of them have the
    files fail there; `kill` then ends the worker as a crash ends a thread.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs: deque[Job] = deque()
        self._put_off: list[tuple[Timer, Job]] = []
        self._timer: Timer | None = None
        self._started = False

    def start(self) -> None:
        """Begin to run jobs."""
        self._started = True
        self._schedule()

    def put(self, call: Callable[..., None], *args: Any) -> None:
        """Run this once everything before it has been run, and some time has passed."""
        self._jobs.append((call, args))
        self._schedule()

    def later(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Hand over this job in `delay_s` seconds."""
        job = call, args
        timer = self._clock.call_later(delay_s, self._hand_over, job)
        self._put_off.append((timer, job))

    def stop(self) -> None:
        """Run everything that was handed over or put off, without any time passing."""
        put_off = [job for _, job in self._put_off]
        jobs, was_started = [*self._jobs, *put_off], self._started
        self.kill()
        for call, args in jobs if was_started else ():
            call(*args)

    def kill(self) -> None:
        """Forget everything: nothing more is run."""
        self._started = False
        self._jobs.clear()
        for timer in (self._timer, *(timer for timer, _ in self._put_off)):
            if timer is not None:
                timer.cancel()
        self._timer = None
        self._put_off.clear()

    def _schedule(self) -> None:
        if self._started and self._jobs and self._timer is None:
            delay_s = self._clock.random_int(*_JOB_US) / 1_000_000
            self._timer = self._clock.call_later(delay_s, self._run)

    def _run(self) -> None:
        call, args = self._jobs.popleft()
        call(*args)
        self._timer = None
        self._schedule()

    def _hand_over(self, job: Job) -> None:
        self._put_off = [each for each in self._put_off if each[1] is not job]
        call, args = job
        self.put(call, *args)
