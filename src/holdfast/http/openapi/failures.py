"""Errors in the document: one schema, and for each status of an operation the codes it may have."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import error_classes

if TYPE_CHECKING:
    from collections.abc import Iterable

Json = dict[str, Any]

# Errors of the start, of calls to others and of jobs, which no answer carries.
NEVER_ANSWERED: Final = frozenset(
    {
        "bad_answer",
        "data_loss",
        "spark_failed",
        "invalid_settings",
        "data_directory_locked",
        "unknown_format",
        "log_corrupt",
        "outbound_failed",
        "target_refused",
    }
)
# What any request can be answered with, whatever it asks for.
ALWAYS: Final = (
    "invalid_request",
    "request_timeout",
    "payload_too_large",
    "rate_limited",
    "headers_too_large",
    "internal_error",
    "unavailable",
    "overloaded",
)
# Where the request must have a good path of a stream or bucket.
FLAT_PATH: Final = ("not_found",)
BUCKET_PATH: Final = ("invalid_bucket_id", "not_found")
STREAM_PATH: Final = (*BUCKET_PATH, "invalid_stream_id")
# The same where the bucket has to exist.
OF_BUCKET: Final = (*BUCKET_PATH, "bucket_not_found")
BUCKETED_PATH: Final = (*STREAM_PATH, "bucket_not_found")
# Where a stream has to be found, something is written, or older bytes are read.
LOOK_UP: Final = ("stream_not_found", "stream_deleted", "catalog_damaged")
WRITES: Final = ("commit_failed", "commit_unknown")
COLD: Final = ("object_missing", "pack_corrupt", "store_unavailable")

# The upstream's own answer may take the place of ours.
UPSTREAM_ERROR: Final = "UPSTREAM_ERROR"

_REASONS: Final = {
    400: "The request is malformed.",
    401: "No token, secret or signature, or one that is not good.",
    403: "Not allowed.",
    404: "It is not there.",
    405: "The resource does not take this method.",
    408: "The request did not arrive completely in time.",
    409: "The request contradicts the present state.",
    410: "It is gone for good.",
    412: "`If-Match` names another state.",
    413: "The body is too large.",
    429: "Too many requests.",
    431: "Request line and headers are too large.",
    500: "The server failed; its log says more.",
    502: "The upstream failed, or its response could not be stored.",
    503: "Not now.",
    504: "The upstream did not answer in time.",
}
_HEADERS: Final = {
    "stream_closed": ("Stream-Closed", "Stream-Next-Offset"),
    "stale_producer_epoch": ("Producer-Epoch",),
    "producer_sequence_gap": ("Producer-Expected-Seq", "Producer-Received-Seq"),
    "method_not_allowed": ("Allow",),
    "offset_gone": ("Stream-Earliest-Offset",),
    "cursor_gone": ("Changes-Earliest-Cursor",),
    "STREAM_CLOSED": ("Stream-Closed", "Stream-Next-Offset"),
    UPSTREAM_ERROR: ("Upstream-Status",),
}
_RETRIED: Final = frozenset({429, 503})


def codes() -> list[str]:
    """Every code that an answer can carry."""
    return sorted(code for code in error_classes() if code not in NEVER_ANSWERED)


def failures(some: Iterable[str]) -> dict[str, Json]:
    """The answers with these codes, by status."""
    classes = error_classes()
    by_status: dict[int, list[str]] = defaultdict(list)
    for code in sorted(set(some)):
        by_status[classes[code].status].append(code)
    return {str(status): _failure(status, found) for status, found in sorted(by_status.items())}


def _failure(status: int, found: list[str]) -> Json:
    listed = ", ".join(f"`{code}`" for code in found)
    headers = {
        name: {"$ref": f"#/components/headers/{name}"}
        for code in found
        for name in _HEADERS.get(code, ())
    }
    if status == 401:
        headers["WWW-Authenticate"] = {"$ref": "#/components/headers/WWW-Authenticate-Always"}
    if status in _RETRIED:
        headers["Retry-After"] = {"$ref": "#/components/headers/Retry-After-Always"}
    answer: Json = {
        "description": f"{_REASONS[status]} Codes: {listed}.",
        "content": {"application/json": {"schema": _schema(found)}},
    }
    if UPSTREAM_ERROR in found:
        told = {"description": "With `Upstream-Status`: what the upstream said, in its own type."}
        schema = {"anyOf": [_schema(found), told]}
        answer["content"] = {"application/json": {"schema": schema}, "*/*": {"schema": told}}
    return answer | {"headers": headers} if headers else answer


def _schema(found: list[str]) -> Json:
    code = {"properties": {"error": {"properties": {"code": {"enum": found}}}}}
    return {"allOf": [{"$ref": "#/components/schemas/Error"}, code]}


SCHEMAS: Final[dict[str, Json]] = {
    "Error": {
        "type": "object",
        "description": "Every error has this body.",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "code": {"$ref": "#/components/schemas/ErrorCode"},
                    "message": {"type": "string", "description": "For people; it may change."},
                    "current_holder": {
                        "type": "string",
                        "description": "With `ALREADY_CLAIMED`: the worker that holds the lease.",
                    },
                    "generation": {
                        "type": "integer",
                        "description": "With `ALREADY_CLAIMED`: the generation of the lease.",
                    },
                    "renewable": {
                        "type": "boolean",
                        "description": "With `SIGNATURE_EXPIRED`: whether connecting with the "
                        "session's id gives another URL.",
                    },
                    "streamId": {
                        "type": "string",
                        "description": "With `SIGNATURE_EXPIRED`: the stream.",
                    },
                },
                "required": ["code", "message"],
            }
        },
        "required": ["error"],
    },
    "ErrorCode": {
        "type": "string",
        "description": "Stable; docs/http.md has a table with what each means.",
        "enum": codes(),
    },
}
