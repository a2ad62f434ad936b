"""A proxy stream as readers see it: its signed URL, and how to get another one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.client.calls import Calls, value_of
from holdfast.client.proxy_frames import Position
from holdfast.errors import SignatureExpiredError

# Gets a fresh signed URL, async or not.
Renew = Callable[[], str | Awaitable[str]]


class Source:
    """Where frames come from; all readers of a session share one.

    `url` is the newest signed URL, and `renew` a function that gets a fresh one. One of a session
    does so only for streams that sessions lead to, which the server tells.
    """

    def __init__(
        self, calls: Calls, url: str, renew: Renew | None = None, *, of_session: bool = False
    ) -> None:
        self.calls = calls
        self.url = url
        # Up to here the stream was read. What is asked for from now on comes behind it.
        self.position = Position()
        self._renew = renew
        self._of_session = of_session
        self._renewing = asyncio.Lock()

    def can_renew(self, error: SignatureExpiredError) -> bool:
        """Whether something can be done about a URL that has expired."""
        return self._renew is not None and (error.renewable or not self._of_session)

    async def renew(self, expired: str) -> str:
        """A URL in place of the expired one, got once for all readers that found it so."""
        assert self._renew is not None, "asked of can_renew before"
        async with self._renewing:
            if self.url == expired:
                self.url = await value_of(self._renew)
        return self.url

    def passed(self, position: Position) -> None:
        """Take note of how far a reader has come."""
        if position.order > self.position.order:
            self.position = position
