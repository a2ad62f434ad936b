"""Sending requests: headers, credentials, redirects, errors, time limits and retries.

Every request of the client goes through `Calls`. The client's own headers and credentials go to its
server only: another server that a redirect or a stream's URL leads to does not get them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from urllib.parse import urljoin, urlsplit

import msgspec

from holdfast.client.auth import Auth
from holdfast.client.failures import error_of
from holdfast.client.urls import same_origin, with_query
from holdfast.clock import Clock
from holdfast.errors import (
    BadAnswerError,
    CommitUnknownError,
    HoldfastError,
    InvalidRequestError,
    OutboundError,
    OverloadedError,
    RateLimitedError,
)
from holdfast.net.outbound import Outbound, OutboundResponse, OutboundStream, joined

T = TypeVar("T")
# A value, or a function (async or not) that is called for each request.
Value = str | Callable[[], str | Awaitable[str]]
# Called before each wait with the error and the seconds until the next attempt.
OnRetry = Callable[[HoldfastError, float], object]

ERROR_BYTES_MAX: Final = 1024 * 1024
REDIRECTS_MAX: Final = 3
# A live request that ends sooner than this without data did not wait at the server.
LIVE_S_MIN: Final = 0.1
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_CREDENTIALS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
# After these the same request can succeed.
_RETRIED: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
# After these a write was certainly not carried out. A gateway's 502 or 504, and a request that
# timed out, leave that open.
_NOT_CARRIED_OUT: Final = frozenset({425, 429, 500, 503})


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits in seconds; none of them can be turned off."""

    # For the response to a request, and for each further piece of it.
    request_s: float = 30.0
    # For the next piece of a response that is read as it arrives.
    silence_s: float = 30.0
    # For the next sign of life of a live read: servers send one every 15 to 60 seconds.
    live_s: float = 75.0
    # For the plan of a scan, which takes the server longer the more it has to look at.
    plan_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Retry:
    """Back-off: waits double from `first_s` to `max_s`, each shortened at random by up to a half.

    A server's `Retry-After` is respected; above `retry_after_max_s` the client gives up instead.
    """

    attempts: int = 10
    first_s: float = 0.1
    max_s: float = 5.0
    retry_after_max_s: float = 60.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidRequestError(f"attempts is {self.attempts}: expected 1 or more.")
        if self.first_s <= 0:
            raise InvalidRequestError(f"first_s is {self.first_s:g}: expected more than 0.")
        if self.max_s < self.first_s:
            raise InvalidRequestError(f"max_s is {self.max_s:g}: less than first_s.")

    def for_ever(self) -> Retry:
        """The same policy without a limit on attempts."""
        return replace(self, attempts=1_000_000_000)

    def delay_s(self, failures: int, error: HoldfastError, clock: Clock) -> float | None:
        """How long to wait after this many failures in a row; None to give up."""
        if failures >= self.attempts:
            return None
        backoff_s = min(self.max_s, self.first_s * 2.0 ** min(failures - 1, 30))
        backoff_s *= clock.random_int(500, 1000) / 1000
        retry_after_s = float(getattr(error, "retry_after_s", 0) or 0)
        if retry_after_s > self.retry_after_max_s:
            return None
        return max(backoff_s, retry_after_s)


NO_RETRY: Final = Retry(attempts=1)


def may_repeat(error: HoldfastError, *, repeatable: bool) -> bool:
    """Whether to send a request again after this error.

    A `repeatable` request does no harm if it is carried out twice. Any other is sent again only
    if it was not carried out.
    """
    if isinstance(error, OutboundError):
        return error.passing and (repeatable or not error.sent)
    if error.status not in _RETRIED or isinstance(error, BadAnswerError):
        return False
    if error.status == 500 and type(error) is not HoldfastError:
        # A named defect, such as a damaged pack, does not go away.
        return False
    if repeatable:
        return True
    return error.status in _NOT_CARRIED_OUT and not isinstance(error, CommitUnknownError)


def was_refused(error: HoldfastError) -> bool:
    """Whether a request that failed so was certainly not even begun.

    For requests that cost money, where a status alone is not proof enough.
    """
    if isinstance(error, OutboundError):
        return error.passing and not error.sent
    return isinstance(error, OverloadedError | RateLimitedError)


