"""Credentials of the client, and the certificates that it trusts.

auth=Basic("me", "secret")
auth=Bearer("token")
auth=Bearer(fetch_token)    # called for the first request, and again after a 401
auth=Digest("me", "secret")
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Protocol

from holdfast.errors import SettingsError
from holdfast.net.outbound import tls_context


class Auth(Protocol):
    """Provides the `Authorization` header of requests."""

    async def header(self, method: str, url: str) -> str | None:
        """The header's value for this request; None to send none."""

    async def refresh(
        self, method: str, url: str, headers: Mapping[str, str], refused: str | None
    ) -> bool:
        """Renew the credentials after a 401 with these headers; False if that is not possible.

        `refused` is the value that was sent: another request may have renewed it meanwhile.
        """


class Basic:
    """A user name and a password."""

    def __init__(self, username: str, password: str) -> None:
        self._value = "Basic " + b64encode(f"{username}:{password}".encode()).decode()

    async def header(self, method: str, url: str) -> str | None:
        """The same value for every request."""
        return self._value

    async def refresh(
        self, method: str, url: str, headers: Mapping[str, str], refused: str | None
    ) -> bool:
        """False: the password does not change."""
        return False


class Bearer:
    """A token, or a function (async or not) that fetches one when needed."""

    def __init__(self, token: str | Callable[[], str | Awaitable[str]]) -> None:
        if token == "":
            raise ValueError("The token is empty.")
        self._fetch = None if isinstance(token, str) else token
        self._token = token if isinstance(token, str) else ""
        self._fetching = asyncio.Lock()

    async def header(self, method: str, url: str) -> str | None:
        """The current token."""
        if not self._token:
            await self._renew("")
        return f"Bearer {self._token}"

    async def refresh(
        self, method: str, url: str, headers: Mapping[str, str], refused: str | None
    ) -> bool:
        """Fetch another token; False if the token is fixed."""
        if self._fetch is None:
            return False
        await self._renew((refused or "").removeprefix("Bearer "))
        return True

    async def _renew(self, stale: str) -> None:
        """Replace a stale token, once for all requests that were refused with it."""
        assert self._fetch is not None, "a fixed token is never empty"
        async with self._fetching:
            if self._token == stale:
                got = self._fetch()
                self._token = await got if inspect.isawaitable(got) else got


class Digest:
    """A user name and a password that is never sent itself."""

    def __init__(self, username: str, password: str) -> None:
        # Slow to load, and rarely used.
        from holdfast.net.digest import DigestCredentials  # noqa: PLC0415

        self._digest = DigestCredentials(username, password)

    async def header(self, method: str, url: str) -> str | None:
        """The response to the last challenge."""
        return self._digest.authorization(method, url)

    async def refresh(
        self, method: str, url: str, headers: Mapping[str, str], refused: str | None
    ) -> bool:
        """Take the server's challenge; False if it is of an unknown kind."""
        return self._digest.take_challenge(method, url, headers) is not None


def tls_trusting(ca_file: str) -> ssl.SSLContext | None:
    """A context that trusts a file's certificates besides the system's; None without a file."""
    if not ca_file:
        return None
    tls = tls_context()
    try:
        tls.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"the certificates in {ca_file} cannot be read: {error}") from None
    return tls


@cache
def shared_tls(ca_file: str) -> ssl.SSLContext:
    """One context for all clients of a process.

    Loading the system's certificates takes longer than most requests.
    """
    return tls_trusting(ca_file) or tls_context()
