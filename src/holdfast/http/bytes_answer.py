"""The answer with a stream's bytes that catch-up and long-poll reads share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.engine.reading import end_of_read, read
from holdfast.protocol.content import JSON
from holdfast.protocol.etag import matches, read_etag
from holdfast.protocol.json_mode import array_form

if TYPE_CHECKING:
    from holdfast.engine.state import Stream
    from holdfast.http.app import App
    from holdfast.http.exchange import Slot

MAX_AGE_S: Final = 60


class ReadRequest(NamedTuple):
    """A read with its parameters checked."""

    stream: Stream
    start: int
    bytes_max: int
    if_none_match: bytes | None
    cursor: str | None
    from_now: bool


def answer_bytes(app: App, slot: Slot, asked: ReadRequest, extra_fields: bytes = b"") -> None:
    """Answer with what is stored from the start, or 304 if the client has it already."""
    stream, start = asked.stream, asked.start
    end = end_of_read(stream, start, asked.bytes_max)
    etag = read_etag(stream.number, start, end, closed=stream.closed and end == stream.tail)
    if asked.from_now:
        caching = b"Cache-Control: no-store\r\n"
    else:
        caching = b"ETag: %b\r\nCache-Control: %b\r\n" % (etag, _cache_control(app, stream))
    fields = read_fields(stream, end) + caching + extra_fields
    if asked.if_none_match is not None and matches(asked.if_none_match, etag):
        slot.answer(304, fields)
        return
    data = read(stream, start, end)
    slot.answer(200, fields, array_form(data) if stream.media == JSON else data)


def read_fields(stream: Stream, end: int) -> bytes:
    """The header fields of every answer that ends at `end`."""
    fields = b"Content-Type: %b\r\nStream-Next-Offset: %020d\r\n" % (
        stream.meta.content_type.encode(),
        end,
    )
    if end == stream.tail:
        fields += b"Stream-Up-To-Date: true\r\n"
        if stream.closed:
            fields += b"Stream-Closed: true\r\n"
    return fields


def _cache_control(app: App, stream: Stream) -> bytes:
    """Caches may keep an answer for a minute, but never past the stream's own end."""
    scope = app.settings.read.cache_scope.encode()
    if stream.deadline_ms is None:
        return b"%b, max-age=%d, stale-while-revalidate=300" % (scope, MAX_AGE_S)
    left_s = (stream.deadline_ms - app.clock.now_ms()) // 1000
    return b"%b, max-age=%d" % (scope, max(0, min(MAX_AGE_S, left_s)))
