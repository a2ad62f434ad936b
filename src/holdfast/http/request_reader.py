"""The reading half of a connection: parses bytes into requests.

httptools calls the `on_…` methods. Whatever must not go further is refused here, before its body
is taken: ambiguous framing, repeated headers, and too large heads and bodies. Once a request is
refused, the rest of the input means nothing and is discarded.

A body that is not complete when its head has been read is waited for only if the caller may send
it, if there is room for it, and as long as it arrives fast enough (see `bodies.py`).
"""

from __future__ import annotations

import asyncio
import math
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

import httptools

from holdfast.errors import (
    HeadersTooLargeError,
    HoldfastError,
    InvalidRequestError,
    OverloadedError,
    PayloadTooLargeError,
    VersionNotSupportedError,
)
from holdfast.http.bodies import BodyStream
from holdfast.http.exchange import KEPT_HEADERS, Request, join_repeated
from holdfast.http.native_slot import NativeSlot
from holdfast.http.routes import STREAM_PREFIX

if TYPE_CHECKING:
    from holdfast.http.app import App
    from holdfast.http.listener import Listener

# A Content-Length with this many digits may exceed the limit, and is checked.
_LONG_LENGTH: Final = 7
_PIECES_MAX: Final = 64
# Colon, space and line end of a header.
_SEPARATOR_BYTES: Final = 4
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
SNAPSHOT_PATH: Final = b"/snapshot/"
# Not a possible Host, so that a request without one is always checked.
_NO_HOST: Final = b"\0"
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")


def is_snapshot(method: bytes, path: bytes) -> bool:
    """Whether the body goes to the object store while it arrives."""
    # On the flat surface such a path is the id of a stream.
    return (
        method == b"PUT"
        and SNAPSHOT_PATH in path
        and path.count(b"/") == 4
        and not path.startswith(STREAM_PREFIX)
    )


def is_forwarded(request: Request, forwarded_path: bytes) -> bool:
    """Whether a mount handles the body while it arrives."""
    return request.method == b"POST" and request.path.rstrip(b"/") == forwarded_path


