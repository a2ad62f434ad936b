"""The load of `fanout`: writers on a schedule, and readers that follow over SSE.

Rules:
- Stream n is written by process n modulo the number of processes, over one connection, one append
  at a time: so readers must see its messages in the order in which they were sent.
- A message that was refused, or whose response never came, is doubtful: readers may or may not get
  it. Every other message must arrive, once and in order.
- A reader starts at the stream's start, so it misses nothing however late it connects.
- A server may end a response at any time: the reader goes on from the last control event. A
  connection that breaks off inside a response is an error; the reader then goes on just the same.

A message is `~`, its number, when it was due, letters up to its size, and `!`. Neither mark occurs
in anything that servers put between messages, so messages are found however many arrive together,
and in whatever framing.
"""

import asyncio
import re
from base64 import b64decode
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import cycle

import msgspec

from holdfast.cli.bench.connection import (
    BenchConnection,
    BenchTarget,
    LoadClient,
    Tasks,
    connect,
    failure_kind,
    in_groups,
)
from holdfast.cli.bench.loads import BenchLoad, LoadSchedule
from holdfast.cli.bench.messages import (
    Delivered,
    Expect,
    FanoutWork,
    Final,
    Job,
    StreamWritten,
    Written,
)
from holdfast.cli.bench.result import Latencies, LatencyCounts, Recorder
from holdfast.clock import Clock
from holdfast.protocol.content import JSON, media_type
from holdfast.protocol.sse import SseEvent, SseParser

__all__ = ["SIZE_BYTES_MIN", "FanoutLoad", "StampReader", "Tally", "stamped"]

SIZE_BYTES_MIN = 32
RETRY_S = 0.2
POLL_S = 0.01
_STAMP = re.compile(rb"~(\d{9})(\d{16})[^~!]*!")


def stamped(number: int, due_s: float, content_type: str, size_bytes: int) -> bytes:
    """Return a message of exactly this size."""
    stamp = b"~%09d%016d" % (number, int(due_s * 1_000_000))
    if media_type(content_type) == JSON:
        return b'"' + stamp.ljust(size_bytes - 3, b"x") + b'!"'
    return stamp.ljust(size_bytes - 1, b"x") + b"!"


class StampReader:
    """Finds messages in content that arrives in pieces."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, content: bytes) -> Iterator[tuple[int, float]]:
        """Yield the number and due time of each message that is now complete."""
        if self._rest:
            content = self._rest + content
        end = 0
        for match in _STAMP.finditer(content):
            end = match.end()
            yield int(match[1]), int(match[2]) / 1_000_000
        start = content.find(b"~", end)
        self._rest = content[start:] if start >= 0 else b""


class Tally:
    """Whether one reader got every message of its stream once and in order."""

    __slots__ = ("_missing", "_replay_below", "duplicated", "next", "reordered", "replayed")

    def __init__(self) -> None:
        self.next = 0
        self.duplicated = 0
        self.reordered = 0
        self.replayed = 0
        self._missing: set[int] = set()
        self._replay_below = 0

    def take(self, number: int) -> bool:
        """Count a message; return whether it is new."""
        if number >= self.next:
            if number > self.next:
                self._missing.update(range(self.next, number))
            self.next = number + 1
            return True
        if number in self._missing:
            self._missing.discard(number)
            self.reordered += 1
            return True
        if number < self._replay_below:
            self.replayed += 1
        else:
            self.duplicated += 1
        return False

    def expect_replay(self) -> None:
        """The reader starts again from an offset before messages that it already has."""
        self._replay_below = self.next

    def lost(self, written: StreamWritten) -> int:
        """Return how many acknowledged messages are missing."""
        if self.next >= written.sent and not self._missing:
            return 0
        wanted = set(range(self.next, written.sent)) | self._missing
        return len(wanted.difference(written.doubtful))


class _ControlData(msgspec.Struct, rename="camel"):
    stream_next_offset: str
    stream_cursor: str | None = None


class _StreamReader:
    """One reader's position in one stream, which outlives its connections."""

    __slots__ = ("_path", "_readers", "_stamps", "control", "pending", "stream", "tally")

    def __init__(self, readers: "_Readers", stream: int, path: str) -> None:
        self._readers = readers
        self._path = path
        self._stamps = StampReader()
        self.stream = stream
        self.tally = Tally()
        self.control = b""
        """The last control event."""
        self.pending = False
        """Whether data arrived after it."""

    def request(self) -> bytes:
        """Return a request for everything from this reader's position on."""
        query = "offset=-1"
        if self.control:
            control = msgspec.json.decode(self.control, type=_ControlData)
            query = f"offset={control.stream_next_offset}"
            if control.stream_cursor is not None:
                query += f"&cursor={control.stream_cursor}"
        head = self._readers.target.head("GET", f"{self._path}?{query}&live=sse")
        return head + b"Accept: text/event-stream\r\n\r\n"

    def begin(self) -> None:
        """Prepare for the events of a new connection."""
        if self.pending:
            self.tally.expect_replay()
            self._stamps = StampReader()
            self.pending = False

    def event(self, event: SseEvent, base64: bool) -> None:
        if event.kind == "control":
            self.control = event.data
            self.pending = False
        elif event.kind == "data":
            self.pending = True
            readers = self._readers
            # Base64 may be on several lines; b64decode ignores the line breaks.
            content = b64decode(event.data) if base64 else event.data
            for number, due_s in self._stamps.feed(content):
                if self.tally.take(number):
                    readers.deliveries += 1
                    readers.recorder.succeeded(due_s, readers.payload_bytes)


