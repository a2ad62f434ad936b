"""TCP and TLS connections on the event loop's own transports.

Received bytes are pushed to a receiver. Bytes written within one round of the event loop leave as
one packet: a request's head and body would otherwise be two, and wake the server twice.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, Protocol

from holdfast.net.failures import (
    ConnectFailedError,
    ConnectTimeoutError,
    SilenceError,
    TransportError,
)

# A larger amount is handed to the transport at once instead of at the end of the round.
GATHERED_BYTES_MAX: Final = 64 * 1024


class Receiver(Protocol):
    """What becomes of received bytes."""

    def data_received(self, data: bytes) -> None: ...

    def connection_lost(self, error: Exception | None) -> None:
        """Nothing more arrives; called once, `error` None if the peer ended the connection."""


class SocketProtocol(asyncio.Protocol):
    """One connection, with or without TLS. Closing it never waits."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.is_lost = False
        self._error: Exception | None = None
        self._receiver: Receiver | None = None
        # Bytes that arrived before there was a receiver.
        self._early: list[bytes] = []
        self._ended = False
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._is_full = False
        self._writers: set[asyncio.Future[None]] = set()

    def receive(self, receiver: Receiver) -> None:
        """Pass on everything from now on, and what has arrived already."""
        self._receiver = receiver
        early, self._early = self._early, []
        for data in early:
            receiver.data_received(data)
        if self._ended:
            receiver.connection_lost(self._error)

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment] # a socket's transport goes both ways

    def data_received(self, data: bytes) -> None:
        if self._receiver is None:
            self._early.append(data)
        else:
            self._receiver.data_received(data)

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._end(exc)
        for writer in self._writers:
            wake(writer)

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._error = error
        if self._receiver is not None:
            self._receiver.connection_lost(error)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        for writer in self._writers:
            wake(writer)

    # Called by the HTTP connection.

    def write(self, data: bytes) -> None:
        """Send, together with what else is written in this round of the event loop."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send)
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes >= GATHERED_BYTES_MAX:
            self._send()

    def _send(self) -> None:
        if not self._unsent:
            return
        data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
        self._unsent.clear()
        self._unsent_bytes = 0
        if not self.transport.is_closing():
            self.transport.write(data)

    @property
    def unsent_bytes(self) -> int:
        return self._unsent_bytes + self.transport.get_write_buffer_size()

    async def drain(self, limit_s: float) -> None:
        """Wait while there is no room to write more; raises once the connection is closed."""
        while self._is_full and not self.transport.is_closing():
            writer = asyncio.get_running_loop().create_future()
            self._writers.add(writer)
            try:
                async with asyncio.timeout(limit_s):
                    await writer
            except TimeoutError:
                raise SilenceError(limit_s) from None
            finally:
                self._writers.discard(writer)
        if self._ended or self.transport.is_closing():
            raise TransportError from self._error

    def close(self) -> None:
        """Close at once; unsent bytes are dropped."""
        self._unsent.clear()
        self._unsent_bytes = 0
        if not self.is_lost:
            self.transport.abort()

    async def start_tls(self, tls: ssl.SSLContext, host: str, limit_s: float) -> None:
        """Shake hands; a handshake that fails or is cancelled leaves no socket behind."""
        if self._early:
            # Not encrypted, so anyone may have sent it: it must not precede what the server sends.
            self.close()
            raise ConnectFailedError
        try:
            async with asyncio.timeout(limit_s):
                transport = await asyncio.get_running_loop().start_tls(
                    self.transport, self, tls, server_hostname=host
                )
        except TimeoutError:
            self.close()
            raise ConnectTimeoutError from None
        except OSError as error:  # ssl.SSLError is one
            self.close()
            raise ConnectFailedError from error
        except BaseException:
            self.close()
            raise
        if transport is None:
            raise ConnectFailedError
        self.transport = transport

    @property
    def speaks_http2(self) -> bool:
        tls = self.transport.get_extra_info("ssl_object")
        return tls is not None and tls.selected_alpn_protocol() == "h2"


async def open_socket(address: str, port: int, limit_s: float) -> SocketProtocol:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(limit_s):
            _, protocol = await loop.create_connection(SocketProtocol, address, port)
    except TimeoutError:
        raise ConnectTimeoutError from None
    except OSError as error:
        raise ConnectFailedError from error
    return protocol


def wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
