"""The pool: connections to checked addresses, used again and shared.

Rules:

- A name is resolved here, once for each connection, and every address is checked before it is
  connected to: its owner may change the address behind a name between a check and a connection. TLS
  and the Host header use the name.
- An HTTP/1.1 connection serves one request at a time. The one that was used last is used again
  first. One that was idle for `KEEP_ALIVE_S`, or that the server closed, is not.
- An HTTP/2 connection is shared by as many requests as its server takes. While one may be about to
  open, requests to the same server wait for it instead of opening more.
- There are at most `connections_max` connections. Beyond that an idle one makes room, and if there
  is none requests wait in order. What becomes free is handed to the first of them directly, so
  that no later request can take it.
- Nothing is waited for on the way back: a task can be cancelled anywhere.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeGuard

from holdfast.errors import OutboundError
from holdfast.net.addresses import parse_address
from holdfast.net.exchange import HttpConnection, OutboundRequest, OutboundStream
from holdfast.net.failures import (
    ConnectFailedError,
    ConnectTimeoutError,
    PoolTimeoutError,
    TransportError,
)
from holdfast.net.http1 import Http1Connection
from holdfast.net.sockets import SocketProtocol, open_socket
from holdfast.net.targets import Policy, Target

if TYPE_CHECKING:
    from holdfast.net.http2 import Http2Connection

# The addresses of a host and port, best first.
Resolver = Callable[[str, int], Awaitable[list[str]]]

CONNECT_TIMEOUT_S: Final = 10.0
KEEP_ALIVE_S: Final = 20.0
# Connections that are kept without a request.
IDLE_CONNECTIONS_MAX: Final = 64
ADDRESSES_TRIED_MAX: Final = 4


async def system_resolver(host: str, port: int) -> list[str]:
    """Ask the system, in a thread."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in found]


def tls_context() -> ssl.SSLContext:
    """Trust what the system trusts, or where it has no such list what browsers trust."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile or paths.capath:
        return ssl.create_default_context()
    import certifi  # noqa: PLC0415 (slow to load, and rarely needed)

    return ssl.create_default_context(cafile=certifi.where())


class Connector:
    """Opens connections to addresses that the policy admits."""

    def __init__(self, policy: Policy, resolve: Resolver, tls: ssl.SSLContext | None) -> None:
        self._policy = policy
        self._resolve = resolve
        self._tls = tls

    async def connect(
        self, target: Target, silence_s: float, *, http2: bool = True
    ) -> Http1Connection | Http2Connection:
        limit_s = min(CONNECT_TIMEOUT_S, silence_s)
        opened = await self._open_socket(target, limit_s)
        if target.scheme == "https":
            tls = self._tls = self._tls or tls_context()
            tls.set_alpn_protocols(["h2", "http/1.1"] if http2 else ["http/1.1"])
            await opened.start_tls(tls, target.host, limit_s)
        if opened.speaks_http2:
            # Slow to load, and clients of http:// URLs never need it.
            from holdfast.net.http2 import Http2Connection  # noqa: PLC0415

            return Http2Connection(target, opened)
        return Http1Connection(target, opened)

    async def _open_socket(self, target: Target, limit_s: float) -> SocketProtocol:
        """Connect to one of the host's addresses, if all of them are admitted."""
        addresses = await self._addresses(target)
        for address in addresses:
            self._policy.check_address(target.host, target.port, address)
        tried = addresses[:ADDRESSES_TRIED_MAX]
        for address in tried:
            try:
                return await open_socket(address, target.port, limit_s / len(tried))
            except (ConnectFailedError, ConnectTimeoutError):
                if address == tried[-1]:
                    raise
        raise AssertionError("at least one address was tried")

    async def _addresses(self, target: Target) -> list[str]:
        host = target.host
        if parse_address(host) is not None:
            return [host]
        try:
            found = await self._resolve(host, target.port)
        except (OSError, UnicodeError):  # UnicodeError: labels that the codec for names refuses
            found = []
        if not found:
            raise OutboundError(f"The name {host} has no address.", sent=False)
        return list(dict.fromkeys(found))


