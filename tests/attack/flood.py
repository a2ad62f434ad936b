"""Many raw connections to one server, which send at the same time and may never read."""

import contextlib
import re
import selectors
import socket
import time
from types import TracebackType
from typing import Self

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


class FloodConnection:
    """One of the connections: what is left to send, and what came back."""

    def __init__(self, port: int, receive_bytes: int) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setblocking(False)
        self.unsent = memoryview(b"")
        self.received = bytearray()
        # Whether the server has closed the connection or reset it.
        self.ended = False

    @property
    def statuses(self) -> list[int]:
        """The status of each response, 100 Continue included."""
        return [int(found) for found in _STATUS.findall(self.received)]

    def send_some(self) -> None:
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent[: 1 << 20]) :]
        except BlockingIOError:
            pass
        except OSError:
            # What the server said before it closed is still to be read.
            self.unsent = memoryview(b"")

    def receive_some(self) -> None:
        try:
            piece = self.socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self.received += piece
        self.ended = not piece


class Flood:
    """Connections to `port`; a small `receive_bytes` makes the server wait for its readers soon."""

    def __init__(self, port: int, count: int, receive_bytes: int = 0) -> None:
        self.connections = [FloodConnection(port, receive_bytes) for _ in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up on all connections at once."""
        for connection in self.connections:
            connection.socket.close()

    def send(self, data: bytes, timeout_s: float, *, reads: bool = True) -> None:
        """Send the same bytes on all connections at the same time.

        Returns once the kernel has taken everything, the server has closed, or time is up: a server
        that reads no more makes its clients wait. With `reads` the responses are read meanwhile.
        """
        for connection in self.connections:
            connection.unsent = memoryview(data)
        self._run(timeout_s, reads=reads, until_sent=True)

    def read(self, timeout_s: float) -> None:
        """Read what the server sends until it has closed all connections, or time is up."""
        self._run(timeout_s, reads=True, until_sent=False)

    def statuses(self) -> list[int]:
        """The last status that each connection got; 0 for one without a response."""
        return [(each.statuses or [0])[-1] for each in self.connections]

    def _run(self, timeout_s: float, *, reads: bool, until_sent: bool) -> None:
        ends_s = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            for connection in self.connections:
                self._watch(selector, connection, reads=reads, until_sent=until_sent)
            while selector.get_map() and (left_s := ends_s - time.monotonic()) > 0:
                for key, events in selector.select(left_s):
                    connection = key.data
                    if events & selectors.EVENT_WRITE:
                        connection.send_some()
                    if events & selectors.EVENT_READ:
                        connection.receive_some()
                    self._watch(selector, connection, reads=reads, until_sent=until_sent)

    def _watch(
        self,
        selector: selectors.BaseSelector,
        connection: FloodConnection,
        *,
        reads: bool,
        until_sent: bool,
    ) -> None:
        """Wait for what the connection can still do; for nothing once it is done."""
        done = connection.ended or (until_sent and not connection.unsent)
        events = selectors.EVENT_READ if reads else 0
        if connection.unsent:
            events |= selectors.EVENT_WRITE
        with contextlib.suppress(KeyError):
            selector.unregister(connection.socket)
        if events and not done:
            selector.register(connection.socket, events, connection)
