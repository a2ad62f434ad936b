"""The ASGI side: requests from a host's messages, and the slot that queues responses for it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from holdfast.errors import HoldfastError, InvalidRequestError, PayloadTooLargeError
from holdfast.http.exchange import BODILESS, KEPT_HEADERS, BodyStream, Request, join_repeated
from holdfast.http.request_reader import is_forwarded, is_snapshot
from holdfast.http.responses import respond_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.http.app import App

    Scope = dict[str, Any]
    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]

QUEUE_BYTES_MAX: Final = 65_536
# A body that is too large is read to its end, up to this many times the limit.
_DISCARD_FACTOR: Final = 4


class AsgiSlot:
    """The response to one ASGI request; see `exchange.Slot`."""

    def __init__(self, app: App, *, is_head: bool) -> None:
        self._app = app
        self._is_head = is_head
        self._queue: deque[dict[str, Any]] = deque()
        self._queued_bytes = 0
        self._changed = asyncio.Event()
        # The request is complete when its slot is made.
        self._started_s = app.clock.monotonic_s()
        self.done = False
        # Whether the response waits until the host has sent the rest of the request.
        self._held = False
        self.route = "unknown"
        self.on_gone: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None

    @property
    def paused(self) -> bool:
        """Whether too much waits for the host to send it."""
        return self._queued_bytes > QUEUE_BYTES_MAX

    def respond(self, status: int, headers: bytes, body: bytes = b"") -> None:
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
        if not self.done:
            self._begin(status, headers, 0.0)

    def _begin(self, status: int, headers: bytes, seconds: float) -> None:
        self._app.counters.count(self.route, status, seconds)
        pairs = [
            (name.lower(), value)
            for line in (headers + self._app.security_headers).split(b"\r\n")[:-1]
            for name, _, value in [line.partition(b": ")]
        ]
        self._put({"type": "http.response.start", "status": status, "headers": pairs})

    def write(self, data: bytes) -> None:
        if data and not self.done:
            self._queued_bytes += len(data)
            self._put({"type": "http.response.body", "body": data, "more_body": True})

    def end(self) -> None:
        if not self.done:
            self.done = True
            self._put({"type": "http.response.body", "body": b"", "more_body": False})

    def abort(self) -> None:
        """Break off: the host sees a response without an end, and closes the connection."""
        self.done = True
        self._changed.set()

    def refuse_rest(self) -> None:
        """Hold the response until the request is read: some hosts break off otherwise."""
        self._held = True

    def rest_is_read(self) -> None:
        """The request is read, or too large to wait for."""
        self._held = False
        self._changed.set()

    def abandon(self) -> None:
        """The client is gone: send nothing more, and call `on_gone`."""
        self.done = True
        self._queue.clear()
        self._changed.set()
        if self.on_gone is not None:
            self.on_gone()

    async def deliver(self, send: Send) -> None:
        """Send everything as it comes, until the response is complete or abandoned."""
        while True:
            while self._queue and not self._held:
                message = self._queue.popleft()
                await send(message)
                self._queued_bytes -= len(message.get("body", b""))
                if not self._queue and self.on_resume is not None:
                    self.on_resume()
            if self.done and not self._held:
                return
            self._changed.clear()
            await self._changed.wait()

    def _put(self, message: dict[str, Any]) -> None:
        self._queue.append(message)
        self._changed.set()


async def handle_http(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Handle one HTTP request of an ASGI host."""
    slot = AsgiSlot(app, is_head=scope["method"] == "HEAD")
    try:
        request: Request | HoldfastError = _request(app, scope)
    except HoldfastError as error:
        request = error
    bytes_max = None if isinstance(request, HoldfastError) else _streamed_bytes_max(app, request)
    if isinstance(request, Request) and bytes_max is not None:
        # The body is handled while it arrives.
        wanted = asyncio.Event()
        request.stream = BodyStream(bytes_max, wanted.set)
        app.handle(request, slot)
        pump = _pump(receive, slot, request.stream, wanted)
        await _deliver(slot, send, asyncio.create_task(pump))
        return
    # The body first: some hosts break off if they get the response before they sent it.
    body = await _body(receive, app.settings.http.body_bytes_max)
    if body is None:
        return
    if isinstance(request, HoldfastError):
        respond_error(slot, request)
    elif isinstance(body, HoldfastError):
        respond_error(slot, body)
    else:
        request.body = body
        app.handle(request, slot)
    if slot.done:
        await slot.deliver(send)
    else:
        await _deliver(slot, send, asyncio.create_task(_watch(receive, slot)))


def _streamed_bytes_max(app: App, request: Request) -> int | None:
    """The limit of a body that is handled while it arrives; None for other bodies."""
    if is_snapshot(request.method, request.path):
        return app.settings.http.snapshot_bytes_max
    if app.mount is not None and is_forwarded(request, app.mount.forwarded_path):
        return app.mount.forwarded_bytes_max
    return None


async def _deliver(slot: AsgiSlot, send: Send, task: asyncio.Task[None]) -> None:
    """Send the response as it comes, while a task reads from the host."""
    try:
        await slot.deliver(send)
    except OSError:
        # The host noticed first that the client is gone.
        pass
    finally:
        task.cancel()
        if not slot.done:
            slot.abandon()


async def _pump(
    receive: Receive, slot: AsgiSlot, stream: BodyStream, wanted: asyncio.Event
) -> None:
    """Feed the body while it is wanted, then tell the slot if the client disconnects."""
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


def _request(app: App, scope: Scope) -> Request:
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
    if app.mount is not None and path.startswith(app.mount.forwarded_path):
        request.other_headers = others
    return request


async def _body(receive: Receive, bytes_max: int) -> bytes | HoldfastError | None:
    """The whole body, an error if it is too large, or None if the client disconnected."""
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
            # Read on within reason: some hosts break off otherwise.
            parts.clear()
            if not more or size > _DISCARD_FACTOR * bytes_max:
                return PayloadTooLargeError(f"The body exceeds {bytes_max} bytes.")
        else:
            parts.append(part)
        if not more:
            return b"".join(parts)


async def _watch(receive: Receive, slot: AsgiSlot) -> None:
    """Tell the slot if the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if not slot.done:
        slot.abandon()
