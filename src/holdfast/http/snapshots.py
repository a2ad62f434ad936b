"""PUT, GET and DELETE {stream}/snapshot/{offset}, and GET {stream}/snapshot.

A snapshot's body goes to the object store while it arrives. Once it is there, one record publishes
it and has the stream start at it; a crash before that leaves an object that garbage collection
finds.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from holdfast.engine.boundaries import is_boundary
from holdfast.engine.requests import SnapshotPublished
from holdfast.engine.snapshot_writes import check_place
from holdfast.errors import (
    HoldfastError,
    InvalidOffsetError,
    RequestTimeoutError,
    SnapshotConflictError,
    SnapshotNotFoundError,
)
from holdfast.failpoints import failpoint
from holdfast.format.records import Snapshot
from holdfast.http.awaiting import answer_of
from holdfast.http.errors import answer_error
from holdfast.protocol.content import DEFAULT, parse_content_type
from holdfast.protocol.headers import parse_offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.stream import Stream
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot


def publish_snapshot(app: App, request: Request, slot: Slot, name: str) -> None:
    """Take the body of a snapshot, and publish it once it is stored."""
    content_type = request.fields.get(b"content-type")
    checked = parse_content_type(content_type) if content_type else DEFAULT
    offset = parse_offset(request.parameter)
    stream = app.shard.find(name)
    check_place(offset, stream.earliest, stream.tail)
    app.spawn(_publish(app, request, slot, stream, offset, checked), slot)


async def _publish(
    app: App, request: Request, slot: Slot, stream: Stream, offset: int, content_type: str
) -> None:
    try:
        await _check_boundary(app, stream, offset)
        async with asyncio.timeout(app.settings.http.snapshot_timeout_s):
            uploaded = await app.snapshots.put(stream.number, offset, request.pieces())
        snapshot = Snapshot(
            offset, uploaded.name, content_type, uploaded.size_bytes, uploaded.checksum
        )
        try:
            outcome = await _published(app, stream, snapshot)
        except HoldfastError as error:
            if not error.retryable:
                # Where nobody knows what became of the record, the object may yet be needed.
                await app.snapshots.remove(uploaded.name)
            raise
        failpoint("snapshot.published")
    except TimeoutError:
        request.abandon_body(slot)
        answer_error(slot, RequestTimeoutError("The snapshot did not arrive in time."))
        return
    except HoldfastError as error:
        request.abandon_body(slot)
        answer_error(slot, error)
        return
    slot.answer(
        204,
        b"Stream-Next-Offset: %020d\r\nStream-Snapshot-Offset: %020d\r\n"
        % (outcome.tail, outcome.offset),
    )


async def _check_boundary(app: App, stream: Stream, offset: int) -> None:
    is_end = await answer_of(partial(is_boundary, app.shard.reader, stream, offset))
    if not is_end:
        raise InvalidOffsetError(
            f"Offset {offset:020d} is not where a message ends: use a Stream-Next-Offset."
        )


async def _published(app: App, stream: Stream, snapshot: Snapshot) -> SnapshotPublished:
    """Publish what is in the store; raises if it is refused, or if nobody knows."""

    def ask(done: Callable[[SnapshotPublished | HoldfastError], None]) -> None:
        def reply(_context: object, outcome: object) -> None:
            assert isinstance(outcome, SnapshotPublished | HoldfastError)
            done(outcome)

        app.shard.snapshots.publish(stream.meta.name, stream.number, snapshot, reply, None)

    return await answer_of(ask)


def latest_snapshot(app: App, request: Request, slot: Slot, name: str) -> None:
    """Lead to the snapshot that is visible now."""
    stream = app.shard.find(name)
    snapshot = _visible(stream)
    location = app.location(request) + b"/%020d" % snapshot.offset
    slot.answer(
        307,
        b"Location: %b\r\nCache-Control: no-store\r\n%b" % (location, _fields(stream, snapshot)),
    )


def read_snapshot(app: App, request: Request, slot: Slot, name: str) -> None:
    """Answer with the body of the visible snapshot."""
    stream = app.shard.find(name)
    app.shard.lifetimes.renew(stream)
    snapshot = _visible(stream)
    if snapshot.offset != parse_offset(request.parameter):
        raise SnapshotNotFoundError(
            f"The stream's snapshot is at offset {snapshot.offset:020d}; older ones are gone."
        )
    fields = b"Content-Type: %b\r\nCache-Control: no-store\r\n%b" % (
        snapshot.content_type.encode(),
        _fields(stream, snapshot),
    )
    cached = app.snapshots.cached(snapshot)
    if cached is not None:
        slot.answer(200, fields, cached)
    else:
        app.stream_answer(request, slot, fields, app.snapshots.pieces(snapshot))


def delete_snapshot(app: App, request: Request, _slot: Slot, name: str) -> None:
    """Refuse: the visible snapshot is needed, and others are gone already."""
    snapshot = _visible(app.shard.find(name))
    if snapshot.offset == parse_offset(request.parameter):
        raise SnapshotConflictError(
            "This is the stream's only snapshot: without it /bootstrap would not be complete. "
            "Publish a newer one instead."
        )
    raise SnapshotNotFoundError("There is no snapshot at this offset; older ones are gone.")


def _visible(stream: Stream) -> Snapshot:
    if stream.snapshot is None:
        raise SnapshotNotFoundError("The stream has no snapshot.")
    return stream.snapshot


def _fields(stream: Stream, snapshot: Snapshot) -> bytes:
    up_to_date = snapshot.offset == stream.tail
    fields = b"Stream-Snapshot-Offset: %020d\r\nStream-Next-Offset: %020d\r\n" % (
        snapshot.offset,
        snapshot.offset,
    )
    fields += b"Stream-Up-To-Date: %b\r\n" % (b"true" if up_to_date else b"false")
    if stream.closed:
        fields += b"Stream-Closed: true\r\n"
    return fields
