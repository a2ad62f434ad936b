"""The simulation's time: a clock for one life of a process, and a thread that lives in it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock, Timer

    Job = tuple[Callable[..., None], tuple[Any, ...]]

_JOB_US: Final = (200, 4000)


class LifeClock:
    """Another clock's time and chance; once the life has ended nothing it scheduled is run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ended = False
        self.now_ms = clock.now_ms
        self.monotonic_s = clock.monotonic_s
        self.random_int = clock.random_int
        self.random_u64 = clock.random_u64
        self.random_bytes = clock.random_bytes

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        """Run `call` after what is running now, unless the life has ended by then."""
        self._clock.call_soon(self._run, call, args)

    def call_later(self, delay_s: float, call: Callable[..., object], *args: Any) -> Timer:
        """Run `call` after `delay_s` seconds, unless the life has ended by then."""
        return self._clock.call_later(delay_s, self._run, call, args)

    def end(self) -> None:
        """As kill -9 does it: whatever was to come does not."""
        self.ended = True

    def _run(self, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self.ended:
            call(*args)


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
