"""POST, PUT, HEAD, DELETE and OPTIONS {stream}; `read.py` has GET."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.engine.reading import check_offset
from holdfast.engine.writes import (
    AppendRequest,
    CreateRequest,
    Deleted,
    ForkRequest,
    StreamAppended,
    StreamCreated,
)
from holdfast.errors import (
    ForkSourceDeletedError,
    HoldfastError,
    InvalidOffsetError,
    InvalidRequestError,
    StreamDeletedError,
)
from holdfast.http.responses import respond_error, result_of
from holdfast.http.routes import STREAM_PREFIX
from holdfast.protocol.content import DEFAULT, JSON, media_type, parse_content_type
from holdfast.protocol.headers import (
    check_stream_seq,
    format_time_ms,
    is_true,
    matches_etag,
    parse_expires_at_ms,
    parse_lengths,
    parse_offset,
    parse_ttl_s,
    state_etag,
)
from holdfast.protocol.names import (
    check_bucket_id,
    check_stream_id,
    decode_segment,
    parse_flat_path,
)
from holdfast.protocol.producer import parse_producer
from holdfast.storage.pending import run

if TYPE_CHECKING:
    from holdfast.engine.stream import Stream
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot

# Media types by content type as sent: there are few, and one comes with every append.
_MEDIA_ENTRIES_MAX: Final = 1024
_media: dict[bytes, str] = {}
# What the upstream conformance tests call the start of a stream.
_ZERO: Final = "0000000000000000_0000000000000000"
# Any URL, of which only the path matters. The standard library raises for odd hosts and bytes.
_URL: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*([^?#]*).*", re.DOTALL)
_NUMBER: Final = re.compile(rb"0|[1-9][0-9]{0,15}")
_PREFLIGHT: Final = (
    b"Access-Control-Allow-Methods: GET, HEAD, POST, PUT, DELETE, OPTIONS\r\n"
    b"Access-Control-Allow-Headers: Content-Type, Authorization, If-Match, If-None-Match, "
    b"Stream-Closed, Stream-Expires-At, Stream-Message-Lengths, Stream-Seq, Stream-TTL, "
    b"Stream-Forked-From, Stream-Fork-Offset, Stream-Fork-Sub-Offset, "
    b"Producer-Id, Producer-Epoch, Producer-Seq, Producer-Digest\r\n"
    b"Access-Control-Max-Age: 86400\r\n"
)


def append(app: App, request: Request, slot: Slot, name: str) -> None:
    """Append, close, or both in one step; the shard calls back once it is durable."""
    headers = request.headers
    body = request.body
    raw_type = headers.get(b"content-type")
    close = b"stream-closed" in headers and is_true(headers[b"stream-closed"])
    if not body and not close:
        raise InvalidRequestError(
            "The body is empty. Send bytes to append, or Stream-Closed: true to close the stream."
        )
    if close:
        app.batches.check_free(name)
    if body and not raw_type:
        raise InvalidRequestError("An append needs a Content-Type, the same as the stream's.")
    media = _media.get(raw_type) if raw_type else None
    if media is None and body and raw_type:
        media = _remember_media(raw_type)
    producer = None
    if (
        b"producer-id" in headers
        or b"producer-epoch" in headers
        or b"producer-seq" in headers
        or b"producer-digest" in headers
    ):
        producer = parse_producer(
            headers.get(b"producer-id"),
            headers.get(b"producer-epoch"),
            headers.get(b"producer-seq"),
            headers.get(b"producer-digest"),
        )
    seq = headers.get(b"stream-seq")
    if seq is not None:
        check_stream_seq(seq)
    wanted = AppendRequest(body, media, close, producer, seq, headers.get(b"if-match"))
    lengths = headers.get(b"stream-message-lengths")
    if lengths is not None:
        if media == JSON:
            raise InvalidRequestError(
                "Stream-Message-Lengths is for byte streams. On a JSON stream send an array."
            )
        wanted.lengths = parse_lengths(lengths, len(body))
    app.shard.append(name, wanted, _respond_appended, slot)


def _remember_media(raw: bytes) -> str:
    media = media_type(parse_content_type(raw))
    if len(_media) >= _MEDIA_ENTRIES_MAX:
        _media.clear()
    _media[raw] = media
    return media


def _respond_appended(slot: Slot, outcome: object) -> None:
    if type(outcome) is not StreamAppended:
        assert isinstance(outcome, HoldfastError)
        respond_error(slot, outcome)
        return
    if outcome.closed:
        headers = b'Stream-Next-Offset: %020d\r\nETag: "%x:%d:c"\r\nStream-Closed: true\r\n' % (
            outcome.tail,
            outcome.number,
            outcome.tail,
        )
    else:
        headers = b'Stream-Next-Offset: %020d\r\nETag: "%x:%d"\r\n' % (
            outcome.tail,
            outcome.number,
            outcome.tail,
        )
    producer = outcome.producer
    if producer is None:
        slot.respond(204, headers)
        return
    headers += b"Producer-Epoch: %d\r\nProducer-Seq: %d\r\n" % producer[:2]
    if producer.digest:
        headers += b"Producer-Digest: %b\r\n" % producer.digest.hex().encode()
    slot.respond(200 if outcome.added else 204, headers)


def create(app: App, request: Request, slot: Slot, name: str) -> None:
    """Create a stream or a fork, or confirm that it exists with the same configuration."""
    app.batches.check_free(name)
    headers = request.headers
    raw_type = headers.get(b"content-type")
    ttl, expires_at = headers.get(b"stream-ttl"), headers.get(b"stream-expires-at")
    if ttl is not None and expires_at is not None:
        raise InvalidRequestError("Send Stream-TTL or Stream-Expires-At, not both.")
    fork = _parse_fork(request)
    if fork is not None:
        app.check_may_read(request, fork.name)
    default = DEFAULT if fork is None else None
    wanted = CreateRequest(
        content_type=parse_content_type(raw_type) if raw_type else default,
        ttl_s=None if ttl is None else parse_ttl_s(ttl),
        expires_at_ms=None if expires_at is None else parse_expires_at_ms(expires_at),
        close=is_true(headers.get(b"stream-closed")),
        body=request.body,
        producer=parse_producer(
            headers.get(b"producer-id"),
            headers.get(b"producer-epoch"),
            headers.get(b"producer-seq"),
            headers.get(b"producer-digest"),
        ),
        seq=check_stream_seq(headers.get(b"stream-seq")),
        fork=fork,
        if_match=headers.get(b"if-match"),
        needs_bucket=request.bucketed,
    )
    location = app.location(request)
    if fork is None or fork.offset is None or app.shard.exists(name):
        app.shard.create(name, wanted, _respond_created, (slot, location, wanted))
    else:
        source = _find_source(app, fork)
        app.spawn(_create_fork(app, slot, name, wanted, fork, source, location), slot)


async def _create_fork(
    app: App,
    slot: Slot,
    name: str,
    wanted: CreateRequest,
    fork: ForkRequest,
    source: Stream,
    location: bytes,
) -> None:
    """Create a fork once its offset is checked, which may take a read from packs."""
    try:
        wanted = msgspec.structs.replace(wanted, fork=await _resolve_fork(app, fork, source))
        app.shard.create(name, wanted, _respond_created, (slot, location, wanted))
    except HoldfastError as error:
        respond_error(slot, error)


def _respond_created(context: tuple[Slot, bytes, CreateRequest], outcome: object) -> None:
    slot, location, request = context
    if not isinstance(outcome, StreamCreated):
        assert isinstance(outcome, HoldfastError)
        respond_error(slot, outcome)
        return
    headers = b"Content-Type: %b\r\nStream-Next-Offset: %020d\r\nETag: %b\r\n" % (
        outcome.content_type.encode(),
        outcome.tail,
        state_etag(outcome.number, outcome.tail, closed=outcome.closed),
    )
    if outcome.closed:
        headers += b"Stream-Closed: true\r\n"
    if not outcome.created:
        slot.respond(200, headers)
        return
    if request.producer is not None:
        headers += b"Producer-Epoch: %d\r\nProducer-Seq: %d\r\n" % request.producer[1:3]
    slot.respond(201, headers + b"Location: " + location + b"\r\n")


# Forks.


def _parse_fork(request: Request) -> ForkRequest | None:
    """The fork that the headers ask for, with its offset unchecked; None if they ask for none."""
    headers = request.headers
    source, raw_offset = headers.get(b"stream-forked-from"), headers.get(b"stream-fork-offset")
    sub_offset = headers.get(b"stream-fork-sub-offset")
    if source is None:
        if raw_offset is not None or sub_offset is not None:
            raise InvalidRequestError(
                "Stream-Fork-Offset and Stream-Fork-Sub-Offset need Stream-Forked-From."
            )
        return None
    sub = 0
    if sub_offset is not None:
        if not _NUMBER.fullmatch(sub_offset):
            raise InvalidRequestError("Stream-Fork-Sub-Offset must be a whole number.")
        sub = int(sub_offset)
        if sub and raw_offset is None:
            raise InvalidRequestError("Stream-Fork-Sub-Offset needs Stream-Fork-Offset.")
    offset = None
    if raw_offset is not None:
        text = raw_offset.decode("latin-1")
        offset = 0 if text in {_ZERO, "-1"} else parse_offset(text)
    return ForkRequest(_source_name(source, request.prefix), offset, offset, sub)


def _source_name(raw: bytes, prefix: bytes) -> str:
    """The name of the stream that a URL, or the path of one, leads to."""
    url = _URL.fullmatch(raw)
    path = (raw if url is None else url[1]).removeprefix(prefix)
    if path.startswith(STREAM_PREFIX):
        return parse_flat_path(path[len(STREAM_PREFIX) :])
    bucket, slash, stream = path.removeprefix(b"/").partition(b"/")
    if not slash:
        raise InvalidRequestError(
            "Stream-Forked-From is the path of a stream's URL, such as /v1/stream/a or /demo1/a."
        )
    bucket_id, stream_id = decode_segment(bucket), decode_segment(stream)
    check_bucket_id(bucket_id)
    check_stream_id(bucket_id, stream_id)
    return f"{bucket_id}/{stream_id}"


def _find_source(app: App, fork: ForkRequest) -> Stream:
    """The stream to fork."""
    try:
        source = app.shard.find(fork.name)
    except StreamDeletedError as error:
        raise ForkSourceDeletedError(error.message) from None
    # The creation counts its ancestors, at a time when nothing can wait for the catalog.
    app.shard.reader.find_stretches(source, 0)
    return source


async def _resolve_fork(app: App, fork: ForkRequest, source: Stream) -> ForkRequest:
    """The fork with the offset where it starts, which for JSON is between messages."""
    assert fork.offset is not None, "without an offset there is nothing to resolve"
    check_offset(source, fork.offset)
    if source.media == JSON and not await result_of(
        partial(run, app.shard.reader.is_boundary(source, fork.offset))
    ):
        raise InvalidOffsetError(f"Offset {fork.offset:020d} is inside a JSON message.")
    offset = fork.offset
    if fork.sub_offset:
        offset = await _add_sub_offset(app, source, offset, fork.sub_offset)
    return ForkRequest(fork.name, offset, fork.requested_offset, fork.sub_offset, source.number)


async def _add_sub_offset(app: App, source: Stream, offset: int, sub_offset: int) -> int:
    """The offset that many JSON messages, or bytes of the next append, further on."""
    until = min(source.tail, offset + 2 * app.settings.http.body_bytes_max)
    ends = await result_of(partial(run, app.shard.reader.message_ends(source, offset, until)))
    if source.media == JSON:
        if sub_offset <= len(ends):
            return int(ends[sub_offset - 1])
    elif ends and offset + sub_offset <= ends[0]:
        return offset + sub_offset
    raise InvalidOffsetError(
        f"Stream-Fork-Sub-Offset {sub_offset} is past what follows offset {offset:020d}."
    )


# HEAD, DELETE, OPTIONS.


def head(app: App, request: Request, slot: Slot, name: str) -> None:
    """Respond with the stream's metadata, without renewing its TTL."""
    stream = app.shard.find(name)
    meta = stream.meta
    etag = state_etag(stream.number, stream.tail, closed=stream.closed)
    headers = [
        b"Content-Type: %b\r\nStream-Next-Offset: %020d\r\nETag: %b\r\n"
        b"Cache-Control: no-store\r\n" % (meta.content_type.encode(), stream.tail, etag)
    ]
    if stream.snapshot is not None:
        headers.append(b"Stream-Snapshot-Offset: %020d\r\n" % stream.snapshot.offset)
    if stream.earliest:
        headers.append(b"Stream-Earliest-Offset: %020d\r\n" % stream.earliest)
    if stream.closed:
        headers.append(b"Stream-Closed: true\r\n")
    if meta.ttl_s is not None:
        ttl_s = meta.ttl_s
        if meta.expires_at_ms is not None:
            ttl_s = max(0, -(-(meta.expires_at_ms - app.clock.now_ms()) // 1000))
        headers.append(b"Stream-TTL: %d\r\n" % ttl_s)
    elif meta.expires_at_ms is not None:
        headers.append(b"Stream-Expires-At: %b\r\n" % format_time_ms(meta.expires_at_ms))
    known = request.headers.get(b"if-none-match")
    unchanged = known is not None and matches_etag(known, etag)
    slot.respond(304 if unchanged else 200, b"".join(headers))


def delete(app: App, _request: Request, slot: Slot, name: str) -> None:
    """Delete the stream."""
    app.shard.delete(name, _respond_deleted, slot)


def _respond_deleted(slot: Slot, outcome: object) -> None:
    if isinstance(outcome, Deleted):
        slot.respond(204, b"")
    else:
        assert isinstance(outcome, HoldfastError)
        respond_error(slot, outcome)


def options(_app: App, _request: Request, slot: Slot, _name: str) -> None:
    """Respond to a browser's preflight."""
    slot.respond(204, _PREFLIGHT)
