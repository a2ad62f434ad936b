"""A connection that speaks HTTP/1.1: one request at a time.

httptools parses responses as they arrive, as it does the server's requests: a small chunk costs a
third of what h11 takes, and the proxy receives thousands a second.
"""

from __future__ import annotations

from typing import Final

import httptools

from holdfast.net.exchange import HttpConnection, OutboundRequest, OutboundStream
from holdfast.net.failures import InvalidResponseError, TransportError
from holdfast.net.sockets import SocketProtocol
from holdfast.net.targets import Target

# The socket is not read while this much of a response waits for the caller.
UNREAD_BYTES_MAX: Final = 1024 * 1024
# What may arrive without a piece of the body: the head, interim responses included, or trailers.
_HEAD_BYTES_MAX: Final = 160 * 1024


class Http1Response(OutboundStream):
    """httptools calls the `on_…` methods."""

    def __init__(self, connection: Http1Connection, request: OutboundRequest) -> None:
        super().__init__(request)
        self._connection = connection
        self._is_head_request = request.method == b"HEAD"
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._header_list: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._is_sized = False
        self._keeps_alive = False
        # Whether all of the request was written.
        self.sent = False
        # More bytes than the response has followed.
        self._has_excess = False
        self.unread_bytes = 0

    def feed(self, data: bytes) -> None:
        assert self._parser is not None, "the response is not closed"
        if self._failure is not None or self._has_excess:
            return
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.failed(InvalidResponseError("The server switched to another protocol."))
        except httptools.HttpParserError:
            self._has_excess = True
            self.failed(InvalidResponseError("This is not HTTP/1.1."))
        if self._head_bytes > _HEAD_BYTES_MAX:
            self.failed(InvalidResponseError("The head or the trailers are too long."))

    def connection_lost(self, error: Exception | None) -> None:
        self._keeps_alive = False
        if error is not None:
            failure = TransportError()
            failure.__cause__ = error
            self.failed(failure)
        elif self.status and not self._is_sized:
            self.finished()
        else:
            self.failed(InvalidResponseError("The server closed the connection."))

    def on_message_begin(self) -> None:
        # A response that follows an interim one is in order.
        self._has_excess = self._has_excess or bool(self.status)

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers are ignored.
        if not self.status:
            self._header_list.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None, "the response is not closed"
        status = self._parser.get_status_code()
        # After 101, which nothing here asks for, the parser raises.
        if self.status or status < 200:
            return
        self._keeps_alive = self._parser.should_keep_alive()
        headers = {name.lower(): value for name, value in self._header_list}
        last_coding = headers.get(b"transfer-encoding", b"").lower().rpartition(b",")[2]
        self._is_sized = b"content-length" in headers or last_coding.strip() == b"chunked"
        self.begun(status, self._header_list)
        if self._is_head_request:
            self.finished()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        if self.is_over:
            # The response to a HEAD request has no body, and more of this one may follow.
            self._has_excess = True
            return
        if self.arrived(body):
            self.unread_bytes += len(body)
            if self.unread_bytes > UNREAD_BYTES_MAX:
                self._connection.pause()

    def _taken(self, size: int) -> None:
        self.unread_bytes -= size
        if self.unread_bytes <= UNREAD_BYTES_MAX // 2:
            self._connection.resume()

    def on_message_complete(self) -> None:
        if self.status:
            self.finished()
        else:
            self._header_list = []

    @property
    def leaves_connection(self) -> bool:
        return self.sent and self._complete and self._keeps_alive and not self._has_excess

    def close(self) -> None:
        super().close()
        # The parser holds methods of this object: without a cycle it is freed at once.
        self._parser = None
        self._connection.leave(self)


class Http1Connection(HttpConnection):
    def __init__(self, target: Target, socket: SocketProtocol) -> None:
        super().__init__(target, socket)
        self._response: Http1Response | None = None
        self._is_paused = False
        socket.receive(self)

    async def send(self, request: OutboundRequest) -> OutboundStream:
        assert self._response is None, "one request at a time"
        response = self._response = Http1Response(self, request)
        try:
            try:
                await self._write(request)
                response.sent = True
            except TransportError as error:
                # A server that closed the connection may have said why.
                if error.late:
                    raise
            await response.head()
        except BaseException:
            response.close()
            raise
        return response

    async def _write(self, request: OutboundRequest) -> None:
        socket, limit_s = self._socket, request.silence_s
        headers = b"".join([b"%b: %b\r\n" % header for header in request.headers])
        socket.write(b"%b %b HTTP/1.1\r\n%b\r\n" % (request.method, request.path, headers))
        if isinstance(request.body, bytes):
            if request.body:
                socket.write(request.body)
                await socket.drain(limit_s)
            return
        chunked = any(name.lower() == b"transfer-encoding" for name, _ in request.headers)
        async for piece in request.body:
            if piece:
                socket.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                await socket.drain(limit_s)
        if chunked:
            socket.write(b"0\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        if self._response is None:
            # Bytes without a request: the connection is out of step.
            self.close()
        else:
            self._response.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._response is not None:
            self._response.connection_lost(error)
        super().close()

    def leave(self, response: Http1Response) -> None:
        """The caller is done with the response, complete or not."""
        if self._response is not response:
            return
        self._response = None
        if response.leaves_connection and not self.is_closed:
            self.resume()
            self.on_free(self)
        else:
            self.close()

    def close(self) -> None:
        if self._response is not None:
            self._response.failed(TransportError("The connection is closed."))
        super().close()

    @property
    def is_idle(self) -> bool:
        return self._response is None

    @property
    def has_room(self) -> bool:
        return self.is_idle and not self.is_closed

    def pause(self) -> None:
        if not self._is_paused and not self.is_closed:
            self._is_paused = True
            self._socket.transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused and not self.is_closed:
            self._is_paused = False
            self._socket.transport.resume_reading()
