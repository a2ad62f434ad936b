"""The upstream of the proxy's steps: `python -m bench.proxy.upstream PORT`.

Every response is chunked and consists of records of RECORD_BYTES, which hold the time at which they
were sent (CLOCK_MONOTONIC, which all processes share):

    /first                  one record, and the end
    /slow/CHUNKS/PER_S      so many records, one at a time
    /idle                   one record, and nothing more until POST /release ends all of them
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import ClassVar, cast

import uvloop

RECORD_BYTES = 64
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_END = b"0\r\n\r\n"


def record() -> bytes:
    """A record that is sent now."""
    return b"%019d%b" % (time.monotonic_ns(), b"." * (RECORD_BYTES - 19))


def sent_ns(taken: bytes) -> int:
    """When a record was sent."""
    return int(taken[:19])


def _chunk() -> bytes:
    return b"%x\r\n%b\r\n" % (RECORD_BYTES, record())


class Connection(asyncio.Protocol):
    """One connection: requests without a body, one at a time."""

    idle: ClassVar[set[Connection]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._received = b""
        self._is_open = True

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if end:
            self._received = rest
            self._answer(head.split(b" ", 2)[1].decode().strip("/").split("/"))

    def connection_lost(self, _error: Exception | None) -> None:
        self._is_open = False
        self.idle.discard(self)

    def _answer(self, path: list[str]) -> None:
        write = self.transport.write
        match path:
            case ["first"]:
                write(_HEAD + _chunk() + _END)
            case ["slow", chunks, per_s]:
                write(_HEAD)
                self._go_on(int(chunks), 1 / int(per_s), time.monotonic())
            case ["idle"]:
                write(_HEAD + _chunk())
                self.idle.add(self)
            case ["release"]:
                for each in list(self.idle):
                    each.transport.write(_chunk() + _END)
                self.idle.clear()
                write(b"HTTP/1.1 204 No Content\r\n\r\n")
            case _:
                write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def _go_on(self, left: int, pause_s: float, due_s: float) -> None:
        if not self._is_open:
            return
        if not left:
            self.transport.write(_END)
            return
        self.transport.write(_chunk())
        due_s += pause_s
        loop = asyncio.get_running_loop()
        loop.call_later(due_s - time.monotonic(), self._go_on, left - 1, pause_s, due_s)


async def _main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(
        Connection, "127.0.0.1", port, backlog=4096
    )
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_main(int(sys.argv[1])))
