"""GET {stream}/bootstrap: the snapshot and every message since, as one multipart answer.

What is answered is the stream as it was when the request came: messages that arrive while a large
answer is on its way are for the read that follows it.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.engine.boundaries import message_ends
from holdfast.engine.reading import read
from holdfast.errors import InvalidRequestError
from holdfast.http.awaiting import answer_of
from holdfast.http.query import parse_query
from holdfast.protocol.content import DEFAULT, JSON
from holdfast.protocol.multipart import Multipart

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.engine.stream import Stream
    from holdfast.format.records import Snapshot
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot

# What is in memory and not larger is answered in one piece.
_AT_ONCE_BYTES_MAX: Final = 1024 * 1024


def bootstrap(app: App, request: Request, slot: Slot, name: str) -> None:
    """Answer with everything that a new reader needs."""
    if "live" in parse_query(request.query):
        raise InvalidRequestError(
            "A bootstrap is not live: follow the stream from its Stream-Next-Offset on."
        )
    stream = app.shard.find(name)
    app.shard.lifetimes.renew(stream)
    boundary = b"holdfast-%016x%016x" % (app.clock.random_u64(), app.clock.random_u64())
    multipart = Multipart(boundary, stream.meta.content_type, stream.media)
    fields = _fields(stream, multipart)
    body = _at_once(app, stream, multipart)
    if body is not None:
        slot.answer(200, fields, body)
    else:
        pieces = _pieces(app, stream, multipart, stream.snapshot, stream.earliest, stream.tail)
        if _is_small(stream):
            app.spawn(_answer_whole(slot, fields, pieces), slot)
        else:
            app.stream_answer(request, slot, fields, pieces)


def _is_small(stream: Stream) -> bool:
    """Whether the whole body may be held in memory."""
    size_bytes = stream.tail - stream.earliest
    if stream.snapshot is not None:
        size_bytes += stream.snapshot.size_bytes
    return size_bytes <= _AT_ONCE_BYTES_MAX


async def _answer_whole(slot: Slot, fields: bytes, pieces: AsyncIterator[bytes]) -> None:
    """Answer in one piece what has to be fetched first; that is faster than piece by piece."""
    body = b"".join([piece async for piece in pieces])
    slot.on_gone = None
    slot.answer(200, fields, body)


def _fields(stream: Stream, multipart: Multipart) -> bytes:
    snapshot = stream.snapshot
    offset = b"-1" if snapshot is None else b"%020d" % snapshot.offset
    lengths = b"json" if stream.media == JSON else b"parts"
    fields = (
        b"Content-Type: %b\r\nCache-Control: no-store\r\nStream-Snapshot-Offset: %b\r\n"
        b"Stream-Next-Offset: %020d\r\nStream-Up-To-Date: true\r\nStream-Message-Lengths: %b\r\n"
        % (multipart.content_type, offset, stream.tail, lengths)
    )
    return fields + b"Stream-Closed: true\r\n" if stream.closed else fields


def _at_once(app: App, stream: Stream, multipart: Multipart) -> bytes | None:
    """The whole body, if all of it is in memory and not large."""
    start, end, snapshot = stream.earliest, stream.tail, stream.snapshot
    if start < stream.base or end - start > _AT_ONCE_BYTES_MAX:
        return None
    first = b"" if snapshot is None else app.snapshots.cached(snapshot)
    if first is None:
        return None
    content_type = DEFAULT if snapshot is None else snapshot.content_type
    if stream.media != JSON:
        # In memory each append is a chunk of its own, and a stream starts where one ends.
        return multipart.whole(
            content_type, first, stream.chunks[bisect_right(stream.ends, start) :]
        )
    messages = multipart.messages(read(stream, start, end), start, ())
    return b"".join((multipart.first(content_type), first, messages, multipart.last()))


async def _pieces(
    app: App, stream: Stream, multipart: Multipart, snapshot: Snapshot | None, at: int, end: int
) -> AsyncIterator[bytes]:
    """The body piece by piece: the snapshot, and the messages from one offset to the other."""
    yield multipart.first(DEFAULT if snapshot is None else snapshot.content_type)
    if snapshot is not None:
        async for piece in app.snapshots.pieces(snapshot):
            yield piece
    bytes_max = app.settings.read.read_bytes_max
    while at < end:
        data, at_end, ends = await _window(app, stream, at, min(bytes_max, end - at))
        yield multipart.messages(data, at, ends)
        at = at_end
    yield multipart.last()


async def _window(
    app: App, stream: Stream, at: int, bytes_max: int
) -> tuple[bytes, int, list[int]]:
    """Whole messages from an offset on, and where each ends; at least one."""
    reader = app.shard.reader
    end, data = await answer_of(partial(reader.read, stream, at, bytes_max))
    if stream.media == JSON:
        return data, end, []
    ends = await answer_of(partial(message_ends, reader, stream, at, end))
    if not ends:
        return await _large_message(app, stream, at)
    return data[: ends[-1] - at], ends[-1], ends


async def _large_message(app: App, stream: Stream, at: int) -> tuple[bytes, int, list[int]]:
    """One message that is larger than a read."""
    reader, size = app.shard.reader, _AT_ONCE_BYTES_MAX
    ends: list[int] = []
    while not ends:
        size *= 2
        until = min(stream.tail, at + size)
        ends = await answer_of(partial(message_ends, reader, stream, at, until))
    end = ends[0]
    parts = []
    while at < end:
        at, data = await answer_of(partial(reader.read, stream, at, end - at))
        parts.append(data)
    return b"".join(parts), end, [end]
