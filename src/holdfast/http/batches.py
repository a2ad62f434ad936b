"""`/v1/batch`: publishes what `/v1/batch/part` has staged, all of it or nothing.

Names, JSON and permissions are checked when appends are staged, and the state of the streams when
the batch is published.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import msgspec

from holdfast.engine.writes import Deleted, StreamAppended, StreamCreated
from holdfast.errors import (
    BatchConflictError,
    HoldfastError,
    InvalidJsonError,
    InvalidRequestError,
    NotFoundError,
    PayloadTooLargeError,
)
from holdfast.http.access.gate import check_scope
from holdfast.http.access.scopes import Need
from holdfast.http.exchange import int_parameter, parse_query
from holdfast.http.publishing import PARTS_MAX, Decision
from holdfast.http.responses import JSON_HEADERS, encode_json, respond_error
from holdfast.http.routes import Resource, Route
from holdfast.protocol.content import (
    CONTENT_TYPE_BYTES_MAX,
    MESSAGES_MAX,
    decode_request,
    store_form,
)
from holdfast.protocol.headers import TTL_S_MAX
from holdfast.protocol.names import NAME_BYTES_MAX, check_path, flat_name
from holdfast.protocol.parts import APPENDS_MAX, PartAppend, encode_append, split_appends
from holdfast.protocol.producer import ID_BYTES_MAX, NUMBER_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot
    from holdfast.http.publishing import BatchPublication

_CONTENT_TYPE: Final = r"\A[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+(;[ -~]*)?\Z"
PART_ID: Final = r"\A[0-9A-Za-z_-]{16,64}\Z"
# A request that takes longer is answered with 202, and repeated by its client.
_WAIT_S: Final = 10.0


class StagedPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part, and its size as the response to its last request told it."""

    id: Annotated[str, msgspec.Meta(pattern=PART_ID)]
    bytes: Annotated[int, msgspec.Meta(ge=1)]


class BatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A batch: its parts in order, and how streams are created and closed."""

    producer_id: Annotated[
        str, msgspec.Meta(min_length=1, max_length=ID_BYTES_MAX, pattern=r"\A[ -~]+\Z")
    ]
    epoch: Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
    content_type: Annotated[
        str, msgspec.Meta(pattern=_CONTENT_TYPE, max_length=CONTENT_TYPE_BYTES_MAX)
    ]
    parts: Annotated[list[StagedPart], msgspec.Meta(min_length=1, max_length=PARTS_MAX)]
    # Batches of one producer with different scopes are independent of each other.
    scope: Annotated[str, msgspec.Meta(max_length=NAME_BYTES_MAX)] = ""
    digest: Annotated[str, msgspec.Meta(max_length=128)] = ""
    create_streams: bool = True
    close_streams: bool = False
    ttl: Annotated[int, msgspec.Meta(ge=1, le=TTL_S_MAX)] | None = None


_decode_batch = msgspec.json.Decoder(BatchRequest).decode


def _stage(app: App, request: Request, slot: Slot, _name: str) -> None:
    """Add appends to a part."""
    part, seq = _part(request), int_parameter(parse_query(request.query), "seq", 0, NUMBER_MAX)
    if seq is None:
        raise InvalidRequestError("The parameter 'seq' numbers the requests of a part from 0.")
    appends, used = split_appends(request.body, APPENDS_MAX + 1)
    if len(appends) > APPENDS_MAX:
        raise PayloadTooLargeError(f"A request stages at most {APPENDS_MAX} appends.")
    if not appends or used < len(request.body):
        raise InvalidRequestError("The body is not a sequence of whole appends.")
    may_write = _permission(request)
    data = b"".join([encode_append(_checked(append, may_write)) for append in appends])
    app.batches.stage(part, seq, data, _respond_staged, slot)


def _checked(append: PartAppend, may_write: Callable[[str], None]) -> PartAppend:
    """The append as a part stores it; raises if no stream would take it."""
    try:
        name = flat_name(check_path(append.name.encode()))
    except NotFoundError as error:
        # 404 says that there is no such route.
        raise InvalidRequestError(error.message) from None
    may_write(name)
    body = append.body
    if append.lengths is None:
        body = store_form(body)
        if not body:
            raise InvalidJsonError(f"An empty array for {name!r}: stage at least one message.")
    elif len(append.lengths) > MESSAGES_MAX:
        raise InvalidRequestError(f"An append has at most {MESSAGES_MAX} messages.")
    return PartAppend(name, body, append.lengths)


def _permission(request: Request) -> Callable[[str], None]:
    """A function that raises unless the request may write to a stream."""
    identity = request.identity
    known: set[str] = set()

    def check(name: str) -> None:
        if identity is not None and name not in known:
            bucket, _, stream_id = name.partition("/")
            check_scope(identity, Need.WRITE, bucket, stream_id)
            known.add(name)

    return check


def _respond_staged(slot: Slot, outcome: object) -> None:
    if isinstance(outcome, StreamAppended | StreamCreated):
        slot.respond(204, b"Stream-Next-Offset: %020d\r\n" % outcome.tail)
    else:
        assert isinstance(outcome, HoldfastError)
        respond_error(slot, outcome)


def _drop(app: App, request: Request, slot: Slot, _name: str) -> None:
    """Delete a part that will not be published."""
    app.batches.drop(_part(request), _respond_dropped, slot)


def _respond_dropped(slot: Slot, outcome: object) -> None:
    if isinstance(outcome, Deleted):
        slot.respond(204, b"")
    else:
        assert isinstance(outcome, HoldfastError)
        respond_error(slot, outcome)


def _part(request: Request) -> str:
    part = parse_query(request.query).get("part", "")
    if not re.fullmatch(PART_ID, part):
        raise InvalidRequestError("The parameter 'part' is 16 to 64 letters, digits, '_' and '-'.")
    return part


def _publish(app: App, request: Request, slot: Slot, _name: str) -> None:
    """Publish a batch, or wait for its end."""
    batch = decode_request(_decode_batch, request.body, InvalidRequestError)
    decision = Decision(
        batch.producer_id,
        batch.epoch,
        batch.content_type,
        app.clock.now_ms(),
        batch.digest,
        tuple(part.id for part in batch.parts),
        batch.create_streams,
        batch.close_streams,
        batch.ttl,
    )
    if len(set(decision.parts)) < len(decision.parts):
        raise BatchConflictError("A part is listed twice.")
    # Whoever may write elsewhere only must not publish, or fence, under another's producer.
    holder = "" if request.identity is None else request.identity.name
    publication = app.batches.publish(
        "/".join(quote(each, safe="") for each in (holder, batch.scope, batch.producer_id)),
        decision,
        [part.bytes for part in batch.parts],
        _permission(request),
    )
    if publication is None:
        _respond_published(slot, repeated=True)
    else:
        is_own = publication.decision is decision
        app.spawn(_wait(slot, publication, repeated=not is_own), slot)


async def _wait(slot: Slot, publication: BatchPublication, *, repeated: bool) -> None:
    await asyncio.wait([publication.finished], timeout=_WAIT_S)
    if not publication.finished.done():
        slot.respond(202, JSON_HEADERS, encode_json({"published": False, "repeated": repeated}))
        return
    publication.finished.result()
    _respond_published(slot, repeated=repeated)


def _respond_published(slot: Slot, *, repeated: bool) -> None:
    slot.respond(200, JSON_HEADERS, encode_json({"published": True, "repeated": repeated}))


RESOURCES: Final = {
    b"/v1/batch": Resource({b"POST": Route(_publish, "batch", need=Need.WRITE, somewhere=True)}),
    b"/v1/batch/part": Resource(
        {
            b"POST": Route(_stage, "batch_part", need=Need.WRITE, somewhere=True),
            b"DELETE": Route(_drop, "batch_part", need=Need.WRITE, somewhere=True),
        }
    ),
}
