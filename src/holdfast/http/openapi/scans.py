"""A bucket as one feed, and as a plan of parallel reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.http.access.scopes import Need
from holdfast.http.changes import ChangeEntry
from holdfast.http.openapi.failures import BUCKET_PATH, COLD, OF_BUCKET
from holdfast.http.openapi.fields import parameters
from holdfast.http.openapi.pieces import (
    FLAG,
    JSON_TYPE,
    NUMBER,
    OFFSET,
    TEXT,
    answer,
    as_json,
    derived,
    event,
    head_of,
    json_answer,
    lines_answer,
    listed,
    nullable,
    operation,
    preflight,
    record,
    schema,
)
from holdfast.http.scan import Partition

if TYPE_CHECKING:
    from holdfast.http.openapi.pieces import Json

_TAG: Final = "bucket as a whole"
# Checksums as their bytes, and the number that they are seeded with.
SUM: Final[Json] = TEXT | {"pattern": "^[0-9a-f]{16}$"}
SUMS: Final[Json] = TEXT | {"pattern": "^([0-9a-f]{16})+$"}
SALT: Final[Json] = TEXT | {"pattern": "^[0-9a-f]{16}$"}
_SCANNED: Final = parameters("prefix", "after_cursor", "until_cursor")

SCHEMAS: Final[dict[str, Json]] = derived(ChangeEntry, Partition) | {
    "ChangesPage": record(
        "Changes in the order of the log.",
        bucket_id=TEXT,
        changes=listed(schema("ChangeEntry")),
        next_cursor=OFFSET,
        up_to_date=FLAG,
    ),
    "ChangesEvent": event(
        "changes",
        as_json(
            record(
                "With `live=sse`: the changes of each event.",
                changes=listed(schema("ChangeEntry")),
                next_cursor=OFFSET,
                up_to_date=FLAG,
            )
        ),
        id=OFFSET,
    ),
    "ScanPlan": record(
        "A bucket cut into parts that can be read in parallel.",
        bucket_id=TEXT,
        prefix=TEXT,
        after=OFFSET,
        until=OFFSET,
        flushed=OFFSET | {"description": "Up to here the plan is in packs."},
        store=TEXT | {"description": "The object store as a URL; empty on a server without packs."},
        store_id=TEXT | {"description": "The id in the store's marker."},
        partitions=listed(schema("Partition")),
        hot=nullable(record("What is not in packs yet.", shard=NUMBER, after=OFFSET, until=OFFSET)),
        lost=listed(TEXT)
        | {"description": "Streams of which something is known to be missing.", "maxItems": 100},
        next_cursor=OFFSET | {"description": "The `after` of the next scan, or of the changes."},
    ),
    "ScanEnd": record(
        "How far a stretch of the log goes, and what is in it.",
        bucket_id=TEXT,
        after=OFFSET,
        until=OFFSET,
        latest=OFFSET | {"description": "The end of the log."},
        bytes=NUMBER,
        messages=NUMBER,
        store_id=TEXT | {"description": "The id in the store's marker: whose cursors they are."},
    ),
    "ScanRange": record(
        "Bytes of one stream in one pack.",
        stream_id=TEXT,
        stream=NUMBER | {"description": "The stream's number, by which packs know it."},
        pack=TEXT,
        offset=NUMBER,
        length=NUMBER,
        earliest=NUMBER,
        content_type=TEXT,
        first_position=NUMBER,
        last_position=NUMBER,
        data_at=NUMBER | {"description": "Where the bytes start in the pack."},
        message_at=NUMBER | {"description": "Which message of the pack is the first."},
        messages=NUMBER,
        index_sum=SUM,
        sums=SUMS,
        salt=SALT,
        pack_data_bytes=NUMBER,
        pack_messages=NUMBER,
    ),
    "MessageRecord": record(
        "One message that is not in packs yet.",
        stream_id=TEXT,
        stream=NUMBER,
        offset=NUMBER,
        next_offset=NUMBER,
        timestamp_ms=NUMBER,
        position=NUMBER,
        content_type=TEXT,
        payload=TEXT | {"contentEncoding": "base64"},
    ),
}

_SCAN: Final = operation(
    "scanBucket",
    "A plan of parallel reads.",
    {200: json_answer("The plan.", schema("ScanPlan"))},
    tag=_TAG,
    need=Need.READ,
    errors=(*OF_BUCKET, "catalog_damaged"),
    parameters=[*_SCANNED, *parameters("partition_bytes")],
)
_UNTIL: Final = operation(
    "getScanEnd",
    "How far a stretch of the log of limited size goes.",
    {200: json_answer("The end.", schema("ScanEnd"))},
    tag=_TAG,
    need=Need.READ,
    errors=(*OF_BUCKET, "catalog_damaged"),
    parameters=parameters("prefix", "after_cursor", "bytes_limit", "messages_limit"),
)
_RANGES: Final = operation(
    "listScanRanges",
    "Where the bytes of a partition are.",
    {200: lines_answer("A line for each range.", schema("ScanRange"))},
    tag=_TAG,
    need=Need.READ,
    errors=(*OF_BUCKET, "catalog_damaged"),
    parameters=[*_SCANNED, *parameters("first", "last")],
    description="404 on a server without packs.",
)
_RECORDS: Final = operation(
    "listRecords",
    "The hot rest of a scan.",
    {
        200: lines_answer(
            "A line for each message, in the order of the log.", schema("MessageRecord")
        )
    },
    tag=_TAG,
    need=Need.READ,
    errors=(*OF_BUCKET, *COLD, "catalog_damaged", "cursor_gone"),
    parameters=[*_SCANNED, *parameters("first", "last")],
)
_EVENTS: Final = {"schema": schema("ChangesEvent")}
_PAGE: Final = {"schema": schema("ChangesPage")}


def _reading(path: str, get: Json) -> Json:
    return {
        "parameters": parameters("bucket"),
        "get": get,
        "head": head_of(get),
        "options": preflight(f"preflight{path}", _TAG, BUCKET_PATH),
    }


PATHS: Final[dict[str, Json]] = {
    "/{bucket}/streams/changes": {
        "parameters": parameters("bucket"),
        "get": operation(
            "followChanges",
            "What happened to the bucket's streams since a cursor.",
            {
                200: answer(
                    "Changes; live, at the latest when the wait is over.",
                    (),
                    {JSON_TYPE: _PAGE, "text/event-stream": _EVENTS},
                    "Cache-Control",
                )
            },
            tag=_TAG,
            need=Need.READ,
            errors=(*OF_BUCKET, "cursor_gone", "catalog_damaged"),
            parameters=parameters("prefix", "after_cursor", "live"),
        ),
        "options": preflight("preflightChanges", _TAG, BUCKET_PATH),
    },
    "/{bucket}/streams/scan": _reading("Scan", _SCAN),
    "/{bucket}/streams/scan/ranges": _reading("Ranges", _RANGES),
    "/{bucket}/streams/scan/until": _reading("ScanEnd", _UNTIL),
    "/{bucket}/streams/records": _reading("Records", _RECORDS),
}