async def pause(clock: Clock, seconds: float) -> None:
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end() -> None:
        if not over.done():
            over.set_result(None)

    timer = clock.call_later(seconds, end)
    try:
        await over
    finally:
        timer.cancel()


class Pacing:
    """Waits between live requests to a server that answers them at once and without data.

    `hasty` counts such responses in a row.
    """

    def __init__(self, clock: Clock, retry: Retry) -> None:
        self.hasty = 0
        self._clock = clock
        self._retry = retry
        self._began_s = 0.0

    def begin(self) -> None:
        self._began_s = self._clock.monotonic_s()

    async def end(self, *, brought: bool) -> None:
        """Wait if the request ended at once and brought no data."""
        if brought or self._clock.monotonic_s() - self._began_s >= LIVE_S_MIN:
            self.hasty = 0
            return
        self.hasty += 1
        backoff_s = self._retry.first_s * 2.0 ** min(self.hasty - 1, 30)
        await pause(self._clock, min(self._retry.max_s, backoff_s))


class Calls:
    """Sends the client's requests; non-2xx responses are raised as errors."""

    def __init__(
        self,
        outbound: Outbound,
        clock: Clock,
        *,
        home: str,
        auth: Auth | None,
        headers: Mapping[str, Value],
        params: Mapping[str, Value],
        timeouts: Timeouts,
        retry: Retry,
        answer_bytes_max: int,
        on_retry: OnRetry | None,
    ) -> None:
        self.clock = clock
        self.timeouts = timeouts
        self.retry = retry
        self._outbound = outbound
        self._home = home
        self._auth = auth
        self._headers = dict(headers)
        self._params = dict(params)
        self._response_bytes_max = answer_bytes_max
        self._on_retry = on_retry
        self._closed = False

    async def request(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        repeatable: bool = True,
        timeout_s: float | None = None,
        retry: Retry | None = None,
    ) -> OutboundResponse:
        """Send a request, again if the retry policy says so, and return the whole response."""
        failures = 0
        while True:
            try:
                return await self._once(method, url, params, headers, body, timeout_s)
            except HoldfastError as error:
                failures += 1
                if not may_repeat(error, repeatable=repeatable):
                    raise
                await self.wait(failures, error, retry)

    async def fetch(
        self,
        url: str,
        kind: type[T],
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> T:
        """GET a JSON document."""
        response = await self.request("GET", url, params=params, timeout_s=timeout_s)
        return decode(response.body, kind)

    async def lines(
        self, url: str, kind: type[T], params: Mapping[str, str] | None = None
    ) -> AsyncIterator[T]:
        """GET one JSON document a line, as they arrive."""
        decode_line = msgspec.json.Decoder(kind).decode
        rest = b""
        async with self.stream("GET", url, params=params) as response:
            async for piece in response.chunks():
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    if line:
                        yield _decoded(decode_line, line)
        if rest.strip():
            yield _decoded(decode_line, rest)

    async def wait(self, failures: int, error: HoldfastError, retry: Retry | None = None) -> None:
        """Wait after this many failures in a row, or raise the error if attempts are used up."""
        delay_s = (retry or self.retry).delay_s(failures, error, self.clock)
        if delay_s is None:
            raise error
        if self._on_retry is not None:
            self._on_retry(error, delay_s)
        await pause(self.clock, delay_s)

    async def _once(
        self,
        method: str,
        url: str,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        body: bytes,
        timeout_s: float | None,
    ) -> OutboundResponse:
        route = _Route(method, await self._url(url, params), self._home, self._auth)
        while True:
            response = await self._outbound.request(
                method,
                route.target,
                await self._all_headers(route, headers),
                body,
                timeout_s=timeout_s or self.timeouts.request_s,
                bytes_max=self._response_bytes_max,
                is_total=False,
            )
            if await route.continues(response.status, response.headers):
                continue
            if response.status >= 300:
                what = _described(method, url)
                raise error_of(response.status, response.headers, response.body, what)
            _check_encoding(response.headers)
            return response

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | AsyncIterable[bytes] = b"",
        silence_s: float | None = None,
        lasts: bool = False,
    ) -> AsyncIterator[OutboundStream]:
        """Send a request once; the response's body is read inside the block.

        One that `lasts` gets a connection of its own.
        """
        route = _Route(method, await self._url(url, params), self._home, self._auth)
        limit_s = silence_s or self.timeouts.silence_s
        while True:
            sent = await self._all_headers(route, headers)
            async with self._outbound.stream(
                method, route.target, sent, body, silence_s=limit_s, alone=lasts
            ) as response:
                # A body in pieces can be sent only once.
                if isinstance(body, bytes) and await route.continues(
                    response.status, joined(response.headers)
                ):
                    continue
                if response.status >= 300:
                    raise await _error(response, _described(method, url))
                _check_encoding(dict(response.headers))
                yield response
                return

    def close(self) -> None:
        """Send nothing more; requests under way are not repeated."""
        self._closed = True

    async def _url(self, url: str, params: Mapping[str, str] | None) -> str:
        if self._closed:
            raise InvalidRequestError("The client is closed.")
        if not same_origin(self._home, url):
            return with_query(url, params or {})
        own = {name: await value_of(value) for name, value in self._params.items()}
        return with_query(url, own | dict(params or {}))

    async def _all_headers(
        self, route: _Route, headers: Mapping[str, str] | None
    ) -> dict[str, str]:
        if not route.is_at_home:
            return {
                name: value
                for name, value in (headers or {}).items()
                if name.lower() not in _CREDENTIALS
            }
        sent = {name: await value_of(value) for name, value in self._headers.items()}
        sent |= headers or {}
        authorization = await route.authorization()
        if authorization is not None:
            sent["Authorization"] = authorization
        return sent


