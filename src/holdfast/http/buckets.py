"""PUT, GET and DELETE {bucket}, GET {bucket}/streams, and GET /cluster/buckets."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from holdfast.engine.writes import BucketCreated, Deleted
from holdfast.errors import BucketNotFoundError, HoldfastError
from holdfast.http.exchange import int_parameter, parse_query
from holdfast.http.responses import respond_error, respond_json
from holdfast.protocol.names import RESERVED_BUCKETS, check_bucket_id

if TYPE_CHECKING:
    from holdfast.engine.stream import Stream
    from holdfast.format.rows import BucketRow
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot

PAGE_STREAMS_MAX: Final = 1000


def create_bucket(app: App, request: Request, slot: Slot, name: str) -> None:
    """Create a bucket; like all handlers of buckets this gets the id with a slash."""
    bucket_id = name[:-1]
    check_bucket_id(bucket_id, creating=True)
    app.shard.buckets.create(bucket_id, _respond, (slot, app.location(request)))


def delete_bucket(app: App, _request: Request, slot: Slot, name: str) -> None:
    """Delete a bucket that holds no streams."""
    bucket_id = name[:-1]
    check_bucket_id(bucket_id)
    app.shard.buckets.delete(bucket_id, _respond, (slot, b""))


def _respond(context: tuple[Slot, bytes], outcome: object) -> None:
    slot, location = context
    if isinstance(outcome, BucketCreated):
        slot.respond(201, b"Location: %b\r\n" % location)
    elif isinstance(outcome, Deleted):
        slot.respond(204, b"")
    else:
        assert isinstance(outcome, HoldfastError)
        respond_error(slot, outcome)


def get_bucket(app: App, request: Request, slot: Slot, name: str) -> None:
    """Respond with what the bucket holds."""
    check_bucket_id(name[:-1])
    describe_bucket(app, request, slot, name)


def describe_bucket(app: App, _request: Request, slot: Slot, name: str) -> None:
    """Respond with what the bucket holds, also for reserved buckets."""
    bucket_id = name[:-1]
    bucket = find_bucket(app, bucket_id)
    document = {
        "bucket_id": bucket_id,
        "streams": bucket.streams,
        "bytes": bucket.size_bytes,
        "created_at_ms": bucket.created_ms,
        "last_write_at_ms": bucket.last_write_ms,
    }
    respond_json(slot, document)


def list_streams(app: App, request: Request, slot: Slot, name: str) -> None:
    """Respond with a page of the bucket's streams, in the order of their ids."""
    bucket_id = name[:-1]
    find_bucket(app, bucket_id)
    query = parse_query(request.query)
    prefix, after = query.get("prefix", ""), query.get("after")
    limit = int_parameter(query, "limit", 1, PAGE_STREAMS_MAX) or PAGE_STREAMS_MAX
    behind = "" if after is None else name + after
    # One more, to know whether there is a next page.
    listed = list(islice(app.shard.listing.streams(name + prefix, behind, limit + 1), limit + 1))
    page = [_entry(each.name[len(name) :], each.stream) for each in listed[:limit]]
    document = {
        "bucket_id": bucket_id,
        "prefix": prefix,
        "stream_count": len(page),
        "streams": page,
        "next_cursor": page[-1]["stream_id"] if page else None,
        "has_more": len(listed) > limit,
    }
    respond_json(slot, document)


def list_buckets(app: App, _request: Request, slot: Slot, _name: str) -> None:
    """Respond with the ids of all buckets but the reserved ones, in their order."""
    ids = sorted(app.shard.state.buckets.keys() - RESERVED_BUCKETS)
    respond_json(slot, {"buckets": ids})


def find_bucket(app: App, bucket_id: str) -> BucketRow:
    """The published bucket; raises BucketNotFoundError."""
    bucket = app.shard.state.buckets.get(bucket_id)
    if bucket is None:
        raise BucketNotFoundError(bucket_id)
    return bucket


def _entry(stream_id: str, stream: Stream) -> dict[str, object]:
    return {
        "stream_id": stream_id,
        "status": "closed" if stream.closed else "open",
        "content_type": stream.meta.content_type,
        "tail_offset": stream.tail,
        "created_at_ms": stream.created_ms,
        "last_write_at_ms": stream.last_write_ms,
    }
