"""The one place that turns errors into responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import (
    AlreadyClaimedError,
    CursorGoneError,
    HoldfastError,
    MethodNotAllowedError,
    OffsetGoneError,
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

if TYPE_CHECKING:
    from holdfast.http.exchange import Slot

_encode = msgspec.json.Encoder().encode


def answer_error(slot: Slot, error: HoldfastError) -> None:
    """Answer with the error's status, its header fields and a JSON body that explains it."""
    if isinstance(error, UpstreamError) and error.upstream_status is not None:
        slot.answer(error.status, _upstream_fields(error), error.body)
        return
    slot.answer(
        error.status,
        b"Content-Type: application/json\r\nCache-Control: no-store\r\n" + error_fields(error),
        error_body(error),
    )


def _upstream_fields(error: UpstreamError) -> bytes:
    """An upstream's error is passed on as it came, with nothing in it that could begin a field."""
    content_type = header_value(error.content_type) or b"application/octet-stream"
    return (
        b"Content-Type: %b\r\nUpstream-Status: %d\r\nCache-Control: no-store\r\n"
        b"Access-Control-Expose-Headers: Upstream-Status\r\n"
        % (content_type, error.upstream_status or 0)
    )


def error_body(error: HoldfastError) -> bytes:
    """`{"error": {"code": …, "message": …}}`."""
    said: dict[str, object] = {"code": error.code, "message": error.message}
    if isinstance(error, AlreadyClaimedError):
        said |= {"current_holder": error.holder, "generation": error.generation}
    elif isinstance(error, SignatureExpiredError):
        said |= {"renewable": error.renewable, "streamId": error.stream_id}
    return _encode({"error": said})


def error_fields(error: HoldfastError) -> bytes:
    """The header fields that the protocol attaches to this error."""
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
