"""The load of one process: when requests are due, and the requests of `append` and `bootstrap`.

Theory of operation: without a rate, each client sends its next request when it has the response to
the last one. With a rate, the schedule is fixed before the first response arrives. An operation
that finds no free connection waits for one, and its latency counts from when it was due. So a
server that stalls is charged with every operation that it delayed, not only with those in progress
(coordinated omission). Operations that were never sent before the end are counted as unsent.
"""

import asyncio
import sys
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable
from hashlib import shake_128
from math import ceil
from threading import Event, Thread

from holdfast.cli.bench.connection import LoadClient, LoadClients
from holdfast.cli.bench.messages import AppendWork, BootstrapWork, Expect, Final, Job, Written
from holdfast.cli.bench.result import Recorder
from holdfast.clock import Clock
from holdfast.protocol.content import JSON, is_text, media_type

__all__ = ["AppendLoad", "BenchLoad", "BootstrapLoad", "LoadSchedule", "Pacer", "payload"]

# Event loops wait in whole milliseconds; a thread can wait for shorter times. Below this, waking up
# costs more than it gains.
TICK_S = 0.000_25
SWITCH_S = 0.000_5
# Tolerance for rounding: an operation due this close to the end is due at the end.
END_SLACK_S = 0.000_001
TEXT_LETTERS = bytes.maketrans(bytes(range(256)), bytes(97 + byte % 26 for byte in range(256)))


def payload(seed: int, content_type: str, size_bytes: int) -> bytes:
    """Return bytes that depend on the seed: letters for text, a string for JSON."""
    drawn = shake_128(str(seed).encode()).digest(size_bytes)
    media = media_type(content_type)
    if media == JSON:
        return b'"' + drawn.translate(TEXT_LETTERS)[: size_bytes - 2] + b'"'
    return drawn.translate(TEXT_LETTERS) if is_text(media) else drawn


class LoadSchedule:
    """An even schedule, or one process's share of it."""

    def __init__(
        self, start_s: float, end_s: float, per_s: float, share: int = 0, shares: int = 1
    ) -> None:
        assert per_s > 0
        assert 0 <= share < shares
        self.end_s = end_s - END_SLACK_S
        self.interval_s = shares / per_s
        self.taken = 0
        self._first_s = start_s + share / per_s
        self.next_s = self._first_s

    def take(self, now_s: float) -> float | None:
        """Take the next operation if it is due, and return when it was due."""
        due_s = self.next_s
        if due_s > now_s or due_s >= self.end_s:
            return None
        self.taken += 1
        # Computed from the first one, so that rounding errors do not add up.
        self.next_s = self._first_s + self.taken * self.interval_s
        return due_s

    def unsent(self, now_s: float) -> int:
        """Return how many operations were due and not taken."""
        until_s = min(now_s, self.end_s)
        return max(0, ceil((until_s - self._first_s) / self.interval_s) - self.taken)