class RequestReader(ABC, asyncio.Protocol):
    """Reads requests; `Connection` handles them."""

    # Used by slots.
    app: App
    transport: asyncio.Transport
    paused = False

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._forwarded_path = listener.forwarded_path
        # The client's address, once it is connected.
        self._peer = ""
        self._bodies = listener.app.bodies
        # In ticks of the listener; 0 while nothing is expected of the client.
        self.deadline: float = 0
        self._parser = self._new_parser()
        self._discarding = False
        # The head being read.
        self._in_head = False
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._other_headers: list[tuple[bytes, bytes]] = []
        self._repeated: bytes | None = None
        self._head_bytes = 0
        self._line_bytes = 0
        # The last Host that was checked; it rarely changes.
        self._host = _NO_HOST
        # Whether the parser will stop after this head, because it offers another protocol.
        self._upgrading = False
        # The request whose body is being read.
        self._request: Request | None = None
        self._slot: NativeSlot | None = None
        self._body: list[bytes] = []
        self._folded = bytearray()
        self._body_bytes = 0
        # Those of them that are counted, and for which the client was given time.
        self._held_bytes = 0
        self._paced_bytes = 0
        self._continue_due = False
        self._stream: BodyStream | None = None

    @abstractmethod
    def completed(self, slot: NativeSlot) -> None:
        """A slot has its response."""

    @abstractmethod
    def _take(self, request: Request | HoldfastError, slot: NativeSlot) -> None:
        """Handle a request that is complete or refused."""

    @abstractmethod
    def _update_reading(self) -> None:
        """Read from the client only while there is room for its requests."""

    @abstractmethod
    def _let_others_read(self, read_bytes: int) -> None:
        """Wait for the next turn if much was read, and more is likely there."""

    @abstractmethod
    def _send_continue(self) -> None:
        """Send 100 Continue if it is due."""

    @property
    def _is_reading(self) -> bool:
        """Whether a request has begun to arrive and is not complete."""
        return self._in_head or self._request is not None

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Versions are checked with the head: 1.2 and later are treated as 1.1.
        parser.set_dangerous_leniencies(lenient_version=True)
        return parser

    def data_received(self, data: bytes) -> None:
        """Feed the parser, which calls the `on_…` methods."""
        if self._discarding:
            self._let_others_read(len(data))
            return
        request, body_bytes = self._request, self._body_bytes
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if not self._discarding:
                    data = self._stay() + data[upgrade.args[0] :]
                    continue
            except httptools.HttpParserCallbackError:
                raise
            except httptools.HttpParserError as error:
                self._refuse(InvalidRequestError(f"Malformed HTTP request: {error}."))
            break
        if self._in_head:
            # The parser holds an unfinished header back; its bytes count as well.
            line_start = data.rfind(b"\n") + 1
            self._line_bytes = len(data) - line_start + (0 if line_start else self._line_bytes)
            self._check_head_bytes()
        elif self._request is not None:
            if request is self._request and body_bytes == self._body_bytes:
                # No body bytes: the parser holds back a chunk extension or a trailer.
                self._line_bytes += len(data)
                self._check_head_bytes()
            self._await_body()
            self._let_others_read(len(data))

    def on_url(self, url: bytes) -> None:
        """The request target, perhaps in pieces; the first piece starts a request."""
        if self._in_head:
            self._url += url
            self._head_bytes += len(url)
            self._check_head_bytes()
            return
        self._in_head = True
        self._url = url
        self._head_bytes = len(url)
        self._line_bytes = 0
        self._headers = {}
        self.deadline = self._listener.tick + self._listener.header_ticks

    def on_header(self, name: bytes, value: bytes) -> None:
        """One whole header; headers after the body (trailers) are dropped."""
        self._head_bytes += len(name) + len(value) + _SEPARATOR_BYTES
        if self._request is not None:
            self._check_head_bytes()
            return
        key = KEPT_HEADERS.get(name) or KEPT_HEADERS.get(name.lower())
        if key is None:
            if self._forwarded_path in self._url:
                self._other_headers.append((name, value))
            return
        headers = self._headers
        if key not in headers:
            headers[key] = value
        elif not join_repeated(headers, key, value):
            self._repeated = key

    def on_headers_complete(self) -> None:
        """The head is complete: decide whether to take the body."""
        self._in_head = False
        if self._discarding:
            return
        parser, listener, headers = self._parser, self._listener, self._headers
        method = parser.get_method()
        version = parser.get_http_version()
        path, _, query = self._url.partition(b"?")
        self._slot = NativeSlot(self, method, not parser.should_keep_alive(), version != "1.0")
        self._request = request = Request(method, path, query, headers, listener.scheme, self._peer)
        self._body_bytes = self._paced_bytes = 0
        if path[:1] != b"/":
            self._normalise_target(request)
        if method == b"PUT" and is_snapshot(method, request.path):
            self._begin_stream(request, listener.snapshot_bytes_max)
        if self._other_headers:
            self._begin_forwarding(request)
        self.deadline = listener.tick + listener.body_ticks
        if (
            self._head_bytes > listener.header_bytes_max
            or self._repeated is not None
            or b"transfer-encoding" in headers
            or b"expect" in headers
            or b"upgrade" in headers
            or headers.get(b"host") != self._host
            or len(headers.get(b"content-length", b"")) >= _LONG_LENGTH
            or path[:1] != b"/"
            or method == b"CONNECT"
            or version != "1.1"
        ):
            self._check_head(request, version)
        if request.stream is not None:
            self._take_stream(request)

    def on_body(self, body: bytes) -> None:
        if self._discarding:
            return
        self._body_bytes += len(body)
        self._line_bytes = 0
        stream = self._stream
        if stream is not None:
            stream.feed(body)
            return
        if self._body_bytes > self._listener.body_bytes_max:
            self._refuse_body()
            return
        pieces = self._body
        pieces.append(body)
        if len(pieces) >= _PIECES_MAX:
            # Many small objects would take many times their length.
            self._folded += b"".join(pieces)
            pieces.clear()

    def on_message_complete(self) -> None:
        if self._discarding or self._upgrading:
            return
        request, slot = self._request, self._slot
        assert request is not None
        assert slot is not None
        self._request = self._slot = None
        self._continue_due = False
        self.deadline = 0
        if self._held_bytes:
            self._release_body()
        if self._stream is not None:
            stream, self._stream = self._stream, None
            stream.finish()
            return
        body = self._body
        if body or self._folded:
            if self._folded:
                body = [bytes(self._folded), *body]
                self._folded = bytearray()
            request.body = body[0] if len(body) == 1 else b"".join(body)
            self._body = []
        self._take(request, slot)

    # Bodies that are not complete yet.

    def _await_body(self) -> None:
        """Wait for more of the body if it may come, if there is room, and if it is fast enough."""
        request, stream, listener = self._request, self._stream, self._listener
        if request is None or not self._may_send(request):
            return
        if stream is None:
            try:
                is_known = request.identity is not None
                self._bodies.take(self._body_bytes - self._held_bytes, is_known=is_known)
            except OverloadedError as error:
                self._refuse(error)
                return
            self._held_bytes = self._body_bytes
        elif stream.full:
            self._stream_fed()
            return
        received = self._body_bytes - self._paced_bytes
        self._paced_bytes = self._body_bytes
        before = self.deadline or math.inf
        self.deadline = listener.body_pace.deadline(before, listener.tick, received)

    def _may_send(self, request: Request) -> bool:
        """Whether the caller is admitted; refuses the request otherwise."""
        if not request.admitted:
            assert self._slot is not None, "a request has its slot"
            try:
                self.app.admit(request, self._slot)
            except HoldfastError as error:
                self._refuse(error)
        return request.admitted

    def _drop_body(self) -> None:
        self._body, self._folded = [], bytearray()
        self._release_body()

    def _release_body(self) -> None:
        self._bodies.give(self._held_bytes)
        self._held_bytes = 0

    # Bodies that are handled while they arrive.

    def _begin_stream(self, request: Request, bytes_max: int) -> None:
        self._stream = request.stream = BodyStream(bytes_max, self._bodies, self._body_wanted)

    def _begin_forwarding(self, request: Request) -> None:
        """The request may be for a mount, which gets all its headers and the body as a stream."""
        request.other_headers, self._other_headers = self._other_headers, []
        if is_forwarded(request, self._forwarded_path):
            self._begin_stream(request, self._listener.forwarded_bytes_max)

    def _take_stream(self, request: Request) -> None:
        """Hand on a request before its body is here, unless its head was refused."""
        if not self._discarding and not self._upgrading and self._may_send(request):
            assert self._slot is not None, "a request has its slot"
            self._take(request, self._slot)

    def _body_bytes_max(self) -> int:
        return self._listener.body_bytes_max if self._stream is None else self._stream.bytes_max

    def _body_wanted(self) -> None:
        """The handler asks for more of the body."""
        if self._continue_due:
            self._continue_due = False
            self.transport.write(CONTINUE)
        self._stream_fed()

    def _stream_fed(self) -> None:
        """Set a deadline only while the client has to send."""
        stream = self._stream
        waiting = stream is not None and not stream.full
        self.deadline = self._listener.tick + self._listener.body_ticks if waiting else 0
        self._update_reading()

    def _fail_stream(self, error: HoldfastError | None = None) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.fail(error)

    def refuse_rest(self) -> None:
        """Discard the rest of a body whose handler has responded already."""
        self._discarding = True
        self._continue_due = False
        self._request = self._slot = self._stream = None

    def _check_head_bytes(self) -> None:
        # An unfinished line may be the request line, whose target is counted already.
        head_bytes = self._head_bytes + max(0, self._line_bytes - len(self._url))
        if head_bytes > self._listener.header_bytes_max and not self._discarding:
            self._refuse(
                HeadersTooLargeError(
                    f"Request line and headers exceed {self._listener.header_bytes_max} bytes."
                )
            )

    def _check_head(self, request: Request, version: str) -> None:
        """Check an unusual head: refuse it, or note that 100 Continue is expected."""
        headers = request.headers
        self._host = headers.get(b"host", _NO_HOST)
        self._upgrading = b"upgrade" in headers and self._parser.should_upgrade()
        self._check_head_bytes()
        length = headers.get(b"content-length")
        encoding = headers.get(b"transfer-encoding")
        if not version.startswith("1."):
            self._refuse(VersionNotSupportedError(version))
        elif encoding is not None and length is not None:
            self._refuse(
                InvalidRequestError("Content-Length and Transfer-Encoding exclude each other.")
            )
        elif encoding is not None and encoding.lower() != b"chunked":
            self._refuse(InvalidRequestError("The only Transfer-Encoding taken is chunked."))
        elif self._repeated is not None:
            name = self._repeated.decode()
            self._refuse(InvalidRequestError(f"The header {name} is given more than once."))
        elif version != "1.0" and not _HOST.fullmatch(headers.get(b"host", b"")):
            self._refuse(InvalidRequestError("An HTTP/1.1 request needs a valid Host header."))
        elif length is not None and int(length) > self._body_bytes_max():
            self._refuse_body()
        elif request.method == b"CONNECT":
            self._refuse(InvalidRequestError("CONNECT is not supported."))
        if self._discarding or self._upgrading:
            return
        # HTTP/1.0 clients do not know interim responses.
        self._continue_due = (
            version != "1.0" and headers.get(b"expect", b"").lower() == b"100-continue"
        )
        if self._continue_due and self._stream is None and self._may_send(request):
            self._send_continue()

    def _normalise_target(self, request: Request) -> None:
        """Allow targets of the forms `http://host/path` and `*`, which are rarely sent."""
        scheme, found, rest = request.path.partition(b"://")
        if found and scheme.lower() in (b"http", b"https"):
            request.path = b"/" + rest.partition(b"/")[2]
        elif not (request.path == b"*" and request.method == b"OPTIONS") and (
            request.method != b"CONNECT"
        ):
            self._refuse(InvalidRequestError("The request target must be a path."))

    def _stay(self) -> bytes:
        """The head of a request that offers another protocol, without the offer.

        Such offers are ignored, as RFC 9110 allows. The parser stops at the head, so a new parser
        starts over with the headers that matter.
        """
        request, slot = self._request, self._slot
        assert request is not None, "the head is complete"
        assert slot is not None, "the head is complete"
        self._request = self._slot = None
        self._upgrading = False
        self._parser = self._new_parser()
        lines = [
            b"%b %b HTTP/%b" % (request.method, self._url, b"1.1" if slot.chunked else b"1.0"),
            b"connection: close" if slot.closes else b"connection: keep-alive",
        ]
        lines += [b"%b: %b" % field for field in request.headers.items() if field[0] != b"upgrade"]
        # Headers named by `Connection` are not forwarded.
        lines += [b"%b: %b" % field for field in request.other_headers]
        return b"\r\n".join([*lines, b"", b""])

    def _refuse_body(self) -> None:
        limit = self._body_bytes_max()
        self._refuse(PayloadTooLargeError(f"The body exceeds {limit} bytes."))

    def _refuse(self, error: HoldfastError) -> None:
        """Respond to the request being parsed with an error, in its turn, and read no more."""
        if self._discarding:
            return
        self._discarding = True
        self._drop_body()
        self._fail_stream(error)
        slot = self._slot or NativeSlot(self, b"", closes=True, chunked=False)
        slot.closes = True
        self._request = self._slot = None
        self._take(error, slot)
