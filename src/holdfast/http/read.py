"""GET {stream}: catch-up and long-poll reads; `sse.py` has the event streams.

With `lengths=true` a response says where messages end in its body. JSON says that by itself; for
other streams a header lists the lengths of the messages that end in the body. The list is limited,
since HTTP proxies refuse large heads, and the response ends where the list does.
"""

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
from holdfast.http.exchange import int_parameter, parse_query
from holdfast.http.responses import respond_error, respond_later
from holdfast.http.sse import sse
from holdfast.http.stored_body import BODY_PIECE_BYTES, StoredBody
from holdfast.protocol.content import CHARACTER_BYTES_MAX, JSON, array_form
from holdfast.protocol.headers import (
    CURSOR_JITTER_S_MAX,
    LENGTHS_BYTES_MAX,
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
_BYTES_MAX: Final = 10**18 - 1
# More than can be listed: the shortest length is a digit and a comma.
_ENDS_MAX: Final = LENGTHS_BYTES_MAX // 2 + 1
_LENGTHS: Final = b"Stream-Message-Lengths: %b\r\n"
_JSON_LENGTHS: Final = _LENGTHS % b"json"
_NONE: Final = b"none"


class ReadRequest(NamedTuple):
    """A read with its parameters checked."""

    stream: Stream
    start: int
    bytes_max: int
    if_none_match: bytes | None
    cursor: str | None
    from_now: bool
    # A live read lasts no longer than its token.
    lasts_s: float = math.inf
    lengths: bool = False
    # Whether the start was found by counting messages back from the tail.
    from_last: bool = False
    # Whether shared caches must not keep the response.
    private: bool = False

    @property
    def start_header(self) -> bytes:
        """`Stream-Start-Offset`, for clients that cannot know it."""
        return b"Stream-Start-Offset: %020d\r\n" % self.start if self.from_last else b""


def read(app: App, request: Request, slot: Slot, name: str) -> None:
    """Respond with stored bytes, or start a live read."""
    query = parse_query(request.query)
    live = query.get("live")
    if live is not None:
        if live not in ("long-poll", "sse"):
            raise InvalidRequestError(f"Unknown live mode {live[:40]!r}: use long-poll or sse.")
        slot.route = "sse" if live == "sse" else "long_poll"
    stream = app.shard.find(name)
    offset, last = query.get("offset"), None
    if "last" in query:
        last = int_parameter(query, "last", 1, LAST_MAX)
    bytes_max = app.settings.read.read_bytes_max
    if "max_bytes" in query:
        bytes_max = min(bytes_max, int_parameter(query, "max_bytes", 1, _BYTES_MAX) or bytes_max)
    wanted = ReadRequest(
        stream,
        _start(stream, offset) if last is None else stream.tail,
        bytes_max,
        request.headers.get(b"if-none-match"),
        query.get("cursor"),
        from_now=offset == NOW,
        lasts_s=app.begin_live(request, slot) if live is not None else math.inf,
        lengths="lengths" in query and _wants_lengths(query["lengths"]),
        private=request.private,
    )
    if last is not None:
        if offset is not None:
            raise InvalidRequestError("Both offset and last say where to start: give one of them.")
        _read_last(app, slot, live, wanted, last)
        return
    if live is not None and offset is None:
        raise InvalidOffsetError(
            "A live read needs an offset (-1, now, or one from a response), or last."
        )
    _read(app, slot, live, wanted)


def _read_last(app: App, slot: Slot, live: str | None, request: ReadRequest, count: int) -> None:
    """Read the last messages, once it is known where they start."""
    number, name = request.stream.number, request.stream.meta.name

    def found(start: int) -> None:
        # Meanwhile the stream may have left memory and come back, or been deleted or trimmed.
        stream = app.shard.find(name)
        if stream.number != number:
            raise not_found(name)
        start = max(start, stream.earliest)
        counted = request._replace(stream=stream, start=start, if_none_match=None, from_last=True)
        _read(app, slot, live, counted)

    respond_later(slot, app.shard.reader.last_start(request.stream, count), found)


def _read(app: App, slot: Slot, live: str | None, request: ReadRequest) -> None:
    if live == "sse":
        sse(app, slot, request)
        return
    app.shard.lifetimes.renew(request.stream)
    if live is not None:
        _long_poll(app, slot, request)
    elif request.from_now:
        _respond_at_tail(slot, request)
    else:
        _respond_bytes(app, slot, request)


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


def _wants_lengths(text: str) -> bool:
    if text not in ("true", "false"):
        raise InvalidRequestError(f"Malformed lengths {text[:40]!r}: expected true or false.")
    return text == "true"


# Long-poll.


def _long_poll(app: App, slot: Slot, request: ReadRequest) -> None:
    """Respond at once if there is anything to say, otherwise wait for it."""
    if request.stream.tail > request.start or request.stream.closed:
        _respond_polled(app, slot, request)
    else:
        app.check_live_readers()
        _LongPoll(app, slot, request)


class _LongPoll:
    """A waiting request; `engine.stream.LiveReaders` calls `wake` and `finish`."""

    __slots__ = ("_app", "_request", "_slot", "_timer")

    def __init__(self, app: App, slot: Slot, request: ReadRequest) -> None:
        self._app = app
        self._slot = slot
        self._request = request
        timeout_s = min(app.settings.read.long_poll_timeout_s, request.lasts_s)
        self._timer = app.clock.call_later(timeout_s, self.finish)
        slot.on_gone = self._leave
        app.shard.live.add(request.stream, self)

    def wake(self) -> None:
        stream = self._request.stream
        if stream.gone:
            self._leave()
            respond_error(self._slot, not_found(stream.meta.name))
            return
        self._app.shard.lifetimes.renew(stream)
        self.finish()

    def finish(self) -> None:
        """Respond with what there is now: the stream changed, or time is up."""
        self._leave()
        _respond_polled(self._app, self._slot, self._request)

    def _leave(self) -> None:
        self._timer.cancel()
        self._slot.on_gone = None
        self._app.shard.live.remove(self._request.stream, self)


def _respond_polled(app: App, slot: Slot, request: ReadRequest) -> None:
    """Respond with bytes if there are any, otherwise with 204."""
    stream, clock = request.stream, app.clock
    at_end = stream.closed and stream.tail == request.start
    cursor = b""
    if not at_end:
        jitter_s = clock.random_int(1, CURSOR_JITTER_S_MAX)
        number = next_cursor(parse_cursor(request.cursor), clock.now_ms(), jitter_s)
        cursor = b"Stream-Cursor: %d\r\n" % number
    if stream.tail > request.start:
        _respond_bytes(app, slot, request, cursor)
        return
    slot.respond(
        204,
        b"Stream-Next-Offset: %020d\r\nStream-Up-To-Date: true\r\nCache-Control: no-store\r\n%b%b"
        % (stream.tail, b"Stream-Closed: true\r\n" if at_end else cursor, request.start_header),
    )


# Responses with bytes.


def _respond_at_tail(slot: Slot, request: ReadRequest) -> None:
    """A read from `now`: nothing is there yet."""
    stream = request.stream
    is_json = stream.media == JSON
    headers = _stream_headers(stream, stream.tail) + b"Cache-Control: no-store\r\n"
    if request.lengths:
        headers += _JSON_LENGTHS if is_json else _LENGTHS % _NONE
    slot.respond(200, headers, b"[]" if is_json else b"")


def _respond_bytes(app: App, slot: Slot, request: ReadRequest, headers: bytes = b"") -> None:
    """Respond with what is stored from the start on, or 304 if the client has it already."""
    stream, start, bytes_max = request.stream, request.start, request.bytes_max
    listing = request.lengths and stream.media != JSON
    if start < stream.base:
        # In packs, or another stream's.
        if listing:
            _respond_listed(app, slot, request, headers)
            return
        if request.lengths:
            headers += _JSON_LENGTHS
        respond_later(
            slot,
            _read_stored(app, stream, start, bytes_max),
            lambda stored: _respond_stored(app, slot, request, stored, headers),
        )
        return
    if listing:
        lengths = list_lengths(start, _ends_in_memory(request))
        if lengths.is_cut:
            bytes_max = lengths.end - start
        headers += _LENGTHS % lengths.value
    elif request.lengths:
        headers += _JSON_LENGTHS
    end = end_of_read(stream, start, bytes_max)
    # The bytes are joined only if the client lacks them, and long ones piece by piece.
    if not _respond_unchanged(app, slot, request, end, headers):
        data = reading.read(stream, start, end) if end - start <= BODY_PIECE_BYTES else b""
        _respond_data(app, slot, request, ColdBytes(end, data), headers)


async def _read_stored(app: App, stream: Stream, start: int, bytes_max: int) -> ColdBytes:
    """Read from packs, or find only the end of what is too long for one piece."""
    reader = app.shard.reader
    if min(bytes_max, stream.tail - start) > BODY_PIECE_BYTES:
        end, _ = await reader.read(stream, start, bytes_max, ends_only=True)
        if end - start > BODY_PIECE_BYTES:
            return ColdBytes(end, b"")
        bytes_max = end - start
    return await reader.read(stream, start, bytes_max)


def _respond_stored(
    app: App, slot: Slot, request: ReadRequest, stored: ColdBytes, headers: bytes
) -> None:
    if not _respond_unchanged(app, slot, request, stored.end, headers):
        _respond_data(app, slot, request, stored, headers)


def _respond_unchanged(
    app: App, slot: Slot, request: ReadRequest, end: int, headers: bytes
) -> bool:
    """Respond 304 if the client has exactly these bytes."""
    known = request.if_none_match
    if known is None or not matches_etag(known, _etag(request, end)):
        return False
    slot.respond(304, _read_headers(app, request, end) + headers)
    return True


def _respond_data(
    app: App, slot: Slot, request: ReadRequest, stored: ColdBytes, headers: bytes
) -> None:
    """Respond with bytes; long ones are missing, and are read as the client takes them."""
    end, data = stored
    stream, start = request.stream, request.start
    headers = _read_headers(app, request, end) + headers
    if end - start > BODY_PIECE_BYTES:
        StoredBody(app, slot, stream, start, end).respond(headers)
    else:
        slot.respond(200, headers, array_form(data) if stream.media == JSON else data)


def _etag(request: ReadRequest, end: int) -> bytes:
    stream = request.stream
    closed = stream.closed and end == stream.tail
    return read_etag(stream.number, request.start, end, closed=closed)


def _read_headers(app: App, request: ReadRequest, end: int) -> bytes:
    if request.from_now or request.from_last:
        caching = b"Cache-Control: no-store\r\n" + request.start_header
    else:
        caching = b"ETag: %b\r\nCache-Control: %b\r\n" % (
            _etag(request, end),
            _cache_control(app, request),
        )
    return _stream_headers(request.stream, end) + caching


def _stream_headers(stream: Stream, end: int) -> bytes:
    headers = b"Content-Type: %b\r\nStream-Next-Offset: %020d\r\n" % (
        stream.meta.content_type.encode(),
        end,
    )
    if end == stream.tail:
        headers += b"Stream-Up-To-Date: true\r\n"
        if stream.closed:
            headers += b"Stream-Closed: true\r\n"
    return headers


def _cache_control(app: App, request: ReadRequest) -> bytes:
    """Caches may keep a response for a minute, but not past the stream's expiry."""
    stream, scope = request.stream, app.cache_scope
    if request.private:
        # Permission is checked each time: a signed URL expires.
        return b"private, no-cache"
    if stream.deadline_ms is None:
        return b"%b, max-age=%d, stale-while-revalidate=300" % (scope, MAX_AGE_S)
    left_s = (stream.deadline_ms - app.clock.now_ms()) // 1000
    return b"%b, max-age=%d" % (scope, max(0, min(MAX_AGE_S, left_s)))


# Message lengths.


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
        if size > LENGTHS_BYTES_MAX:
            return ListedLengths(b",".join(lengths), at, is_cut=True)
        lengths.append(length)
        at = end
    return ListedLengths(b",".join(lengths) or _NONE, at, is_cut=False)


def _ends_in_memory(request: ReadRequest) -> list[int]:
    """Where messages end in memory; not many more than can be listed."""
    stream, ends = request.stream, request.stream.ends
    end = end_of_read(stream, request.start, request.bytes_max)
    first = bisect_right(ends, request.start)
    return ends[first : min(bisect_right(ends, end, first), first + _ENDS_MAX)]


def _respond_listed(app: App, slot: Slot, request: ReadRequest, headers: bytes) -> None:
    """Find where messages end in packs, or in another stream, then read them.

    In this order no more is read than can be listed. Appends that arrive meanwhile are left out.
    """
    reader, stream, start = app.shard.reader, request.stream, request.start

    async def read_listed() -> tuple[ColdBytes, bytes]:
        bytes_max = min(request.bytes_max, stream.tail - start)
        # A character is returned whole, whatever the limit is.
        until = min(stream.tail, start + max(bytes_max, CHARACTER_BYTES_MAX))
        ends = await reader.first_ends(stream, start, until, _ENDS_MAX)
        lengths = list_lengths(start, ends)
        limit = lengths.end - start if lengths.is_cut else bytes_max
        stored = await _read_stored(app, stream, start, limit)
        # The read may have ended before the last of these messages.
        lengths = list_lengths(start, ends[: bisect_right(ends, stored.end)])
        return stored, _LENGTHS % lengths.value

    def respond(result: tuple[ColdBytes, bytes]) -> None:
        stored, lengths = result
        _respond_stored(app, slot, request, stored, headers + lengths)

    respond_later(slot, read_listed(), respond)
