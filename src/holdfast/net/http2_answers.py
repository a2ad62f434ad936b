"""One answer of an HTTP/2 connection: what has come of it, and who waits for more."""

from __future__ import annotations

import asyncio
from collections import deque

import h2.errors
import httpcore

from holdfast.net.sockets import wake, within


class NotTakenError(httpcore.ConnectError):
    """The server says that it has not looked at a request."""


class Answer:
    """One request and what has come of its answer."""

    __slots__ = ("ended", "failure", "head", "limits", "pieces", "sent", "stream_id", "waiting")

    def __init__(self, stream_id: int, limits: dict[str, float | None]) -> None:
        self.stream_id = stream_id
        self.limits = limits
        self.head: list[tuple[bytes, bytes]] | None = None
        # Bytes, and what they count against the window: padding comes on top.
        self.pieces: deque[tuple[bytes, int]] = deque()
        self.sent = self.ended = False
        self.failure: Exception | None = None
        self.waiting: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes, so that it is no use to send more."""
        return self.ended or self.failure is not None

    def fail(self, failure: Exception) -> None:
        """Nothing more comes; if all has come already, that is no failure."""
        if not self.is_over:
            self.failure = failure
        wake(self.waiting)

    def error(self) -> Exception:
        """What to raise for the failure: each time another, since a traceback holds the answer."""
        failure = self.failure or httpcore.RemoteProtocolError("The answer has no head.")
        return type(failure)(*failure.args)

    def reset(self, code: int | None) -> None:
        """The server has broken it off."""
        if code == h2.errors.ErrorCodes.REFUSED_STREAM:
            self.fail(NotTakenError("It can be sent again."))
        else:
            self.fail(httpcore.RemoteProtocolError("The server has broken the answer off."))

    async def news(self, limit: str, too_late: type[Exception]) -> None:
        """Wait until something comes, or room to send."""
        self.waiting = asyncio.get_running_loop().create_future()
        try:
            await within(self.waiting, self.limits.get(limit), too_late)
        finally:
            self.waiting = None
