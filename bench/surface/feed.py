"""The load of the changes step: `python -m bench.surface.feed PORT PID SECONDS STREAMS PER_S`.

Rules:
- Append number k goes to stream k mod STREAMS, always over the same connection, and all have the
  same size: so a change's stream and offset say which append it tells of, and when that was sent.
- Appends are sent every TICK_S, as many as are due by then; a connection that has too many without
  a response is left out, and what is due waits.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from array import array
from typing import cast

import msgspec
import uvloop

from bench.process import cpu_of_tree
from bench.servers import PREFIX

APPEND_BYTES = 256
CONNECTIONS = 64
# The server's limit of requests in progress on one connection is 64.
PENDING_MAX = 48
TICK_S = 0.002
DRAIN_S = 10.0
BUCKET = PREFIX.rstrip("/").rpartition("/")[2]


class Change(msgspec.Struct, gc=False):
    """What is wanted of an entry."""

    stream_id: str
    offset: int
    length: int


class Event(msgspec.Struct):
    """The data of an event."""

    changes: list[Change]


decode = msgspec.json.Decoder(Event).decode


class Feed:
    """Who was sent when, and who came back."""

    def __init__(self, streams: int, per_s: int, seconds: int) -> None:
        self.streams = streams
        self.per_s = per_s
        self.total = per_s * seconds
        self.sent = 0
        self.answered = 0
        self.arrived = 0
        self.sent_ns = array("q", bytes(8 * self.total))
        self.lags_ns = array("q")
        self.fault = ""
        self.answered_ns = 0
        body = b"x" * APPEND_BYTES
        head = "POST {}{} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/octet-stream\r\n"
        self.requests = [
            head.format(PREFIX, stream).encode()
            + b"Content-Length: %d\r\n\r\n%b" % (APPEND_BYTES, body)
            for stream in range(streams)
        ]

    def take(self, data: bytes, now_ns: int) -> None:
        """An event has arrived."""
        streams, sent_ns, lags_ns = self.streams, self.sent_ns, self.lags_ns
        for change in decode(data).changes:
            if not change.length:
                continue
            number = change.offset // APPEND_BYTES * streams + int(change.stream_id)
            lags_ns.append(now_ns - sent_ns[number])
            self.arrived += 1

    @property
    def done(self) -> bool:
        return bool(self.fault) or (self.answered >= self.sent and self.arrived >= self.sent)


class Writer(asyncio.Protocol):
    """One connection with appends on their way."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.pending = 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        count = data.count(b"HTTP/1.1 204")
        if count != data.count(b"HTTP/1.1 "):
            self._feed.fault = f"an append was answered with {data[:200]!r}"
        self.pending -= count
        self._feed.answered += count
        self._feed.answered_ns = time.monotonic_ns()

    def connection_lost(self, _error: Exception | None) -> None:
        self._feed.fault = self._feed.fault or "an append connection was closed"


class Reader(asyncio.Protocol):
    """The one reader of the feed."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._parts: list[bytes] = []
        self.ready = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        path = f"/{BUCKET}/streams/changes?after=now&live=sse"
        # HTTP/1.0 has no chunks: what arrives is the events and nothing else.
        request = f"GET {path} HTTP/1.0\r\nHost: bench\r\n\r\n"
        cast(asyncio.Transport, transport).write(request.encode())

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        if b"\n\n" not in data and not (data.startswith(b"\n") and len(self._parts) > 1):
            return
        now_ns = time.monotonic_ns()
        *events, rest = b"".join(self._parts).split(b"\n\n")
        self._parts = [rest] if rest else []
        for event in events:
            self._event(event, now_ns)

    def _event(self, event: bytes, now_ns: int) -> None:
        _, found, data = event.partition(b"\ndata:")
        if found:
            self._feed.take(data, now_ns)
        elif not self.ready.done() and b"200 OK" not in event:
            self.ready.set_exception(OSError(f"the feed answered {event[:200]!r}"))
        if found and not self.ready.done():
            self.ready.set_result(None)

    def connection_lost(self, _error: Exception | None) -> None:
        self._feed.fault = self._feed.fault or "the feed was closed"


async def _send(feed: Feed, writers: list[Writer]) -> None:
    """Send what is due, tick by tick, until all is sent."""
    started_ns = time.monotonic_ns()
    while feed.sent < feed.total and not feed.fault:
        now_ns = time.monotonic_ns()
        due = min(feed.total, (now_ns - started_ns) * feed.per_s // 1_000_000_000)
        _send_due(feed, writers, due, now_ns)
        await asyncio.sleep(TICK_S)


def _send_due(feed: Feed, writers: list[Writer], due: int, now_ns: int) -> None:
    batches: dict[int, list[bytes]] = {}
    while feed.sent < due:
        stream = feed.sent % feed.streams
        writer = writers[stream % CONNECTIONS]
        if writer.pending >= PENDING_MAX:
            break
        writer.pending += 1
        feed.sent_ns[feed.sent] = now_ns
        feed.sent += 1
        batches.setdefault(stream % CONNECTIONS, []).append(feed.requests[stream])
    for index, requests in batches.items():
        transport = writers[index].transport
        assert transport is not None
        transport.write(b"".join(requests))


async def _main(port: int, pid: int, seconds: int, streams: int, per_s: int) -> None:
    feed = Feed(streams, per_s, seconds)
    loop = asyncio.get_running_loop()
    _, reader = await loop.create_connection(lambda: Reader(feed), "127.0.0.1", port)
    await asyncio.wait_for(reader.ready, DRAIN_S)
    writers = []
    for _ in range(CONNECTIONS):
        _, writer = await loop.create_connection(lambda: Writer(feed), "127.0.0.1", port)
        writers.append(writer)
    cpu, own_s, started_ns = cpu_of_tree(pid), time.process_time(), time.monotonic_ns()
    await _send(feed, writers)
    deadline_s = time.monotonic() + DRAIN_S
    while not feed.done and time.monotonic() < deadline_s:
        await asyncio.sleep(TICK_S)
    if feed.fault:
        raise SystemExit(feed.fault)
    elapsed_s = (feed.answered_ns - started_ns) / 1e9
    spent_s = (cpu_of_tree(pid) - cpu).total_s
    lags = sorted(feed.lags_ns) or [0]
    found = {
        "per_s": feed.answered / elapsed_s,
        "missing": feed.sent - feed.arrived,
        "p50_ms": lags[len(lags) // 2] / 1e6,
        "p99_ms": lags[len(lags) * 99 // 100] / 1e6,
        "max_ms": lags[-1] / 1e6,
        "cpu_us": spent_s * 1e6 / max(1, feed.answered),
        "server_busy": spent_s / elapsed_s,
        "busy": (time.process_time() - own_s) / elapsed_s,
    }
    print(json.dumps(found), flush=True)
    # Closing the connections one by one would count as faults; the process just ends.
    sys.stdout.close()


if __name__ == "__main__":
    uvloop.run(_main(*map(int, sys.argv[1:])))
