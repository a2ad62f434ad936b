"""PUT {stream}: create it, or confirm that it exists as asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.requests import Created, CreateRequest
from holdfast.errors import HoldfastError, InvalidRequestError
from holdfast.http.errors import answer_error
from holdfast.http.forks import parse_fork, resolve_fork
from holdfast.protocol.content import DEFAULT, parse_content_type
from holdfast.protocol.headers import (
    check_stream_seq,
    is_true,
    parse_expires_at_ms,
    parse_ttl_s,
    state_etag,
)
from holdfast.protocol.producer import parse_producer

if TYPE_CHECKING:
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot


def create(app: App, request: Request, slot: Slot, name: str) -> None:
    """Hand the creation to the shard."""
    fields = request.fields
    raw_type = fields.get(b"content-type")
    ttl, expires_at = fields.get(b"stream-ttl"), fields.get(b"stream-expires-at")
    if ttl is not None and expires_at is not None:
        raise InvalidRequestError("Send Stream-TTL or Stream-Expires-At, not both.")
    fork = parse_fork(request)
    if fork is not None:
        app.check_may_read(request, fork.name)
    default = DEFAULT if fork is None else None
    asked = CreateRequest(
        content_type=parse_content_type(raw_type) if raw_type else default,
        ttl_s=None if ttl is None else parse_ttl_s(ttl),
        expires_at_ms=None if expires_at is None else parse_expires_at_ms(expires_at),
        close=is_true(fields.get(b"stream-closed")),
        body=request.body,
        producer=parse_producer(
            fields.get(b"producer-id"), fields.get(b"producer-epoch"), fields.get(b"producer-seq")
        ),
        seq=check_stream_seq(fields.get(b"stream-seq")),
        fork=fork,
        if_match=fields.get(b"if-match"),
        needs_bucket=request.bucketed,
    )
    location = app.location(request)
    if fork is None or fork.offset is None or app.shard.exists(name):
        app.shard.create(name, asked, _answer, (slot, location, asked))
    else:
        app.spawn(_create_fork(app, slot, name, asked, location), slot)


async def _create_fork(
    app: App, slot: Slot, name: str, asked: CreateRequest, location: bytes
) -> None:
    """Find out where the fork starts first, which may have to be read from packs."""
    assert asked.fork is not None, "a fork is asked for"
    try:
        fork = await resolve_fork(app, asked.fork)
        asked = msgspec.structs.replace(asked, fork=fork)
        app.shard.create(name, asked, _answer, (slot, location, asked))
    except HoldfastError as error:
        answer_error(slot, error)


def _answer(context: tuple[Slot, bytes, CreateRequest], outcome: object) -> None:
    slot, location, asked = context
    if not isinstance(outcome, Created):
        assert isinstance(outcome, HoldfastError)
        answer_error(slot, outcome)
        return
    fields = b"Content-Type: %b\r\nStream-Next-Offset: %020d\r\nETag: %b\r\n" % (
        outcome.content_type.encode(),
        outcome.tail,
        state_etag(outcome.number, outcome.tail, closed=outcome.closed),
    )
    if outcome.closed:
        fields += b"Stream-Closed: true\r\n"
    if not outcome.created:
        slot.answer(200, fields)
        return
    if asked.producer is not None:
        fields += b"Producer-Epoch: %d\r\nProducer-Seq: %d\r\n" % asked.producer[1:]
    slot.answer(201, fields + b"Location: " + location + b"\r\n")
