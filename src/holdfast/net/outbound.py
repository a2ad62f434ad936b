"""Calls to other servers.

Rules:

- Every URL passes the `Policy`, and every address before it is connected to (`pinned.py`).
- Redirects are answers like others: whoever follows one checks it as a new URL.
- Nothing comes from the environment or from earlier answers: no proxies, no cookies, no netrc. So
  this drives httpcore's pool and not an httpx client, which would add them, and would write URLs
  to the log.
- Every call has a time limit and a size limit. Calls are not repeated: only the caller knows
  whether that does harm.
- Errors name scheme, host and port of a URL. The rest of it may be a secret, and so may headers.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Final

import certifi
import httpcore

from holdfast.errors import OutboundError
from holdfast.net.connections import Connection, Pool
from holdfast.net.failures import FAILURES, failure_of
from holdfast.net.pinned import PinnedBackend, Resolver, system_resolver
from holdfast.net.pools import Pools
from holdfast.net.sending import Body, Headers, make_request, sent_url
from holdfast.net.targets import Policy, Target
from holdfast.protocol.headers import HEADER_NAME, header_text

CONNECTIONS_MAX: Final = 256
# Calls under way or waiting for a connection; more are refused at once.
CALLS_MAX: Final = 2048
RESPONSE_HEADER_BYTES_MAX: Final = 32_768
# In HTTP/2 a header may hold them, and whoever repeats it would say another one, too.
_LINE_ENDS: Final = re.compile(rb"[\x00\r\n]")


@dataclass(frozen=True, slots=True)
class OutboundResponse:
    """A whole answer. Names of headers are lower-case; repeated ones are joined with a comma."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class OutboundStream:
    """An answer whose body is still to come, as it is on the wire: no encoding is undone."""

    def __init__(self, response: httpcore.Response, target: Target) -> None:
        self._response = response
        self._target = target
        self.status = response.status
        self.headers = [
            (name.decode("ascii").lower(), header_text(value)) for name, value in response.headers
        ]

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body's pieces as they arrive."""
        try:
            assert hasattr(self._response.stream, "__aiter__")
            async for chunk in self._response.stream:
                yield chunk
        except (*FAILURES, OSError) as error:
            raise failure_of(error, self._target) from None

    async def read(self, bytes_max: int) -> bytes:
        """The whole body, or OutboundError once it exceeds `bytes_max`."""
        parts = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > bytes_max:
                raise OutboundError(
                    f"The answer of {self._target} exceeds {bytes_max} bytes.", passing=False
                )
            parts.append(chunk)
        return b"".join(parts)


class Outbound:
    """A pool of connections to other servers, HTTP/1.1 and HTTP/2."""

    def __init__(
        self,
        policy: Policy,
        *,
        resolve: Resolver = system_resolver,
        tls: ssl.SSLContext | None = None,
        connections_max: int = CONNECTIONS_MAX,
        calls_max: int = CALLS_MAX,
    ) -> None:
        _keep_headers_out_of_the_log()
        self._policy = policy
        self._tls = tls or tls_context()
        self._backend = PinnedBackend(policy, resolve)
        self._pools = Pools(connections_max, self._pool)
        self._lone: set[Connection] = set()
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
    ) -> OutboundResponse:
        """Call `url` and return the whole answer, whatever its status.

        Raises OutboundRefusedError if the URL must not be called, and OutboundError if it does not
        answer in `timeout_s` seconds with at most `bytes_max` bytes.
        """
        target = self._policy.check_url(url)
        try:
            async with (
                asyncio.timeout(timeout_s),
                self.stream(method, url, headers, body, silence_s=timeout_s) as answer,
            ):
                content = await answer.read(bytes_max)
        except TimeoutError:
            raise _too_late(target, timeout_s) from None
        return OutboundResponse(answer.status, joined(answer.headers), content)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: bytes | AsyncIterable[bytes] = b"",
        *,
        silence_s: float,
        header_timeout_s: float | None = None,
        alone: bool = False,
    ) -> AsyncIterator[OutboundStream]:
        """Call `url` for an answer in pieces; `silence_s` is the longest wait for each.

        `header_timeout_s` is the time for everything before the first one: waiting for a
        connection, making it, sending the body, and the answer's head. A body in pieces is sent
        in chunks unless the headers say how long it is.

        Leaving the block early gives up the rest of the answer, and its connection with it.
        `alone` is for answers that last: they have a connection of their own, which the pool, whose
        work grows with its connections, knows nothing of.
        """
        target = self._policy.check_url(url)
        if self._calls >= self._calls_max:
            raise OutboundError(
                f"{self._calls_max} calls to other servers are under way already.", sent=False
            )
        request = make_request(target, method, url, headers, body, silence_s)
        self._calls += 1
        way = self._alone(target) if alone else self._pools.one()
        try:
            async with way as connections:
                response = await _send(connections, request, target, header_timeout_s)
                try:
                    yield OutboundStream(response, target)
                finally:
                    await response.aclose()
        finally:
            self._calls -= 1

    def _pool(self, connections_max: int) -> Pool:
        return Pool(self._tls, self._backend, connections_max)

    @asynccontextmanager
    async def _alone(self, target: Target) -> AsyncIterator[Connection]:
        origin = sent_url(target, "").origin
        connection = Connection(origin, self._tls, self._backend, http2=False)
        self._lone.add(connection)
        try:
            yield connection
        finally:
            self._lone.discard(connection)
            await connection.aclose()

    async def aclose(self) -> None:
        """Close every connection; calls under way fail."""
        for connection in list(self._lone):
            await connection.aclose()
        await self._pools.aclose()


async def _send(
    way: Pool | Connection, request: httpcore.Request, target: Target, limit_s: float | None
) -> httpcore.Response:
    """The head of the answer, and what is still to come."""
    try:
        async with asyncio.timeout(limit_s) as limit:
            response = await way.handle_async_request(request)
    except (*FAILURES, OSError) as error:
        # OSError: what httpcore lets through.
        if limit.expired():
            raise _too_late(target, limit_s) from None
        if isinstance(request.stream, Body) and request.stream.failure is error:
            raise
        raise failure_of(error, target) from None
    if fault := _fault(response):
        await response.aclose()
        raise OutboundError(f"The headers of {target}'s answer {fault}.", passing=False)
    return response


def _too_late(target: Target, limit_s: float | None) -> OutboundError:
    return OutboundError(f"{target} did not answer within {limit_s:g} s.", late=True)


def _fault(response: httpcore.Response) -> str:
    """What is wrong with the headers of an answer."""
    if sum(map(len, chain.from_iterable(response.headers))) > RESPONSE_HEADER_BYTES_MAX:
        return f"exceed {RESPONSE_HEADER_BYTES_MAX} bytes"
    for name, value in response.headers:
        if not HEADER_NAME.fullmatch(name) or _LINE_ENDS.search(value):
            return "are not valid HTTP"
    return ""


def tls_context() -> ssl.SSLContext:
    """Trust what the system trusts, or where it has no such list what browsers do."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile or paths.capath:
        return ssl.create_default_context()
    return ssl.create_default_context(cafile=certifi.where())


def joined(headers: list[tuple[str, str]]) -> dict[str, str]:
    """Headers by name; repeated ones are joined with a comma."""
    found: dict[str, str] = {}
    for name, value in headers:
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _keep_headers_out_of_the_log() -> None:
    """At debug level these libraries write headers, and so credentials, to the log."""
    for name in ("httpcore", "h2", "hpack"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)