def _is_http2(connection: HttpConnection | None) -> TypeGuard[Http2Connection]:
    return connection is not None and not isinstance(connection, Http1Connection)


class _Origin:
    __slots__ = ("connections", "idle", "opening", "shared", "uses_http1")

    def __init__(self, target: Target) -> None:
        # Opened and opening.
        self.connections = 0
        self.idle: list[Http1Connection] = []
        self.shared: list[Http2Connection] = []
        # Done when a connection is open that others may share.
        self.opening: asyncio.Future[None] | None = None
        self.uses_http1 = target.scheme == "http"

    def opened(self) -> None:
        opening, self.opening = self.opening, None
        if opening is not None:
            opening.set_result(None)


class ConnectionPool:
    def __init__(self, connector: Connector, connections_max: int) -> None:
        self._connector = connector
        self._slots = connections_max
        self._origins: dict[Target, _Origin] = {}
        self._connections: set[HttpConnection] = set()
        # Those without a request, the longest idle first.
        self._idle: OrderedDict[HttpConnection, None] = OrderedDict()
        # Requests that wait, in order; each gets a connection, or a slot (None) to open one in.
        # While there are any, there is neither a free slot nor an idle connection.
        self._waiting: OrderedDict[asyncio.Future[HttpConnection | None], Target] = OrderedDict()
        self._is_closed = False

    async def send(self, request: OutboundRequest) -> OutboundStream:
        """Send a request on a connection of its server, and wait for the head of the response."""
        connection = self._ready(request.target)
        if connection is None:
            connection = await self._acquire(request.target, request.silence_s)
        return await connection.send(request)

    async def _acquire(self, target: Target, limit_s: float) -> HttpConnection:
        clock_s = asyncio.get_running_loop().time
        # One limit for all waiting: many connections in a row may fail to open.
        give_up_s = clock_s() + limit_s
        while True:
            if (connection := self._ready(target)) is not None:
                return connection
            origin = self._origins.get(target)
            if origin is not None and origin.opening is not None and not origin.uses_http1:
                opened, _ = await asyncio.wait(
                    [origin.opening], timeout=max(0.0, give_up_s - clock_s())
                )
                if not opened:
                    raise PoolTimeoutError
            elif self._take_slot():
                return await self._open(target, limit_s)
            else:
                connection = await self._wait(target, give_up_s - clock_s())
                if connection is None:
                    return await self._open(target, limit_s)
                if connection.has_room:
                    return connection
                # Meanwhile it was closed, or its server has announced that it takes no more.
                if not connection.is_closed:
                    self._freed(connection)

    def _ready(self, target: Target) -> HttpConnection | None:
        self._close_expired()
        origin = self._origins.get(target)
        if origin is None:
            return None
        connection: HttpConnection | None
        if origin.idle:
            connection = origin.idle.pop()
        else:
            connection = next((each for each in origin.shared if each.has_room), None)
        if connection is not None:
            self._idle.pop(connection, None)
        return connection

    def _close_expired(self) -> None:
        now_s = asyncio.get_running_loop().time()
        while self._idle:
            oldest = next(iter(self._idle))
            if oldest.expires_at_s > now_s and len(self._idle) <= IDLE_CONNECTIONS_MAX:
                return
            oldest.close()

    def _take_slot(self) -> bool:
        if not self._slots and self._idle:
            next(iter(self._idle)).close()
        if not self._slots:
            return False
        self._slots -= 1
        return True

    def _free_slot(self) -> None:
        if self._first_waiting() is None:
            self._slots += 1
        else:
            self._waiting.popitem(last=False)[0].set_result(None)

    def _first_waiting(self) -> Target | None:
        """Where the first request that waits wants to go."""
        while self._waiting:
            waiter, target = next(iter(self._waiting.items()))
            if not waiter.done():
                return target
            # Its task was cancelled, and has not run since.
            del self._waiting[waiter]
        return None

    async def _open(self, target: Target, limit_s: float) -> HttpConnection:
        """Open a connection in a slot that was taken for it."""
        origin = self._origins.setdefault(target, _Origin(target))
        origin.connections += 1
        announces = origin.opening is None
        if announces:
            origin.opening = asyncio.get_running_loop().create_future()
        try:
            connection = await self._connect(target, limit_s)
        except BaseException:
            self._leave_origin(target, origin)
            if announces:
                origin.opened()
            raise
        self._connections.add(connection)
        connection.on_free, connection.on_closed = self._freed, self._closed
        if _is_http2(connection):
            origin.shared.append(connection)
            if announces:
                # The server's settings say how many requests can share it.
                connection.settled.add_done_callback(lambda _: origin.opened())
        else:
            origin.uses_http1 = True
            if announces:
                origin.opened()
        return connection

    async def _connect(self, target: Target, limit_s: float) -> Http1Connection | Http2Connection:
        connection = await self._connector.connect(target, limit_s)
        if connection.is_closed or self._is_closed:
            connection.close()
            raise ConnectFailedError
        return connection

    async def _wait(self, target: Target, limit_s: float) -> HttpConnection | None:
        waiter: asyncio.Future[HttpConnection | None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = target
        try:
            async with asyncio.timeout(limit_s):
                connection = await waiter
        except BaseException as error:
            self._waiting.pop(waiter, None)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._give_back(waiter.result())
            if isinstance(error, TimeoutError):
                raise PoolTimeoutError from None
            raise
        if _is_http2(connection):
            connection.reserved -= 1
        return connection

    def _give_back(self, connection: HttpConnection | None) -> None:
        """A request was cancelled that had been handed something."""
        if connection is None:
            self._free_slot()
            return
        if _is_http2(connection):
            connection.reserved -= 1
        if not connection.is_closed:
            self._freed(connection)

    def _freed(self, connection: HttpConnection) -> None:
        """A connection takes another request: hand it on, or keep it."""
        first = self._first_waiting()
        if _is_http2(connection):
            if first is not None:
                self._share(connection)
        elif first == connection.target:
            self._waiting.popitem(last=False)[0].set_result(connection)
            return
        if not connection.is_idle:
            return
        if self._first_waiting() is not None:
            # Its slot goes to the first of them, which wants another server.
            connection.close()
            return
        connection.expires_at_s = asyncio.get_running_loop().time() + KEEP_ALIVE_S
        self._idle[connection] = None
        self._idle.move_to_end(connection)
        if isinstance(connection, Http1Connection):
            self._origins[connection.target].idle.append(connection)
        self._close_expired()

    def _share(self, connection: Http2Connection) -> None:
        for waiter, target in list(self._waiting.items()):
            if not connection.has_room:
                return
            if target == connection.target and not waiter.done():
                del self._waiting[waiter]
                connection.reserved += 1
                waiter.set_result(connection)

    def _closed(self, connection: HttpConnection) -> None:
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        origin = self._origins[connection.target]
        was_idle = self._idle.pop(connection, 0) is None
        if _is_http2(connection):
            origin.shared.remove(connection)
        elif isinstance(connection, Http1Connection) and was_idle:
            origin.idle.remove(connection)
        self._leave_origin(connection.target, origin)

    def _leave_origin(self, target: Target, origin: _Origin) -> None:
        origin.connections -= 1
        if not origin.connections:
            del self._origins[target]
        self._free_slot()

    def close(self) -> None:
        """Close every connection; requests under way fail, and so do those that wait."""
        self._is_closed = True
        waiting = list(self._waiting)
        self._waiting.clear()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(TransportError())
        for connection in list(self._connections):
            connection.close()
