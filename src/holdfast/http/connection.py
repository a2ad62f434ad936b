"""A native HTTP/1.1 connection: an `asyncio.Protocol` around the httptools parser.

Rules:

- Answers leave in the order of their requests; several that are ready leave in one write.
- A request is dispatched once everything before it is answered. Only appends may follow appends
  that still wait for the disk: they are staged in order, and no read can overtake a write.
- A client that does not read its answers is not read from either, and live readers skip it.
- Once a request is refused before its end (too large, malformed), the rest of the input means
  nothing: it is discarded, the refusal is written in its turn, and the connection closes after a
  short while, so that the refusal is not lost to a reset.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import TYPE_CHECKING, Final, cast

import httptools

from holdfast.errors import (
    HeadersTooLargeError,
    HoldfastError,
    InvalidRequestError,
    PayloadTooLargeError,
    RequestTimeoutError,
)
from holdfast.http.errors import answer_error
from holdfast.http.exchange import KEPT_FIELDS, LIST_FIELDS, Request
from holdfast.http.native_slot import NativeSlot

if TYPE_CHECKING:
    from holdfast.http.listener import Listener

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
WRITE_BUFFER_BYTES: Final = 65_536
LINGER_S: Final = 2
# A Content-Length of this many digits or more may exceed the limit and is looked at closely.
_LONG_LENGTH: Final = 7
_PIECES_MAX: Final = 1024
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, listener: Listener) -> None:
        self.app = listener.app
        self._handle = listener.app.handle
        self._monotonic_s = listener.app.clock.monotonic_s
        self.paused = False
        # The listener's tick at which patience ends; 0 while nothing is expected of the client.
        self.deadline = 0
        self._listener = listener
        self.transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        # The request being parsed.
        self._url = b""
        self._fields: dict[bytes, bytes] = {}
        self._repeated: bytes | None = None
        # The Host that was checked last: it hardly ever changes.
        self._host: bytes | None = b"\0"
        # Whether the parser will end at this request's head, since it offers another protocol.
        self._upgrading = False
        self._head_bytes = 0
        self._line_bytes = 0
        self._in_head = False
        self._request: Request | None = None
        self._slot: NativeSlot | None = None
        self._body: list[bytes] = []
        self._folded: list[bytes] = []
        self._body_bytes = 0
        self._continue_due = False
        # Requests that are dispatched, oldest first, and those that must wait.
        self._slots: deque[NativeSlot] = deque()
        self._backlog: deque[tuple[Request | HoldfastError, NativeSlot]] = deque()
        self._backlog_bytes = 0
        self._advancing = False
        self._reading_paused = False
        self._discarding = False
        self._at_eof = False
        self._closing = False
        self._unread_bytes = 0

    # The transport's events.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        # uvloop's transports have the interface of this class without being of it.
        transport = cast("asyncio.Transport", transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.deadline = self._listener.tick + self._listener.header_ticks
        self._listener.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        del exc
        self._listener.left(self)
        self._discarding = self._closing = True
        # The parser holds our methods: without this only a full collection would free the two.
        del self._parser
        slots = list(self._slots)
        self._slots.clear()
        self._backlog.clear()
        for slot in slots:
            slot.abandon()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, which calls the `on_…` methods."""
        if self._discarding:
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
            # The parser holds an unfinished header field back; it counts all the same.
            line_start = data.rfind(b"\n") + 1
            self._line_bytes = len(data) - line_start + (0 if line_start else self._line_bytes)
            self._check_head_bytes()
        elif request is not None and request is self._request and body_bytes == self._body_bytes:
            # Within a body but none of it: the parser holds back a chunk's extension or a trailer.
            self._line_bytes += len(data)
            self._check_head_bytes()

    def eof_received(self) -> bool:
        """The client sends no more; answers under way are still delivered."""
        if self._listener.is_tls or not (self._slots or self._backlog):
            return False
        if self._slots and self._slots[0].has_begun:
            # Who reads events does not half-close: the client is gone.
            return False
        self._discarding = self._at_eof = True
        last = self._backlog[-1][1] if self._backlog else self._slots[-1]
        last.closes = True
        return True

    def pause_writing(self) -> None:
        """The client does not read: stop reading from it, too."""
        self.paused = True
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._reset_deadline()
        self._update_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        self.paused = False
        self._reset_deadline()
        if self._slots:
            self._slots[0].resume()
        self._update_reading()
        self._after_answers()

    # The parser's events.

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
        self._fields = {}
        self.deadline = self._listener.tick + self._listener.header_ticks

    def on_header(self, name: bytes, value: bytes) -> None:
        """One whole header field; fields after the body (trailers) are dropped."""
        if self._request is not None:
            self._head_bytes += len(name) + len(value)
            self._check_head_bytes()
            return
        self._head_bytes += len(name) + len(value)
        key = KEPT_FIELDS.get(name) or KEPT_FIELDS.get(name.lower())
        if key is None:
            return
        fields = self._fields
        if key not in fields:
            fields[key] = value
        elif key in LIST_FIELDS:
            fields[key] += b", " + value
        else:
            self._repeated = key

    def on_headers_complete(self) -> None:
        """The head is complete: decide whether to take the body."""
        self._in_head = False
        if self._discarding:
            return
        parser, listener, fields = self._parser, self._listener, self._fields
        method = parser.get_method()
        http11 = parser.get_http_version() == "1.1"
        path, _, query = self._url.partition(b"?")
        self._slot = NativeSlot(self, method, not parser.should_keep_alive(), http11)
        self._request = request = Request(method, path, query, fields, listener.scheme)
        self._body_bytes = 0
        self.deadline = listener.tick + listener.body_ticks
        if (
            self._head_bytes > listener.header_bytes_max
            or self._repeated is not None
            or b"transfer-encoding" in fields
            or b"expect" in fields
            or b"upgrade" in fields
            or fields.get(b"host") != self._host
            or len(fields.get(b"content-length", b"")) >= _LONG_LENGTH
            or path[:1] != b"/"
        ):
            self._check_head(request, http11=http11)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._discarding:
            return
        self._body_bytes += len(body)
        self._line_bytes = 0
        if self._body_bytes > self._listener.body_bytes_max:
            self._refuse_body()
            return
        pieces = self._body
        pieces.append(body)
        if len(pieces) >= _PIECES_MAX:
            # Many small pieces would take many times their length.
            self._folded.append(b"".join(pieces))
            pieces.clear()
        self.deadline = self._listener.tick + self._listener.body_ticks

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self._discarding or self._upgrading:
            return
        request, slot = self._request, self._slot
        assert request is not None
        assert slot is not None
        self._request = self._slot = None
        self._continue_due = False
        self.deadline = 0
        body = self._body
        if body or self._folded:
            if self._folded:
                body = [*self._folded, *body]
                self._folded = []
            request.body = body[0] if len(body) == 1 else b"".join(body)
            self._body = []
        if self._slots or self._backlog or self.paused:
            self._submit(request, slot)
        else:
            self._slots.append(slot)
            slot.started_s = self._monotonic_s()
            self._handle(request, slot)

    # Requests.

    def _check_head_bytes(self) -> None:
        # An unfinished line may be the request line, of which the target is counted already.
        head_bytes = self._head_bytes + max(0, self._line_bytes - len(self._url))
        if head_bytes > self._listener.header_bytes_max and not self._discarding:
            self._refuse(
                HeadersTooLargeError(
                    f"Request line and headers exceed {self._listener.header_bytes_max} bytes."
                )
            )

    def _check_head(self, request: Request, *, http11: bool) -> None:
        """Look closer at an unusual head: refuse it, or see to its expectations."""
        fields = request.fields
        self._host = fields.get(b"host")
        self._upgrading = b"upgrade" in fields and self._parser.should_upgrade()
        self._check_head_bytes()
        length = fields.get(b"content-length")
        encoding = fields.get(b"transfer-encoding")
        if encoding is not None and length is not None:
            self._refuse(
                InvalidRequestError("Content-Length and Transfer-Encoding exclude each other.")
            )
        elif encoding is not None and encoding.lower() != b"chunked":
            self._refuse(InvalidRequestError("The only Transfer-Encoding taken is chunked."))
        elif self._repeated is not None:
            name = self._repeated.decode()
            self._refuse(InvalidRequestError(f"The header {name} is given more than once."))
        elif http11 and not _HOST.fullmatch(fields.get(b"host", b"")):
            self._refuse(InvalidRequestError("An HTTP/1.1 request needs a valid Host header."))
        elif length is not None and int(length) > self._listener.body_bytes_max:
            self._refuse_body()
        elif not request.path.startswith(b"/"):
            self._normalise_target(request)
        if fields.get(b"expect", b"").lower() == b"100-continue" and not self._discarding:
            self._continue_due = True
            self._send_continue()

    def _normalise_target(self, request: Request) -> None:
        """Targets of the form `http://host/path` and `*` are allowed, though rarely sent."""
        scheme, found, rest = request.path.partition(b"://")
        if found and scheme.lower() in (b"http", b"https"):
            request.path = b"/" + rest.partition(b"/")[2]
        elif not (request.path == b"*" and request.method == b"OPTIONS"):
            self._refuse(InvalidRequestError("The request target must be a path."))

    def _stay(self) -> bytes:
        """The head of a request that offers another protocol, without the offer.

        Nobody here speaks the other one, so the offer is ignored, as RFC 9110 allows. The parser
        has skipped the body, so a new one starts over with what matters of the head.
        """
        request = self._request
        assert request is not None, "the head is complete"
        self._request = self._slot = None
        self._upgrading = False
        self._parser = httptools.HttpRequestParser(self)
        lines = [b"%b %b HTTP/1.1" % (request.method, self._url)]
        lines += [b"%b: %b" % field for field in request.fields.items() if field[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _refuse_body(self) -> None:
        limit = self._listener.body_bytes_max
        self._refuse(PayloadTooLargeError(f"The body exceeds {limit} bytes."))

    def _refuse(self, error: HoldfastError) -> None:
        """Answer the request being parsed with an error, in its turn, and take no more."""
        if self._discarding:
            return
        self._discarding = True
        self._body, self._folded = [], []
        slot = self._slot or NativeSlot(self, b"", closes=True, chunked=False)
        slot.closes = True
        self._request = self._slot = None
        self._submit(error, slot)

    def _submit(self, request: Request | HoldfastError, slot: NativeSlot) -> None:
        slots = self._slots
        follows_appends = slot.method == b"POST" and slots and slots[-1].method == b"POST"
        if (not slots or follows_appends) and not self._backlog and not self.paused:
            self._dispatch(request, slot)
        else:
            self._backlog.append((request, slot))
            if isinstance(request, Request):
                self._backlog_bytes += len(request.body)
            self._reset_deadline()
        self._update_reading()

    def _dispatch(self, request: Request | HoldfastError, slot: NativeSlot) -> None:
        self._slots.append(slot)
        slot.started_s = self._monotonic_s()
        if isinstance(request, Request):
            self._handle(request, slot)
        else:
            answer_error(slot, request)

    # Answers.

    def completed(self, slot: NativeSlot) -> None:
        """A slot has its answer: write it and all that were waiting behind it, in order."""
        slots = self._slots
        if slots[0] is not slot:
            return
        slots.popleft()
        assert slot.output is not None
        if not slots:
            self.transport.write(slot.output)
            closes = slot.closes
        else:
            closes = self._write_ready(slot)
        if closes:
            self._close()
        elif self._backlog or self._reading_paused or self.app.draining or self._continue_due:
            self._after_answers()
        elif not slots and self._request is None and not self._in_head:
            self.deadline = self._listener.tick + self._listener.idle_ticks

    def _write_ready(self, slot: NativeSlot) -> bool:
        """Write this answer and those that are ready behind it; whether to close then."""
        slots = self._slots
        outputs = [slot.output or b""]
        while slots and not slot.closes and slots[0].output is not None:
            slot = slots.popleft()
            outputs.append(slot.output or b"")
        self.transport.write(b"".join(outputs))
        return slot.closes

    def _after_answers(self) -> None:
        """Nothing is under way: go on with the backlog, or wait for the next request."""
        if self._advancing:
            # Called from within the loop below, by an answer that came at once.
            return
        self._advancing = True
        try:
            while self._backlog and not self._slots and not self._closing and not self.paused:
                request, slot = self._backlog.popleft()
                if isinstance(request, Request):
                    self._backlog_bytes -= len(request.body)
                self._dispatch(request, slot)
        finally:
            self._advancing = False
        if self._reading_paused:
            self._update_reading()
        if self._slots or self._closing:
            return
        self._send_continue()
        if self._request is None and not self._in_head and self.app.draining:
            self._close()
        else:
            self._reset_deadline()

    def _reset_deadline(self) -> None:
        """Wait for whatever the client owes us now, for as long as that may take."""
        listener = self._listener
        if self.paused:
            self.deadline = listener.tick + listener.idle_ticks
        elif self._in_head:
            self.deadline = listener.tick + listener.header_ticks
        elif self._request is not None:
            self.deadline = listener.tick + listener.body_ticks
        elif self._slots:
            self.deadline = 0
        else:
            self.deadline = listener.tick + listener.idle_ticks

    def _send_continue(self) -> None:
        if self._continue_due and not self._slots and not self._backlog:
            self._continue_due = False
            self.transport.write(_CONTINUE)

    def _update_reading(self) -> None:
        """Read from the client only while what it sends can be worked on."""
        waiting = len(self._slots) + len(self._backlog)
        stop = (
            self.paused
            or waiting >= self._listener.pipeline_max
            or self._backlog_bytes > self._listener.body_bytes_max
        )
        if stop != self._reading_paused and not self.transport.is_closing():
            self._reading_paused = stop
            if stop:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    # The end.

    def _close(self) -> None:
        """Close once everything is written; after a refusal, only once the client has read it."""
        self._closing = True
        if self._discarding and not self._at_eof and self.transport.can_write_eof():
            self.transport.write_eof()
            self.deadline = self._listener.tick + LINGER_S
        else:
            self.transport.close()
            # What is not written by then never will be.
            self.deadline = self._listener.tick + self._listener.idle_ticks

    def turn_away(self, error: HoldfastError) -> None:
        """The server has no room for this connection."""
        self._refuse(error)

    def drain(self) -> None:
        """The server is shutting down: close when nothing is under way."""
        if not self._slots and not self._backlog and self._request is None and not self._in_head:
            self._close()

    def expire(self) -> None:
        """The client has kept us waiting too long."""
        if self.paused and not self._closing and self._is_being_read():
            self._reset_deadline()
        elif self._closing or self.paused:
            self.transport.abort()
        elif (self._in_head or self._request is not None) and not self._discarding:
            self.deadline = 0
            self._refuse(RequestTimeoutError("The request did not arrive in time."))
        else:
            self._close()

    def _is_being_read(self) -> bool:
        """Whether a slow client has taken any of its answer since this was last asked."""
        unread_bytes = self.transport.get_write_buffer_size()
        was, self._unread_bytes = self._unread_bytes, unread_bytes
        return unread_bytes < was

    def abort(self) -> None:
        """Drop the connection at once."""
        self.transport.abort()
