"""The answer with a stream's bytes that catch-up and long-poll reads share."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.engine.reading import end_of_read, read
from holdfast.http.awaiting import answer_later
from holdfast.protocol.content import JSON, array_form
from holdfast.protocol.headers import matches_etag, read_etag
from holdfast.storage.cold import ColdBytes

if TYPE_CHECKING:
    from holdfast.engine.stream import Stream
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
    # How long a live read may last at most: as long as its token.
    lasts_s: float = math.inf
    # Whether to tell where messages end, and whether the start was found by counting back.
    lengths: bool = False
    from_last: bool = False
    # Whether the bytes are for this client alone.
    private: bool = False


def answer_bytes(app: App, slot: Slot, asked: ReadRequest, extra_fields: bytes = b"") -> None:
    """Answer with what is stored from the start, or 304 if the client has it already."""
    stream, start = asked.stream, asked.start
    if start < stream.base:
        # It is in packs, or another stream's.
        answer_later(
            slot,
            partial(app.shard.reader.read, stream, start, asked.bytes_max),
            lambda found: answer_found(app, slot, asked, found, extra_fields),
        )
        return
    end = end_of_read(stream, start, asked.bytes_max)
    if _is_known(app, slot, asked, end, extra_fields):
        return
    _answer(app, slot, asked, ColdBytes(end, read(stream, start, end)), extra_fields)


def answer_found(
    app: App, slot: Slot, asked: ReadRequest, found: ColdBytes, extra_fields: bytes
) -> None:
    """Answer with these bytes, or 304 if the client has them already."""
    if not _is_known(app, slot, asked, found.end, extra_fields):
        _answer(app, slot, asked, found, extra_fields)


def _is_known(app: App, slot: Slot, asked: ReadRequest, end: int, extra_fields: bytes) -> bool:
    """Answer 304 if the client has just these bytes."""
    if asked.if_none_match is None:
        return False
    if not matches_etag(asked.if_none_match, _etag(asked, end)):
        return False
    slot.answer(304, _fields(app, asked, end) + extra_fields)
    return True


def _answer(
    app: App, slot: Slot, asked: ReadRequest, found: ColdBytes, extra_fields: bytes
) -> None:
    end, data = found
    body = array_form(data) if asked.stream.media == JSON else data
    slot.answer(200, _fields(app, asked, end) + extra_fields, body)


def _etag(asked: ReadRequest, end: int) -> bytes:
    stream = asked.stream
    return read_etag(stream.number, asked.start, end, closed=stream.closed and end == stream.tail)


def _fields(app: App, asked: ReadRequest, end: int) -> bytes:
    if asked.from_now:
        caching = b"Cache-Control: no-store\r\n"
    elif asked.from_last:
        caching = b"Cache-Control: no-store\r\n" + start_field(asked)
    else:
        caching = b"ETag: %b\r\nCache-Control: %b\r\n" % (
            _etag(asked, end),
            _cache_control(app, asked),
        )
    return read_fields(asked.stream, end) + caching


def start_field(asked: ReadRequest) -> bytes:
    """Where the read starts, for clients that cannot know."""
    return b"Stream-Start-Offset: %020d\r\n" % asked.start if asked.from_last else b""


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


def _cache_control(app: App, asked: ReadRequest) -> bytes:
    """Caches may keep an answer for a minute, but never past the stream's own end."""
    stream, scope = asked.stream, app.cache_scope
    if asked.private:
        # Who may read is asked each time: a signed URL expires.
        return b"private, no-cache"
    if stream.deadline_ms is None:
        return b"%b, max-age=%d, stale-while-revalidate=300" % (scope, MAX_AGE_S)
    left_s = (stream.deadline_ms - app.clock.now_ms()) // 1000
    return b"%b, max-age=%d" % (scope, max(0, min(MAX_AGE_S, left_s)))
