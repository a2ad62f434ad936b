"""The slot of an ASGI request: queues what handlers answer until the host has sent it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from holdfast.http.exchange import BODILESS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.http.app import App

    Send = Callable[[dict[str, Any]], Awaitable[None]]

QUEUE_BYTES_MAX: Final = 65_536


class AsgiSlot:
    """Where the answer to one ASGI request goes; see `exchange.Slot`."""

    def __init__(self, app: App, *, is_head: bool) -> None:
        self._app = app
        self._is_head = is_head
        self._queue: deque[dict[str, Any]] = deque()
        self._queued_bytes = 0
        self._news = asyncio.Event()
        # The request is complete when its slot is made.
        self._started_s = app.clock.monotonic_s()
        self.done = False
        # Whether the answer waits until the host has given what is left of the request.
        self._held = False
        self.route = "unknown"
        self.on_gone: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None

    @property
    def paused(self) -> bool:
        """Whether the host has not sent enough of what was written."""
        return self._queued_bytes > QUEUE_BYTES_MAX

    def answer(self, status: int, fields: bytes, body: bytes = b"") -> None:
        """Answer in one piece."""
        if self.done:
            return
        if status not in BODILESS and (body or not self._is_head):
            fields += b"Content-Length: %d\r\n" % len(body)
        seconds = self._app.clock.monotonic_s() - self._started_s
        self._begin(status, fields, seconds)
        if not self._is_head:
            self.write(body)
        self.end()

    def begin(self, status: int, fields: bytes) -> None:
        """Start an answer in pieces."""
        if not self.done:
            self._begin(status, fields, 0.0)

    def _begin(self, status: int, fields: bytes, seconds: float) -> None:
        self._app.counters.answered(self.route, status, seconds)
        headers = [
            (name.lower(), value)
            for line in (fields + self._app.security_fields).split(b"\r\n")[:-1]
            for name, _, value in [line.partition(b": ")]
        ]
        self._put({"type": "http.response.start", "status": status, "headers": headers})

    def write(self, data: bytes) -> None:
        """Send a piece of the body."""
        if data and not self.done:
            self._queued_bytes += len(data)
            self._put({"type": "http.response.body", "body": data, "more_body": True})

    def end(self) -> None:
        """Finish the body."""
        if not self.done:
            self.done = True
            self._put({"type": "http.response.body", "body": b"", "more_body": False})

    def abort(self) -> None:
        """Break off: the host sees an answer without an end, and closes the connection."""
        self.done = True
        self._news.set()

    def refuse_rest(self) -> None:
        """Answer once the rest has come: some hosts break the connection off otherwise."""
        self._held = True

    def rest_is_read(self) -> None:
        """Nothing more comes, or too much of it to wait for."""
        self._held = False
        self._news.set()

    def abandon(self) -> None:
        """The client is gone: nothing more is sent, whoever waits is told."""
        self.done = True
        self._queue.clear()
        self._news.set()
        if self.on_gone is not None:
            self.on_gone()

    async def deliver(self, send: Send) -> None:
        """Send everything, as it comes, until the answer is complete or abandoned."""
        while True:
            while self._queue and not self._held:
                message = self._queue.popleft()
                await send(message)
                self._queued_bytes -= len(message.get("body", b""))
                if not self._queue and self.on_resume is not None:
                    self.on_resume()
            if self.done and not self._held:
                return
            self._news.clear()
            await self._news.wait()

    def _put(self, message: dict[str, Any]) -> None:
        self._queue.append(message)
        self._news.set()
