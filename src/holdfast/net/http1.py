"""A connection that speaks HTTP/1.1: one request at a time, answers taken in as they come.

Answers are parsed by httptools, as the server's requests are: a small chunk costs a third of what
it costs in httpcore's own connection, and the proxy takes in thousands of them a second. As in
`http2.py` nothing is waited for on the way out: a task can be cancelled anywhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import httpcore
import httptools

from holdfast.net.sockets import SocketStream

_READ_BYTES: Final = 64 * 1024
# What may come before the answer's head is complete, interim answers included.
_HEAD_BYTES_MAX: Final = 160 * 1024
_Limits = dict[str, float | None]


class _Answer:
    """What has come of an answer; httptools calls the `on_…` methods."""

    def __init__(self, method: bytes) -> None:
        self._method = method
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self._is_sized = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.version = b""
        self.has_head = False
        self.keeps_alive = False
        self.is_complete = False
        # Something follows that nobody has asked for.
        self.has_excess = False
        self.pieces: deque[bytes] = deque()
        self.failure: str = ""

    def feed(self, data: bytes) -> None:
        """Take in what has come; nothing is the end of the connection."""
        if not data:
            self._end()
            return
        if not self.has_head:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES_MAX:
                self.failure = "The head of the answer is too long."
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.failure = "The server wants to speak another protocol."
        except httptools.HttpParserError:
            if not self.is_complete:
                self.failure = "What came is no HTTP/1.1."
            self.has_excess = True

    def _end(self) -> None:
        self.keeps_alive = False
        if self.has_head and not self._is_sized:
            self.is_complete = True
        elif not self.is_complete:
            self.failure = "The server hung up."

    def on_message_begin(self) -> None:
        """Another answer begins: behind an interim one that is as it should be."""
        self.has_excess = self.has_excess or self.has_head

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head; those behind the body are of no use."""
        if not self.has_head:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete; if it is an interim one, the real one is still to come."""
        if self.has_head:
            return
        status = self._parser.get_status_code()
        if status < 200:
            # Nobody offers another protocol (101): that one fails once the parser says so.
            return
        self.status = status
        self.version = b"HTTP/" + self._parser.get_http_version().encode()
        self.keeps_alive = self._parser.should_keep_alive()
        self.has_head = True
        self.is_complete = self._method == b"HEAD"
        fields = {name.lower(): value for name, value in self.headers}
        last_coding = fields.get(b"transfer-encoding", b"").lower().rpartition(b",")[2]
        self._is_sized = b"content-length" in fields or last_coding.strip() == b"chunked"

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if not self.is_complete:
            self.pieces.append(body)

    def on_message_complete(self) -> None:
        """All of the answer has come, or of an interim one."""
        if self.has_head:
            self.is_complete = True
        else:
            self.headers = []

    @property
    def leaves_connection(self) -> bool:
        """Whether another request may follow on the same connection."""
        return self.is_complete and self.keeps_alive and not self.has_excess


class Http1Connection(httpcore.AsyncConnectionInterface):
    """One connection, for one request after another."""

    def __init__(self, origin: httpcore.Origin, stream: SocketStream, keep_alive_s: float) -> None:
        self._origin = origin
        self._stream = stream
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._answer: _Answer | None = None
        self._is_closed = False
        self._expires_at = self._loop.time() + keep_alive_s

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        """Send a request and wait for the head of its answer."""
        if self._is_closed or self._answer is not None:
            raise httpcore.ConnectionNotAvailable
        answer = self._answer = _Answer(request.method)
        limits: _Limits = request.extensions.get("timeout", {})
        try:
            # A server that takes no more may have said why.
            with suppress(httpcore.WriteError):
                await self._send(request, limits.get("write"))
            while not answer.has_head:
                await self._receive(answer, limits)
        except BaseException:
            self._leave(answer)
            raise
        return httpcore.Response(
            answer.status,
            headers=answer.headers,
            content=_Content(self, answer, limits),
            extensions={"http_version": answer.version, "network_stream": self._stream},
        )

    async def _send(self, request: httpcore.Request, limit_s: float | None) -> None:
        lines = [b"%b %b HTTP/1.1\r\n" % (request.method, request.url.target)]
        lines += [b"%b: %b\r\n" % field for field in request.headers]
        write = self._stream.write
        await write(b"".join([*lines, b"\r\n"]), limit_s)
        is_chunked = any(name.lower() == b"transfer-encoding" for name, _ in request.headers)
        assert hasattr(request.stream, "__aiter__")
        async for piece in request.stream:
            if is_chunked and piece:
                await write(b"%x\r\n%b\r\n" % (len(piece), piece), limit_s)
            else:
                await write(piece, limit_s)
        if is_chunked:
            await write(b"0\r\n\r\n", limit_s)

    async def _receive(self, answer: _Answer, limits: _Limits) -> None:
        """Wait for more of the answer; raises if there will be none."""
        if answer.failure:
            raise httpcore.RemoteProtocolError(answer.failure)
        answer.feed(await self._stream.read(_READ_BYTES, limits.get("read")))

    async def pieces(self, answer: _Answer, limits: _Limits) -> AsyncIterator[bytes]:
        """The body as it comes."""
        pieces = answer.pieces
        while True:
            while pieces:
                yield pieces.popleft()
            if answer.is_complete:
                return
            await self._receive(answer, limits)

    def _leave(self, answer: _Answer) -> None:
        """Nobody waits for the answer any more, or it is complete."""
        if self._answer is not answer:
            return
        self._answer = None
        if answer.leaves_connection:
            self._expires_at = self._loop.time() + self._keep_alive_s
        else:
            self._close()

    def _close(self) -> None:
        self._is_closed = True
        self._stream.close()

    async def aclose(self) -> None:
        """Close at once; an answer under way fails."""
        self._close()

    def can_handle_request(self, origin: httpcore.Origin) -> bool:
        """Whether it leads where a request is to go."""
        return origin == self._origin

    def is_available(self) -> bool:
        """Whether it takes another request now."""
        return self._answer is None and not self._is_closed

    def has_expired(self) -> bool:
        """Whether it was idle for too long, or the server has hung up."""
        if self._answer is not None:
            return False
        is_readable = self._stream.get_extra_info("is_readable")
        return bool(is_readable) or self._loop.time() > self._expires_at

    def is_idle(self) -> bool:
        """Whether it has no request under way."""
        return self._answer is None and not self._is_closed

    def is_closed(self) -> bool:
        """Whether it is of no use any more."""
        return self._is_closed

    def info(self) -> str:
        """For those who look at a pool."""
        return "HTTP/1.1, " + ("idle" if self._answer is None else "a request under way")


class _Content:
    """An answer's body, as the pool takes it."""

    def __init__(self, connection: Http1Connection, answer: _Answer, limits: _Limits) -> None:
        self._connection = connection
        self._answer = answer
        self._limits = limits

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._connection.pieces(self._answer, self._limits)

    async def aclose(self) -> None:
        self._connection._leave(self._answer)
