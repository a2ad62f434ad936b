"""A native HTTP/1.1 connection: dispatches requests and writes responses in order.

Rules:

- Responses are sent in the order of their requests; several that are ready go out in one write.
- A request is dispatched once every request before it has its response. Only appends may follow
  appends that still wait for the disk: they are staged in order, and no read overtakes a write.
- A client that does not read its responses is not read from either, and live readers skip it.
- After a refusal (see `RequestReader`) the connection closes only after a short while, so that the
  response is not lost to a reset.
"""

from __future__ import annotations

import contextlib
import fcntl
import struct
import termios
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from holdfast.errors import HoldfastError, OverloadedError, RequestTimeoutError
from holdfast.http.exchange import Request, peer_address
from holdfast.http.request_reader import CONTINUE, RequestReader
from holdfast.http.responses import respond_error
from holdfast.http.routes import CONTROL_PREFIX

if TYPE_CHECKING:
    import asyncio

    from holdfast.http.listener import Listener
    from holdfast.http.native_slot import NativeSlot

# How much the transport takes before it pauses the connection; the kernel takes more before that.
WRITE_BUFFER_BYTES: Final = 16_384
LARGE_READ_BYTES: Final = 65_536
LINGER_S: Final = 2
# A POST below these is not an append.
NO_APPENDS: Final = (CONTROL_PREFIX, b"/cluster/")
_INT: Final = struct.Struct("i")


