"""GET {stream}?live=sse: a stream as Server-Sent Events, encoded once for all its readers.

Readers that stand at the same offset get the same bytes, so the last encoded event is kept and
handed to each of them. A reader whose connection is paused is left alone: it catches up from its
own offset once its client reads again, in events of at most `read_bytes_max`. The answer begins
with the first event: as long as that is looked for in packs, it can still become an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.engine.reading import end_of_read, read
from holdfast.errors import HoldfastError, StreamNotFoundError
from holdfast.http.errors import answer_error
from holdfast.protocol.content import is_text
from holdfast.protocol.cursor import JITTER_S_MAX, interval_at, next_cursor, parse_cursor
from holdfast.protocol.offsets import format_offset
from holdfast.protocol.sse import ENCODING_HEADER, HEARTBEAT, control_event, data_event
from holdfast.storage.cold import ColdBytes

if TYPE_CHECKING:
    from holdfast.engine.stream import Stream
    from holdfast.http.app import App
    from holdfast.http.bytes_answer import ReadRequest
    from holdfast.http.exchange import Slot


def sse(app: App, slot: Slot, asked: ReadRequest) -> None:
    """Start a reader, which lives until its client, its time or the server ends."""
    app.check_live_readers()
    SseReader(app, slot, asked).start()


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
    """Encodes what one reader needs next, and keeps it for the others that stand there too."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = Event(None, 0, 0, 0, up_to_date=False, closed=False, data=b"")

    def encode(
        self, stream: Stream, start: int, end: int, cursor: int, stored: bytes | None = None
    ) -> Event:
        """The event from `start` to `end`, as the stream is now; `stored` if it was in packs."""
        up_to_date = end == stream.tail
        closed = stream.closed and up_to_date
        last = self.last
        if last[:-1] == (stream, start, end, cursor, up_to_date, closed):
            return last
        data = control_event(format_offset(end), cursor, up_to_date=up_to_date, closed=closed)
        if end > start:
            stored = read(stream, start, end) if stored is None else stored
            data = data_event(stored, stream.media) + data
        self.last = last = Event(stream, start, end, cursor, up_to_date, closed, data)
        return last


class SseReader:
    """One client's event stream."""

    __slots__ = (
        "_app",
        "_begun",
        "_bytes_max",
        "_ended",
        "_fetching",
        "_floor",
        "_offset",
        "_slot",
        "_stream",
        "_timer",
        "_until_s",
        "_written_s",
    )

    def __init__(self, app: App, slot: Slot, asked: ReadRequest) -> None:
        self._app = app
        self._slot = slot
        self._stream = asked.stream
        self._offset = asked.start
        self._bytes_max = asked.bytes_max
        self._begun = False
        self._ended = False
        self._fetching = False
        # An echoed cursor that is not in the past must be exceeded: the floor is chosen once.
        clock = app.clock
        jitter_s = clock.random_int(1, JITTER_S_MAX)
        self._floor = next_cursor(parse_cursor(asked.cursor), clock.now_ms(), jitter_s)
        self._written_s = clock.monotonic_s()
        self._until_s = self._written_s + min(app.settings.read.sse_lifetime_s, asked.lasts_s)
        self._arm(self._written_s)

    def start(self) -> None:
        """Send what there is, or a first control event, and wait for more."""
        self._slot.on_gone = self._leave
        self._slot.on_resume = self._send
        self._app.shard.live.add(self._stream, self)
        self._app.shard.lifetimes.renew(self._stream)
        if self._stream.tail == self._offset:
            self._write(self._offset)
        else:
            self._send()

    def wake(self) -> None:
        """The stream changed: send what this reader lacks.

        Mostly that is what the reader before it lacked as well, at the same offset and time.
        """
        last = self._app.events.last
        stream = self._stream
        if (
            last.stream is stream
            and last.start == self._offset
            and last.end == stream.tail
            and last.end - last.start <= self._bytes_max
            and self._floor <= last.cursor
            and not stream.closed
            and not stream.gone
            and not self._fetching
        ):
            slot = self._slot
            if not slot.paused:
                slot.write(last.data)
                self._offset = last.end
                self._written_s = self._app.clock.monotonic_s()
        else:
            self._send()

    def finish(self) -> None:
        """The server is going: a last control event tells where to go on."""
        if not self._slot.paused:
            self._write(self._offset)
        self._end()

    def _send(self) -> None:
        """Send one event; where more is stored, go on in the loop's next round."""
        stream = self._stream
        if self._ended or self._slot.paused:
            return
        if stream.gone:
            self._fail(StreamNotFoundError(stream.meta.name))
        elif self._offset < stream.base:
            self._fetch()
        elif self._offset < stream.tail or stream.closed:
            self._write(end_of_read(stream, self._offset, self._bytes_max))
            if self._offset < stream.tail:
                self._app.clock.call_soon(self._send)

    def _fetch(self) -> None:
        """What comes next is in packs: send it once it was read from there."""
        if not self._fetching:
            self._fetching = True
            self._app.shard.reader.read(self._stream, self._offset, self._bytes_max, self._fetched)

    def _fetched(self, result: ColdBytes | HoldfastError) -> None:
        self._fetching = False
        if self._ended:
            return
        if isinstance(result, HoldfastError):
            self._fail(result)
            return
        self._write(result.end, result.data)
        if not self._ended:
            self._app.clock.call_soon(self._send)

    def _write(self, end: int, stored: bytes | None = None) -> None:
        """Send the event up to `end` and its control event; the end of the stream ends this."""
        app, stream = self._app, self._stream
        if not self._begun:
            self._begin()
        cursor = max(self._floor, interval_at(app.clock.now_ms()))
        self._slot.write(app.events.encode(stream, self._offset, end, cursor, stored).data)
        self._offset = end
        self._written_s = app.clock.monotonic_s()
        if stream.closed and end == stream.tail:
            self._end()

    def _begin(self) -> None:
        self._begun = True
        fields = b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
        if not is_text(self._stream.media):
            fields += ENCODING_HEADER
        self._slot.begin(200, fields)

    def _fail(self, error: HoldfastError) -> None:
        """Answer with the error; a client that has got events comes back, and is told then."""
        if self._begun:
            self._end()
        else:
            self._leave()
            answer_error(self._slot, error)

    def _arm(self, now_s: float) -> None:
        """Set the timer for the next heartbeat or the end, whichever comes first."""
        beat_s = self._written_s + self._app.settings.read.sse_heartbeat_s
        delay_s = min(beat_s, self._until_s) - now_s
        self._timer = self._app.clock.call_later(delay_s, self._beat)

    def _beat(self) -> None:
        now_s = self._app.clock.monotonic_s()
        if now_s >= self._until_s:
            self._end()
            return
        if now_s - self._written_s >= self._app.settings.read.sse_heartbeat_s:
            self._written_s = now_s
            self._app.shard.lifetimes.renew(self._stream)
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
