"""Connections of the pool, in the protocol that the server chooses.

They are ours, and not httpcore's own, for what happens when a task is cancelled: where httpcore
waits for a lock before it closes a connection or begins to use it, the connection would be neither
used nor closed ever after, and the pool one short. Nothing is waited for here.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

import httpcore

from holdfast.net.http1 import Http1Connection
from holdfast.net.http2 import Http2Connection
from holdfast.net.pinned import PinnedBackend

KEEP_ALIVE_S: Final = 20.0


class Connection(httpcore.AsyncConnectionInterface):
    """A connection to one server, made with the first request."""

    def __init__(
        self,
        origin: httpcore.Origin,
        tls: ssl.SSLContext,
        backend: PinnedBackend,
        *,
        http2: bool,
    ) -> None:
        self._origin = origin
        self._tls = tls
        self._backend = backend
        self._http2 = http2
        self._inner: httpcore.AsyncConnectionInterface | None = None
        self._opening = asyncio.Lock()
        self._is_of_no_use = False

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        """Connect if need be, send a request, and wait for the head of its answer."""
        if self._inner is None:
            async with self._opening:
                if self._is_of_no_use:
                    raise httpcore.ConnectionNotAvailable
                if self._inner is None:
                    self._inner = await self._connected(request)
        return await self._inner.handle_async_request(request)

    async def _connected(self, request: httpcore.Request) -> httpcore.AsyncConnectionInterface:
        timeout_s = request.extensions.get("timeout", {}).get("connect")
        host = self._origin.host.decode("ascii")
        try:
            stream = await self._backend.connect_tcp(host, self._origin.port, timeout_s)
            if self._origin.scheme == b"https":
                self._tls.set_alpn_protocols(["h2", "http/1.1"] if self._http2 else ["http/1.1"])
                await stream.start_tls(self._tls, host, timeout_s)
        except BaseException:
            self._is_of_no_use = True
            raise
        spoken = stream.get_extra_info("ssl_object")
        if spoken is not None and spoken.selected_alpn_protocol() == "h2":
            return Http2Connection(self._origin, stream, KEEP_ALIVE_S)
        return Http1Connection(self._origin, stream, KEEP_ALIVE_S)

    async def aclose(self) -> None:
        """Close at once; answers under way fail."""
        self._is_of_no_use = True
        if self._inner is not None:
            await self._inner.aclose()

    def can_handle_request(self, origin: httpcore.Origin) -> bool:
        """Whether it leads where a request is to go."""
        return origin == self._origin

    def is_available(self) -> bool:
        """Whether it takes another request now; one that is being made may turn out to."""
        if self._inner is not None:
            return self._inner.is_available()
        return self._http2 and self._origin.scheme == b"https" and not self._is_of_no_use

    def has_expired(self) -> bool:
        """Whether it was idle for too long, or the server has hung up."""
        return self._inner is not None and self._inner.has_expired()

    def is_idle(self) -> bool:
        """Whether it has no request under way; the one it was made for may never have come."""
        return not self._opening.locked() if self._inner is None else self._inner.is_idle()

    def is_closed(self) -> bool:
        """Whether it is of no use any more."""
        return self._is_of_no_use or (self._inner is not None and self._inner.is_closed())

    def info(self) -> str:
        """For those who look at a pool."""
        return "not connected" if self._inner is None else self._inner.info()


class Pool(httpcore.AsyncConnectionPool):
    """A pool of such connections."""

    def __init__(self, tls: ssl.SSLContext, backend: PinnedBackend, connections_max: int) -> None:
        super().__init__(max_connections=connections_max, max_keepalive_connections=connections_max)
        self._tls = tls
        self._backend = backend

    def create_connection(self, origin: httpcore.Origin) -> httpcore.AsyncConnectionInterface:
        """A connection that is still to be made."""
        return Connection(origin, self._tls, self._backend, http2=True)
