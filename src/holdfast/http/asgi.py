"""The slot of an ASGI request: queues what handlers answer until the host has sent it."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from holdfast.clock import SystemClock
from holdfast.errors import (
    HoldfastError,
    InvalidRequestError,
    PayloadTooLargeError,
    UnavailableError,
)
from holdfast.http.exchange import BODILESS, KEPT_HEADERS, BodyStream, Request, join_repeated
from holdfast.http.node import Node
from holdfast.http.request_reader import is_forwarded, is_snapshot
from holdfast.http.responses import error_body, respond_error
from holdfast.http.routes import PROXY_PATH
from holdfast.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.http.app import App

    Send = Callable[[dict[str, Any]], Awaitable[None]]
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType

    from holdfast.http.mount import OpenMount
    from holdfast.settings import Settings

    Scope = dict[str, Any]
    Receive = Callable[[], Awaitable[dict[str, Any]]]

QUEUE_BYTES_MAX: Final = 65_536
# A body that is too large is read to its end if it is not larger than the limit times this.
_DISCARD_FACTOR = 4


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

    def respond(self, status: int, headers: bytes, body: bytes = b"") -> None:
        """Answer in one piece."""
        if self.done:
            return
        if status not in BODILESS and (body or not self._is_head):
            headers += b"Content-Length: %d\r\n" % len(body)
        seconds = self._app.clock.monotonic_s() - self._started_s
        self._begin(status, headers, seconds)
        if not self._is_head:
            self.write(body)
        self.end()

    def begin(self, status: int, headers: bytes) -> None:
        """Start an answer in pieces."""
        if not self.done:
            self._begin(status, headers, 0.0)

    def _begin(self, status: int, headers: bytes, seconds: float) -> None:
        self._app.counters.answered(self.route, status, seconds)
        pairs = [
            (name.lower(), value)
            for line in (headers + self._app.security_headers).split(b"\r\n")[:-1]
            for name, _, value in [line.partition(b": ")]
        ]
        self._put({"type": "http.response.start", "status": status, "headers": pairs})

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


def open_app(
    config: str | os.PathLike[str] | None,
    settings: Mapping[str, object],
    open_mount: OpenMount | None = None,
) -> AsgiApp:
    """An ASGI app from a settings file, `HOLDFAST_*` variables and settings; the last win."""
    file = None if config is None else Path(config)
    flags = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in settings.items()
    }
    return AsgiApp(load_settings(file=file, env=os.environ, flags=flags), open_mount)


class AsgiApp:
    """The application; see `holdfast.asgi`."""

    def __init__(self, settings: Settings, open_mount: OpenMount | None = None) -> None:
        self._settings = settings
        self._open_mount = open_mount
        self._node: Node | None = None

    async def __aenter__(self) -> Self:
        """Open the data directory and recover the log."""
        if self._node is not None:
            raise HoldfastError("This Holdfast app is running already.")
        node = Node(self._settings, SystemClock(), open_mount=self._open_mount)
        try:
            await node.recover()
        except BaseException:
            await node.close()
            raise
        self._node = node
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End live readers, finish writes, close."""
        node, self._node = self._node, None
        if node is not None:
            node.end_live_readers()
            await node.finish_writes(self._settings.server.shutdown_timeout_s)
            await node.close()

    def drain(self) -> None:
        """End live readers with a last control event, and take no more of them.

        Hosts run their shutdown only once every request has ended, and a live read lasts up to
        `sse_lifetime`: call this from the host's signal handler to stop without waiting.
        """
        if self._node is not None:
            self._node.end_live_readers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection scope."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            raise HoldfastError(f"Holdfast does not speak {scope['type']}.")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.__aenter__()
                except HoldfastError as error:
                    await send({"type": "lifespan.startup.failed", "message": error.message})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.__aexit__(None, None, None)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._node is None:
            await _answer_not_running(send)
            return
        app = self._node.app
        slot = AsgiSlot(app, is_head=scope["method"] == "HEAD")
        bytes_max = self._streamed_bytes_max(scope)
        if bytes_max is not None:
            await self._http_stream(app, scope, receive, send, slot, bytes_max)
            return
        # The body first: some hosts break off if they are answered before they gave it.
        body = await _body(receive, self._settings.http.body_bytes_max)
        if body is None:
            return
        try:
            request = _request(scope)
            if isinstance(body, HoldfastError):
                raise body
            request.body = body
            app.handle(request, slot)
        except HoldfastError as error:
            respond_error(slot, error)
        if slot.done:
            await slot.deliver(send)
            return
        await _deliver(slot, send, asyncio.create_task(_watch(receive, slot)))

    def _streamed_bytes_max(self, scope: Scope) -> int | None:
        """The limit of a body that is worked on while it arrives; None if this is none."""
        method = scope["method"].encode()
        path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/")).encode()
        if is_snapshot(method, path):
            return self._settings.http.snapshot_bytes_max
        if is_forwarded(method, path):
            return self._settings.proxy.request_bytes_max
        return None

    async def _http_stream(
        self,
        app: App,
        scope: Scope,
        receive: Receive,
        send: Send,
        slot: AsgiSlot,
        bytes_max: int,
    ) -> None:
        """A request whose body is worked on while it arrives."""
        wanted = asyncio.Event()
        stream = BodyStream(bytes_max, wanted.set)
        try:
            request = _request(scope)
            request.stream = stream
            app.handle(request, slot)
        except HoldfastError as error:
            stream.fail()
            respond_error(slot, error)
        await _deliver(slot, send, asyncio.create_task(_pump(receive, slot, stream, wanted)))


