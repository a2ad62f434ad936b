"""Snapshots and bootstrap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.http.access.scopes import Need
from holdfast.http.openapi.failures import BUCKETED_PATH, COLD, LOOK_UP, STREAM_PATH, WRITES
from holdfast.http.openapi.fields import parameters
from holdfast.http.openapi.pieces import answer, head_of, operation, preflight

if TYPE_CHECKING:
    from holdfast.http.openapi.pieces import Json

_TAG: Final = "snapshots"
_READING: Final = (*BUCKETED_PATH, *LOOK_UP)
_TOLD: Final = "Cache-Control Stream-Next-Offset Stream-Snapshot-Offset Stream-Up-To-Date"

_LATEST: Final = operation(
    "getLatestSnapshot",
    "Lead to the snapshot that is visible now.",
    {307: answer("It is there.", ("Stream-Closed",), None, f"Location {_TOLD}")},
    tag=_TAG,
    need=Need.READ,
    errors=(*_READING, "snapshot_not_found"),
)
_READ: Final = operation(
    "readSnapshot",
    "The body of the visible snapshot.",
    {
        200: answer(
            "The snapshot, with its own content type.", ("Stream-Closed",), {"*/*": {}}, _TOLD
        )
    },
    tag=_TAG,
    need=Need.READ,
    errors=(*_READING, *COLD, "invalid_offset", "snapshot_not_found"),
)
_BOOTSTRAP: Final = operation(
    "getBootstrap",
    "The snapshot and every message since, as one multipart answer.",
    {
        200: answer(
            "First the snapshot, empty if there is none; then a part for each message.",
            ("Stream-Closed", "Stream-Message-Lengths"),
            {"multipart/mixed": {"schema": {"type": "string"}}},
            _TOLD,
        )
    },
    tag=_TAG,
    need=Need.READ,
    errors=(*_READING, *COLD),
    description="It is not live, and refuses `live`: read on from `Stream-Next-Offset`.",
)

PATHS: Final[dict[str, Json]] = {
    "/{bucket}/{stream}/snapshot": {
        "parameters": parameters("bucket", "stream"),
        "get": _LATEST,
        "head": head_of(_LATEST),
        "options": preflight("preflightLatestSnapshot", _TAG, STREAM_PATH),
    },
    "/{bucket}/{stream}/snapshot/{offset}": {
        "parameters": parameters("bucket", "stream", "snapshot"),
        "put": operation(
            "publishSnapshot",
            "Publish a snapshot; the stream starts at its offset from then on.",
            {204: answer("It is visible.", needed="Stream-Next-Offset Stream-Snapshot-Offset")},
            tag=_TAG,
            need=Need.WRITE,
            errors=(
                *_READING,
                *WRITES,
                *COLD,
                "invalid_offset",
                "offset_gone",
                "snapshot_conflict",
            ),
            body={
                "required": False,
                "description": "Any content type.",
                "content": {"application/octet-stream": {}, "application/json": {}},
            },
        ),
        "get": _READ,
        "head": head_of(_READ),
        "delete": operation(
            "deleteSnapshot",
            "Refused: the visible snapshot is needed, and others are gone already.",
            {},
            tag=_TAG,
            need=Need.WRITE,
            errors=(*_READING, "invalid_offset", "snapshot_conflict", "snapshot_not_found"),
        ),
        "options": preflight("preflightSnapshot", _TAG, STREAM_PATH),
    },
    "/{bucket}/{stream}/bootstrap": {
        "parameters": parameters("bucket", "stream"),
        "get": _BOOTSTRAP,
        "head": head_of(_BOOTSTRAP),
        "options": preflight("preflightBootstrap", _TAG, STREAM_PATH),
    },
}