class _SseConnection(BenchConnection):
    """One response to one reader."""

    def __init__(self, reader: _StreamReader, readers: "_Readers") -> None:
        super().__init__()
        self._reader = reader
        self._readers = readers
        self._events = SseParser()
        self._base64 = self._chunked = self._served = self._ended = False
        self._kept = b""
        self.responded: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._readers.open.add(self)
        self._reader.begin()
        self.send(self._reader.request())

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"stream-sse-data-encoding":
            self._base64 = value.strip().lower() == b"base64"
        elif name == b"transfer-encoding":
            self._chunked = b"chunked" in value.lower()

    def on_headers_complete(self) -> None:
        if not self.responded.done():
            self.responded.set_result(None)

    def on_body(self, body: bytes) -> None:
        if self.parser.get_status_code() != 200:
            self._kept += body
            return
        for event in self._events.feed(body):
            self._served = True
            self._reader.event(event, self._base64)

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        if status != 200:
            self._readers.failed(f"http_{status}", self._kept)
        self.close()

    def close(self) -> None:
        self._ended = True
        self.abort()

    def lost(self, kind: str) -> None:
        self._readers.open.discard(self)
        if not self.responded.done():
            self.responded.set_result(None)
        # A response without a length ends with its connection; a chunked one has an end of its own.
        broken = kind != "connection_closed" or self._chunked or not self.parser.get_status_code()
        if broken and not self._ended:
            self._readers.failed(kind)
            self._served = False
        self._readers.reconnect(self._reader, 0.0 if self._served else RETRY_S)


