"""The thread that does a log's work on disk, and what stands in for it in a simulation."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    Job = tuple[Callable[..., None], tuple[Any, ...]]


class Worker(Protocol):
    """Runs jobs one at a time, in the order in which they were handed over."""

    def start(self) -> None:
        """Begin to run jobs."""

    def put(self, call: Callable[..., None], *args: Any) -> None:
        """Hand over a job; never waits."""

    def later(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """For a job that has to try again: run this about `delay_s` from now, or at `stop`."""

    def stop(self) -> None:
        """Return once everything that was handed over has been run."""


class CommitThread:
    """A `Worker` in a thread of its own."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # Touched by the thread alone.
        self._delayed: list[tuple[float, Job]] = []
        self._thread = threading.Thread(target=self._run, name="holdfast-commit", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, call: Callable[..., None], *args: Any) -> None:
        """Put the job into the thread's queue."""
        self._jobs.put((call, args))

    def later(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Have the thread run this after a pause; called by the thread's own jobs only.

        Any job that comes in between ends the pause early, so that nothing can put it off for ever.
        """
        self._delayed.append((delay_s, (call, args)))

    def stop(self) -> None:
        """Run what is in the queue, then what was put off, and wait for the thread's end."""
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()

    def _run(self) -> None:
        jobs = self._jobs
        while (job := self._wait() if self._delayed else jobs.get()) is not None:
            call, args = job
            call(*args)
        delayed, self._delayed = self._delayed, []
        for _, (call, args) in delayed:
            call(*args)

    def _wait(self) -> Job | None:
        """The next job, or the one that was put off once its pause is over."""
        delay_s, put_off = self._delayed[0]
        try:
            job = self._jobs.get(timeout=delay_s)
        except Empty:
            del self._delayed[0]
            return put_off
        self._delayed[0] = (0.0, put_off)
        return job
