"""Turns a server's error response back into the class it was made from.

The code in the body decides. Other servers have no codes or codes of their own; their responses
are classified by status and by the protocol's headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.client.urls import without_secrets
from holdfast.errors import (
    AlreadyClaimedError,
    BadAnswerError,
    ConflictError,
    CursorGoneError,
    ForbiddenError,
    GoneError,
    HeadersTooLargeError,
    HoldfastError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    OffsetGoneError,
    OutboundError,
    PayloadTooLargeError,
    PreconditionFailedError,
    ProducerDigestError,
    ProducerFencedError,
    ProducerGapError,
    RateLimitedError,
    RequestTimeoutError,
    SignatureExpiredError,
    StoreError,
    StreamClosedError,
    StreamNotFoundError,
    UnauthorizedError,
    UnavailableError,
    UpstreamError,
    error_classes,
)
from holdfast.protocol.frames import ErrorInfo

MESSAGE_CHARACTERS_MAX: Final = 500
DIGITS_MAX: Final = 40
_CLASSES: Final = error_classes()
_BY_STATUS: Final[dict[int, type[HoldfastError]]] = {
    400: InvalidRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: StreamNotFoundError,
    405: MethodNotAllowedError,
    408: RequestTimeoutError,
    409: ConflictError,
    410: GoneError,
    412: PreconditionFailedError,
    413: PayloadTooLargeError,
    425: UnavailableError,
    429: RateLimitedError,
    431: HeadersTooLargeError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
}


def error_of(
    status: int, headers: Mapping[str, str], body: bytes, request: str = ""
) -> HoldfastError:
    """The error for a response; its message names the `request` if the server sent no message."""
    if status == 502 and "upstream-status" in headers:
        return _refused_upstream(headers, body)
    document = _error_document(body)
    known = _CLASSES.get(str(document.get("code", "")))
    cls = known or _class_of(status, headers)
    message = str(document.get("message") or "")
    if not message and cls is StreamNotFoundError and request:
        # A response to HEAD has no body.
        message = f"There is no stream at {request.partition(' ')[2]}."
    elif not message:
        message = f"The server answered {status}{request and f' to {request}'}{_quote(body)}."
    error = _build(cls, message, headers, document)
    if error.status != status:
        error.status = status  # type: ignore[misc] # the received status, not the usual one
    return error


def error_of_frame(info: ErrorInfo) -> HoldfastError:
    """The error in an Error frame of a proxy stream."""
    known = _CLASSES.get(info.code)
    message = info.message or "The response failed."
    if known is None:
        message = f"{info.code}: {message}"
    return _build(known or UpstreamError, message, {}, {})


def _build(
    cls: type[HoldfastError], message: str, headers: Mapping[str, str], document: dict[str, Any]
) -> HoldfastError:
    error = cls.__new__(cls)
    HoldfastError.__init__(error, without_secrets(message))
    _set_details(error, headers, document)
    return error


def _refused_upstream(headers: Mapping[str, str], body: bytes) -> UpstreamError:
    """The body is the upstream's: a code in it is not one of ours."""
    status = parse_number(headers.get("upstream-status"))
    message = str(_error_document(body).get("message") or "").strip().rstrip(".")
    quoted = f": {message[:MESSAGE_CHARACTERS_MAX]}" if message else _quote(body)
    error = UpstreamError(
        without_secrets(f"The upstream answered {status}{quoted}."),
        upstream_status=status,
        content_type=headers.get("content-type", ""),
        body=body,
    )
    _set_pause(error, headers)
    return error


def _error_document(body: bytes) -> dict[str, Any]:
    """The error document in a body, as far as there is one."""
    try:
        parsed = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    if not isinstance(parsed, dict):
        return {}
    inner = parsed.get("error", parsed)
    if isinstance(inner, str):
        return {"code": parsed.get("code", inner), "message": parsed.get("message", inner)}
    return inner if isinstance(inner, dict) else {}


def _quote(body: bytes) -> str:
    text = " ".join(body[:MESSAGE_CHARACTERS_MAX].decode("utf-8", "replace").split())
    return f": {text.rstrip('.')}" if text else ""


def _class_of(status: int, headers: Mapping[str, str]) -> type[HoldfastError]:
    if status == 409 and headers.get("stream-closed", "").lower() == "true":
        return StreamClosedError
    if status == 409 and "producer-expected-seq" in headers:
        return ProducerGapError
    if status == 403 and "producer-epoch" in headers:
        return ProducerFencedError
    if status == 410 and "stream-earliest-offset" in headers:
        return OffsetGoneError
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return HoldfastError if status >= 500 else BadAnswerError


def _set_details(
    error: HoldfastError, headers: Mapping[str, str], document: dict[str, Any]
) -> None:
    """Set the attributes that the class's constructor would have set."""
    match error:
        case StreamClosedError():
            error.tail = parse_number(headers.get("stream-next-offset"))
        case ProducerFencedError():
            error.epoch = parse_number(headers.get("producer-epoch"))
        case ProducerGapError():
            error.expected = parse_number(headers.get("producer-expected-seq"))
            error.received = parse_number(headers.get("producer-received-seq"))
        case ProducerDigestError():
            error.epoch = parse_number(headers.get("producer-epoch"))
            error.seq = parse_number(headers.get("producer-seq"))
            error.digest = headers.get("producer-digest", "")
        case MethodNotAllowedError():
            error.allowed = headers.get("allow", "")
        case OffsetGoneError():
            error.earliest_offset = headers.get("stream-earliest-offset", "")
            error.earliest = parse_number(error.earliest_offset)
        case CursorGoneError():
            error.earliest_cursor = headers.get("changes-earliest-cursor", "")
            error.earliest = parse_number(error.earliest_cursor)
        case AlreadyClaimedError():
            error.holder = str(document.get("current_holder", ""))
            error.generation = parse_number(str(document.get("generation", "")))
        case OutboundError():
            # The server carried out our request, and its own call to another server failed.
            error.sent = error.passing = True
            error.late = False
        case StoreError():
            error.advice = ""
        case SignatureExpiredError():
            error.renewable = document.get("renewable") is True
            error.stream_id = str(document.get("streamId", ""))
        case UpstreamError():
            error.upstream_status, error.content_type, error.body = None, "", b""
        case _:
            pass
    _set_pause(error, headers)


def _set_pause(error: HoldfastError, headers: Mapping[str, str]) -> None:
    # In seconds; a date is ignored. The class's own default was not sent by the server.
    error.retry_after_s = max(0, parse_number(headers.get("retry-after")))  # type: ignore[attr-defined]


def parse_number(text: str | None) -> int:
    """The number in a header or offset; -1 if it is none."""
    is_number = text and len(text) <= DIGITS_MAX and text.isascii() and text.isdigit()
    return int(text or "") if is_number else -1


def is_missing(error: HoldfastError) -> bool:
    """Whether the error says that a server has no such route, rather than no such stream."""
    return isinstance(error, NotFoundError | MethodNotAllowedError) or error.status == 501