async def _deliver(slot: AsgiSlot, send: Send, task: asyncio.Task[None]) -> None:
    """Send the answer as it comes, while a task sees to the other direction."""
    try:
        await slot.deliver(send)
    except OSError:
        # The host noticed before we did that the client is gone.
        pass
    finally:
        task.cancel()
        if not slot.done:
            slot.abandon()


async def _pump(
    receive: Receive, slot: AsgiSlot, stream: BodyStream, wanted: asyncio.Event
) -> None:
    """Feed a body as it arrives and is wanted; then tell the slot when the client goes away."""
    size = 0
    while True:
        while stream.full:
            wanted.clear()
            await wanted.wait()
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        part = message.get("body", b"")
        stream.feed(part)
        size += len(part)
        more = message.get("more_body", False)
        if not more:
            stream.finish()
        if not more or size > _DISCARD_FACTOR * stream.bytes_max:
            slot.rest_is_read()
    stream.fail()
    slot.rest_is_read()
    if not slot.done:
        slot.abandon()


def _request(scope: Scope) -> Request:
    root = scope.get("root_path", "").rstrip("/")
    prefix = quote(root).encode()
    raw = (scope.get("raw_path") or b"").partition(b"?")[0]
    if raw.startswith(prefix + b"/"):
        path = raw.removeprefix(prefix)
    else:
        # The client spelt the prefix in another way, or the host keeps no raw path.
        path = quote(scope["path"].removeprefix(root)).encode()
    headers: dict[bytes, bytes] = {}
    others: list[tuple[bytes, bytes]] = []
    for name, value in scope["headers"]:
        key = KEPT_HEADERS.get(name.lower())
        if key is None:
            others.append((name, value))
            continue
        if key not in headers:
            headers[key] = value
        elif not join_repeated(headers, key, value):
            raise InvalidRequestError(f"The header {key.decode()} is given more than once.")
    scheme = scope.get("scheme", "http").encode()
    query = scope.get("query_string", b"")
    peer = str((scope.get("client") or ("",))[0])
    request = Request(scope["method"].encode(), path, query, headers, scheme, peer)
    request.prefix = prefix
    if path.startswith(PROXY_PATH):
        request.other_headers = others
    return request


async def _body(receive: Receive, bytes_max: int) -> bytes | HoldfastError | None:
    """The whole body, an error if it is too large, or None if the client went away."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        size += len(part)
        more = message.get("more_body", False)
        if size > bytes_max:
            # The rest is thrown away, within reason: some hosts break off otherwise.
            parts.clear()
            if not more or size > _DISCARD_FACTOR * bytes_max:
                return PayloadTooLargeError(f"The body exceeds {bytes_max} bytes.")
        else:
            parts.append(part)
        if not more:
            return b"".join(parts)


async def _watch(receive: Receive, slot: AsgiSlot) -> None:
    """Tell the slot when the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if not slot.done:
        slot.abandon()


async def _answer_not_running(send: Send) -> None:
    error = UnavailableError(
        "Holdfast is not running in this application: run its lifespan, or enter the app as an "
        "async context manager in the host's lifespan."
    )
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": error_body(error)})