class Connection(RequestReader):
    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self.app = listener.app
        self._handle = listener.app.handle
        self._monotonic_s = listener.app.clock.monotonic_s
        # Dispatched requests, oldest first, and requests that have to wait.
        self._slots: deque[NativeSlot] = deque()
        self._backlog: deque[tuple[Request | HoldfastError, NativeSlot]] = deque()
        self._backlog_bytes = 0
        self._advancing = False
        self._reading_paused = False
        self._awaits_turn = False
        self._at_eof = False
        self._closing = False
        self._unsent_bytes = 0

    # Transport events.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports implement this interface without inheriting from it.
        transport = cast("asyncio.Transport", transport)
        self.transport = transport
        self._peer = peer_address(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.deadline = self._listener.tick + self._listener.header_ticks
        self._listener.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._listener.left(self)
        self.app.unsent.remove(self)
        self._discarding = self._closing = True
        self._drop_body()
        self._fail_stream()
        self._leave_backlog(self._backlog_bytes)
        # The parser refers to our methods; without this only a full collection frees the cycle.
        del self._parser
        slots = list(self._slots)
        self._slots.clear()
        self._backlog.clear()
        for slot in slots:
            slot.abandon()

    def eof_received(self) -> bool:
        """The client sends no more; responses under way are still delivered."""
        if self._listener.is_tls or not (self._slots or self._backlog):
            return False
        if self._slots and self._slots[0].has_begun and self._slots[0].missing_bytes is None:
            # A reader of events does not half-close: the client is gone.
            return False
        self._discarding = self._at_eof = True
        self._drop_body()
        self._fail_stream()
        last = self._backlog[-1][1] if self._backlog else self._slots[-1]
        last.closes = True
        return True

    def pause_writing(self) -> None:
        """The client does not read: stop reading from it as well."""
        self.paused = True
        self._unsent_bytes = unsent_bytes(self.transport)
        self.app.unsent.add(self, self.transport.get_write_buffer_size())
        self._reset_deadline()
        self._update_reading()

    def resume_writing(self) -> None:
        self.paused = False
        self.app.unsent.remove(self)
        self._reset_deadline()
        if self._slots:
            self._slots[0].resume()
        self._update_reading()
        self._continue()

    # Requests.

    def _take(self, request: Request | HoldfastError, slot: NativeSlot) -> None:
        if self._closing:
            return
        slots = self._slots
        if not slots and not self._backlog and not self.paused:
            self._dispatch(request, slot)
            return
        if not self._backlog and not self.paused and slots and self._follows(slots[-1], request):
            self._dispatch(request, slot)
        else:
            self._wait(request, slot)
        self._update_reading()

    def _wait(self, request: Request | HoldfastError, slot: NativeSlot) -> None:
        """Keep a request until it is its turn, if there is room for its body."""
        if isinstance(request, Request) and request.body:
            try:
                self._hold(request, slot)
            except HoldfastError as error:
                request = error
        self._backlog.append((request, slot))
        self._reset_deadline()

    def _hold(self, request: Request, slot: NativeSlot) -> None:
        """Count the body of a request that waits; raises if it may not be held."""
        if not request.admitted:
            self.app.admit(request, slot)
        try:
            self._bodies.take(len(request.body), is_known=request.identity is not None)
        except OverloadedError:
            self._discarding = slot.closes = True
            raise
        self._backlog_bytes += len(request.body)

    def _follows(self, before: NativeSlot, request: Request | HoldfastError) -> bool:
        """Whether a request is an append behind an append; both may wait for the disk."""
        return (
            before.route == "append"
            and isinstance(request, Request)
            and request.method == b"POST"
            and not request.path.startswith(self._listener.no_appends)
        )

    def _dispatch(self, request: Request | HoldfastError, slot: NativeSlot) -> None:
        self._slots.append(slot)
        slot.started_s = self._monotonic_s()
        if isinstance(request, Request):
            self._handle(request, slot)
        else:
            respond_error(slot, request)

    # Responses.

    def completed(self, slot: NativeSlot) -> None:
        """Write a slot's response and those that are ready behind it, in order."""
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
            self._continue()
        elif not slots and self._request is None and not self._in_head:
            self.deadline = self._listener.tick + self._listener.idle_ticks

    def _write_ready(self, slot: NativeSlot) -> bool:
        """Write this response and those ready behind it; returns whether to close then."""
        slots = self._slots
        outputs = [slot.output or b""]
        while slots and not slot.closes and slots[0].output is not None:
            slot = slots.popleft()
            outputs.append(slot.output or b"")
        self.transport.write(b"".join(outputs))
        return slot.closes

    def _continue(self) -> None:
        """Dispatch the backlog, or wait for the next request."""
        if self._advancing:
            # Called from within the loop below, by a response that was ready at once.
            return
        self._advancing = True
        try:
            while self._backlog and not self._slots and not self._closing and not self.paused:
                request, slot = self._backlog.popleft()
                self._leave_backlog(_body_bytes(request))
                self._dispatch(request, slot)
        finally:
            self._advancing = False
        if self._reading_paused:
            self._update_reading()
        if self._slots or self._closing:
            return
        self._send_continue()
        if not self._is_reading and self.app.draining:
            self._close()
        else:
            self._reset_deadline()

    def _leave_backlog(self, size: int) -> None:
        self._backlog_bytes -= size
        self._bodies.give(size)

    def _reset_deadline(self) -> None:
        """Set the deadline for what the client has to do next."""
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
            self.transport.write(CONTINUE)

    def _update_reading(self) -> None:
        """Read from the client only while there is room for its requests."""
        waiting = len(self._slots) + len(self._backlog)
        stop = (
            self.paused
            or self._awaits_turn
            or waiting >= self._listener.pipeline_max
            or self._backlog_bytes > self._listener.body_bytes_max
            # Behind other requests nobody takes the body yet.
            or (self._stream is not None and (self._stream.full or bool(self._backlog)))
        )
        if stop != self._reading_paused and not self.transport.is_closing():
            self._reading_paused = stop
            if stop:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()
                if not self.deadline:
                    self._reset_deadline()

    def _let_others_read(self, read_bytes: int) -> None:
        if read_bytes >= LARGE_READ_BYTES and not self._awaits_turn:
            self._awaits_turn = True
            self._update_reading()
            self._listener.body_turns.wait(self._read_on)

    def _read_on(self) -> None:
        self._awaits_turn = False
        self._update_reading()

    # Closing.

    def _close(self) -> None:
        """Close once everything is written; after a refusal, once the client has read it."""
        self._closing = True
        # One more than there are: an unread rest gets the idle timeout from the first deadline on.
        self._unsent_bytes = unsent_bytes(self.transport) + 1
        if self._discarding and not self._at_eof and self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()
        self.deadline = self._listener.tick + min(LINGER_S, self._listener.idle_ticks)

    def turn_away(self, error: HoldfastError) -> None:
        """Refuse the connection: the server has too many."""
        self._refuse(error)

    def drain(self) -> None:
        """Close an idle connection, because the server is shutting down."""
        if not self._slots and not self._backlog and not self._is_reading:
            self._close()

    def expire(self) -> None:
        """The deadline has passed."""
        if self._closing or self.paused:
            # If all is written, only the client's side of the closing is missing (TLS).
            if self._is_being_read() and (self._unsent_bytes or not self._closing):
                self.deadline = self._listener.tick + self._listener.idle_ticks
            else:
                self.transport.abort()
        elif self._reading_paused or self._continue_due or (self._discarding and self._slots):
            # The client waits for us.
            self.deadline = 0
        elif self._is_reading and not self._discarding:
            self.deadline = 0
            self._refuse(RequestTimeoutError("The request did not arrive in time."))
        else:
            self._close()

    def _is_being_read(self) -> bool:
        """Whether a slow client has read anything since the last call."""
        was, self._unsent_bytes = self._unsent_bytes, unsent_bytes(self.transport)
        return self._unsent_bytes < was

    def abort(self) -> None:
        self.transport.abort()


def _body_bytes(request: Request | HoldfastError) -> int:
    """What a waiting request holds; a streamed body counts by itself."""
    return len(request.body) if isinstance(request, Request) else 0


def unsent_bytes(transport: asyncio.WriteTransport) -> int:
    """Bytes that wait in the transport and in the kernel's send queue.

    The kernel takes up to a megabyte at once, so the transport's count alone can stand still for
    seconds while a slow client reads.
    """
    waiting = transport.get_write_buffer_size()
    socket = transport.get_extra_info("socket")
    if socket is not None:
        with contextlib.suppress(OSError, ValueError):
            queued = fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(_INT.size))
            waiting += _INT.unpack(queued)[0]
    return waiting
