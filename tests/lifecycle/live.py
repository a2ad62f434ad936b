"""SSE over a bare socket: what the chunks hold, how they end, and when nobody reads them."""

import asyncio
import json
import re
import socket
from typing import Any, Self

DEADLINE_S = 30.0
_CONTROL = re.compile(rb"event: control\ndata:(\{.*?\})\n\n")
_DATA = re.compile(rb"event: data\ndata:(.*?)\n\n")


class EventConnection:
    """One reader, which keeps everything it was sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.body = b""
        # The last chunk, of length zero, has arrived.
        self.complete = False

    @classmethod
    async def open(cls, port: int, target: str, receive_bytes: int = 0) -> Self:
        """Send the request and read the head of the answer, but nothing of its body."""
        sock = socket.socket()
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 20)
        writer.write(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        connection = cls(reader, writer)
        async with asyncio.timeout(DEADLINE_S):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        assert b"transfer-encoding: chunked" in head.lower()
        return connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def read_until(self, offset: int) -> None:
        """Read until a control event names this offset, or one past it."""
        while not self.controls or int(self.controls[-1]["streamNextOffset"]) < offset:
            assert await self._read_chunk(), "the answer ended early"

    async def read_to_end(self) -> None:
        """Read until the answer ends, and check that the connection ends with it."""
        while await self._read_chunk():
            pass
        async with asyncio.timeout(DEADLINE_S):
            assert await self._reader.read() == b"", "something follows the last chunk"

    async def _read_chunk(self) -> bool:
        """Read one chunk; False for the last, which is empty."""
        async with asyncio.timeout(DEADLINE_S):
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            chunk = await self._reader.readexactly(size)
            assert await self._reader.readexactly(2) == b"\r\n"
        self.body += chunk
        self.complete = size == 0
        return size > 0

    @property
    def controls(self) -> list[dict[str, Any]]:
        """All control events so far."""
        return [json.loads(found) for found in _CONTROL.findall(self.body)]

    @property
    def data(self) -> bytes:
        """All data so far; only for text without line breaks."""
        return b"".join(_DATA.findall(self.body))

    def check_goodbye(self) -> None:
        """The last thing sent is a control event of its own that tells where to go on."""
        assert self.complete
        *_, before, last = _CONTROL.finditer(self.body)
        assert last.end() == len(self.body), "something follows the last control event"
        assert last.start() == before.end(), "the last control event belongs to data"
        assert int(self.controls[-1]["streamNextOffset"]) == len(self.data)
