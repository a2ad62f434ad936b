"""The SSE load generator, a process of its own: `python -m bench.fanout PORT PATH PID SECONDS`.

Rules:
- Every message starts with MARK, a byte that nothing else in an SSE stream holds, then its number
  and the time it was sent. So a reader counts messages by counting one byte, whatever the framing.
- Every SAMPLED-th reader parses all its messages, for latency; each must have got every message
  once, and all of them in the same order. Which order several writers end up in is the server's.
- A phase ends when every reader has everything, or after DRAIN_S; what is missing then is `failed`.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import sys
import time
import zlib
from dataclasses import dataclass
from typing import cast

import uvloop

from bench.process import cpu_of_tree, machine_busy_s

READERS = 1000
MESSAGE_BYTES = 128
CONTENT_TYPE = "text/plain"
LAG_MAX = 64
SAMPLED = 8
DRAIN_S = 15.0
CONNECT_S = 30.0
CONNECTING_AT_ONCE = 40
MARK = b"~"
STAMP = re.compile(rb"~(\d{8})(\d{19})")
STAMP_BYTES = 28


@dataclass(frozen=True, slots=True)
class Phase:
    """One way of appending: so many writers, each at `per_s` or, without it, unpaced."""

    case: str
    writers: int
    per_s: int | None = None


PHASES = (
    Phase("20 appends/s", 1, 20),
    Phase("1 writer, unpaced", 1),
    Phase("8 writers, unpaced", 8),
)


class Fanout:
    """Counts shared by all connections, and the pump that keeps writers writing."""

    def __init__(self, path: str) -> None:
        self.path = path.encode()
        self.delivered = 0
        self.sent = 0
        self.pump_at = sys.maxsize
        self.last_delivery_ns = 0
        self.latencies_ns: list[int] = []
        self.faults: list[str] = []
        self.idle: list[Writer] = []
        self.sampled: list[Reader] = []
        self.until_ns = 0
        self.phase = PHASES[0]

    def start(self, phase: Phase, seconds: int, writers: list[Writer]) -> None:
        self.phase = phase
        self.latencies_ns = []
        self.until_ns = time.monotonic_ns() + seconds * 1_000_000_000
        self.idle = writers[: phase.writers]
        if phase.per_s is None:
            self.pump()
        else:
            self._tick(1.0 / phase.per_s, asyncio.get_running_loop().time())

    def _tick(self, interval_s: float, due_s: float) -> None:
        if time.monotonic_ns() >= self.until_ns:
            return
        if self.idle:
            self._send()
        loop = asyncio.get_running_loop()
        loop.call_at(due_s + interval_s, self._tick, interval_s, due_s + interval_s)

    def answered(self, writer: Writer) -> None:
        self.idle.append(writer)
        if self.phase.per_s is None:
            self.pump()

    def pump(self) -> None:
        """Send with every idle writer, unless the readers are too far behind."""
        self.pump_at = sys.maxsize
        if time.monotonic_ns() >= self.until_ns:
            return
        while self.idle:
            if self.sent * READERS - self.delivered >= LAG_MAX * READERS:
                self.pump_at = (self.sent - LAG_MAX) * READERS + 1
                return
            self._send()

    def _send(self) -> None:
        stamp = b"%s%08d%019d" % (MARK, self.sent, time.monotonic_ns())
        self.sent += 1
        self.idle.pop().append(stamp.ljust(MESSAGE_BYTES, b"x"))

    @property
    def missing(self) -> int:
        return self.sent * READERS - self.delivered

    def check_order(self) -> None:
        """Compare the sampled readers: the numbers seen, and that they came in one order."""
        expected = self.sent * (self.sent - 1) // 2
        if any(reader.total != expected for reader in self.sampled):
            self.faults.append("a reader missed a message or got one twice")
        if len({reader.order for reader in self.sampled}) != 1:
            self.faults.append("readers got the messages in different orders")


class Writer(asyncio.Protocol):
    """One keep-alive connection with at most one append outstanding."""

    def __init__(self, fanout: Fanout) -> None:
        self._fanout = fanout
        head = b"POST %s HTTP/1.1\r\nHost: bench\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
        self._head = head % (fanout.path, CONTENT_TYPE.encode(), MESSAGE_BYTES)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def append(self, message: bytes) -> None:
        assert self._transport is not None
        self._transport.write(self._head + message)

    def data_received(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 2"):
            self._fanout.faults.append(f"append answered {data[:120]!r}")
        self._fanout.answered(self)


class Reader(asyncio.BufferedProtocol):
    """Counts messages in a buffer that all readers share: each read is done with at once."""

    buffer = bytearray(256 * 1024)

    def __init__(self, fanout: Fanout, sampled: bool) -> None:
        self._fanout = fanout
        self._head = b""
        self._tail = b""
        self._sampled = sampled
        self.order = self.total = 0
        self.ready = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        head = b"GET %s?offset=now&live=sse HTTP/1.1\r\nHost: bench\r\n\r\n"
        cast(asyncio.Transport, transport).write(head % self._fanout.path)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        fanout = self._fanout
        count = self.buffer.count(MARK, 0, nbytes)
        if count:
            fanout.delivered += count
            fanout.last_delivery_ns = time.monotonic_ns()
            if self._sampled:
                self._parse(bytes(self.buffer[:nbytes]), fanout.last_delivery_ns)
            if fanout.delivered >= fanout.pump_at:
                fanout.pump()
        elif not self.ready.done():
            self._await_ready(nbytes)
        elif self._sampled and self._tail:
            self._parse(bytes(self.buffer[:nbytes]), time.monotonic_ns())

    def _await_ready(self, nbytes: int) -> None:
        """A reader is ready once the first control event has told it where it stands."""
        self._head += self.buffer[:nbytes]
        if not self._head.startswith(b"HTTP/1.1 200"):
            self.ready.set_exception(OSError(f"SSE answered {self._head[:120]!r}"))
        elif b"event: control" in self._head and b"streamNextOffset" in self._head:
            self.ready.set_result(None)
            self._head = b""

    def _parse(self, data: bytes, now_ns: int) -> None:
        data = self._tail + data
        for found in STAMP.finditer(data):
            number, sent_ns = found.groups()
            self.order = zlib.crc32(number, self.order)
            self.total += int(number)
            self._fanout.latencies_ns.append(now_ns - int(sent_ns))
        last = data.rfind(MARK)
        self._tail = data[last:] if 0 <= len(data) - last < STAMP_BYTES and last >= 0 else b""

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(exc or OSError("the server closed an SSE connection"))
        else:
            self._fanout.faults.append("an SSE connection was closed")


async def _connect(fanout: Fanout, port: int) -> list[Writer]:
    async with asyncio.timeout(CONNECT_S):
        for first in range(0, READERS, CONNECTING_AT_ONCE):
            numbers = range(first, first + CONNECTING_AT_ONCE)
            group = [Reader(fanout, number % SAMPLED == 0) for number in numbers]
            fanout.sampled += group[::SAMPLED]
            for reader in group:
                await _open(reader, port)
            await asyncio.gather(*(reader.ready for reader in group))
        writers = [Writer(fanout) for _ in range(max(phase.writers for phase in PHASES))]
        for writer in writers:
            await _open(writer, port)
    return writers


async def _open(protocol: Reader | Writer, port: int) -> None:
    await asyncio.get_running_loop().create_connection(lambda: protocol, "127.0.0.1", port)


async def _run_phase(
    fanout: Fanout, phase: Phase, seconds: int, writers: list[Writer], pid: int
) -> dict[str, float]:
    sent, delivered = fanout.sent, fanout.delivered
    spent, busy_s = cpu_of_tree(pid), machine_busy_s()
    own, start_ns = time.process_time(), time.monotonic_ns()
    fanout.start(phase, seconds, list(writers))
    await asyncio.sleep(seconds)
    deadline = time.monotonic() + DRAIN_S
    while fanout.missing > 0 and time.monotonic() < deadline and not fanout.faults:
        await asyncio.sleep(0.01)
    # Let late responses to the writers arrive: the next phase begins with all of them idle.
    await asyncio.sleep(0.2)
    if not fanout.missing:
        fanout.check_order()
    cpu = cpu_of_tree(pid) - spent
    own = time.process_time() - own
    others_s = machine_busy_s() - busy_s - cpu.total_s - own
    elapsed_s = max(1e-9, (fanout.last_delivery_ns - start_ns) / 1e9)
    deliveries = max(1, fanout.delivered - delivered)
    latencies = sorted(fanout.latencies_ns) or [0]
    return {
        "per_s": deliveries / elapsed_s,
        "appends_per_s": (fanout.sent - sent) / elapsed_s,
        "p50_ms": latencies[len(latencies) // 2] / 1e6,
        "p99_ms": latencies[len(latencies) * 99 // 100] / 1e6,
        "cpu_us": cpu.total_s * 1e6 / deliveries,
        "generator_busy": own / elapsed_s,
        "others": max(0.0, others_s / elapsed_s),
        "failed": fanout.missing + len(fanout.faults),
    }


async def _main(port: int, path: str, pid: int, seconds: int) -> None:
    fanout = Fanout(path)
    writers = await _connect(fanout, port)
    metrics = {}
    for phase in PHASES:
        metrics[phase.case] = await _run_phase(fanout, phase, seconds, writers, pid)
        if fanout.faults:
            raise SystemExit(f"{phase.case}: {fanout.faults[0]} ({len(fanout.faults)} faults)")
    print(json.dumps(metrics), flush=True)
    # Closing a thousand connections one by one would count as faults; the process just ends.
    sys.stdout.close()


if __name__ == "__main__":
    _soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_hard, _hard))
    uvloop.run(_main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