class _Readers:
    """All readers of this process."""

    def __init__(
        self,
        target: BenchTarget,
        recorder: Recorder,
        streams: Iterable[tuple[int, str]],
        payload_bytes: int,
    ) -> None:
        self.target = target
        self.recorder = recorder
        self.payload_bytes = payload_bytes
        self.deliveries = 0
        self.reconnects = 0
        self.open: set[_SseConnection] = set()
        self.all = [_StreamReader(self, number, path) for number, path in streams]
        self._context = target.tls_context()
        self._closed = False
        self._tasks = Tasks()

    async def connect(self, timeout_s: float) -> None:
        """Connect all, and wait until the server has begun to respond to each."""
        await in_groups(self.all, self._connect, timeout_s)

    async def _connect(self, reader: _StreamReader) -> None:
        try:
            made = await connect(self.target, self._context, lambda: _SseConnection(reader, self))
        except OSError as error:
            self.failed(failure_kind(error), error.strerror or str(error))
            self.reconnect(reader)
            return
        await made.responded

    def failed(self, kind: str, example: bytes | str = "") -> None:
        """Count a failure, unless we closed the connection."""
        if not self._closed:
            self.recorder.failed(kind, example)

    def reconnect(self, reader: _StreamReader, delay_s: float = RETRY_S) -> None:
        if not self._closed:
            self.reconnects += 1
            self._tasks.start(self._reconnect(reader, delay_s))

    async def _reconnect(self, reader: _StreamReader, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self._connect(reader)

    async def receive(self, streams: dict[int, StreamWritten], timeout_s: float) -> None:
        """Wait until every reader has everything, at most until the timeout."""
        waiting = self.all
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while waiting:
                    await asyncio.sleep(POLL_S)
                    waiting = [each for each in waiting if each.tally.lost(streams[each.stream])]

    def close(self) -> None:
        self._closed = True
        self._tasks.cancel()
        for connection in list(self.open):
            connection.close()


class _StreamWriter:
    """One stream, as its writer knows it."""

    def __init__(self, number: int, head: bytes) -> None:
        self.number = number
        self.head = head
        self.sent = 0
        self.doubtful: list[int] = []


class FanoutLoad(BenchLoad):
    """The writers and readers of one process."""

    def __init__(self, job: Job, work: FanoutWork, clock: Clock) -> None:
        super().__init__(job, clock)
        self._work = work
        tail = f"Content-Type: {work.content_type}\r\nContent-Length: {work.payload_bytes}\r\n\r\n"
        self._streams = [
            _StreamWriter(number, job.target.head("POST", work.paths[number]) + tail.encode())
            for number in range(job.share, len(work.paths), job.shares)
        ]
        followed = (
            reader % len(work.paths) for reader in range(job.share, work.readers, job.shares)
        )
        streams = ((number, work.paths[number]) for number in followed)
        self._readers = _Readers(job.target, self.recorder, streams, work.payload_bytes)
        connections = min(work.connections, len(self._streams))
        # By client: the messages that are due on it, in order.
        self._queues: list[deque[tuple[_StreamWriter, float]]] = [
            deque() for _ in range(connections)
        ]
        self._turn = cycle(range(len(self._streams)))
        self._appends = 0
        self._append_latencies = LatencyCounts()
        self._in_progress: dict[int, tuple[_StreamWriter, int]] = {}
        self._lost = 0

    async def connect(self) -> None:
        await self._readers.connect(self._job.timeout_s)
        await self._clients.open(len(self._queues))

    def _make_schedule(self, start_s: float, end_s: float) -> LoadSchedule | None:
        if not self._streams:
            return None
        assert self._job.rate is not None
        per_s = self._job.rate * len(self._streams) / len(self._work.paths)
        return LoadSchedule(start_s, end_s, per_s)

    def _fire(self) -> None:
        """Queue everything that is due, each message on its stream's connection."""
        assert self._schedule is not None
        while (due_s := self._schedule.take(self._clock.monotonic_s())) is not None:
            turn = next(self._turn)
            number = turn % len(self._queues)
            self._queues[number].append((self._streams[turn], due_s))
            client = self._clients.all[number]
            if client.usable:
                self.free(client)

    def free(self, client: LoadClient) -> None:
        """Send the next message on this connection."""
        queue = self._queues[client.number]
        if not queue:
            return
        stream, due_s = queue.popleft()
        work = self._work
        message = stamped(stream.sent, due_s, work.content_type, work.payload_bytes)
        self._in_progress[client.number] = stream, stream.sent
        stream.sent += 1
        client.send(due_s, stream.head + message)

    def done(self, client: LoadClient, due_s: float, response: tuple[int, int, bytes]) -> None:
        status, _, kept = response
        stream, number = self._in_progress.pop(client.number)
        if status not in {200, 204}:
            stream.doubtful.append(number)
            self.recorder.failed(f"http_{status}", kept)
            return
        self._appends += 1
        if due_s >= self.recorder.from_s:
            self._append_latencies.add(self._clock.monotonic_s() - due_s)

    def failed(self, client: LoadClient, kind: str) -> None:
        stream, number = self._in_progress.pop(client.number)
        stream.doubtful.append(number)
        self.recorder.failed(kind)

    def written(self) -> Written | None:
        for stream, number in self._in_progress.values():
            stream.doubtful.append(number)
        self._in_progress.clear()
        return Written(
            {each.number: StreamWritten(each.sent, each.doubtful) for each in self._streams}
        )

    async def receive(self, expected: Expect, timeout_s: float) -> None:
        await self._readers.receive(expected.streams, timeout_s)
        readers = self._readers.all
        self._lost = sum(each.tally.lost(expected.streams[each.stream]) for each in readers)

    def final(self) -> Final:
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
        super().close()
        self._readers.close()
