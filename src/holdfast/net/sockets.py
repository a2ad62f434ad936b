"""A connection, as the pool drives it, on the event loop's own transports.

The pool comes with such a thing for several async libraries at once. This one is for asyncio alone,
costs half as much for each request, and sends what is written in one go as one packet: a request's
head and body would be two otherwise, and two wake-ups for the server.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import httpcore

# Beyond this much unread nothing more is taken from the socket.
UNREAD_BYTES_MAX: Final = 1024 * 1024
# Beyond this much unsent a write goes out at once.
UNSENT_BYTES_MAX: Final = 64 * 1024


async def connect(address: str, port: int, timeout_s: float | None) -> SocketStream:
    """Open a connection to an address."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            _, protocol = await loop.create_connection(_Protocol, address, port)
    except TimeoutError:
        raise httpcore.ConnectTimeout("The connection was not made in time.") from None
    except OSError as error:
        raise httpcore.ConnectError(str(error)) from error
    return SocketStream(protocol)


class _Protocol(asyncio.Protocol):
    """Holds what came until it is asked for."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.unread: deque[bytes] = deque()
        self.unread_bytes = 0
        self.ended = False
        self.is_lost = False
        self.error: Exception | None = None
        self.is_reading = True
        self.is_full = False
        # Whoever waits, for bytes or for room.
        self.reader: asyncio.Future[None] | None = None
        self.writers: set[asyncio.Future[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment] # of a socket, so both ways

    def data_received(self, data: bytes) -> None:
        self.unread.append(data)
        self.unread_bytes += len(data)
        if self.unread_bytes > UNREAD_BYTES_MAX and self.is_reading:
            self.is_reading = False
            self.transport.pause_reading()
        wake(self.reader)

    def eof_received(self) -> None:
        self.ended = True
        wake(self.reader)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = self.is_lost = True
        self.error = self.error or exc
        wake(self.reader)
        self._wake_writers()

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._wake_writers()

    def _wake_writers(self) -> None:
        for writer in self.writers:
            wake(writer)

    def take(self, bytes_max: int) -> bytes:
        """What came, up to a number of bytes."""
        data = self.unread.popleft()
        if len(data) > bytes_max:
            self.unread.appendleft(data[bytes_max:])
            data = data[:bytes_max]
        self.unread_bytes -= len(data)
        if not self.is_reading and self.unread_bytes <= UNREAD_BYTES_MAX // 2 and not self.ended:
            self.is_reading = True
            self.transport.resume_reading()
        return data


class SocketStream(httpcore.AsyncNetworkStream):
    """One connection, with or without TLS."""

    def __init__(self, protocol: _Protocol) -> None:
        self._protocol = protocol
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0

    async def read(
        self,
        max_bytes: int,
        timeout: float | None = None,  # noqa: ASYNC109 (named by httpcore)
    ) -> bytes:
        """The next bytes; none at the end."""
        self._send()
        protocol = self._protocol
        while not protocol.unread:
            if protocol.error is not None:
                raise httpcore.ReadError(str(protocol.error)) from protocol.error
            if protocol.ended:
                return b""
            protocol.reader = asyncio.get_running_loop().create_future()
            try:
                await within(protocol.reader, timeout, httpcore.ReadTimeout)
            finally:
                protocol.reader = None
        return protocol.take(max_bytes)

    async def write(
        self,
        buffer: bytes,
        timeout: float | None = None,  # noqa: ASYNC109 (named by httpcore)
    ) -> None:
        """Send, and wait while there is no room for more."""
        if not buffer:
            return
        self.post(buffer)
        protocol = self._protocol
        while protocol.is_full and not protocol.transport.is_closing():
            writer = asyncio.get_running_loop().create_future()
            protocol.writers.add(writer)
            try:
                await within(writer, timeout, httpcore.WriteTimeout)
            finally:
                protocol.writers.discard(writer)
        if protocol.error is not None or protocol.transport.is_closing():
            raise httpcore.WriteError(str(protocol.error or "The connection is closed."))

    def post(self, buffer: bytes) -> None:
        """Send, together with what is written before the event loop's next round."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send)
        self._unsent.append(buffer)
        self._unsent_bytes += len(buffer)
        if self._unsent_bytes >= UNSENT_BYTES_MAX:
            self._send()

    @property
    def unsent_bytes(self) -> int:
        """How much is still to be sent."""
        return self._unsent_bytes + self._protocol.transport.get_write_buffer_size()

    def _send(self) -> None:
        if not self._unsent:
            return
        data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
        self._unsent.clear()
        self._unsent_bytes = 0
        if not self._protocol.transport.is_closing():
            self._protocol.transport.write(data)

    async def aclose(self) -> None:
        """The same as `close`, as the pool calls it."""
        self.close()

    def close(self) -> None:
        """Close at once: what is unsent has nobody to go to."""
        self._unsent.clear()
        if not self._protocol.is_lost:
            self._protocol.transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 (named by httpcore)
    ) -> httpcore.AsyncNetworkStream:
        """Shake hands; a handshake that fails or is given up leaves no socket behind."""
        protocol = self._protocol
        try:
            async with asyncio.timeout(timeout):
                transport = await asyncio.get_running_loop().start_tls(
                    protocol.transport, protocol, ssl_context, server_hostname=server_hostname
                )
        except TimeoutError:
            await self.aclose()
            raise httpcore.ConnectTimeout("The handshake took too long.") from None
        except (OSError, ssl.SSLError) as error:
            await self.aclose()
            raise httpcore.ConnectError(str(error)) from error
        except BaseException:
            await self.aclose()
            raise
        if transport is None:
            raise httpcore.ConnectError("The connection was closed in the handshake.")
        protocol.transport = transport
        return self

    def get_extra_info(self, info: str) -> Any:
        """What the pool wants to know of the connection."""
        if info == "is_readable":
            # Of an idle connection: the server has hung up, or said something nobody asked for.
            protocol = self._protocol
            return bool(protocol.unread) or protocol.ended or protocol.transport.is_closing()
        if info in {"ssl_object", "socket"}:
            return self._protocol.transport.get_extra_info(info)
        return None


def wake(waiting: asyncio.Future[None] | None) -> None:
    """Let whoever waits go on."""
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


async def within(
    waiting: asyncio.Future[None], limit_s: float | None, too_late: Callable[[str], Exception]
) -> None:
    """Wait, but not longer than the limit; then raise what `too_late` makes."""
    if limit_s is None:
        await waiting
        return
    loop = asyncio.get_running_loop()
    timer = loop.call_later(limit_s, _give_up, waiting, too_late)
    try:
        await waiting
    finally:
        timer.cancel()


def _give_up(waiting: asyncio.Future[None], too_late: Callable[[str], Exception]) -> None:
    if not waiting.done():
        waiting.set_exception(too_late("Nothing came in time."))
