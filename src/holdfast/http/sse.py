"""GET {stream}?live=sse: a stream as Server-Sent Events, encoded once for all its readers.

Readers at the tail get the same bytes, so the last encoded event is kept and handed to each of
them. A reader that is further behind catches up by windows (`http.windows`), which it shares with
others, one in each of its turns (`http.turns`). A reader whose connection is paused is skipped, and
continues from its own offset once its client reads again. The response begins with the first event,
so that it can still become an error while that event is read from packs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.engine.reading import ends_in_memory, read
from holdfast.errors import HoldfastError
from holdfast.http.responses import respond_error
from holdfast.http.turns import PIECE_BYTES
from holdfast.http.windows import window_bytes
from holdfast.protocol.content import JSON, is_text
from holdfast.protocol.headers import (
    CURSOR_JITTER_S_MAX,
    format_offset,
    interval_at,
    next_cursor,
    parse_cursor,
)
from holdfast.protocol.names import not_found
from holdfast.protocol.sse import (
    ENCODING_HEADER,
    HEARTBEAT,
    changes_line_ends,
    control_event,
    data_event,
    with_lengths,
    with_listed,
)

if TYPE_CHECKING:
    from holdfast.engine.stream import Stream
    from holdfast.http.app import App
    from holdfast.http.exchange import Slot
    from holdfast.http.read import ReadRequest
    from holdfast.http.windows import Window

_HEAD: Final = b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
_ENCODED_HEAD: Final = _HEAD + ENCODING_HEADER
# Readers that lack no more than this get it at once, when it is published.
_NEAR_BYTES: Final = PIECE_BYTES // 2


class Event(NamedTuple):
    """What a reader at `start` needs next: data up to `end` (none if equal) and a control event."""

    stream: Stream | None
    start: int
    end: int
    cursor: int
    up_to_date: bool
    closed: bool
    data: bytes


class EventEncoder:
    """Encodes what a reader near the tail needs, and keeps it for others at the same offset.

    Readers that asked for message lengths share an encoder of their own.
    """

    __slots__ = ("last", "says_lengths")

    def __init__(self, *, says_lengths: bool = False) -> None:
        self.says_lengths = says_lengths
        self.last = Event(None, 0, 0, 0, up_to_date=False, closed=False, data=b"")

    def encode(self, stream: Stream, start: int, end: int, cursor: int) -> Event:
        """The event from `start` to `end`, which are in memory, as the stream is now."""
        up_to_date = end == stream.tail
        closed = stream.closed and up_to_date
        last = self.last
        if last[:-1] == (stream, start, end, cursor, up_to_date, closed):
            return last
        data = control_event(format_offset(end), cursor, up_to_date=up_to_date, closed=closed)
        if end > start:
            payload = read(stream, start, end)
            if self.says_lengths:
                ends = ends_in_memory(stream, start, end)
                changed = changes_line_ends(payload, stream.media)
                data = with_lengths(data, start, ends, line_ends_changed=changed)
            data = data_event(payload, stream.media) + data
        self.last = last = Event(stream, start, end, cursor, up_to_date, closed, data)
        return last


def sse(app: App, slot: Slot, request: ReadRequest) -> None:
    """Start a reader, which lasts until its client leaves, its time is up, or the server stops."""
    app.check_live_readers()
    SseReader(app, slot, request).start()


class SseReader:
    """One client's event stream; `engine.stream.LiveReaders` calls `wake` and `finish`."""

    __slots__ = (
        "_app",
        "_begun",
        "_bytes_max",
        "_catching_up",
        "_ended",
        "_events",
        "_floor",
        "_head",
        "_offset",
        "_slot",
        "_stream",
        "_timer",
        "_until_s",
        "_window",
        "_written_s",
    )

    def __init__(self, app: App, slot: Slot, request: ReadRequest) -> None:
        self._app = app
        self._slot = slot
        self._stream = request.stream
        self._offset = request.start
        self._bytes_max = request.bytes_max
        self._head = _head(request)
        counts = request.lengths and request.stream.media != JSON
        self._events = app.counted_events if counts else app.events
        self._begun = False
        self._ended = False
        # Whether a turn is due, perhaps once a window is read from packs. `_window` is for it.
        self._catching_up = False
        self._window: Window | None = None
        # An echoed cursor that is not in the past must be exceeded: the floor is chosen once.
        clock = app.clock
        jitter_s = clock.random_int(1, CURSOR_JITTER_S_MAX)
        self._floor = next_cursor(parse_cursor(request.cursor), clock.now_ms(), jitter_s)
        self._written_s = clock.monotonic_s()
        self._until_s = self._written_s + min(app.settings.read.sse_lifetime_s, request.lasts_s)
        self._arm(self._written_s)

    def start(self) -> None:
        """Send what there is, or a first control event, and wait for more."""
        self._slot.on_gone = self._leave
        self._slot.on_resume = self._catch_up
        self._app.shard.live.add(self._stream, self)
        self._app.shard.lifetimes.renew(self._stream)
        if self._stream.tail == self._offset:
            self._write(self._offset)
        else:
            self._catch_up()

    def wake(self) -> None:
        """Send what was published.

        Usually the reader before this one was at the same offset, so its event is reused.
        """
        last = self._events.last
        stream = self._stream
        if (
            last.stream is stream
            and last.start == self._offset
            and last.end == stream.tail
            and last.end - last.start <= self._bytes_max
            and self._floor <= last.cursor
            and not stream.closed
            and not stream.gone
            and not self._catching_up
        ):
            slot = self._slot
            if not slot.paused:
                slot.write(last.data)
                self._offset = last.end
                self._written_s = self._app.clock.monotonic_s()
        elif not self._is_near_tail() or stream.gone:
            self._catch_up()
        elif not (self._catching_up or self._slot.paused) and self._has_more():
            self._write(stream.tail)

    def finish(self) -> None:
        """The server is stopping: a last control event says where to continue."""
        if not self._slot.paused:
            self._write(self._offset)
        self._end()

    def _has_more(self) -> bool:
        """Whether there is something to send: bytes, or the end."""
        return self._offset < self._stream.tail or self._stream.closed

    def _is_near_tail(self) -> bool:
        """Whether everything up to the tail fits into one event and is in memory."""
        stream = self._stream
        limit = min(self._bytes_max, _NEAR_BYTES)
        return stream.tail - limit <= self._offset >= stream.base

    def _catch_up(self) -> None:
        """Wait for a turn."""
        if not self._catching_up and not self._ended:
            self._catching_up = True
            self._app.turns.add(self._turn)

    def _turn(self) -> None:
        """Send one event, and wait for another turn if more is stored."""
        stream = self._stream
        if self._ended:
            return
        if stream.gone:
            self._fail(not_found(stream.meta.name))
        elif self._slot.paused or not self._has_more():
            self._rest()
        elif self._is_near_tail():
            self._rest()
            self._write(stream.tail)
        elif self._window is None:
            limit = window_bytes(self._offset, self._bytes_max)
            windows, lengths = self._app.windows, self._events.says_lengths
            window = windows.get(stream, self._offset, limit, lengths=lengths)
            window.then(partial(self._found, in_turn=window.is_set))
        else:
            self._send_window(self._window)

    def _rest(self) -> None:
        self._catching_up = False
        self._window = None

    def _found(self, result: Window | HoldfastError, *, in_turn: bool) -> None:
        """The next window is there. If it had to be read from packs, the turn is over."""
        if self._ended:
            return
        if isinstance(result, HoldfastError):
            self._fail(result)
        elif in_turn:
            self._send_window(result)
        else:
            self._window = result
            self._app.turns.add(self._turn)

    def _send_window(self, window: Window) -> None:
        stream, end = self._stream, window.end
        event, listed = window.encode()
        is_last = end == stream.tail
        control = control_event(
            format_offset(end), self._cursor(), up_to_date=is_last, closed=stream.closed and is_last
        )
        self._rest()
        self._send(end, event, with_listed(control, listed))
        self._catch_up()

    def _write(self, end: int) -> None:
        """Send data up to `end`, which is in memory, and a control event."""
        event = self._events.encode(self._stream, self._offset, end, self._cursor())
        self._send(end, event.data)

    def _cursor(self) -> int:
        return max(self._floor, interval_at(self._app.clock.now_ms()))

    def _send(self, end: int, data: bytes, more: bytes = b"") -> None:
        """Send what leads to the offset `end`, and end with the stream."""
        if not self._begun:
            self._begin()
        self._slot.write(data, more)
        self._offset = end
        self._written_s = self._app.clock.monotonic_s()
        if self._stream.closed and end == self._stream.tail:
            self._end()

    def _begin(self) -> None:
        self._begun = True
        self._slot.begin(200, self._head)

    def _fail(self, error: HoldfastError) -> None:
        """Respond with the error; a client that has had events gets it when it reconnects."""
        if self._begun:
            self._end()
        else:
            self._leave()
            respond_error(self._slot, error)

    def _arm(self, now_s: float) -> None:
        """Set the timer for the next heartbeat or the end, whichever comes first."""
        delay_s = min(self._beat_s(), self._until_s) - now_s
        self._timer = self._app.clock.call_later(delay_s, self._beat)

    def _beat_s(self) -> float:
        return self._written_s + self._app.settings.read.sse_heartbeat_s

    def _beat(self) -> None:
        now_s = self._app.clock.monotonic_s()
        if now_s >= self._until_s:
            self._end()
            return
        self._app.shard.lifetimes.renew(self._stream)
        if now_s >= self._beat_s():
            self._written_s = now_s
            if self._begun and not self._slot.paused:
                self._slot.write(HEARTBEAT)
        self._arm(now_s)

    def _end(self) -> None:
        if not self._ended:
            self._leave()
            if not self._begun:
                self._begin()
            self._slot.end()

    def _leave(self) -> None:
        self._ended = True
        self._timer.cancel()
        self._slot.on_gone = self._slot.on_resume = None
        self._app.shard.live.remove(self._stream, self)


def _head(request: ReadRequest) -> bytes:
    """The response's headers; readers without special wishes share one object."""
    head = _HEAD if is_text(request.stream.media) else _ENCODED_HEAD
    if request.private:
        head = head.replace(b"no-cache", b"private, no-cache")
    if request.lengths:
        lengths = b"json" if request.stream.media == JSON else b"events"
        head += b"Stream-Message-Lengths: %b\r\n" % lengths
    return head + request.start_header if request.from_last else head
