"""Streams, on the flat surface and on the bucketed one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.http.access.scopes import Need
from holdfast.http.openapi.failures import (
    BUCKETED_PATH,
    COLD,
    FLAT_PATH,
    LOOK_UP,
    STREAM_PATH,
    WRITES,
)
from holdfast.http.openapi.fields import parameters
from holdfast.http.openapi.pieces import (
    OFFSET,
    TEXT,
    answer,
    as_json,
    event,
    listed,
    operation,
    parameter,
    preflight,
    schema,
)

if TYPE_CHECKING:
    from holdfast.http.openapi.pieces import Json

_TAG: Final = "streams"
_BODY: Final[Json] = {
    "required": False,
    "description": "Any content type, the same for all of a stream's life.",
    "content": {
        "application/octet-stream": {},
        "application/json": {},
        "text/plain": {"schema": {"type": "string"}},
    },
}
_BYTES: Final[Json] = {
    "*/*": {},
    "application/json": {
        "schema": {"type": "array", "description": "Of a JSON stream: its messages."}
    },
    "text/event-stream": {"schema": schema("StreamEvent")},
}
_PRODUCER: Final = ("Producer-Id", "Producer-Epoch", "Producer-Seq", "Stream-Seq")
_WRITE_ERRORS: Final = (
    *WRITES,
    "catalog_damaged",
    "invalid_json",
    "quota_exceeded",
    "stale_producer_epoch",
    "producer_sequence_gap",
    "content_type_mismatch",
    "precondition_failed",
)

SCHEMAS: Final[dict[str, Json]] = {
    "StreamEvent": {
        "description": "With `live=sse`: each event of the answer.",
        "oneOf": [
            event("data", TEXT | {"description": "A JSON array, text, or base64."}),
            event("control", as_json(schema("StreamControl"))),
        ],
    },
    "StreamControl": {
        "type": "object",
        "description": "Where the reader stands after the events before this one.",
        "properties": {
            "streamNextOffset": OFFSET,
            "streamCursor": TEXT | {"pattern": "^[0-9]+$"},
            "upToDate": {"const": True},
            "streamClosed": {"const": True},
            "streamMessageLengths": listed({"type": "integer", "minimum": 1})
            | {"description": "With `lengths=true`: of the messages that end in the data."},
        },
        "required": ["streamNextOffset"],
    },
}


def _create(surface: str, path_errors: tuple[str, ...]) -> Json:
    wrote = ("Stream-Closed", "Producer-Epoch", "Producer-Seq")
    return operation(
        f"create{surface}Stream",
        "Create a stream or a fork, or confirm that it exists as asked for.",
        {
            200: answer(
                "It exists with the same configuration.",
                wrote,
                {"*/*": {}},
                "ETag Stream-Next-Offset",
            ),
            201: answer("It was created.", wrote, {"*/*": {}}, "ETag Location Stream-Next-Offset"),
        },
        tag=_TAG,
        need=Need.WRITE,
        errors=(
            *path_errors,
            *_WRITE_ERRORS,
            *COLD,
            "invalid_offset",
            "stream_not_found",
            "stream_exists",
            "fork_source_deleted",
            "stream_deleted",
            "offset_gone",
        ),
        parameters=parameters(
            "Stream-TTL",
            "Stream-Expires-At",
            "Stream-Closed",
            "Stream-Forked-From",
            "Stream-Fork-Offset",
            "Stream-Fork-Sub-Offset",
            "If-Match",
            *_PRODUCER,
        ),
        body=_BODY,
    )


def _append(surface: str, path_errors: tuple[str, ...]) -> Json:
    return operation(
        f"appendTo{surface}Stream",
        "Append, close, or both in one step.",
        {
            200: answer(
                "Appended, with producer fields.",
                ("Stream-Closed",),
                None,
                "ETag Producer-Epoch Producer-Seq Stream-Next-Offset",
            ),
            204: answer(
                "Appended or closed; with producer fields, a duplicate.",
                ("Producer-Epoch", "Producer-Seq", "Stream-Closed"),
                None,
                "ETag Stream-Next-Offset",
            ),
        },
        tag=_TAG,
        need=Need.WRITE,
        errors=(
            *path_errors,
            *_WRITE_ERRORS,
            "stream_not_found",
            "stream_deleted",
            "stream_closed",
            "stream_seq_regression",
        ),
        parameters=parameters("Stream-Closed", "If-Match", *_PRODUCER),
        body=_BODY,
    )


def _read(surface: str, path_errors: tuple[str, ...]) -> Json:
    told = (
        "ETag",
        "Stream-Closed",
        "Stream-Cursor",
        "Stream-Message-Lengths",
        "Stream-SSE-Data-Encoding",
    )
    return operation(
        f"read{surface}Stream",
        "Read: catch-up, long-poll or Server-Sent Events.",
        {
            200: answer(
                "Bytes from the offset on. Events carry the next offset themselves.",
                (*told, "Stream-Next-Offset", "Stream-Start-Offset", "Stream-Up-To-Date"),
                _BYTES,
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
        need=Need.READ,
        errors=(*path_errors, *LOOK_UP, *COLD, "invalid_offset", "offset_gone"),
        parameters=parameters(
            "offset", "last_messages", "live", "cursor", "max_bytes", "lengths", "If-None-Match"
        ),
    )


def _head(surface: str, path_errors: tuple[str, ...]) -> Json:
    told = ("Stream-Closed", "Stream-Earliest-Offset", "Stream-Expires-At", "Stream-TTL")
    needed = "Cache-Control ETag Stream-Next-Offset"
    headers = (*told, "Stream-Snapshot-Offset")
    return operation(
        f"head{surface}Stream",
        "Metadata, without renewing the TTL.",
        {
            200: answer("The stream as it is.", headers, {"*/*": {}}, needed),
            304: answer("The stream is in the state that the client knows.", headers, None, needed),
        },
        tag=_TAG,
        need=Need.READ,
        errors=(*path_errors, *LOOK_UP),
        parameters=parameters("If-None-Match"),
    )


def _delete(surface: str, path_errors: tuple[str, ...]) -> Json:
    return operation(
        f"delete{surface}Stream",
        "Delete the stream; its bytes stay as long as forks need them.",
        {204: answer("Deleted.")},
        tag=_TAG,
        need=Need.WRITE,
        errors=(*path_errors, *LOOK_UP, *WRITES),
    )


def _item(
    surface: str,
    names: tuple[str, ...],
    path_errors: tuple[str, ...],
    preflight_errors: tuple[str, ...],
) -> Json:
    return {
        "parameters": [parameter(name) for name in names],
        "put": _create(surface, path_errors),
        "post": _append(surface, path_errors),
        "get": _read(surface, path_errors),
        "head": _head(surface, path_errors),
        "delete": _delete(surface, path_errors),
        "options": preflight(f"preflight{surface}Stream", _TAG, preflight_errors),
    }


PATHS: Final[dict[str, Json]] = {
    "/v1/stream/{path}": _item("", ("path",), FLAT_PATH, FLAT_PATH),
    "/{bucket}/{stream}": _item("Bucketed", ("bucket", "stream"), BUCKETED_PATH, STREAM_PATH),
}
