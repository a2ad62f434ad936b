"""The slot of a native connection: renders responses as HTTP/1.1."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.http.exchange import BODILESS

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.http.request_reader import RequestReader

_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}


# A larger piece is not copied into a frame, so that connections can share it.
_FRAMED_BYTES_MAX: Final = 16_384


class _LastChunk:
    """The last framed chunk: fan-out writes the same piece to many connections."""

    piece = b""
    framed = b""


class NativeSlot(msgspec.Struct, eq=False, weakref=True):
    """The response to one request of a connection; see `exchange.Slot`."""

    # None once the response is complete or the client is gone.
    connection: RequestReader | None
    method: bytes
    # Whether the connection closes after this response.
    closes: bool
    # HTTP/1.0 clients know no chunks: there the end of the connection ends the body.
    chunked: bool
    # When the request was complete; its latency is measured from here.
    started_s: float = 0.0
    status: int = 0
    route: str = "unknown"
    on_gone: Callable[[], None] | None = None
    on_resume: Callable[[], None] | None = None
    # What is missing of a body that is sent in pieces, if its length is known.
    missing_bytes: int | None = None
    # Bytes to write when it is this slot's turn; None while there is no response.
    output: bytes | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the response is being sent in pieces."""
        return self.status != 0

    @property
    def paused(self) -> bool:
        return self.connection is None or self.connection.paused

    def respond(self, status: int, headers: bytes, body: bytes = b"") -> None:
        connection = self.connection
        if connection is None:
            return
        app = connection.app
        if self.closes or app.draining:
            self.closes = True
            headers += b"Connection: close\r\n"
        elif not self.chunked:
            headers += b"Connection: keep-alive\r\n"
        is_head = self.method == b"HEAD"
        if status in BODILESS or (is_head and not body):
            output = _STATUS_LINES[status] + headers + app.head_end
        else:
            length = len(body)
            if is_head:
                body = b""
            output = b"%b%b%bContent-Length: %d\r\n\r\n%b" % (
                _STATUS_LINES[status],
                headers,
                app.common_headers,
                length,
                body,
            )
        self.connection = None
        self.output = output
        app.counters.count(self.route, status, app.clock.monotonic_s() - self.started_s)
        connection.completed(self)

    def begin(self, status: int, headers: bytes, length: int | None = None) -> None:
        """Start a response in pieces; only the oldest request of a connection does."""
        connection = self.connection
        if connection is None:
            return
        app, seconds = connection.app, 0.0
        if length is not None:
            headers += b"Content-Length: %d\r\n" % length
            seconds = app.clock.monotonic_s() - self.started_s
            if not self.chunked and not self.closes:
                headers += b"Connection: keep-alive\r\n"
            self.chunked = False
            self.missing_bytes = length
        elif self.chunked:
            headers += b"Transfer-Encoding: chunked\r\n"
        else:
            self.closes = True
        self.status = status
        app.counters.count(self.route, status, seconds)
        if self.closes:
            headers += b"Connection: close\r\n"
        connection.transport.write(_STATUS_LINES[status] + headers + app.head_end)

    def write(self, data: bytes, more: bytes = b"") -> None:
        connection = self.connection
        if connection is None or not data:
            return
        if not self.chunked:
            if self.missing_bytes is not None:
                self.missing_bytes -= len(data) + len(more)
            connection.transport.writelines((data, more))
            return
        if more or len(data) > _FRAMED_BYTES_MAX:
            head = b"%x\r\n" % (len(data) + len(more))
            connection.transport.writelines((head, data, more, b"\r\n"))
            return
        if data is not _LastChunk.piece:
            _LastChunk.piece = data
            _LastChunk.framed = b"%x\r\n%b\r\n" % (len(data), data)
        connection.transport.write(_LastChunk.framed)

    def end(self) -> None:
        connection = self.connection
        if connection is None:
            return
        if self.missing_bytes:
            # The client must not take the next response for the rest of this one.
            self.abort()
            return
        app = connection.app
        if app.draining:
            self.closes = True
        self.connection = None
        self.output = b"0\r\n\r\n" if self.chunked else b""
        connection.completed(self)

    def abort(self) -> None:
        if self.connection is not None:
            self.connection.transport.abort()

    def refuse_rest(self) -> None:
        self.closes = True
        if self.connection is not None:
            self.connection.refuse_rest()

    def resume(self) -> None:
        if self.on_resume is not None:
            self.on_resume()

    def abandon(self) -> None:
        """The client is gone: write nothing more, and call `on_gone`."""
        self.connection = None
        if self.on_gone is not None:
            self.on_gone()
