"""GET {stream}: catch-up reads, and the door to the live ones."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.engine import reading
from holdfast.engine.reading import check_offset, end_of_read
from holdfast.errors import (
    InvalidOffsetError,
    InvalidRequestError,
    OffsetGoneError,
)
from holdfast.http.exchange import parse_query
from holdfast.http.responses import respond_error, respond_later
from holdfast.http.sse import sse
from holdfast.protocol.content import CHARACTER_BYTES_MAX, JSON, array_form
from holdfast.protocol.headers import (
    CURSOR_JITTER_S_MAX,
    NOW,
    START,
    matches_etag,
    next_cursor,
    parse_cursor,
    parse_offset,
    read_etag,
)
from holdfast.protocol.names import not_found
from holdfast.storage.cold import ColdBytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.stream import Stream
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot
    from holdfast.storage.cold import ColdBytes

LAST_MAX: Final = 10_000
MAX_AGE_S: Final = 60
VALUE_BYTES_MAX: Final = 2000
# More than can be listed: the shortest length is a digit with a comma.
_ENDS_MAX: Final = VALUE_BYTES_MAX // 2 + 1
_FIELD: Final = b"Stream-Message-Lengths: %b\r\n"
_NONE: Final = b"none"
_JSON_FIELD: Final = _FIELD % b"json"


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
        request.headers.get(b"if-none-match"),
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
    _respond(app, slot, live, asked)


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
        _respond(app, slot, live, counted)

    respond_later(slot, app.shard.reader.last_start(asked.stream, count), found)


def _respond(app: App, slot: Slot, live: str | None, asked: ReadRequest) -> None:
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
        respond_at_tail(slot, asked)
    else:
        respond_read(app, slot, asked)


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

    @property
    def start_header(self) -> bytes:
        """`Stream-Start-Offset` for a client that cannot know where the read starts."""
        return b"Stream-Start-Offset: %020d\r\n" % self.start if self.from_last else b""


def respond_bytes(app: App, slot: Slot, asked: ReadRequest, extra_headers: bytes = b"") -> None:
    """Answer with what is stored from the start, or 304 if the client has it already."""
    stream, start = asked.stream, asked.start
    if start < stream.base:
        # It is in packs, or another stream's.
        respond_later(
            slot,
            app.shard.reader.read(stream, start, asked.bytes_max),
            lambda found: respond_stored(app, slot, asked, found, extra_headers),
        )
        return
    end = end_of_read(stream, start, asked.bytes_max)
    if _is_known(app, slot, asked, end, extra_headers):
        return
    _respond_bytes(
        app, slot, asked, ColdBytes(end, reading.read(stream, start, end)), extra_headers
    )


def respond_stored(
    app: App, slot: Slot, asked: ReadRequest, found: ColdBytes, extra_headers: bytes
) -> None:
    """Answer with these bytes, or 304 if the client has them already."""
    if not _is_known(app, slot, asked, found.end, extra_headers):
        _respond_bytes(app, slot, asked, found, extra_headers)


def _is_known(app: App, slot: Slot, asked: ReadRequest, end: int, extra_headers: bytes) -> bool:
    """Answer 304 if the client has just these bytes."""
    if asked.if_none_match is None:
        return False
    if not matches_etag(asked.if_none_match, _etag(asked, end)):
        return False
    slot.respond(304, _read_headers(app, asked, end) + extra_headers)
    return True


def _respond_bytes(
    app: App, slot: Slot, asked: ReadRequest, found: ColdBytes, extra_headers: bytes
) -> None:
    end, data = found
    body = array_form(data) if asked.stream.media == JSON else data
    slot.respond(200, _read_headers(app, asked, end) + extra_headers, body)


def _etag(asked: ReadRequest, end: int) -> bytes:
    stream = asked.stream
    return read_etag(stream.number, asked.start, end, closed=stream.closed and end == stream.tail)


def _read_headers(app: App, asked: ReadRequest, end: int) -> bytes:
    if asked.from_now:
        caching = b"Cache-Control: no-store\r\n"
    elif asked.from_last:
        caching = b"Cache-Control: no-store\r\n" + asked.start_header
    else:
        caching = b"ETag: %b\r\nCache-Control: %b\r\n" % (
            _etag(asked, end),
            _cache_control(app, asked),
        )
    return read_headers(asked.stream, end) + caching


def read_headers(stream: Stream, end: int) -> bytes:
    """The header headers of every answer that ends at `end`."""
    headers = b"Content-Type: %b\r\nStream-Next-Offset: %020d\r\n" % (
        stream.meta.content_type.encode(),
        end,
    )
    if end == stream.tail:
        headers += b"Stream-Up-To-Date: true\r\n"
        if stream.closed:
            headers += b"Stream-Closed: true\r\n"
    return headers


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


class ListedLengths(NamedTuple):
    """As many lengths as fit, as text, and the offset where the last of these messages ends."""

    value: bytes
    end: int
    is_cut: bool


def list_lengths(start: int, ends: Sequence[int]) -> ListedLengths:
    """The lengths of the messages that end at these offsets, the first one counted from `start`."""
    lengths: list[bytes] = []
    size = -1
    at = start
    for end in ends:
        length = b"%d" % (end - at)
        size += len(length) + 1
        if size > VALUE_BYTES_MAX:
            return ListedLengths(b",".join(lengths), at, is_cut=True)
        lengths.append(length)
        at = end
    return ListedLengths(b",".join(lengths) or _NONE, at, is_cut=False)


def respond_read(app: App, slot: Slot, asked: ReadRequest, extra_headers: bytes = b"") -> None:
    """Answer with stored bytes, and tell where messages end in them if that was asked for."""
    stream, start = asked.stream, asked.start
    if not asked.lengths:
        respond_bytes(app, slot, asked, extra_headers)
    elif stream.media == JSON:
        respond_bytes(app, slot, asked, extra_headers + _JSON_FIELD)
    elif start < stream.base:
        _answer_elsewhere(app, slot, asked, extra_headers)
    else:
        listed = list_lengths(start, _ends_in_memory(asked))
        if listed.is_cut:
            asked = asked._replace(bytes_max=listed.end - start)
        respond_bytes(app, slot, asked, extra_headers + _FIELD % listed.value)


def respond_at_tail(slot: Slot, asked: ReadRequest) -> None:
    """Answer that there is nothing behind the tail."""
    stream = asked.stream
    is_json = stream.media == JSON
    headers = read_headers(stream, stream.tail) + b"Cache-Control: no-store\r\n"
    if asked.lengths:
        headers += _JSON_FIELD if is_json else _FIELD % _NONE
    slot.respond(200, headers, b"[]" if is_json else b"")


def _ends_in_memory(asked: ReadRequest) -> list[int]:
    """Where messages end in what is in memory; not many more than can be listed."""
    stream, ends = asked.stream, asked.stream.ends
    end = end_of_read(stream, asked.start, asked.bytes_max)
    first = bisect_right(ends, asked.start)
    return ends[first : min(bisect_right(ends, end, first), first + _ENDS_MAX)]


def _answer_elsewhere(app: App, slot: Slot, asked: ReadRequest, extra_headers: bytes) -> None:
    """The start is in packs, or another stream's: look where messages end, then read them.

    In this order no more is read than can be listed. What is appended meanwhile is left out.
    """
    reader, stream, start = app.shard.reader, asked.stream, asked.start

    async def read_listed() -> tuple[ColdBytes, bytes]:
        bytes_max = min(asked.bytes_max, stream.tail - start)
        # A character is returned whole, whatever the limit is.
        until = min(stream.tail, start + max(bytes_max, CHARACTER_BYTES_MAX))
        ends = await reader.first_ends(stream, start, until, _ENDS_MAX)
        listed = list_lengths(start, ends)
        limit = listed.end - start if listed.is_cut else bytes_max
        stored = await reader.read(stream, start, limit)
        # The read may have ended before the last of these messages.
        listed = list_lengths(start, ends[: bisect_right(ends, stored.end)])
        return stored, _FIELD % listed.value

    def respond(result: tuple[ColdBytes, bytes]) -> None:
        stored, lengths = result
        respond_stored(app, slot, asked, stored, extra_headers + lengths)

    respond_later(slot, read_listed(), respond)


def long_poll(app: App, slot: Slot, asked: ReadRequest) -> None:
    """Answer at once if there is anything to say, otherwise wait."""
    app.shard.lifetimes.renew(asked.stream)
    if asked.stream.tail > asked.start or asked.stream.closed:
        _respond_polled(app, slot, asked)
    else:
        app.check_live_readers()
        _LongPoll(app, slot, asked)


class _LongPoll:
    """One waiting request."""

    __slots__ = ("_app", "_asked", "_slot", "_timer")

    def __init__(self, app: App, slot: Slot, asked: ReadRequest) -> None:
        self._app = app
        self._slot = slot
        self._asked = asked
        timeout_s = min(app.settings.read.long_poll_timeout_s, asked.lasts_s)
        self._timer = app.clock.call_later(timeout_s, self.finish)
        slot.on_gone = self._leave
        app.shard.live.add(asked.stream, self)

    def wake(self) -> None:
        """The stream changed: say how."""
        stream = self._asked.stream
        if stream.gone:
            self._leave()
            respond_error(self._slot, not_found(stream.meta.name))
            return
        self._app.shard.lifetimes.renew(stream)
        self.finish()

    def finish(self) -> None:
        """Answer with what there is by now, at the latest when time or the server ends."""
        self._leave()
        _respond_polled(self._app, self._slot, self._asked)

    def _leave(self) -> None:
        self._timer.cancel()
        self._slot.on_gone = None
        self._app.shard.live.remove(self._asked.stream, self)


def _respond_polled(app: App, slot: Slot, asked: ReadRequest) -> None:
    """Answer with bytes if there are any, otherwise with 204."""
    stream, clock = asked.stream, app.clock
    at_end = stream.closed and stream.tail == asked.start
    cursor = b""
    if not at_end:
        jitter_s = clock.random_int(1, CURSOR_JITTER_S_MAX)
        number = next_cursor(parse_cursor(asked.cursor), clock.now_ms(), jitter_s)
        cursor = b"Stream-Cursor: %d\r\n" % number
    if stream.tail > asked.start:
        respond_read(app, slot, asked, cursor)
        return
    slot.respond(
        204,
        b"Stream-Next-Offset: %020d\r\nStream-Up-To-Date: true\r\nCache-Control: no-store\r\n%b%b"
        % (stream.tail, b"Stream-Closed: true\r\n" if at_end else cursor, asked.start_header),
    )
