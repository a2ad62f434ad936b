"""Server-Sent Events: the bytes of data and control events.

Readers of the upstream suite parse these to the letter: a space after `event:`, none after
`data:`, control JSON on one line. A payload line that starts with a space gets a second one, since
a conforming client strips the first.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from typing import TYPE_CHECKING, Final

from holdfast.protocol import content, json_mode

if TYPE_CHECKING:
    from collections.abc import Iterable

HEARTBEAT: Final = b": heartbeat\n\n"
ENCODING_HEADER: Final = b"Stream-SSE-Data-Encoding: base64\r\n"
_CONTROL_END: Final = b"}\n\n"
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")


def data_event(stored: bytes, media: str) -> bytes:
    """One data event for a piece of a stream; every line gets a prefix of its own."""
    if media == content.JSON:
        text = json_mode.array_form(stored)
    elif content.is_text(media):
        text = stored
    else:
        return b"event: data\ndata:" + b2a_base64(stored, newline=False) + b"\n\n"
    if b"\n" not in text and b"\r" not in text and not text.startswith(b" "):
        return b"event: data\ndata:" + text + b"\n\n"
    lines = [
        b"data: " + line if line.startswith(b" ") else b"data:" + line
        for line in _LINE_END.split(text)
    ]
    return b"event: data\n" + b"\n".join(lines) + b"\n\n"


def control_event(next_offset: bytes, cursor: int, *, up_to_date: bool, closed: bool) -> bytes:
    """The control event that follows every data event; a closed stream's has no cursor."""
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
    """Whether a data event loses how the lines of this text end."""
    return b"\r" in stored and content.is_text(media)


def with_lengths(
    control: bytes, start: int, ends: Iterable[int], *, line_ends_changed: bool = False
) -> bytes:
    """The control event, which also tells how long the messages are that end in the data before.

    The first one is counted from `start`; the bytes are those that are stored.
    """
    lengths = []
    for end in ends:
        lengths.append(b"%d" % (end - start))
        start = end
    return control.removesuffix(_CONTROL_END) + b',"streamMessageLengths":[%b]%b%b' % (
        b",".join(lengths),
        b',"streamLineEndsChanged":true' if line_ends_changed else b"",
        _CONTROL_END,
    )
