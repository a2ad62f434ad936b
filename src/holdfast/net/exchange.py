"""One call: the request as it is sent, and the response as it arrives."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from holdfast.errors import OutboundError
from holdfast.net.failures import SilenceError, TransportError, outbound_error
from holdfast.net.sockets import SocketProtocol, wake
from holdfast.net.targets import Target, sent_path
from holdfast.protocol.headers import CONTROL_CHARACTERS, HEADER_NAME, header_text
from holdfast.version import __version__

RESPONSE_HEADER_BYTES_MAX: Final = 32_768
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
# Unless the caller says otherwise. Nothing is decoded here, so no encoding is accepted.
_DEFAULT_HEADERS: Final = {"User-Agent": f"holdfast/{__version__}", "Accept-Encoding": "identity"}
# HTTP/2 can carry these in a header, and a header that repeats such a value would become two.
_LINE_ENDS: Final = re.compile(rb"[\x00\r\n]")

Headers = Mapping[str, str | bytes]
RequestBody = bytes | AsyncIterable[bytes]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class OutboundRequest:
    target: Target
    method: bytes
    # Path and query, as they are sent.
    path: bytes
    headers: list[tuple[bytes, bytes]]
    body: RequestBody
    # The longest wait for anything: a connection, room to send, or the next piece of the response.
    silence_s: float


def make_request(
    target: Target, method: str, url: str, headers: Headers, body: RequestBody, silence_s: float
) -> OutboundRequest:
    """The request, or OutboundError if it cannot be sent."""
    try:
        sent = sent_headers(target, method, headers, body)
        if not isinstance(body, bytes) and (length := _length(sent)) is not None:
            body = _of_length(body, length, target)
    except ValueError:
        # Without the reason: it may quote a header.
        raise OutboundError(
            f"{target} was not called: the method, a header or the body cannot be sent.",
            sent=False,
            passing=False,
        ) from None
    return OutboundRequest(target, method.encode(), sent_path(url), sent, body, silence_s)


async def _of_length(
    pieces: AsyncIterable[bytes], length: int, target: Target
) -> AsyncIterator[bytes]:
    """The pieces, or OutboundError if they are not as long as announced."""
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > length:
            break
        yield piece
    if size != length:
        raise OutboundError(
            f"{target} was not sent the whole body: it is not as long as its Content-Length.",
            passing=False,
        )


def sent_headers(
    target: Target, method: str, headers: Headers, body: RequestBody
) -> list[tuple[bytes, bytes]]:
    """The caller's headers, and those that every request needs.

    Raises ValueError for a header that would become several, or would announce another body.
    """
    sent = {name.lower(): (name, value) for name, value in headers.items()}
    for name, value in _DEFAULT_HEADERS.items():
        sent.setdefault(name.lower(), (name, value))
    sent.setdefault("host", ("Host", target.authority))
    if isinstance(body, bytes):
        if body or method in _WITH_BODY or "content-length" in sent:
            sent.setdefault("content-length", ("Content-Length", str(len(body))))
    elif "content-length" not in sent:
        sent.setdefault("transfer-encoding", ("Transfer-Encoding", "chunked"))
    encoded = [(name.encode("ascii"), _bytes(value)) for name, value in sent.values()]
    if not HEADER_NAME.fullmatch(method.encode("ascii")):
        raise ValueError("The method is not a token.")
    if not all(HEADER_NAME.fullmatch(name) for name, _ in encoded):
        raise ValueError("A header's name is not a token.")
    if any(CONTROL_CHARACTERS.search(value) for _, value in encoded):
        raise ValueError("A header holds control characters.")
    if "content-length" in sent and "transfer-encoding" in sent:
        raise ValueError("The body's length is announced twice.")
    if any(name.lower() == b"transfer-encoding" and value != b"chunked" for name, value in encoded):
        raise ValueError("The only transfer encoding is chunked.")
    if isinstance(body, bytes) and _length(encoded) not in {None, len(body)}:
        raise ValueError("The body is not as long as announced.")
    return encoded


def _length(headers: list[tuple[bytes, bytes]]) -> int | None:
    """The length that the headers announce; ValueError if it is not a number."""
    for name, value in headers:
        if name.lower() == b"content-length":
            if not value.isdigit() or len(value) > 18:
                raise ValueError("The body's length is not a number.")
            return int(value)
    return None


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("ascii")


class OutboundStream:
    """A response whose body is still arriving, as it is on the wire: no encoding is undone.

    The connection pushes pieces in with `arrived`, `finished` and `failed`; the caller takes them
    out with `next_chunk`. Names of headers are lower-case.
    """

    def __init__(self, request: OutboundRequest) -> None:
        self.target = request.target
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self._raw_headers: list[tuple[bytes, bytes]] = []
        self._silence_s = request.silence_s
        self._loop = asyncio.get_running_loop()
        self._pieces: deque[bytes] = deque()
        self._complete = False
        self._failure: TransportError | None = None
        # Where pieces go at once, and what that raised.
        self._take: Callable[[bytes], bool] | None = None
        self._defect: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        # One timer for many waits: it is set again only when it fires.
        self._waiting_since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # For the caller.

    async def chunks(self) -> AsyncIterator[bytes]:
        while chunk := await self.next_chunk():
            yield chunk

    async def next_chunk(self) -> bytes:
        """The next piece of the body; empty at its end."""
        while not self._pieces:
            if self._failure is not None:
                raise outbound_error(self._failure, self.target)
            if self._complete:
                return b""
            await self.news()
        piece = self._pieces.popleft()
        self._taken(len(piece))
        return piece

    async def pass_on(self, take: Callable[[bytes], bool]) -> bool:
        """Pass pieces to `take` the moment they arrive, without waking this task for each.

        Returns True at the end of the body, and False once `take` has: later pieces are kept.
        """
        while self._pieces:
            if not take(await self.next_chunk()):
                return False
        self._take = take
        try:
            while self._is_passing_on and not self.is_over:
                await self.news()
            took_all = self._is_passing_on
        finally:
            self._take = None
        if self._defect is not None:
            defect, self._defect = self._defect, None
            raise defect
        if took_all and self._failure is not None:
            raise outbound_error(self._failure, self.target)
        return took_all

    @property
    def _is_passing_on(self) -> bool:
        return self._take is not None

    async def read(self, bytes_max: int) -> bytes:
        """The whole body, or OutboundError once it exceeds `bytes_max`."""
        parts = []
        size = 0
        while chunk := await self.next_chunk():
            size += len(chunk)
            if size > bytes_max:
                raise OutboundError(
                    f"The response of {self.target} exceeds {bytes_max} bytes.", passing=False
                )
            parts.append(chunk)
        return b"".join(parts)

    # For the connection.

    async def head(self) -> None:
        """Wait for status and headers; raises if headers cannot be passed on."""
        while not self.status:
            if self._failure is not None:
                raise outbound_error(self._failure, self.target)
            await self.news()
        if fault := _fault(self._raw_headers):
            raise OutboundError(f"The headers of {self.target}'s response {fault}.", passing=False)
        self.headers = [
            (name.decode("ascii").lower(), header_text(value)) for name, value in self._raw_headers
        ]

    async def news(self) -> None:
        """Wait until something changes; silence for too long is a failure."""
        loop = self._loop
        waiter = self._waiter = loop.create_future()
        self._waiting_since_s = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._silence_s, self._check_silence)
        try:
            await waiter
        finally:
            self._waiter = None

    def _check_silence(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        left_s = self._waiting_since_s + self._silence_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check_silence)
        else:
            self.failed(SilenceError(self._silence_s))

    @property
    def is_over(self) -> bool:
        """Whether nothing more arrives, so that there is no use in sending more."""
        return self._complete or self._failure is not None

    def begun(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        self._raw_headers = headers
        wake(self._waiter)

    def arrived(self, piece: bytes) -> bool:
        """Pass a piece on, or keep it until it is taken: then True."""
        if self._take is None:
            self._pieces.append(piece)
            wake(self._waiter)
            return True
        self._waiting_since_s = self._loop.time()
        try:
            if self._take(piece):
                return False
        except Exception as error:  # noqa: BLE001 (raised where the task waits)
            self._defect = error
        self._take = None
        wake(self._waiter)
        return False

    def finished(self) -> None:
        self._complete = True
        wake(self._waiter)

    def wake(self) -> None:
        wake(self._waiter)

    def failed(self, failure: TransportError) -> None:
        """Nothing more arrives. That is no failure if the response is complete."""
        if not self.is_over:
            self._failure = failure
        wake(self._waiter)

    def _taken(self, size: int) -> None:
        """The caller took a piece of this size."""
        raise NotImplementedError

    def close(self) -> None:
        """Give up what is still to come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pieces.clear()


