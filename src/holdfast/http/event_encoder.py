"""What the readers of a stream's events are sent, encoded once for all that stand at one offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.engine.boundaries import ends_in_memory
from holdfast.engine.reading import read
from holdfast.protocol.headers import format_offset
from holdfast.protocol.sse import changes_line_ends, control_event, data_event, with_lengths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.stream import Stream


class Event(NamedTuple):
    """What a reader at `start` needs next: data up to `end` (none if equal) and a control event."""

    stream: Stream | None
    start: int
    end: int
    cursor: int
    up_to_date: bool
    closed: bool
    data: bytes


class Stored(NamedTuple):
    """Bytes from packs; where messages end in them, if that is asked for."""

    data: bytes
    ends: Sequence[int] = ()


class EventEncoder:
    """Encodes what one reader needs next, and keeps it for the others that stand there too.

    Readers that want to know where messages end share an encoder of their own.
    """

    __slots__ = ("last", "says_lengths")

    def __init__(self, *, says_lengths: bool = False) -> None:
        self.says_lengths = says_lengths
        self.last = Event(None, 0, 0, 0, up_to_date=False, closed=False, data=b"")

    def encode(
        self, stream: Stream, start: int, end: int, cursor: int, stored: Stored | None = None
    ) -> Event:
        """The event from `start` to `end`, as the stream is now; `stored` if it was in packs."""
        up_to_date = end == stream.tail
        closed = stream.closed and up_to_date
        last = self.last
        if last[:-1] == (stream, start, end, cursor, up_to_date, closed):
            return last
        data = control_event(format_offset(end), cursor, up_to_date=up_to_date, closed=closed)
        if end > start:
            found = read(stream, start, end) if stored is None else stored.data
            if self.says_lengths:
                ends = ends_in_memory(stream, start, end) if stored is None else stored.ends
                changed = changes_line_ends(found, stream.media)
                data = with_lengths(data, start, ends, line_ends_changed=changed)
            data = data_event(found, stream.media) + data
        self.last = last = Event(stream, start, end, cursor, up_to_date, closed, data)
        return last
