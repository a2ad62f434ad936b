"""Who the client says it is, on every request it sends.

auth=Basic("me", "secret")
auth=Bearer("token")
auth=Bearer(fetch_token)    # called for the first request, and again after a 401
auth=Digest("me", "secret")
"""

from __future__ import annotations

import asyncio
import inspect
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol


class Auth(Protocol):
    """Something that gives requests an `Authorization` header."""

    async def header(self, method: str, url: str) -> str | None:
        """The header's value for this request, or None for none."""

    async def refresh(
        self, method: str, url: str, headers: Mapping[str, str], refused: str | None
    ) -> bool:
        """Whether it is worth asking again, after a 401 with these headers.

        `refused` is what was sent: by now there may be something newer.
        """


class Basic:
    """A user and a password."""

    def __init__(self, username: str, password: str) -> None:
        self._value = "Basic " + b64encode(f"{username}:{password}".encode()).decode()

    async def header(self, method: str, url: str) -> str | None:
        """The same for every request."""
        return self._value

    async def refresh(
        self, method: str, url: str, headers: Mapping[str, str], refused: str | None
    ) -> bool:
        """A wrong password stays wrong."""
        return False


class Bearer:
    """A token, or a function (async or not) that gets one when it is needed."""

    def __init__(self, token: str | Callable[[], str | Awaitable[str]]) -> None:
        if token == "":
            raise ValueError("The token is empty.")
        self._fetch = None if isinstance(token, str) else token
        self._token = token if isinstance(token, str) else ""
        self._fetching = asyncio.Lock()

    async def header(self, method: str, url: str) -> str | None:
        """The token that is good at present."""
        if not self._token:
            await self._renew("")
        return f"Bearer {self._token}"

    async def refresh(
        self, method: str, url: str, headers: Mapping[str, str], refused: str | None
    ) -> bool:
        """Get another token, if there is a way to."""
        if self._fetch is None:
            return False
        await self._renew((refused or "").removeprefix("Bearer "))
        return True

    async def _renew(self, stale: str) -> None:
        """Get a token in place of the stale one, once for all requests that found it so."""
        assert self._fetch is not None, "a fixed token is never empty"
        async with self._fetching:
            if self._token == stale:
                got = self._fetch()
                self._token = await got if inspect.isawaitable(got) else got


class Digest:
    """A user and a password that is never sent itself."""

    def __init__(self, username: str, password: str) -> None:
        # Brings a whole HTTP client with it, so only where it is needed.
        from holdfast.net.digest import DigestCredentials  # noqa: PLC0415

        self._digest = DigestCredentials(username, password)

    async def header(self, method: str, url: str) -> str | None:
        """The answer to the last challenge, for this request."""
        return self._digest.authorization(method, url)

    async def refresh(
        self, method: str, url: str, headers: Mapping[str, str], refused: str | None
    ) -> bool:
        """Take the challenge up, if it is one that can be answered."""
        return self._digest.take_challenge(method, url, headers) is not None
