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
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import certifi
import httpcore

from holdfast import __version__
from holdfast.errors import OutboundError
from holdfast.net.failures import FAILURES, failure_of
from holdfast.net.pinned import PinnedBackend, Resolver, system_resolver
from holdfast.net.pools import Pools
from holdfast.net.targets import Policy, Target

CONNECTIONS_MAX: Final = 256
KEEP_ALIVE_S: Final = 20.0
CONNECT_TIMEOUT_S: Final = 10.0
# Calls under way or waiting for a connection; more are refused at once.
CALLS_MAX: Final = 2048
RESPONSE_HEADER_BYTES_MAX: Final = 32_768
# Unless the caller says otherwise; nothing is decoded here, so nothing encoded is asked for.
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
# HTTP/2 would carry them, and whoever turns it into HTTP/1.1 would see another header.
_CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_DEFAULT_HEADERS: Final = {"User-Agent": f"holdfast/{__version__}", "Accept-Encoding": "identity"}


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
            (name.decode("ascii").lower(), _text(value)) for name, value in response.headers
        ]

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body's pieces as they arrive."""
        try:
            async for chunk in self._response.aiter_stream():
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
        self._lone: set[httpcore.AsyncHTTPConnection] = set()
        self._calls_max = calls_max
        self._calls = 0

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
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
            raise OutboundError(f"{target} did not answer within {timeout_s:g} s.") from None
        return OutboundResponse(answer.status, joined(answer.headers), content)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | AsyncIterable[bytes] = b"",
        *,
        silence_s: float,
        alone: bool = False,
    ) -> AsyncIterator[OutboundStream]:
        """Call `url` for an answer in pieces; `silence_s` is the longest wait for each.

        Leaving the block early gives up the rest of the answer, and its connection with it.
        `alone` is for answers that last: they have a connection of their own, which the pool, whose
        work grows with its connections, knows nothing of.
        """
        target = self._policy.check_url(url)
        if self._calls >= self._calls_max:
            raise OutboundError(
                f"{self._calls_max} calls to other servers are under way already.", sent=False
            )
        self._calls += 1
        way = self._alone(target) if alone else self._pools.one()
        try:
            make = partial(_request, target, method, url, headers, body, silence_s)
            async with way as connections:
                response = await _send(connections, make, target)
                try:
                    yield OutboundStream(response, target)
                finally:
                    await response.aclose()
        finally:
            self._calls -= 1

    def _pool(self, connections_max: int) -> httpcore.AsyncConnectionPool:
        return httpcore.AsyncConnectionPool(
            ssl_context=self._tls,
            max_connections=connections_max,
            max_keepalive_connections=connections_max,
            keepalive_expiry=KEEP_ALIVE_S,
            http2=True,
            retries=0,
            network_backend=self._backend,
        )

    @asynccontextmanager
    async def _alone(self, target: Target) -> AsyncIterator[httpcore.AsyncHTTPConnection]:
        origin = _url(target, "").origin
        connection = httpcore.AsyncHTTPConnection(
            origin, ssl_context=self._tls, network_backend=self._backend
        )
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
    way: httpcore.AsyncConnectionPool | httpcore.AsyncHTTPConnection,
    make: Callable[[], httpcore.Request],
    target: Target,
) -> httpcore.Response:
    """The head of the answer, and what is still to come."""
    try:
        response = await way.handle_async_request(make())
    except (*FAILURES, OSError, ValueError) as error:
        # ValueError: a header that cannot be encoded. OSError: what httpcore lets through.
        raise failure_of(error, target) from None
    size = sum(len(name) + len(value) for name, value in response.headers)
    if size > RESPONSE_HEADER_BYTES_MAX:
        await response.aclose()
        raise OutboundError(
            f"The headers of {target}'s answer exceed {RESPONSE_HEADER_BYTES_MAX} bytes.",
            passing=False,
        )
    return response


def _request(
    target: Target,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | AsyncIterable[bytes],
    silence_s: float,
) -> httpcore.Request:
    connect_s = min(CONNECT_TIMEOUT_S, silence_s)
    limits = {"connect": connect_s, "pool": silence_s, "read": silence_s, "write": silence_s}
    return httpcore.Request(
        method,
        _url(target, url),
        headers=_headers(target, method, headers, body),
        content=body or None,
        extensions={"timeout": limits},
    )


def _url(target: Target, url: str) -> httpcore.URL:
    """The URL as the pool takes it; `target` is what the policy made of it."""
    place, question, query = url.partition("?")
    path = place.partition("://")[2].partition("/")[2]
    return httpcore.URL(
        scheme=target.scheme.encode(),
        host=target.host.encode(),
        port=target.port,
        target=f"/{path}{question}{query}".encode("ascii"),
    )


def _headers(
    target: Target, method: str, headers: Mapping[str, str], body: bytes | AsyncIterable[bytes]
) -> list[tuple[bytes, bytes]]:
    """What is sent: the caller's headers, and those that every request needs."""
    sent = {name.lower(): (name, value) for name, value in headers.items()}
    for name, value in _DEFAULT_HEADERS.items():
        sent.setdefault(name.lower(), (name, value))
    sent.setdefault("host", ("Host", target.authority))
    if not isinstance(body, bytes):
        sent.setdefault("transfer-encoding", ("Transfer-Encoding", "chunked"))
    elif body or method in _WITH_BODY:
        sent.setdefault("content-length", ("Content-Length", str(len(body))))
    if any(_CONTROL_CHARACTERS.search(value) for _, value in sent.values()):
        raise ValueError("A header holds control characters.")
    return [(name.encode("ascii"), value.encode("ascii")) for name, value in sent.values()]


def _text(value: bytes) -> str:
    """A header's value: text where it is UTF-8, else the bytes one by one."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


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