class Pacer:
    """Calls `fire` in the event loop's thread at an interval finer than the loop's timers."""

    def __init__(self, clock: Clock, fire: Callable[[], None]) -> None:
        self._clock = clock
        self._fire = fire
        self._stopped = Event()
        self._loop = asyncio.get_running_loop()

    def start(self, start_s: float, interval_s: float) -> None:
        sys.setswitchinterval(SWITCH_S)
        arguments = (start_s, max(interval_s, TICK_S))
        Thread(target=self._run, args=arguments, daemon=True, name="pacer").start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self, due_s: float, interval_s: float) -> None:
        clock = self._clock
        while not self._stopped.wait(max(0.0, due_s - clock.monotonic_s())):
            try:
                self._loop.call_soon_threadsafe(self._fire)
            except RuntimeError:
                return  # The loop is closed: the process is ending.
            now_s = clock.monotonic_s()
            due_s += interval_s
            if due_s < now_s:
                # One call takes everything that is due, so missed calls need not be made up for.
                due_s += ((now_s - due_s) // interval_s) * interval_s


class BenchLoad(ABC):
    """What a scenario does in one process."""

    def __init__(self, job: Job, clock: Clock) -> None:
        self.recorder = Recorder(clock)
        self.complete = asyncio.Event()
        """Set if the load ends before its time."""
        self._job = job
        self._clock = clock
        self._clients = LoadClients(self, job.target, job.timeout_s)
        self._schedule: LoadSchedule | None = None
        self._pacer = Pacer(clock, self._fire)
        self._ended_s = 0.0

    @abstractmethod
    async def connect(self) -> None: ...

    def begin(self, start_s: float, measure_from_s: float, end_s: float) -> None:
        """Send requests from `start_s` until `end_s`."""
        self.recorder.measure(measure_from_s, end_s)
        self._schedule = self._make_schedule(start_s, end_s)
        if self._schedule is not None:
            self._pacer.start(self._schedule.next_s, self._schedule.interval_s)
        self._clients.begin()

    def end(self) -> None:
        """Send what is due by now, and nothing more."""
        if self._schedule is not None:
            self._fire()
        self._ended_s = self._clock.monotonic_s()
        self._pacer.stop()
        self._clients.end()

    async def drain(self, timeout_s: float) -> None:
        """Wait for the responses that are still to come."""
        await self._clients.drain(timeout_s)

    def written(self) -> Written | None:
        """Return what readers are to expect, if there are readers."""
        return None

    async def receive(self, expected: Expect, timeout_s: float) -> None:
        """Wait until the readers have everything."""
        raise NotImplementedError

    @abstractmethod
    def final(self) -> Final: ...

    def close(self) -> None:
        self._clients.close()

    @abstractmethod
    def _make_schedule(self, start_s: float, end_s: float) -> LoadSchedule | None: ...

    @abstractmethod
    def _fire(self) -> None:
        """Send everything that is due."""

    @abstractmethod
    def free(self, client: LoadClient) -> None:
        """This client can send a request."""

    @abstractmethod
    def done(self, client: LoadClient, due_s: float, response: tuple[int, int, bytes]) -> None:
        """A response arrived: status, size, and the start of its body if it is an error."""

    @abstractmethod
    def failed(self, client: LoadClient, kind: str) -> None:
        """The request will have no response."""


class _RequestLoad(BenchLoad):
    """Keeps all clients of this process busy with requests of one kind."""

    connections: int
    once = False
    """Whether each client sends only one request."""

    def __init__(self, job: Job, clock: Clock) -> None:
        super().__init__(job, clock)
        self._idle: deque[LoadClient] = deque()
        self._started: set[int] = set()
        self._finished = 0

    @abstractmethod
    def next_request(self, client: LoadClient) -> bytes: ...

    @abstractmethod
    def problem(self, client: LoadClient, status: int, size_bytes: int) -> str | None:
        """Return the kind of error that a response is, or None."""

    @abstractmethod
    def operation_bytes(self, response_bytes: int) -> int: ...

    async def connect(self) -> None:
        await self._clients.open(self.connections)

    def _make_schedule(self, start_s: float, end_s: float) -> LoadSchedule | None:
        job = self._job
        if job.rate is None:
            return None
        return LoadSchedule(start_s, end_s, job.rate, job.share, job.shares)

    def free(self, client: LoadClient) -> None:
        """Give the client its next request, if one is due."""
        if self.once:
            if client.number in self._started:
                return
            self._started.add(client.number)
        now_s = self._clock.monotonic_s()
        due_s = now_s if self._schedule is None else self._schedule.take(now_s)
        if due_s is None:
            self._idle.append(client)
        else:
            client.send(due_s, self.next_request(client))

    def _fire(self) -> None:
        """Send everything that is due, as long as there are free clients."""
        schedule, idle = self._schedule, self._idle
        assert schedule is not None
        while idle and not self._ended_s:
            client = idle[0]
            if client.usable:
                due_s = schedule.take(self._clock.monotonic_s())
                if due_s is None:
                    return
                client.send(due_s, self.next_request(client))
            # A client that lost its connection while idle becomes free again by itself.
            idle.popleft()

    def done(self, client: LoadClient, due_s: float, response: tuple[int, int, bytes]) -> None:
        status, size_bytes, kept = response
        problem = self.problem(client, status, size_bytes)
        if problem is None:
            self.recorder.succeeded(due_s, self.operation_bytes(size_bytes))
        else:
            self.recorder.failed(problem, kept)
        self._count_finished()

    def failed(self, client: LoadClient, kind: str) -> None:
        self.recorder.failed(kind)
        self._count_finished()

    def _count_finished(self) -> None:
        if self.once:
            self._finished += 1
            if self._finished >= self.connections:
                self.complete.set()

    def final(self) -> Final:
        return Final(unsent=self._schedule.unsent(self._ended_s) if self._schedule else 0)


class AppendLoad(_RequestLoad):
    """Appends the same payload to all streams in turn. Each process starts at another stream."""

    def __init__(self, job: Job, work: AppendWork, clock: Clock) -> None:
        super().__init__(job, clock)
        self.connections = work.connections
        self._body = payload(job.seed, work.content_type, work.payload_bytes)
        tail = f"Content-Type: {work.content_type}\r\nContent-Length: {len(self._body)}\r\n"
        self._heads = [job.target.head("POST", path) + tail.encode() for path in work.paths]
        self._producer = work.producer and f"{work.producer}-{job.share}"
        # By client and stream: a client has one request in progress, so its numbers are in order.
        self._sequences: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._next = job.share * len(work.paths) // job.shares

    def next_request(self, client: LoadClient) -> bytes:
        stream = self._next
        self._next = stream + 1 if stream + 1 < len(self._heads) else 0
        client.subject = stream
        if self._producer is None:
            return b"%b\r\n%b" % (self._heads[stream], self._body)
        return b"%bProducer-Id: %b-%d\r\nProducer-Epoch: 0\r\nProducer-Seq: %d\r\n\r\n%b" % (
            self._heads[stream],
            self._producer.encode(),
            client.number,
            self._sequences[client.number, stream],
            self._body,
        )

    def problem(self, client: LoadClient, status: int, size_bytes: int) -> str | None:
        if status not in {200, 204}:
            return f"http_{status}"
        # Only now: an append that may not have arrived is sent again with the same number.
        self._sequences[client.number, client.subject] += 1
        return None

    def operation_bytes(self, response_bytes: int) -> int:
        return len(self._body)


class BootstrapLoad(_RequestLoad):
    """Each client requests the snapshot and messages of one stream, again and again."""

    def __init__(self, job: Job, work: BootstrapWork, clock: Clock) -> None:
        super().__init__(job, clock)
        numbers = range(job.share, work.clients, job.shares)
        self.connections = len(numbers)
        self.once = work.once
        self._response_bytes_min = work.response_bytes_min
        heads = [job.target.head("GET", f"{path}/bootstrap") + b"\r\n" for path in work.paths]
        self._requests = [heads[number % len(heads)] for number in numbers]

    def next_request(self, client: LoadClient) -> bytes:
        return self._requests[client.number]

    def problem(self, client: LoadClient, status: int, size_bytes: int) -> str | None:
        if status != 200:
            return f"http_{status}"
        return None if size_bytes >= self._response_bytes_min else "short_answer"

    def operation_bytes(self, response_bytes: int) -> int:
        return response_bytes
