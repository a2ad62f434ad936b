"""Load made of single requests: as fast as the answers come, or on a schedule."""

import asyncio
from collections import deque
from typing import Protocol

from holdfast.cli.bench.clients import Client, Clients
from holdfast.cli.bench.messages import Expect, Final, Job, Written
from holdfast.cli.bench.recorder import Recorder
from holdfast.cli.bench.schedule import Pacer, Schedule
from holdfast.clock import Clock

__all__ = ["RequestLoad", "Requests"]


class Requests(Protocol):
    """What is asked, and what counts as an answer to it."""

    connections: int
    once: bool
    """Whether each client asks only one time."""

    def next(self, client: Client) -> bytes:
        """The next request of this client."""

    def problem(self, client: Client, status: int, size_bytes: int) -> str | None:
        """What is wrong with the answer, as a kind of error; None: nothing."""

    def size_bytes(self, answer_bytes: int) -> int:
        """How many bytes an operation counts for."""


class RequestLoad:
    """Keeps the clients of this process busy with requests of one kind."""

    def __init__(self, job: Job, requests: Requests, clock: Clock) -> None:
        self.recorder = Recorder(clock)
        self.complete = asyncio.Event()
        self._job = job
        self._requests = requests
        self._clock = clock
        self._clients = Clients(job.target, clock, self.recorder, job.timeout_s)
        self._schedule: Schedule | None = None
        self._pacer = Pacer(clock, self._fire)
        self._idle: deque[Client] = deque()
        self._asked: set[int] = set()
        self._finished = 0
        self._ended_s = 0.0

    async def connect(self) -> None:
        """Connect every client."""
        await self._clients.open(self._requests.connections, self)

    def begin(self, start_s: float, measure_from_s: float, end_s: float) -> None:
        """Send from `start_s` until `end_s`."""
        self.recorder.measure(measure_from_s, end_s)
        job = self._job
        if job.rate is not None:
            self._schedule = Schedule(start_s, end_s, job.rate, job.share, job.shares)
            self._pacer.start(self._schedule.next_s, self._schedule.interval_s)
        self._clients.begin()

    def free(self, client: Client) -> None:
        """Give the client its next request, if one is due."""
        if self._requests.once:
            if client.number in self._asked:
                return
            self._asked.add(client.number)
        if self._schedule is None:
            client.send(self._clock.monotonic_s(), self._requests.next(client))
            return
        due_s = self._schedule.take(self._clock.monotonic_s())
        if due_s is None:
            self._idle.append(client)
        else:
            client.send(due_s, self._requests.next(client))

    def _fire(self) -> None:
        """Send everything that is due, as long as there are clients."""
        schedule, idle = self._schedule, self._idle
        assert schedule is not None
        while idle and not self._ended_s:
            client = idle[0]
            if client.usable:
                due_s = schedule.take(self._clock.monotonic_s())
                if due_s is None:
                    return
                client.send(due_s, self._requests.next(client))
            # One that lost its connection while idle comes back by itself.
            idle.popleft()

    def done(self, client: Client, due_s: float, answer: tuple[int, int, bytes]) -> None:
        """An answer: good or bad."""
        status, size_bytes, kept = answer
        problem = self._requests.problem(client, status, size_bytes)
        if problem is None:
            self.recorder.succeeded(due_s, self._requests.size_bytes(size_bytes))
        else:
            self.recorder.failed(problem, kept)
        self._count_finished()

    def failed(self, client: Client, kind: str) -> None:
        """No answer."""
        self.recorder.failed(kind)
        self._count_finished()

    def _count_finished(self) -> None:
        if self._requests.once:
            self._finished += 1
            if self._finished >= self._requests.connections:
                self.complete.set()

    def end(self) -> None:
        """Send what is due by now, and nothing more."""
        if self._schedule is not None:
            self._fire()
        self._ended_s = self._clock.monotonic_s()
        self._pacer.stop()
        self._clients.end()

    async def drain(self, deadline_s: float) -> None:
        """Wait for the answers that are still to come."""
        await self._clients.drain(deadline_s)

    def written(self) -> Written | None:
        """Nobody else has to know."""
        return None

    async def receive(self, expected: Expect, deadline_s: float) -> None:
        """Nothing to receive."""

    def final(self) -> Final:
        """What was due and never sent."""
        unsent = self._schedule.unsent(self._ended_s) if self._schedule else 0
        return Final(unsent=unsent)

    def close(self) -> None:
        """Close all connections."""
        self._clients.close()
