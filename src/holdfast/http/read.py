"""GET {stream}: catch-up reads, and the door to the live ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.engine.reading import check_offset
from holdfast.errors import InvalidOffsetError, InvalidRequestError, OffsetGoneError
from holdfast.http.bytes_answer import ReadRequest, answer_bytes, read_fields
from holdfast.http.long_poll import long_poll
from holdfast.http.query import parse_query
from holdfast.http.sse import sse
from holdfast.protocol.content import JSON
from holdfast.protocol.offsets import NOW, START, parse_offset

if TYPE_CHECKING:
    from holdfast.engine.stream import Stream
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot


def read(app: App, request: Request, slot: Slot, name: str) -> None:
    """Answer with stored bytes, or hand over to a live mode."""
    query = parse_query(request.query)
    live = query.get("live")
    if live is not None:
        if live not in ("long-poll", "sse"):
            raise InvalidRequestError(f"Unknown live mode {live[:40]!r}: use long-poll or sse.")
        slot.route = "sse" if live == "sse" else "long_poll"
    stream = app.shard.find(name)
    offset = query.get("offset")
    asked = ReadRequest(
        stream,
        _start(stream, offset),
        _bytes_max(app, query.get("max_bytes")),
        request.fields.get(b"if-none-match"),
        query.get("cursor"),
        from_now=offset == NOW,
        lasts_s=app.lifetime_s(request, math.inf) if live is not None else math.inf,
    )
    if live is None:
        _catch_up(app, slot, asked)
    elif offset is None:
        raise InvalidOffsetError("A live read needs an offset: -1, now, or one from an answer.")
    elif live == "sse":
        sse(app, slot, asked)
    else:
        long_poll(app, slot, asked)


def _start(stream: Stream, offset: str | None) -> int:
    if offset is None or offset == START:
        if stream.earliest:
            raise OffsetGoneError(stream.earliest)
        return 0
    if offset == NOW:
        return stream.tail
    if not offset:
        raise InvalidOffsetError("The offset is empty: leave it out, or give one.")
    start = parse_offset(offset)
    check_offset(stream, start)
    return start


def _bytes_max(app: App, text: str | None) -> int:
    """The server's limit, or less if the client wants less."""
    limit = app.settings.read.read_bytes_max
    if text is None:
        return limit
    if not (text.isascii() and text.isdigit() and 0 < len(text) <= 18 and int(text) > 0):
        raise InvalidRequestError(
            f"Malformed max_bytes {text[:40]!r}: expected a whole number of at least 1."
        )
    return min(limit, int(text))


def _catch_up(app: App, slot: Slot, asked: ReadRequest) -> None:
    stream = asked.stream
    app.shard.lifetimes.renew(stream)
    if asked.from_now:
        body = b"[]" if stream.media == JSON else b""
        slot.answer(200, read_fields(stream, stream.tail) + b"Cache-Control: no-store\r\n", body)
    else:
        answer_bytes(app, slot, asked)
