"""The ASGI side: requests from a host's messages, and the slot that queues responses for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from holdfast.errors import (
    HoldfastError,
    InvalidRequestError,
    PayloadTooLargeError,
    RequestTimeoutError,
)
from holdfast.http.bodies import BodyPace, BodyStream
from holdfast.http.exchange import BODILESS, KEPT_HEADERS, Request, join_repeated
from holdfast.http.request_reader import is_forwarded, is_snapshot
from holdfast.http.responses import respond_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.http.app import App

    Scope = dict[str, Any]
    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]

QUEUE_BYTES_MAX: Final = 65_536
# Of a refused body this much is read, for this long: some hosts break off if they get the response
# before they sent the request.
_DISCARD_FACTOR: Final = 4
_DISCARD_S: Final = 2.0


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
        self.has_begun = False
        # What is missing of a body that is sent in pieces, if its length is known.
        self._missing_bytes = 0
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

    def begin(self, status: int, headers: bytes, length: int | None = None) -> None:
        if self.done:
            return
        self.has_begun = True
        seconds = 0.0
        if length is not None:
            headers += b"Content-Length: %d\r\n" % length
            self._missing_bytes = length
            seconds = self._app.clock.monotonic_s() - self._started_s
        self._begin(status, headers, seconds)

    def _begin(self, status: int, headers: bytes, seconds: float) -> None:
        self._app.counters.count(self.route, status, seconds)
        pairs = [
            (name.lower(), value)
            for line in (headers + self._app.security_headers).split(b"\r\n")[:-1]
            for name, _, value in [line.partition(b": ")]
        ]
        self._put({"type": "http.response.start", "status": status, "headers": pairs})

    def write(self, data: bytes, more: bytes = b"") -> None:
        for part in (data, more):
            if part and not self.done:
                self._queued_bytes += len(part)
                self._missing_bytes -= len(part)
                self._put({"type": "http.response.body", "body": part, "more_body": True})

    def end(self) -> None:
        if self._missing_bytes > 0:
            self.abort()
        elif not self.done:
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


class _Incoming:
    """The body of a request, as the host passes it on."""

    def __init__(self, app: App, receive: Receive) -> None:
        http = app.settings.http
        self.receive = receive
        self._pace = BodyPace(http.body_timeout_s, http.body_rate_min)
        self._now = asyncio.get_running_loop().time
        self._budget = app.bodies
        self._bytes_max = http.body_bytes_max
        self._deadline_s = 0.0
        self.rest()
        self.more = True
        self.disconnected = False

    def rest(self) -> None:
        """The client did not have to send until now."""
        self._deadline_s = self._now() + self._pace.longest_pause

    async def next(self) -> bytes:
        """The next part; raises RequestTimeoutError if the body comes too slowly."""
        try:
            async with asyncio.timeout_at(self._deadline_s):
                message = await self.receive()
        except TimeoutError:
            raise RequestTimeoutError("The request did not arrive in time.") from None
        if message["type"] == "http.disconnect":
            self.disconnected, self.more = True, False
            return b""
        part: bytes = message.get("body", b"")
        self.more = message.get("more_body", False)
        self._deadline_s = self._pace.deadline(self._deadline_s, self._now(), len(part))
        return part

    async def collect(self, *, is_known: bool) -> bytes:
        """The whole body; raises if it is too large, or if too much is under way."""
        parts: list[bytes] = []
        size = held = 0
        try:
            while self.more:
                parts.append(await self.next())
                size += len(parts[-1])
                if size > self._bytes_max:
                    raise PayloadTooLargeError(f"The body exceeds {self._bytes_max} bytes.")
                if self.more:
                    self._budget.take(size - held, is_known=is_known)
                    held = size
        finally:
            self._budget.give(held)
        return b"".join(parts)

    async def discard(self) -> None:
        """Read the rest of a refused body, within reason."""
        size = 0
        with contextlib.suppress(TimeoutError, RequestTimeoutError):
            async with asyncio.timeout(_DISCARD_S):
                while self.more and size <= _DISCARD_FACTOR * self._bytes_max:
                    size += len(await self.next())


async def handle_http(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Handle one HTTP request of an ASGI host."""
    slot = AsgiSlot(app, is_head=scope["method"] == "HEAD")
    incoming = _Incoming(app, receive)
    try:
        request = _request(app, scope)
        app.admit(request, slot)
        bytes_max = _streamed_bytes_max(app, request)
        if bytes_max is None:
            request.body = await incoming.collect(is_known=request.identity is not None)
    except HoldfastError as error:
        await incoming.discard()
        if not incoming.disconnected:
            respond_error(slot, error)
            await slot.deliver(send)
        return
    if incoming.disconnected:
        return
    if bytes_max is not None:
        # The body is handled while it arrives.
        wanted = asyncio.Event()
        request.stream = BodyStream(bytes_max, app.bodies, wanted.set)
        app.handle(request, slot)
        pump = _pump(incoming, slot, request.stream, wanted)
        await _deliver(slot, send, asyncio.create_task(pump))
        return
    app.handle(request, slot)
    if slot.done:
        await slot.deliver(send)
    else:
        await _deliver(slot, send, asyncio.create_task(_watch(incoming, slot)))


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
    incoming: _Incoming, slot: AsgiSlot, stream: BodyStream, wanted: asyncio.Event
) -> None:
    """Feed the body while it is wanted, then tell the slot if the client disconnects."""
    size = 0
    while incoming.more:
        while stream.full:
            wanted.clear()
            await wanted.wait()
            incoming.rest()
        try:
            part = await incoming.next()
        except RequestTimeoutError as error:
            stream.fail(error)
            break
        stream.feed(part)
        size += len(part)
        if size > _DISCARD_FACTOR * stream.bytes_max:
            slot.rest_is_read()
    if incoming.disconnected:
        stream.fail()
    elif not incoming.more:
        stream.finish()
    slot.rest_is_read()
    await _watch(incoming, slot)


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


async def _watch(incoming: _Incoming, slot: AsgiSlot) -> None:
    """Tell the slot if the client disconnects."""
    while not incoming.disconnected:
        incoming.disconnected = (await incoming.receive())["type"] == "http.disconnect"
    if not slot.done:
        slot.abandon()
