"""Ways to respond: with JSON, with an error, in pieces, or once a callback has the result."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from holdfast.errors import (
    AlreadyClaimedError,
    CursorGoneError,
    HoldfastError,
    MethodNotAllowedError,
    OffsetGoneError,
    ProducerDigestError,
    ProducerFencedError,
    ProducerGapError,
    RateLimitedError,
    SignatureExpiredError,
    StreamClosedError,
    UnauthorizedError,
    UnavailableError,
    UpstreamError,
    WakeTokenExpiredError,
    WakeTokenInvalidError,
)
from holdfast.protocol.headers import header_value
from holdfast.storage.pending import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from holdfast.http.exchange import Slot
    from holdfast.http.turns import Turns
    from holdfast.storage.pending import Pending

_log = logging.getLogger(__name__)
JSON_HEADERS: Final = b"Content-Type: application/json\r\nCache-Control: no-store\r\n"
# Bodies up to this size are sent in one piece. With what a connection takes it is 256 KiB.
AT_ONCE_BYTES_MAX: Final = 208 * 1024
encode_json: Final = msgspec.json.Encoder().encode
T = TypeVar("T")


def respond_json(slot: Slot, document: object) -> None:
    """Respond 200 with a JSON document that must not be cached."""
    slot.respond(200, JSON_HEADERS, encode_json(document))


def respond_error(slot: Slot, error: HoldfastError) -> None:
    """Respond with the error's status and headers, and a JSON body that explains it."""
    if isinstance(error, UpstreamError) and error.upstream_status is not None:
        slot.respond(error.status, _upstream_headers(error), error.body)
    else:
        slot.respond(error.status, JSON_HEADERS + error_headers(error), error_body(error))


def _upstream_headers(error: UpstreamError) -> bytes:
    """An upstream's error is passed on, with a content type that cannot start another header."""
    content_type = header_value(error.content_type) or b"application/octet-stream"
    return (
        b"Content-Type: %b\r\nUpstream-Status: %d\r\nCache-Control: no-store\r\n"
        b"Access-Control-Expose-Headers: Upstream-Status\r\n"
        % (content_type, error.upstream_status or 0)
    )


def error_body(error: HoldfastError) -> bytes:
    """`{"error": {"code": …, "message": …}}`."""
    document: dict[str, object] = {"code": error.code, "message": error.message}
    if isinstance(error, AlreadyClaimedError):
        document |= {"current_holder": error.holder, "generation": error.generation}
    elif isinstance(error, SignatureExpiredError):
        document |= {"renewable": error.renewable, "streamId": error.stream_id}
    return encode_json({"error": document})


def error_headers(error: HoldfastError) -> bytes:
    """The headers that the protocol attaches to this error."""
    match error:
        case StreamClosedError():
            return b"Stream-Closed: true\r\nStream-Next-Offset: %020d\r\n" % error.tail
        case ProducerFencedError():
            return b"Producer-Epoch: %d\r\n" % error.epoch
        case ProducerGapError():
            return b"Producer-Expected-Seq: %d\r\nProducer-Received-Seq: %d\r\n" % (
                error.expected,
                error.received,
            )
        case ProducerDigestError():
            return b"Producer-Epoch: %d\r\nProducer-Seq: %d\r\nProducer-Digest: %b\r\n" % (
                error.epoch,
                error.seq,
                error.digest.encode(),
            )
        case MethodNotAllowedError():
            return b"Allow: %b\r\n" % error.allowed.encode()
        case OffsetGoneError():
            return b"Stream-Earliest-Offset: %020d\r\n" % error.earliest
        case CursorGoneError():
            return b"Changes-Earliest-Cursor: %020d\r\n" % error.earliest
        case UnauthorizedError() | WakeTokenInvalidError() | WakeTokenExpiredError():
            return b'WWW-Authenticate: Bearer realm="holdfast"\r\n'
        case UnavailableError() | RateLimitedError():
            return b"Retry-After: %d\r\n" % error.retry_after_s
        case _:
            return b""


async def result_of(call: Callable[[Callable[[T | HoldfastError], None]], None]) -> T:
    """Await a function that takes a callback; raises if the result is an error."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | HoldfastError) -> None:
        if future.done():
            return
        if isinstance(result, HoldfastError):
            future.set_exception(result)
        else:
            future.set_result(result)

    call(done)
    return await future


def respond_later(
    slot: Slot,
    read: Coroutine[Pending[Any], None, T],
    then: Callable[[T], None],
) -> None:
    """Run a coroutine that reads from packs, and pass its result to `then`, which responds.

    Errors are responded to here. Nothing happens if the client has disconnected by then.
    """
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = True

    def done(result: T | HoldfastError) -> None:
        if gone:
            return
        slot.on_gone = None
        if isinstance(result, HoldfastError):
            respond_error(slot, result)
            return
        try:
            then(result)
        except HoldfastError as error:
            respond_error(slot, error)

    slot.on_gone = leave
    run(read, done)


async def respond_in_pieces(
    turns: Turns,
    slot: Slot,
    headers: bytes,
    pieces: AsyncIterator[bytes],
    length: int | None = None,
) -> None:
    """Send a body as fast as the client reads it, and a short one in one piece.

    A failure before the response has begun is an error.
    """
    begun = False
    may_be_short = length is None or length <= AT_ONCE_BYTES_MAX
    held: list[bytes] = []
    held_bytes = 0
    resumed = asyncio.Event()
    slot.on_resume = resumed.set
    try:
        while True:
            while slot.paused:
                resumed.clear()
                await resumed.wait()
            await turns.next()
            piece = await anext(pieces, None)
            if piece is None:
                break
            held.append(piece)
            held_bytes += len(piece)
            if not begun and may_be_short and held_bytes <= AT_ONCE_BYTES_MAX:
                continue
            if not begun:
                begun = True
                slot.begin(200, headers, length)
            for each in held:
                slot.write(each)
            held.clear()
    except HoldfastError as error:
        slot.on_resume = slot.on_gone = None
        if begun:
            # The client must not take what it has for the whole body.
            _log.error("a response breaks off: %s", error.message)
            slot.abort()
        else:
            respond_error(slot, error)
        return
    slot.on_resume = slot.on_gone = None
    if begun:
        slot.end()
    else:
        slot.respond(200, headers, b"".join(held))
