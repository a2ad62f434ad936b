"""Calls to other servers.

Rules:

- Every URL passes the `Policy`, and so does every address before it is connected to (`pool.py`).
- Redirects are responses like others: a caller that follows one checks it as a new URL.
- Nothing comes from the environment or from earlier responses: no proxies, no cookies, no netrc.
- Every call has a time limit and a size limit. Calls are not repeated: only the caller knows
  whether that does harm.
- Errors name scheme, host and port of a URL. The rest of it may be a secret, and so may headers.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from holdfast.errors import OutboundError
from holdfast.net.exchange import (
    Headers,
    HttpConnection,
    OutboundRequest,
    OutboundStream,
    RequestBody,
    joined,
    make_request,
)
from holdfast.net.failures import TransportError, outbound_error, too_late
from holdfast.net.pool import ConnectionPool, Connector, Resolver, system_resolver, tls_context
from holdfast.net.targets import Policy

__all__ = ["Outbound", "OutboundResponse", "OutboundStream", "joined", "tls_context"]

CONNECTIONS_MAX: Final = 256
# Calls under way or waiting for a connection; more are refused at once.
CALLS_MAX: Final = 2048


@dataclass(frozen=True, slots=True)
class OutboundResponse:
    """A whole response. Names of headers are lower-case; repeated ones are joined with a comma."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Outbound:
    """Calls other servers over a pool of connections, HTTP/1.1 and HTTP/2."""

    def __init__(
        self,
        policy: Policy,
        *,
        resolve: Resolver = system_resolver,
        tls: ssl.SSLContext | None = None,
        loads_certificates: bool = True,
        connections_max: int = CONNECTIONS_MAX,
        calls_max: int = CALLS_MAX,
    ) -> None:
        _keep_headers_out_of_the_log()
        # Takes long enough to disturb a server later; a client may never need them.
        if tls is None and loads_certificates:
            tls = tls_context()
        self._policy = policy
        self._connector = Connector(policy, resolve, tls)
        self._pool = ConnectionPool(self._connector, connections_max)
        self._unpooled: set[HttpConnection] = set()
        self._calls_max = calls_max
        self._calls = 0

    async def request(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: bytes = b"",
        *,
        timeout_s: float,
        bytes_max: int,
        is_total: bool = True,
    ) -> OutboundResponse:
        """Call `url` and return the whole response, whatever its status.

        Raises OutboundRefusedError if the URL must not be called, and OutboundError if it does not
        respond in `timeout_s` seconds with at most `bytes_max` bytes. Unless the time `is_total`,
        it is the time for the next piece of the response, however many there are.
        """
        response: OutboundStream | None = None
        request = self._begin(method, url, headers, body, timeout_s)
        try:
            async with asyncio.timeout(timeout_s if is_total else None):
                response = await self._pool.send(request)
                content = await response.read(bytes_max)
        except TimeoutError:
            raise too_late(request.target, timeout_s) from None
        except TransportError as error:
            raise outbound_error(error, request.target) from None
        finally:
            self._calls -= 1
            if response is not None:
                response.close()
        return OutboundResponse(response.status, joined(response.headers), content)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: RequestBody = b"",
        *,
        silence_s: float,
        header_timeout_s: float | None = None,
        alone: bool = False,
    ) -> AsyncIterator[OutboundStream]:
        """Call `url` for a response in pieces; `silence_s` is the longest wait for each.

        `header_timeout_s` is the time for everything before the first one: waiting for a
        connection, opening it, sending the body, and the response's head. A body in pieces is sent
        in chunks unless the headers say how long it is.

        Leaving the block early gives up the rest of the response, and its connection with it.
        `alone` is for responses that last: they get a connection of their own outside the pool.
        """
        request = self._begin(method, url, headers, body, silence_s)
        response: OutboundStream | None = None
        connection: HttpConnection | None = None
        try:
            try:
                async with asyncio.timeout(header_timeout_s) as limit:
                    if alone:
                        connection = await self._connector.connect(
                            request.target, silence_s, http2=False
                        )
                        self._unpooled.add(connection)
                        response = await connection.send(request)
                    else:
                        response = await self._pool.send(request)
            except TimeoutError:
                if header_timeout_s is None or not limit.expired():
                    # It is the error of the caller's body.
                    raise
                raise too_late(request.target, header_timeout_s) from None
            except TransportError as error:
                raise outbound_error(error, request.target) from None
            yield response
        finally:
            self._calls -= 1
            if response is not None:
                response.close()
            if connection is not None:
                self._unpooled.discard(connection)
                connection.close()

    def _begin(
        self, method: str, url: str, headers: Headers, body: RequestBody, silence_s: float
    ) -> OutboundRequest:
        target = self._policy.check_url(url)
        if self._calls >= self._calls_max:
            raise OutboundError(
                f"{self._calls_max} calls to other servers are under way already.", sent=False
            )
        request = make_request(target, method, url, headers, body, silence_s)
        self._calls += 1
        return request

    async def aclose(self) -> None:
        """Close every connection; calls under way fail."""
        for connection in list(self._unpooled):
            connection.close()
        self._pool.close()


def _keep_headers_out_of_the_log() -> None:
    """At debug level these libraries write headers, and so credentials, to the log."""
    for name in ("h2", "hpack"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)
