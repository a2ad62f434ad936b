"""Reading what is in memory: up to a limit, from any valid offset to a valid one.

A read ends behind the last whole message that fits: an append, or an element of a JSON stream. A
message that does not fit alone is given whole if it is JSON, and cut otherwise: text between
characters, other bytes anywhere. `storage.cold` cuts what it reads from packs in the same places.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from holdfast.errors import InvalidOffsetError, OffsetGoneError
from holdfast.protocol.content import JSON, SEPARATOR, SEPARATOR_BYTE, cut_text, is_text

if TYPE_CHECKING:
    from holdfast.engine.stream import Stream


def check_offset(stream: Stream, offset: int) -> None:
    """Raise unless a read may start here: what is retained, and between JSON messages.

    Whether a cold offset is between messages shows when the bytes are read.
    """
    if offset > stream.tail:
        raise InvalidOffsetError(
            f"Offset {offset:020d} is past the tail of the stream, {stream.tail:020d}."
        )
    if offset < stream.earliest:
        raise OffsetGoneError(stream.earliest)
    if stream.media == JSON and stream.base < offset < stream.tail:
        index = bisect_right(stream.ends, offset)
        chunk = stream.chunks[index]
        inside = offset - (stream.ends[index] - len(chunk))
        if inside and chunk[inside - 1] != SEPARATOR_BYTE:
            raise InvalidOffsetError(f"Offset {offset:020d} is inside a JSON message.")


def end_of_read(
    stream: Stream,
    offset: int,
    bytes_max: int,
    *,
    must_give: bool = True,
    limit: int | None = None,
) -> int:
    """Where a read from `offset`, which is in memory, ends.

    `must_give` is whether a first message that does not fit is given all the same; `limit` is
    where a fork leaves this stream.
    """
    target = offset + bytes_max
    if limit is None:
        limit = stream.tail
    if target >= limit:
        return limit
    ends = stream.ends
    first = bisect_right(ends, offset)
    last = bisect_right(ends, target, first)
    whole = ends[last - 1] if last > first else offset
    if stream.media != JSON:
        if whole > offset or not must_give:
            return whole
        chunk, start = _chunk(stream, first)
        return min(limit, start + _cut(chunk, offset - start, bytes_max, stream.media))
    if whole == target:
        return whole
    # Some messages of the append that does not fit may fit.
    chunk, start = _chunk(stream, last)
    at = max(offset - start, 0)
    fitting = chunk.rfind(SEPARATOR, at, target - start)
    if fitting >= 0:
        return start + fitting + 1
    if whole > offset or not must_give:
        return whole
    return start + chunk.index(SEPARATOR, at) + 1


def _chunk(stream: Stream, index: int) -> tuple[bytes, int]:
    """A chunk and the offset it starts at."""
    chunk = stream.chunks[index]
    return chunk, stream.ends[index] - len(chunk)


def _cut(chunk: bytes, at: int, bytes_max: int, media: str) -> int:
    """Where to cut a chunk that is too long, counting from its start."""
    return cut_text(chunk, at, bytes_max) if is_text(media) else at + bytes_max


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
