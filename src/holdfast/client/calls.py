"""One request to the server: headers, authentication, redirects, errors, and the retries.

Every request goes through here, whatever it is for, so that headers and credentials are on each of
them and every one has a time limit.
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
from holdfast.errors import BadAnswerError, HoldfastError, OutboundError
from holdfast.net.outbound import Outbound, OutboundResponse, OutboundStream

# A value, or a function (async or not) that is called for every request anew.
Value = str | Callable[[], str | Awaitable[str]]
# Called before each wait: what went wrong, and how many seconds until the next attempt.
OnRetry = Callable[[HoldfastError, float], object]

ERROR_BYTES_MAX: Final = 1024 * 1024
REDIRECTS_MAX: Final = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
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
        self._auth = auth
        self._headers = dict(headers)
        self._params = dict(params)
        self._answer_bytes_max = answer_bytes_max
        self._on_retry = on_retry

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
        limit_s = timeout_s or self.timeouts.request_s
        refreshed = False
        target = await self._url(url, params)
        for _ in range(REDIRECTS_MAX + 2):
            answer = await self._outbound.request(
                method,
                target,
                await self._all_headers(method, target, url, headers),
                body,
                timeout_s=limit_s,
                bytes_max=self._answer_bytes_max,
            )
            if answer.status == 401 and not refreshed and same_origin(url, target):
                refreshed = True
                if await self._refresh(method, target, answer.headers):
                    continue
            if answer.status in _REDIRECTS and method in {"GET", "HEAD"}:
                target = _redirected(target, answer.headers)
                continue
            if answer.status >= 400:
                raise error_of(answer.status, answer.headers, answer.body, _asked(method, url))
            return answer
        raise BadAnswerError(f"More than {REDIRECTS_MAX} redirects.")

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
    ) -> AsyncIterator[OutboundStream]:
        """An answer whose body is still to come; an error answer is raised. Never repeated."""
        target = await self._url(url, params)
        limit_s = silence_s or self.timeouts.silence_s
        sent = await self._all_headers(method, target, url, headers)
        if self._auth is not None and isinstance(body, bytes):
            # A first try that is refused leads to a second one with other credentials.
            async with self._outbound.stream(
                method, target, sent, body, silence_s=limit_s
            ) as first:
                if first.status != 401:
                    yield await _checked(first, _asked(method, url))
                    return
                told = dict(first.headers)
                error = await _error(first, _asked(method, url))
            if not await self._refresh(method, target, told):
                raise error
            sent = await self._all_headers(method, target, url, headers)
        async with self._outbound.stream(method, target, sent, body, silence_s=limit_s) as answer:
            yield await _checked(answer, _asked(method, url))

    async def _url(self, url: str, params: Mapping[str, str] | None) -> str:
        own = {name: await _value_of(value) for name, value in self._params.items()}
        return with_query(url, own | dict(params or {}))

    async def _all_headers(
        self, method: str, target: str, asked: str, headers: Mapping[str, str] | None
    ) -> dict[str, str]:
        """What is sent: credentials and the user's own headers only to the server they are for."""
        if not same_origin(target, asked):
            return dict(headers or {})
        sent = {name: await _value_of(value) for name, value in self._headers.items()}
        sent |= headers or {}
        if self._auth is not None:
            authorization = await self._auth.header(method, target)
            if authorization is not None:
                sent["Authorization"] = authorization
        return sent

    async def _refresh(self, method: str, url: str, headers: Mapping[str, str]) -> bool:
        return self._auth is not None and await self._auth.refresh(method, url, headers)


async def _value_of(value: Value) -> str:
    if isinstance(value, str):
        return value
    got = value()
    return await got if inspect.isawaitable(got) else got


async def _checked(answer: OutboundStream, asked: str) -> OutboundStream:
    if answer.status >= 300:
        raise await _error(answer, asked)
    return answer


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
    if "location" not in headers:
        raise BadAnswerError("A redirect without a Location.")
    return urljoin(url, headers["location"])
