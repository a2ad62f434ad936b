"""A lean catch-up client: one connection, one request at a time, bodies counted and dropped."""

from __future__ import annotations

import re
import socket
from types import TracebackType
from typing import NamedTuple, Self

TIMEOUT_S = 60.0
BUFFER_BYTES = 2 * 2**20
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_NEXT = re.compile(rb"\r\nstream-next-offset: *([0-9_]+)", re.IGNORECASE)
_UP_TO_DATE = re.compile(rb"\r\nstream-up-to-date: *true", re.IGNORECASE)


class Page(NamedTuple):
    """What one answer brought."""

    size_bytes: int
    next_offset: str
    up_to_date: bool


class PageReader:
    """One keep-alive connection for reads."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def catch_up(self, path: str) -> int:
        """Read a stream from its start to its tail, page by page; the bytes there were."""
        offset, total = "-1", 0
        while True:
            page = self.read(path, offset)
            total += page.size_bytes
            if page.up_to_date:
                return total
            offset = page.next_offset

    def read(self, path: str, offset: str) -> Page:
        """Read one page."""
        self._socket.sendall(
            f"GET {path}?offset={offset} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n\r\n".encode()
        )
        got, head_end = 0, -1
        while head_end < 0:
            got += self._receive(got)
            head_end = self._buffer.find(b"\r\n\r\n", 0, got)
        head = bytes(self._view[: head_end + 2])
        length, following = _LENGTH.search(head), _NEXT.search(head)
        if not head.startswith(b"HTTP/1.1 200 ") or length is None or following is None:
            raise RuntimeError(f"a read was answered with {head[:200]!r}")
        size_bytes = int(length[1])
        missing = head_end + 4 + size_bytes - got
        while missing > 0:
            missing -= self._receive(0)
        return Page(size_bytes, following[1].decode(), _UP_TO_DATE.search(head) is not None)

    def _receive(self, at: int) -> int:
        count = self._socket.recv_into(self._view[at:])
        if not count:
            raise RuntimeError("the server closed the connection within an answer")
        return count
