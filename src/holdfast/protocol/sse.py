"""Server-Sent Events: writing data and control events, and parsing any event stream.

The upstream test suite parses written events to the letter: a space after `event:`, none after
`data:`, control JSON on one line. A payload line that starts with a space gets a second one, since
a conforming client strips the first.
"""

from __future__ import annotations

from binascii import b2a_base64
from operator import sub
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import BadAnswerError
from holdfast.protocol.content import JSON, array_form, is_text

if TYPE_CHECKING:
    from collections.abc import Sequence

HEARTBEAT: Final = b": heartbeat\n\n"
ENCODING_HEADER: Final = b"Stream-SSE-Data-Encoding: base64\r\n"
EVENT_BYTES_MAX: Final = 256 * 1024 * 1024
_CONTROL_END: Final = b"}\n\n"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def data_event(stored: bytes, media: str) -> bytes:
    """One data event for stored bytes; every line gets its own `data:` prefix."""
    if media == JSON:
        text = array_form(stored)
    elif is_text(media):
        text = stored
    else:
        return b"event: data\ndata:" + b2a_base64(stored, newline=False) + b"\n\n"
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if text.startswith(b" "):
        text = b" " + text
    if b"\n" in text:
        text = text.replace(b"\n ", b"\n  ").replace(b"\n", b"\ndata:")
    return b"event: data\ndata:" + text + b"\n\n"


def control_event(next_offset: bytes, cursor: int, *, up_to_date: bool, closed: bool) -> bytes:
    """The control event that follows every data event; without a cursor on a closed stream."""
    if closed:
        return (
            b'event: control\ndata:{"streamNextOffset":"%b","upToDate":true,'
            b'"streamClosed":true}\n\n' % next_offset
        )
    if up_to_date:
        return (
            b'event: control\ndata:{"streamNextOffset":"%b","streamCursor":"%d",'
            b'"upToDate":true}\n\n' % (next_offset, cursor)
        )
    return b'event: control\ndata:{"streamNextOffset":"%b","streamCursor":"%d"}\n\n' % (
        next_offset,
        cursor,
    )


def changes_line_ends(stored: bytes, media: str) -> bool:
    """Whether a data event loses the line endings of this text."""
    return b"\r" in stored and is_text(media)


def with_lengths(
    control: bytes, start: int, ends: Sequence[int], *, line_ends_changed: bool = False
) -> bytes:
    """Add to a control event the stored lengths of the messages in the data event before it.

    `ends` are the offsets where the messages end; the first one begins at `start`.
    """
    return with_listed(control, listed_lengths(start, ends, line_ends_changed=line_ends_changed))


def listed_lengths(start: int, ends: Sequence[int], *, line_ends_changed: bool = False) -> bytes:
    """What `with_lengths` adds, for many control events that follow the same data."""
    lengths = str(list(map(sub, ends, [start, *ends]))).replace(" ", "").encode()
    changed = b',"streamLineEndsChanged":true' if line_ends_changed else b""
    return b',"streamMessageLengths":%b%b' % (lengths, changed)


def with_listed(control: bytes, listed: bytes) -> bytes:
    """Add the result of `listed_lengths` to a control event."""
    return control.removesuffix(_CONTROL_END) + listed + _CONTROL_END


class SseEvent(NamedTuple):
    """One event; lines of data are joined with LF."""

    kind: str
    data: bytes
    id: str


class SseParser:
    """Parses an event stream fed in pieces of any size.

    Lines end with LF, CR or CRLF, and a CRLF may be split between two pieces. An event counts only
    once its empty line has arrived: events cut off by the end of the connection are dropped.
    """

    __slots__ = ("_after_cr", "_begun", "_data", "_id", "_kind", "_rest", "_size")

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._begun = False
        self._kind = ""
        self._data: list[bytes] = []
        self._id = ""

    def feed(self, piece: bytes) -> list[SseEvent]:
        """Return the events that this piece completes."""
        if self._after_cr and piece:
            self._after_cr = False
            if piece.startswith(b"\n"):
                piece = piece[1:]
        self._size += len(piece)
        if self._size > EVENT_BYTES_MAX:
            raise BadAnswerError(f"An event is longer than {EVENT_BYTES_MAX} bytes.")
        self._rest.append(piece)
        if b"\n" not in piece and b"\r" not in piece:
            return []
        text = b"".join(self._rest) if len(self._rest) > 1 else piece
        lines = text.splitlines(keepends=True)
        self._rest = [] if lines[-1].endswith((b"\n", b"\r")) else [lines.pop()]
        self._after_cr = not self._rest and text.endswith(b"\r")
        return self._parse(lines)

    def unfinished(self) -> bytes:
        """The bytes to feed to another parser first so that it continues where this one is."""
        lines = [b"data: " + each for each in self._data]
        lines += [b"event: " + self._kind.encode()] if self._kind else []
        lines += [b"id: " + self._id.encode()] if self._id else []
        # The leading empty line ends no event, but keeps a later U+FEFF from counting as a byte
        # order mark.
        text = b"\n".join([b"", *lines, b""] if lines else [b"\n" if self._begun else b""])
        if self._after_cr:
            # An LF that comes next belongs to this CR.
            text = text.removesuffix(b"\n") + b"\r"
        return text + b"".join(self._rest)

    def _parse(self, lines: list[bytes]) -> list[SseEvent]:
        events = []
        if not self._begun:
            self._begun = True
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        for ended in lines:
            line = ended.rstrip(b"\r\n")
            if line:
                self._parse_field(line)
            elif (event := self._finish_event()) is not None:
                events.append(event)
        return events

    def _parse_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._data.append(value)
            case b"event":
                self._kind = value.decode("utf-8", "replace")
            case b"id" if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
            case _:
                # A comment (no name at all), `retry`, or an unknown field.
                pass

    def _finish_event(self) -> SseEvent | None:
        data, kind = self._data, self._kind
        self._data, self._kind = [], ""
        self._size = sum(map(len, self._rest))
        if not data:
            return None
        return SseEvent(kind or "message", b"\n".join(data), self._id)