def _fault(headers: list[tuple[bytes, bytes]]) -> str:
    if sum(map(len, chain.from_iterable(headers))) > RESPONSE_HEADER_BYTES_MAX:
        return f"exceed {RESPONSE_HEADER_BYTES_MAX} bytes"
    for name, value in headers:
        if not HEADER_NAME.fullmatch(name) or _LINE_ENDS.search(value):
            return "are not valid HTTP"
    return ""


def joined(headers: list[tuple[str, str]]) -> dict[str, str]:
    """Headers by name; repeated ones are joined with a comma."""
    by_name: dict[str, str] = {}
    for name, value in headers:
        by_name[name] = f"{by_name[name]}, {value}" if name in by_name else value
    return by_name


class HttpConnection:
    """A connection to one server, as the pool sees it."""

    def __init__(self, target: Target, socket: SocketProtocol) -> None:
        self.target = target
        self.is_closed = False
        # When it is closed if it stays idle.
        self.expires_at_s = 0.0
        # Called when it can take another request, and once when it is closed.
        self.on_free: Callable[[Any], None] = _ignore
        self.on_closed: Callable[[Any], None] = _ignore
        self._socket = socket

    async def send(self, request: OutboundRequest) -> OutboundStream:
        """Send a request and wait for the head of its response."""
        raise NotImplementedError

    @property
    def is_idle(self) -> bool:
        raise NotImplementedError

    @property
    def has_room(self) -> bool:
        """Whether it can take another request now."""
        raise NotImplementedError

    def close(self) -> None:
        """Close at once; responses under way fail."""
        if not self.is_closed:
            self.is_closed = True
            self._socket.close()
            self.on_closed(self)


def _ignore(_connection: HttpConnection) -> None: ...
