"""Reading a stream's bytes: up to a limit, from any valid offset to a valid one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from holdfast.errors import InvalidOffsetError
from holdfast.protocol.content import JSON, is_text
from holdfast.protocol.json_mode import SEPARATOR, SEPARATOR_BYTE

if TYPE_CHECKING:
    from holdfast.engine.state import Stream

# A UTF-8 character has at most this many bytes after its first.
_CONTINUATION_BYTES_MAX: Final = 3


def check_offset(stream: Stream, offset: int) -> None:
    """Raise unless a read may start here: up to the tail, and between JSON messages."""
    if offset > stream.tail:
        raise InvalidOffsetError(
            f"Offset {offset:020d} is past the tail of the stream, {stream.tail:020d}."
        )
    if stream.media == JSON and 0 < offset < stream.tail:
        index = bisect_right(stream.ends, offset)
        chunk = stream.chunks[index]
        inside = offset - (stream.ends[index] - len(chunk))
        if inside and chunk[inside - 1] != SEPARATOR_BYTE:
            raise InvalidOffsetError(f"Offset {offset:020d} is inside a JSON message.")


def end_of_read(stream: Stream, offset: int, bytes_max: int) -> int:
    """Where a read from `offset` ends: after as many whole appends as fit.

    An append that does not fit alone is cut: JSON between messages, of which at least one is
    given, text between characters, other bytes anywhere.
    """
    if offset + bytes_max >= stream.tail:
        return stream.tail
    ends = stream.ends
    first = bisect_right(ends, offset)
    last = bisect_right(ends, offset + bytes_max, first)
    if last > first:
        return ends[last - 1]
    chunk, end = stream.chunks[first], ends[first]
    start = end - len(chunk)
    return start + _cut(chunk, offset - start, bytes_max, stream.media)


def _cut(chunk: bytes, at: int, bytes_max: int, media: str) -> int:
    """Where to cut a chunk that is too long, counting from its start."""
    cut = at + bytes_max
    if media == JSON:
        fitting = chunk.rfind(SEPARATOR, at, cut)
        return (fitting if fitting >= 0 else chunk.index(SEPARATOR, cut)) + 1
    if is_text(media):
        # At least one whole character, however small the limit.
        cut = min(max(cut, at + 1 + _CONTINUATION_BYTES_MAX), len(chunk))
        if cut == len(chunk):
            return cut
        for shorter in range(cut, max(cut - _CONTINUATION_BYTES_MAX, at + 1) - 1, -1):
            if chunk[shorter] & 0xC0 != 0x80:
                return shorter
    return cut


def read(stream: Stream, offset: int, end: int) -> bytes:
    """The stored bytes from `offset` to `end`, which `end_of_read` gave."""
    if offset >= end:
        return b""
    ends = stream.ends
    first = bisect_right(ends, offset)
    last = bisect_left(ends, end, first)
    chunks = stream.chunks[first : last + 1]
    if end < ends[last]:
        chunks[-1] = chunks[-1][: end - ends[last]]
    inside = offset - (ends[first] - len(stream.chunks[first]))
    if inside:
        chunks[0] = chunks[0][inside:]
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
