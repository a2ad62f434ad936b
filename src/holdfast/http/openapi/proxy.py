"""The proxy: `/v1/proxy` and its streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.http.access.scopes import Need
from holdfast.http.openapi.failures import COLD, UPSTREAM_ERROR
from holdfast.http.openapi.fields import parameters
from holdfast.http.openapi.pieces import (
    SERVICE,
    SERVICE_IN_QUERY,
    SIGNED_URL,
    answer,
    operation,
    preflight,
    schema,
)

if TYPE_CHECKING:
    from holdfast.http.openapi.pieces import Json

_TAG: Final = "proxy"
_SERVICES: Final = (SERVICE, SERVICE_IN_QUERY)
# Without a secret the server answers nothing else.
_PATH_ERRORS: Final = ("NOT_FOUND",)
_STREAM_PATH_ERRORS: Final = (*_PATH_ERRORS, "invalid_stream_id")
# A token may be good and not allow this.
_SERVICE_ERRORS: Final = ("MISSING_SECRET", "INVALID_SECRET", "forbidden")
_SIGNATURE_ERRORS: Final = ("MISSING_SIGNATURE", "SIGNATURE_INVALID", "SIGNATURE_EXPIRED")
_FRAMES: Final[Json] = {
    "application/octet-stream": {},
    "text/event-stream": {"schema": schema("StreamEvent")},
}

_POST: Final = operation(
    "callUpstream",
    "Create, append or connect, by the headers.",
    {
        200: answer(
            "Append: the response has begun. Connect: the session's stream is there.",
            ("Upstream-Content-Type", "Stream-Response-Id", "Stream-Start-Offset"),
            None,
            "Cache-Control Location",
        ),
        201: answer(
            "Create: the response has begun, in a new stream. Connect: the stream is new.",
            ("Upstream-Content-Type", "Stream-Response-Id", "Stream-Start-Offset"),
            None,
            "Cache-Control Location",
        ),
    },
    tag=_TAG,
    need=Need.NOTHING,
    credentials=_SERVICES,
    errors=(
        *_PATH_ERRORS,
        *_SERVICE_ERRORS,
        "MISSING_UPSTREAM_URL",
        "MISSING_UPSTREAM_METHOD",
        "INVALID_UPSTREAM_METHOD",
        "REDIRECT_NOT_ALLOWED",
        "MALFORMED_STREAM_URL",
        "SIGNATURE_INVALID",
        "CONNECT_REJECTED",
        "UPSTREAM_NOT_ALLOWED",
        "STREAM_NOT_FOUND",
        "STREAM_CLOSED",
        UPSTREAM_ERROR,
        "STORAGE_ERROR",
        "UPSTREAM_TIMEOUT",
        "catalog_damaged",
    ),
    parameters=parameters(
        "Upstream-URL",
        "Upstream-Method",
        "Upstream-Authorization",
        "Use-Stream-URL",
        "Session-Id",
        "Stream-Signed-URL-TTL",
    ),
    body={
        "required": False,
        "description": "What the upstream is sent.",
        "content": {
            "application/json": {},
            "application/octet-stream": {},
            "text/plain": {"schema": {"type": "string"}},
        },
    },
    description="`Use-Stream-URL` makes it an append, else `Session-Id` a connect, else it creates "
    "a stream. All other headers go to the upstream, but for those of one connection, "
    "`Authorization` and `Accept-Encoding`.",
)
_READ: Final = operation(
    "readProxyStream",
    "Read frames: catch-up, long-poll or Server-Sent Events.",
    {
        200: answer(
            "Frames from the offset on, cut anywhere.",
            (
                "ETag",
                "Stream-Closed",
                "Stream-Cursor",
                "Stream-Message-Lengths",
                "Stream-Next-Offset",
                "Stream-SSE-Data-Encoding",
                "Stream-Start-Offset",
                "Stream-Up-To-Date",
            ),
            _FRAMES,
            "Cache-Control",
        ),
        204: answer(
            "A long-poll has waited for nothing, or the stream is closed here.",
            ("Stream-Closed", "Stream-Cursor", "Stream-Start-Offset"),
            None,
            "Cache-Control Stream-Next-Offset Stream-Up-To-Date",
        ),
        304: answer(
            "The client has these bytes.",
            ("Stream-Closed", "Stream-Cursor", "Stream-Message-Lengths", "Stream-Up-To-Date"),
            None,
            "Cache-Control ETag Stream-Next-Offset",
        ),
    },
    tag=_TAG,
    need=Need.NOTHING,
    credentials=(SIGNED_URL, *_SERVICES),
    errors=(
        *_STREAM_PATH_ERRORS,
        *_SIGNATURE_ERRORS,
        *_SERVICE_ERRORS,
        *COLD,
        "STREAM_NOT_FOUND",
        "stream_not_found",
        "catalog_damaged",
        "invalid_offset",
    ),
    parameters=parameters(
        "expires",
        "offset",
        "last_messages",
        "live",
        "cursor",
        "max_bytes",
        "lengths",
        "If-None-Match",
    ),
)
_HEAD_FIELDS: Final = ("Stream-Closed", "Stream-Expires-At", "Stream-TTL")
_HEAD: Final = operation(
    "headProxyStream",
    "Metadata, without renewing the TTL.",
    {
        status: answer(
            said,
            _HEAD_FIELDS,
            None if status == 304 else {"application/octet-stream": {}},
            "Cache-Control ETag Stream-Next-Offset",
        )
        for status, said in {
            200: "The stream as it is.",
            304: "The stream is in the state that the client knows.",
        }.items()
    },
    tag=_TAG,
    need=Need.NOTHING,
    credentials=_SERVICES,
    errors=(*_STREAM_PATH_ERRORS, *_SERVICE_ERRORS, "STREAM_NOT_FOUND", "catalog_damaged"),
    parameters=parameters("If-None-Match"),
)

PATHS: Final[dict[str, Json]] = {
    "/v1/proxy": {
        "post": _POST,
        "options": preflight("preflightProxy", _TAG, _PATH_ERRORS),
    },
    "/v1/proxy/{stream_id}": {
        "parameters": parameters("proxied"),
        "get": _READ,
        "head": _HEAD,
        "patch": operation(
            "abortUpstream",
            "Stop what upstreams are sending; what has arrived stays.",
            {204: answer("Nothing is under way, and that is durable.")},
            tag=_TAG,
            need=Need.NOTHING,
            credentials=(SIGNED_URL,),
            errors=(*_STREAM_PATH_ERRORS, *_SIGNATURE_ERRORS, "INVALID_ACTION", "STORAGE_ERROR"),
            parameters=parameters("expires", "action", "response"),
        ),
        "delete": operation(
            "deleteProxyStream",
            "Delete the stream, and end its upstreams; one that is not there is deleted already.",
            {204: answer("It is not there.")},
            tag=_TAG,
            need=Need.NOTHING,
            credentials=_SERVICES,
            errors=(
                *_STREAM_PATH_ERRORS,
                *_SERVICE_ERRORS,
                "STORAGE_ERROR",
                "catalog_damaged",
            ),
        ),
        "options": preflight("preflightProxyStream", _TAG, _STREAM_PATH_ERRORS),
    },
}
