"""The readers of a fan-out: each follows one stream over SSE, and connects again as it must.

Rules:
- A reader starts at the stream's start, so it misses nothing however late it connects.
- The end of an answer is a server's right: the reader goes on from the last control event. A
  connection that breaks off inside an answer is an error, and then it goes on just the same.
"""

import asyncio
from base64 import b64decode
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import cast

import httptools
import msgspec

from holdfast.cli.bench.messages import StreamWritten
from holdfast.cli.bench.recorder import Recorder
from holdfast.cli.bench.stamps import StampReader
from holdfast.cli.bench.tally import Tally
from holdfast.cli.bench.target import Target, connect, failure_kind
from holdfast.protocol.sse import SseEvent, SseParser

__all__ = ["Reader", "Readers"]

CONNECTING_AT_ONCE_MAX = 64
RETRY_S = 0.2
LOOK_S = 0.01


class _Control(msgspec.Struct, rename="camel"):
    """Where a reader stands."""

    stream_next_offset: str
    stream_cursor: str | None = None


class Reader:
    """One reader's place in one stream, which outlives its connections."""

    __slots__ = ("_path", "_readers", "_stamps", "control", "pending", "stream", "tally")

    def __init__(self, readers: "Readers", stream: int, path: str) -> None:
        self._readers = readers
        self._path = path
        self._stamps = StampReader()
        self.stream = stream
        self.tally = Tally()
        self.control = b""
        """The last control event."""
        self.pending = False
        """Whether data came since."""

    def request(self) -> bytes:
        """Ask for everything from where this reader stands."""
        query = "offset=-1"
        if self.control:
            control = msgspec.json.decode(self.control, type=_Control)
            query = f"offset={control.stream_next_offset}"
            if control.stream_cursor is not None:
                query += f"&cursor={control.stream_cursor}"
        head = self._readers.target.head("GET", f"{self._path}?{query}&live=sse")
        return head + b"Accept: text/event-stream\r\n\r\n"

    def begin(self) -> None:
        """A connection is about to answer."""
        if self.pending:
            self.tally.expect_replay()
            self._stamps = StampReader()
            self.pending = False

    def event(self, event: SseEvent, base64: bool) -> None:
        """One event."""
        if event.kind == "control":
            self.control = event.data
            self.pending = False
        elif event.kind == "data":
            self.pending = True
            readers = self._readers
            # Base64 may be on several lines: their breaks do not count.
            content = b64decode(event.data) if base64 else event.data
            for number, due_s in self._stamps.feed(content):
                if self.tally.take(number):
                    readers.deliveries += 1
                    readers.recorder.succeeded(due_s, readers.payload_bytes)


class _SseConnection(asyncio.Protocol):
    """One answer to one reader."""

    def __init__(self, reader: Reader, readers: "Readers") -> None:
        self._reader = reader
        self._readers = readers
        self._parser = httptools.HttpResponseParser(self)
        self._events = SseParser()
        self._base64 = self._chunked = self._served = self._ended = False
        self._kept = b""
        self.transport: asyncio.Transport | None = None
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._readers.open.add(self)
        self._reader.begin()
        self.transport.write(self._reader.request())

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._readers.recorder.failed("invalid_response", str(error))
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"stream-sse-data-encoding":
            self._base64 = value.strip().lower() == b"base64"
        elif name == b"transfer-encoding":
            self._chunked = b"chunked" in value.lower()

    def on_headers_complete(self) -> None:
        if not self.answered.done():
            self.answered.set_result(None)

    def on_body(self, body: bytes) -> None:
        if self._parser.get_status_code() != 200:
            self._kept += body
            return
        for event in self._events.feed(body):
            self._served = True
            self._reader.event(event, self._base64)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 200:
            self._readers.recorder.failed(f"http_{status}", self._kept)
        self.close()

    def close(self) -> None:
        self._ended = True
        assert self.transport is not None
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._readers.open.discard(self)
        if not self.answered.done():
            self.answered.set_result(None)
        # An answer without a length ends with its connection; a chunked one says so itself.
        broken = exc is not None or self._chunked or not self._parser.get_status_code()
        if broken and not self._ended:
            self._readers.failed(failure_kind(exc))
            self._served = False
        self._readers.reconnect(self._reader, 0.0 if self._served else RETRY_S)


class Readers:
    """All readers of this process."""

    def __init__(
        self,
        target: Target,
        recorder: Recorder,
        places: Iterable[tuple[int, str]],
        payload_bytes: int,
    ) -> None:
        self.target = target
        self.recorder = recorder
        self.payload_bytes = payload_bytes
        self.deliveries = 0
        self.reconnects = 0
        self.open: set[_SseConnection] = set()
        self.all = [Reader(self, number, path) for number, path in places]
        self._context = target.tls_context()
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self, timeout_s: float) -> None:
        """Connect all, and wait until the server has begun to answer each."""
        for first in range(0, len(self.all), CONNECTING_AT_ONCE_MAX):
            group = self.all[first : first + CONNECTING_AT_ONCE_MAX]
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(self._connect(reader) for reader in group))

    async def _connect(self, reader: Reader) -> None:
        try:
            made = await connect(self.target, self._context, lambda: _SseConnection(reader, self))
        except OSError as error:
            self.failed(failure_kind(error), error.strerror or str(error))
            self.reconnect(reader)
            return
        await made.answered

    def failed(self, kind: str, example: str = "") -> None:
        """Count a failure, unless it is of our own making."""
        if not self._closed:
            self.recorder.failed(kind, example)

    def reconnect(self, reader: Reader, delay_s: float = RETRY_S) -> None:
        """Go on where this reader stands."""
        if not self._closed:
            self.reconnects += 1
            self._do(self._reconnect(reader, delay_s))

    async def _reconnect(self, reader: Reader, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self._connect(reader)

    async def receive(self, streams: dict[int, StreamWritten], deadline_s: float) -> None:
        """Wait until every reader has everything, or for so long."""
        waiting = self.all
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while waiting:
                    await asyncio.sleep(LOOK_S)
                    waiting = [each for each in waiting if each.tally.lost(streams[each.stream])]

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for connection in list(self.open):
            connection.close()

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
