"""The load of `fanout`: writers on a schedule, and readers that follow.

Rules:
- Stream n is written by process n modulo the processes, over one connection, one append at a time:
  so the order in which its messages are sent is the order that readers must see.
- A message that was refused, or whose answer never came, is doubtful: readers may or may not get
  it. Every other one must arrive, once and in order.
"""

import asyncio
from collections import deque
from itertools import cycle

from holdfast.cli.bench.clients import Client, Clients
from holdfast.cli.bench.latency import Latencies, LatencyCounts
from holdfast.cli.bench.messages import (
    Delivered,
    Expect,
    FanoutWork,
    Final,
    Job,
    StreamWritten,
    Written,
)
from holdfast.cli.bench.readers import Readers
from holdfast.cli.bench.recorder import Recorder
from holdfast.cli.bench.schedule import Pacer, Schedule
from holdfast.cli.bench.stamps import stamped
from holdfast.clock import Clock

__all__ = ["FanoutLoad"]


class _Written:
    """One stream, as its writer knows it."""

    def __init__(self, number: int, head: bytes) -> None:
        self.number = number
        self.head = head
        self.sent = 0
        self.doubtful: list[int] = []


class FanoutLoad:
    """The writers and readers of one process."""

    def __init__(self, job: Job, work: FanoutWork, clock: Clock) -> None:
        self.recorder = Recorder(clock)
        self.complete = asyncio.Event()
        self._job = job
        self._work = work
        self._clock = clock
        tail = f"Content-Type: {work.content_type}\r\nContent-Length: {work.payload_bytes}\r\n\r\n"
        self._streams = [
            _Written(number, job.target.head("POST", work.paths[number]) + tail.encode())
            for number in range(job.share, len(work.paths), job.shares)
        ]
        self._clients = Clients(job.target, clock, self.recorder, job.timeout_s)
        numbers = (
            reader % len(work.paths) for reader in range(job.share, work.readers, job.shares)
        )
        places = ((number, work.paths[number]) for number in numbers)
        self._readers = Readers(job.target, self.recorder, places, work.payload_bytes)
        # By client: what is due on it, in order.
        self._queues: list[deque[tuple[_Written, float]]] = []
        self._schedule: Schedule | None = None
        self._turn = cycle(range(len(self._streams)))
        self._pacer = Pacer(clock, self._fire)
        self._appends = 0
        self._measure_from_s = 0.0
        self._append_latencies = LatencyCounts()
        self._under_way: dict[int, tuple[_Written, int]] = {}
        self._lost = 0

    async def connect(self) -> None:
        """Connect the readers, then the writers."""
        connections = min(self._work.connections, len(self._streams))
        self._queues = [deque() for _ in range(connections)]
        await self._readers.connect(self._job.timeout_s)
        await self._clients.open(connections, self)

    def begin(self, start_s: float, measure_from_s: float, end_s: float) -> None:
        """Write from `start_s` until `end_s`."""
        self._measure_from_s = measure_from_s
        self.recorder.measure(measure_from_s, end_s)
        if not self._streams:
            return
        assert self._job.rate is not None
        per_s = self._job.rate * len(self._streams) / len(self._work.paths)
        self._schedule = Schedule(start_s, end_s, per_s)
        self._pacer.start(self._schedule.next_s, self._schedule.interval_s)
        self._clients.begin()

    def _fire(self) -> None:
        """Queue everything that is due, each on its stream's connection."""
        assert self._schedule is not None
        while (due_s := self._schedule.take(self._clock.monotonic_s())) is not None:
            turn = next(self._turn)
            number = turn % len(self._queues)
            self._queues[number].append((self._streams[turn], due_s))
            client = self._clients.all[number]
            if client.usable:
                self.free(client)

    def free(self, client: Client) -> None:
        """Send what is next on this connection."""
        queue = self._queues[client.number]
        if not queue:
            return
        stream, due_s = queue.popleft()
        work = self._work
        message = stamped(stream.sent, due_s, work.content_type, work.payload_bytes)
        self._under_way[client.number] = stream, stream.sent
        stream.sent += 1
        client.send(due_s, stream.head + message)

    def done(self, client: Client, due_s: float, answer: tuple[int, int, bytes]) -> None:
        """An append is answered."""
        status, _, kept = answer
        stream, number = self._under_way.pop(client.number)
        if status not in {200, 204}:
            stream.doubtful.append(number)
            self.recorder.failed(f"http_{status}", kept)
            return
        self._appends += 1
        if due_s >= self._measure_from_s:
            self._append_latencies.add(self._clock.monotonic_s() - due_s)

    def failed(self, client: Client, kind: str) -> None:
        """There is no answer to an append."""
        stream, number = self._under_way.pop(client.number)
        stream.doubtful.append(number)
        self.recorder.failed(kind)

    def end(self) -> None:
        """Write what is due by now, and nothing more."""
        if self._schedule is not None:
            self._fire()
        self._pacer.stop()
        self._clients.end()

    async def drain(self, deadline_s: float) -> None:
        """Wait for the answers to what was written."""
        await self._clients.drain(deadline_s)

    def written(self) -> Written | None:
        """What readers are to expect."""
        for stream, number in self._under_way.values():
            stream.doubtful.append(number)
        self._under_way.clear()
        return Written(
            {each.number: StreamWritten(each.sent, each.doubtful) for each in self._streams}
        )

    async def receive(self, expected: Expect, deadline_s: float) -> None:
        """Wait until the readers have everything."""
        await self._readers.receive(expected.streams, deadline_s)
        readers = self._readers.all
        self._lost = sum(each.tally.lost(expected.streams[each.stream]) for each in readers)

    def final(self) -> Final:
        """How exact it was."""
        latencies = Latencies()
        latencies.record(self._append_latencies)
        tallies = [reader.tally for reader in self._readers.all]
        delivered = Delivered(
            appends=self._appends,
            append_latency=latencies.encode(),
            deliveries=self._readers.deliveries,
            lost=self._lost,
            duplicated=sum(tally.duplicated for tally in tallies),
            reordered=sum(tally.reordered for tally in tallies),
            replayed=sum(tally.replayed for tally in tallies),
            reconnects=self._readers.reconnects,
        )
        return Final(unsent=sum(map(len, self._queues)), delivered=delivered)

    def close(self) -> None:
        """Close all connections."""
        self._clients.close()
        self._readers.close()
