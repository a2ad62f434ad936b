"""HEAD, DELETE and OPTIONS {stream}."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.engine.requests import Deleted
from holdfast.errors import HoldfastError
from holdfast.http.errors import answer_error
from holdfast.protocol.headers import format_time_ms, matches_etag, state_etag

if TYPE_CHECKING:
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot

_PREFLIGHT: Final = (
    b"Access-Control-Allow-Methods: GET, HEAD, POST, PUT, DELETE, OPTIONS\r\n"
    b"Access-Control-Allow-Headers: Content-Type, Authorization, If-Match, If-None-Match, "
    b"Stream-Closed, Stream-Expires-At, Stream-Seq, Stream-TTL, "
    b"Stream-Forked-From, Stream-Fork-Offset, Stream-Fork-Sub-Offset, "
    b"Producer-Id, Producer-Epoch, Producer-Seq\r\n"
    b"Access-Control-Max-Age: 86400\r\n"
)


def head(app: App, request: Request, slot: Slot, name: str) -> None:
    """Answer with the stream's metadata; this does not renew a TTL."""
    stream = app.shard.find(name)
    meta = stream.meta
    etag = state_etag(stream.number, stream.tail, closed=stream.closed)
    fields = [
        b"Content-Type: %b\r\nStream-Next-Offset: %020d\r\nETag: %b\r\n"
        b"Cache-Control: no-store\r\n" % (meta.content_type.encode(), stream.tail, etag)
    ]
    if stream.snapshot is not None:
        fields.append(b"Stream-Snapshot-Offset: %020d\r\n" % stream.snapshot.offset)
    if stream.earliest:
        fields.append(b"Stream-Earliest-Offset: %020d\r\n" % stream.earliest)
    if stream.closed:
        fields.append(b"Stream-Closed: true\r\n")
    if meta.ttl_s is not None:
        ttl_s = meta.ttl_s
        if meta.expires_at_ms is not None:
            ttl_s = max(0, -(-(meta.expires_at_ms - app.clock.now_ms()) // 1000))
        fields.append(b"Stream-TTL: %d\r\n" % ttl_s)
    elif meta.expires_at_ms is not None:
        fields.append(b"Stream-Expires-At: %b\r\n" % format_time_ms(meta.expires_at_ms))
    known = request.fields.get(b"if-none-match")
    unchanged = known is not None and matches_etag(known, etag)
    slot.answer(304 if unchanged else 200, b"".join(fields))


def delete(app: App, _request: Request, slot: Slot, name: str) -> None:
    """Hand the deletion to the shard."""
    app.shard.delete(name, _answer_deleted, slot)


def _answer_deleted(slot: Slot, outcome: object) -> None:
    if isinstance(outcome, Deleted):
        slot.answer(204, b"")
    else:
        assert isinstance(outcome, HoldfastError)
        answer_error(slot, outcome)


def options(_app: App, _request: Request, slot: Slot, _name: str) -> None:
    """Answer a browser's preflight."""
    slot.answer(204, _PREFLIGHT)
