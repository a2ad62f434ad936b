"""GET {stream}: catch-up reads, and the door to the live ones."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.engine.few_messages import last_start
from holdfast.engine.reading import check_offset
from holdfast.errors import (
    InvalidOffsetError,
    InvalidRequestError,
    OffsetGoneError,
)
from holdfast.http.awaiting import answer_later
from holdfast.http.bytes_answer import ReadRequest
from holdfast.http.long_poll import long_poll
from holdfast.http.message_lengths import answer_at_tail, answer_read
from holdfast.http.query import parse_query
from holdfast.http.sse import sse
from holdfast.protocol.headers import NOW, START, parse_offset
from holdfast.protocol.names import not_found

if TYPE_CHECKING:
    from holdfast.engine.stream import Stream
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot

LAST_MAX: Final = 10_000


def read(app: App, request: Request, slot: Slot, name: str) -> None:
    """Answer with stored bytes, or hand over to a live mode."""
    query = parse_query(request.query)
    live = query.get("live")
    if live is not None:
        if live not in ("long-poll", "sse"):
            raise InvalidRequestError(f"Unknown live mode {live[:40]!r}: use long-poll or sse.")
        slot.route = "sse" if live == "sse" else "long_poll"
    stream = app.shard.find(name)
    offset, last, lengths = query.get("offset"), query.get("last"), query.get("lengths")
    asked = ReadRequest(
        stream,
        _start(stream, offset) if last is None else stream.tail,
        _bytes_max(app, query.get("max_bytes")),
        request.fields.get(b"if-none-match"),
        query.get("cursor"),
        from_now=offset == NOW,
        lasts_s=app.lifetime_s(request, math.inf) if live is not None else math.inf,
        lengths=lengths is not None and _wants_lengths(lengths),
        private=request.private,
    )
    if last is not None:
        if offset is not None:
            raise InvalidRequestError("Both offset and last say where to start: give one of them.")
        _count_back(app, slot, live, asked, _count(last))
        return
    if live is not None and offset is None:
        raise InvalidOffsetError(
            "A live read needs an offset (-1, now, or one from an answer), or last."
        )
    _answer(app, slot, live, asked)


def _count_back(app: App, slot: Slot, live: str | None, asked: ReadRequest, count: int) -> None:
    """Answer once it is known where the last so many messages start."""
    number, name = asked.stream.number, asked.stream.meta.name

    def found(start: int) -> None:
        # It may have left memory meanwhile and come back, or be gone, or be trimmed.
        stream = app.shard.find(name)
        if stream.number != number:
            raise not_found(name)
        start = max(start, stream.earliest)
        counted = asked._replace(stream=stream, start=start, if_none_match=None, from_last=True)
        _answer(app, slot, live, counted)

    answer_later(slot, partial(last_start, app.shard.reader, asked.stream, count), found)


def _answer(app: App, slot: Slot, live: str | None, asked: ReadRequest) -> None:
    if live is None:
        _catch_up(app, slot, asked)
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


def _wants_lengths(text: str) -> bool:
    if text not in ("true", "false"):
        raise InvalidRequestError(f"Malformed lengths {text[:40]!r}: expected true or false.")
    return text == "true"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) <= LAST_MAX):
        raise InvalidRequestError(
            f"Malformed last {text[:40]!r}: expected a whole number from 1 to {LAST_MAX}."
        )
    return int(text)


def _catch_up(app: App, slot: Slot, asked: ReadRequest) -> None:
    stream = asked.stream
    app.shard.lifetimes.renew(stream)
    if asked.from_now:
        answer_at_tail(slot, asked)
    else:
        answer_read(app, slot, asked)
