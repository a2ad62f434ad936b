"""A native connection without a socket: bytes go in by hand, and what was written is kept."""

import asyncio

from holdfast.http.connection import Connection
from holdfast.http.listener import Listener
from tests.unit.http.apps import Served


class Wire(asyncio.Transport):
    """The transport of a client that reads everything at once."""

    def __init__(self):
        super().__init__({"peername": ("10.0.0.1", 5)})
        self.written = b""
        self.reading = True
        self.closed = False

    def set_write_buffer_limits(self, high=None, low=None):
        """It is never full."""

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        self.written += data

    def pause_reading(self):
        assert self.reading
        self.reading = False

    def resume_reading(self):
        assert not self.reading
        self.reading = True

    def is_closing(self):
        return self.closed

    def can_write_eof(self):
        return False

    def close(self):
        self.closed = True

    def abort(self):
        self.closed = True


class Client:
    """One connection to an application."""

    def __init__(self, served=None):
        self.served = served or Served()
        self.wire = Wire()
        self.connection = Connection(Listener(self.served.app))
        self.connection.connection_made(self.wire)

    def send(self, data):
        assert self.wire.reading, "nobody reads now"
        self.connection.data_received(data)

    def request(self, method, target, body=b"", *lines):
        """Send a whole request."""
        length = [f"Content-Length: {len(body)}"] if body else []
        head = [f"{method} {target} HTTP/1.1", "Host: h", *lines, *length, "", ""]
        self.send("\r\n".join(head).encode() + body)

    @property
    def statuses(self):
        """What was answered so far."""
        lines = self.wire.written.split(b"HTTP/1.1 ")[1:]
        return [int(line[:3]) for line in lines]
