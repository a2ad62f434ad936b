"""The readers of the slow streams: `python -m bench.proxy.load PORT UPSTREAM STREAMS CHUNKS PER_S`.

Each stream is asked for through the proxy, and read over SSE from its start. Prints what arrived,
how late each record was, and how much CPU time this process took.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from array import array
from typing import cast
from urllib.parse import urlsplit

import uvloop

from bench.proxy.steps import headers
from bench.proxy.upstream import RECORD_BYTES, sent_ns
from holdfast.protocol.frames import COMPLETE, DATA, FrameParser

STARTING_MAX = 32
DEADLINE_S = 120.0


class Reader(asyncio.Protocol):
    """One reader of one stream."""

    def __init__(self, path: str, lags_ns: array[int]) -> None:
        self._path = path
        self._lags_ns = lags_ns
        self._parts: list[bytes] = []
        self._frames = FrameParser()
        self._body = bytearray()
        self.received = 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # HTTP/1.0 has no chunks: what arrives is the events and nothing else.
        request = f"GET {self._path}&offset=-1&live=sse HTTP/1.0\r\nHost: bench\r\n\r\n"
        self._transport.write(request.encode())

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        if b"\n\n" not in data and not (data.startswith(b"\n") and len(self._parts) > 1):
            return
        now_ns = time.monotonic_ns()
        *events, rest = b"".join(self._parts).split(b"\n\n")
        self._parts = [rest] if rest else []
        for event in events:
            if event.lstrip(b"\r\n").startswith(b"event: data") or b"\nevent: data" in event:
                lines = event.partition(b"event: data")[2].split(b"data:")[1:]
                encoded = b"".join(line.strip() for line in lines)
                self._take(base64.b64decode(encoded), now_ns)

    def _take(self, data: bytes, now_ns: int) -> None:
        for frame in self._frames.feed(data):
            if frame.type == DATA:
                self._body += frame.payload
            elif frame.type == COMPLETE and not self.done.done():
                self.done.set_result(None)
                self._transport.close()
        while len(self._body) >= RECORD_BYTES:
            self._lags_ns.append(now_ns - sent_ns(bytes(self._body[:RECORD_BYTES])))
            del self._body[:RECORD_BYTES]
            self.received += RECORD_BYTES

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(OSError("a reader was disconnected before the end"))


class Starter(asyncio.Protocol):
    """Asks for streams, one at a time."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._received = b""
        self._waiter: asyncio.Future[str] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def start(self) -> str:
        """The path of a new stream."""
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(self._request)
        return await self._waiter

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end or self._waiter is None:
            return
        self._received = rest
        if not head.startswith(b"HTTP/1.1 201"):
            self._waiter.set_exception(OSError(f"the proxy answered {head[:300]!r}"))
            return
        url = urlsplit(head.partition(b"Location: ")[2].partition(b"\r\n")[0].decode())
        self._waiter.set_result(f"{url.path}?{url.query}")


async def _main(port: int, upstream: int, streams: int, chunks: int, per_s: int) -> None:
    loop = asyncio.get_running_loop()
    fields = headers(upstream, f"/slow/{chunks}/{per_s}")
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    request = f"POST /v1/proxy HTTP/1.1\r\nHost: bench\r\nContent-Length: 0\r\n{lines}\r\n".encode()
    lags_ns: array[int] = array("q")
    readers: list[Reader] = []
    left = streams

    async def start_some() -> None:
        nonlocal left
        _, starter = await loop.create_connection(lambda: Starter(request), "127.0.0.1", port)
        while left:
            left -= 1
            path = await starter.start()
            _, reader = await loop.create_connection(
                lambda path=path: Reader(path, lags_ns), "127.0.0.1", port
            )
            readers.append(reader)

    started_s = time.monotonic()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(start_some() for _ in range(STARTING_MAX)))
        all_started_s = time.monotonic() - started_s
        await asyncio.gather(*(reader.done for reader in readers))
    lags = sorted(lags_ns)
    found = {
        "started_s": all_started_s,
        "missing": streams * chunks * RECORD_BYTES - sum(each.received for each in readers),
        "p50_ms": lags[len(lags) // 2] / 1e6,
        "p99_ms": lags[len(lags) * 99 // 100] / 1e6,
        "max_ms": lags[-1] / 1e6,
        "busy": time.process_time() / (time.monotonic() - started_s),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    uvloop.run(_main(*map(int, sys.argv[1:])))