class _Route:
    """Where one request goes: along redirects, and once more after its credentials are renewed."""

    def __init__(self, method: str, target: str, home: str, auth: Auth | None) -> None:
        self.target = target
        self._method = method
        self._home = home
        self._auth = auth
        self._sent: str | None = None
        self._refreshed = False
        self._redirects = 0

    @property
    def is_at_home(self) -> bool:
        """Whether the present target is the client's own server."""
        return same_origin(self._home, self.target)

    async def authorization(self) -> str | None:
        if self._auth is not None:
            self._sent = await self._auth.header(self._method, self.target)
        return self._sent

    async def continues(self, status: int, headers: Mapping[str, str]) -> bool:
        """Whether to send the request again: to a redirect's target, or with fresh credentials."""
        if status == 401 and self._auth is not None and self.is_at_home and not self._refreshed:
            self._refreshed = True
            return await self._auth.refresh(self._method, self.target, headers, self._sent)
        if status not in _REDIRECTS or self._method not in {"GET", "HEAD"}:
            return False
        if self._redirects == REDIRECTS_MAX:
            raise BadAnswerError(f"More than {REDIRECTS_MAX} redirects.")
        self._redirects += 1
        self.target = _redirected(self.target, headers)
        return True


async def value_of(value: Value) -> str:
    """The value itself, or what the function returns now."""
    if isinstance(value, str):
        return value
    got = value()
    return await got if inspect.isawaitable(got) else got


def decode(body: bytes, kind: type[T]) -> T:
    return _decoded(msgspec.json.Decoder(kind).decode, body)


def decode_packed(body: bytes, kind: type[T]) -> T:
    """Decode MessagePack."""
    return _decoded(msgspec.msgpack.Decoder(kind).decode, body)


def _decoded(decoder: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decoder(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadAnswerError(f"The response cannot be decoded: {error}.") from None


def _check_encoding(headers: Mapping[str, str]) -> None:
    """The client asks for no encoding: compressed bytes must not pass for those of a stream."""
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() not in {"identity", ""}:
        raise BadAnswerError(f"The response has an unexpected encoding ({encoding[:40]}).")


async def _error(response: OutboundStream, what: str) -> HoldfastError:
    try:
        body = await response.read(ERROR_BYTES_MAX)
    except OutboundError:
        body = b""
    return error_of(response.status, dict(response.headers), body, what)


def _described(method: str, url: str) -> str:
    """The request as errors name it, without the query, which may hold secrets."""
    return f"{method} {urlsplit(url).path or '/'}"


def _redirected(url: str, headers: Mapping[str, str]) -> str:
    try:
        target = urljoin(url, headers["location"]).partition("#")[0]
        _ = urlsplit(target).port
    except (KeyError, ValueError):
        raise BadAnswerError("A redirect has no valid Location.") from None
    return target
