"""Buckets and the listing of their streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.http.access.scopes import Need
from holdfast.http.openapi.failures import BUCKET_PATH, OF_BUCKET, WRITES
from holdfast.http.openapi.fields import parameters
from holdfast.http.openapi.pieces import (
    FLAG,
    NUMBER,
    TEXT,
    answer,
    head_of,
    json_answer,
    listed,
    nullable,
    operation,
    preflight,
    record,
    schema,
)

if TYPE_CHECKING:
    from holdfast.http.openapi.pieces import Json

_TAG: Final = "buckets"

SCHEMAS: Final[dict[str, Json]] = {
    "Bucket": record(
        "A bucket and what it holds.",
        bucket_id=TEXT,
        streams=NUMBER,
        bytes=NUMBER,
        created_at_ms=NUMBER,
        last_write_at_ms=nullable(NUMBER) | {"description": "Null if nothing was written yet."},
    ),
    "ListedStream": record(
        "A stream of a listing.",
        stream_id=TEXT,
        status={"enum": ["open", "closed"]},
        content_type=TEXT,
        tail_offset=NUMBER,
        created_at_ms=NUMBER,
        last_write_at_ms=NUMBER,
    ),
    "StreamPage": record(
        "A page of a bucket's streams, in the order of their ids.",
        bucket_id=TEXT,
        prefix=TEXT,
        stream_count=NUMBER | {"description": "Streams on this page."},
        streams=listed(schema("ListedStream")),
        next_cursor=nullable(TEXT) | {"description": "The `after` of the next page."},
        has_more=FLAG,
    ),
}

_GET: Final = operation(
    "getBucket",
    "What the bucket holds.",
    {200: json_answer("The bucket.", schema("Bucket"))},
    tag=_TAG,
    need=Need.READ,
    errors=OF_BUCKET,
)
_LIST: Final = operation(
    "listStreams",
    "A page of the bucket's streams.",
    {200: json_answer("The page.", schema("StreamPage"))},
    tag=_TAG,
    need=Need.READ,
    errors=(*OF_BUCKET, "catalog_damaged"),
    parameters=parameters("prefix", "after_id", "limit"),
)

PATHS: Final[dict[str, Json]] = {
    "/{bucket}": {
        "parameters": parameters("bucket"),
        "put": operation(
            "createBucket",
            "Create a bucket.",
            {201: answer("Created.", needed="Location")},
            tag=_TAG,
            need=Need.ADMIN,
            errors=(*BUCKET_PATH, *WRITES, "bucket_exists"),
        ),
        "get": _GET,
        "head": head_of(_GET),
        "delete": operation(
            "deleteBucket",
            "Delete a bucket that holds no streams.",
            {204: answer("Deleted.")},
            tag=_TAG,
            need=Need.ADMIN,
            errors=(*OF_BUCKET, *WRITES, "bucket_not_empty"),
        ),
        "options": preflight("preflightBucket", _TAG, BUCKET_PATH),
    },
    "/{bucket}/streams": {
        "parameters": parameters("bucket"),
        "get": _LIST,
        "head": head_of(_LIST),
        "options": preflight("preflightStreams", _TAG, BUCKET_PATH),
    },
}
