"""One request to the server: headers, authentication, redirects, errors, and the retries.

Every request goes through here, whatever it is for, so that headers and credentials are on each of
them and every one has a time limit. They are for the client's own server: one that a redirect or a
stream's URL leads to elsewhere does not get them.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin, urlsplit

from holdfast.client.auth import Auth
from holdfast.client.failures import error_of
from holdfast.client.retry import Retry, may_repeat, pause
from holdfast.client.urls import same_origin, with_query
from holdfast.clock import Clock
from holdfast.errors import BadAnswerError, HoldfastError, InvalidRequestError, OutboundError
from holdfast.net.outbound import Outbound, OutboundResponse, OutboundStream, joined

# A value, or a function (async or not) that is called for every request anew.
Value = str | Callable[[], str | Awaitable[str]]
# Called before each wait: what went wrong, and how many seconds until the next attempt.
OnRetry = Callable[[HoldfastError, float], object]

ERROR_BYTES_MAX: Final = 1024 * 1024
REDIRECTS_MAX: Final = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_CREDENTIALS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
Answer = OutboundResponse


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait, in seconds: none of them can be turned off."""

    # For a whole request that answers at once.
    request_s: float = 30.0
    # For the next piece of a long answer.
    silence_s: float = 30.0
    # For the next sign of life of a live read: servers send one every 15 to 60 seconds.
    live_s: float = 75.0


class Calls:
    """Sends requests for everything else here."""

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
        self._answer_bytes_max = answer_bytes_max
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
    ) -> Answer:
        """The whole answer; an error answer is raised. Repeated as the retry policy has it."""
        failures = 0
        while True:
            try:
                return await self._once(method, url, params, headers, body, timeout_s)
            except HoldfastError as error:
                failures += 1
                if not may_repeat(error, repeatable=repeatable):
                    raise
                await self.wait(failures, error, retry)

    async def wait(self, failures: int, error: HoldfastError, retry: Retry | None = None) -> None:
        """Wait after so many failures in a row, or raise the error if that was the last one."""
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
    ) -> Answer:
        route = _Route(method, await self._url(url, params), self._home, self._auth)
        while True:
            answer = await self._outbound.request(
                method,
                route.target,
                await self._all_headers(route, headers),
                body,
                timeout_s=timeout_s or self.timeouts.request_s,
                bytes_max=self._answer_bytes_max,
            )
            if await route.goes_on(answer.status, answer.headers):
                continue
            if answer.status >= 300:
                raise error_of(answer.status, answer.headers, answer.body, _asked(method, url))
            _check_encoding(answer.headers)
            return answer

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
        """An answer whose body is still to come; an error answer is raised. Never repeated.

        One that `lasts` has a connection of its own.
        """
        route = _Route(method, await self._url(url, params), self._home, self._auth)
        limit_s = silence_s or self.timeouts.silence_s
        while True:
            sent = await self._all_headers(route, headers)
            async with self._outbound.stream(
                method, route.target, sent, body, silence_s=limit_s, alone=lasts
            ) as answer:
                # A body in pieces can be sent only once.
                if isinstance(body, bytes) and await route.goes_on(
                    answer.status, joined(answer.headers)
                ):
                    continue
                yield await _checked(answer, _asked(method, url))
                return

    def close(self) -> None:
        """Send nothing any more: what is under way ends, and is not begun again."""
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
        """What is sent: credentials and the user's own headers only to the server they are for."""
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
    """The way of one request: along redirects, and once more if its credentials are refused."""

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
        """Whether it goes to the client's own server."""
        return same_origin(self._home, self.target)

    async def authorization(self) -> str | None:
        """The credentials for where it goes now."""
        if self._auth is not None:
            self._sent = await self._auth.header(self._method, self.target)
        return self._sent

    async def goes_on(self, status: int, headers: Mapping[str, str]) -> bool:
        """Whether such an answer is not the last: then the request is to be sent once more."""
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
    """What is sent: the value itself, or what the function gives now."""
    if isinstance(value, str):
        return value
    got = value()
    return await got if inspect.isawaitable(got) else got


async def _checked(answer: OutboundStream, asked: str) -> OutboundStream:
    if answer.status >= 300:
        raise await _error(answer, asked)
    _check_encoding(dict(answer.headers))
    return answer


def _check_encoding(headers: Mapping[str, str]) -> None:
    """Nothing encoded is asked for: compressed bytes must not be taken for those of a stream."""
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() not in {"identity", ""}:
        raise BadAnswerError(f"The answer is encoded ({encoding[:40]}), which was not asked for.")


async def _error(answer: OutboundStream, asked: str) -> HoldfastError:
    try:
        body = await answer.read(ERROR_BYTES_MAX)
    except OutboundError:
        body = b""
    return error_of(answer.status, dict(answer.headers), body, asked)


def _asked(method: str, url: str) -> str:
    """What an error says was asked for: not the query, which may hold secrets."""
    return f"{method} {urlsplit(url).path or '/'}"


def _redirected(url: str, headers: Mapping[str, str]) -> str:
    try:
        target = urljoin(url, headers["location"]).partition("#")[0]
        _ = urlsplit(target).port
    except (KeyError, ValueError):
        raise BadAnswerError("A redirect without a Location that is a URL.") from None
    return target
