"""Snapshots: PUT, GET and DELETE {stream}/snapshot/{offset}, GET {stream}/snapshot and /bootstrap.

A snapshot's body goes to the object store while it arrives. Then one record publishes it and moves
the stream's earliest offset to it; a crash before that leaves an object for garbage collection.

A bootstrap is the snapshot and every message since, as one multipart response. It shows the stream
as it was when the request came; later messages are for the read that follows.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING

from holdfast.engine.metadata_writes import StoredSnapshot
from holdfast.engine.reading import read
from holdfast.engine.writes import SnapshotPublished
from holdfast.errors import (
    CommitUnknownError,
    HoldfastError,
    InvalidOffsetError,
    InvalidRequestError,
    RequestTimeoutError,
    SnapshotConflictError,
    SnapshotNotFoundError,
)
from holdfast.failpoints import failpoint
from holdfast.format.records import INDEX_BITS, Snapshot
from holdfast.http.changes import parse_cursor
from holdfast.http.exchange import parse_query
from holdfast.http.responses import AT_ONCE_BYTES_MAX, respond_error, respond_later, result_of
from holdfast.http.turns import PIECE_BYTES
from holdfast.protocol.content import DEFAULT, JSON, SEPARATOR, parse_content_type
from holdfast.protocol.headers import parse_offset
from holdfast.protocol.multipart import Multipart
from holdfast.storage.pending import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from holdfast.engine.reading import ShardReader
    from holdfast.engine.stream import Stream
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot
    from holdfast.protocol.multipart import Buffer


def publish_snapshot(app: App, request: Request, slot: Slot, name: str) -> None:
    """Store the body of a snapshot, then publish it."""
    content_type = request.headers.get(b"content-type")
    checked = parse_content_type(content_type) if content_type else DEFAULT
    offset = parse_offset(request.parameter)
    stream = app.shard.find(name)
    check_birth(app, stream, parse_query(request.query))
    size_bytes = int(request.headers.get(b"content-length", 0))
    app.shard.snapshots.check(stream, offset, size_bytes, request.headers.get(b"if-match"))
    app.spawn(_publish(app, request, slot, stream, offset, checked), slot)


async def _publish(
    app: App, request: Request, slot: Slot, stream: Stream, offset: int, content_type: str
) -> None:
    try:
        await check_boundary(app, stream, offset)
        async with asyncio.timeout(app.settings.http.snapshot_timeout_s):
            uploaded = await app.snapshots.put(stream.number, offset, request.pieces())
        snapshot = Snapshot(
            offset, uploaded.name, content_type, uploaded.size_bytes, uploaded.checksum
        )
        if_match = request.headers.get(b"if-match")
        wanted = StoredSnapshot(stream.meta.name, stream.number, snapshot, if_match)
        (outcome,) = await published(app, uploaded.name, [wanted])
        if isinstance(outcome, HoldfastError):
            raise outcome
    except TimeoutError:
        request.abandon_body(slot)
        respond_error(slot, RequestTimeoutError("The snapshot did not arrive in time."))
        return
    except HoldfastError as error:
        request.abandon_body(slot)
        respond_error(slot, error)
        return
    slot.respond(
        204,
        b"Stream-Next-Offset: %020d\r\nStream-Snapshot-Offset: %020d\r\n"
        % (outcome.tail, outcome.offset),
    )


async def check_boundary(app: App, stream: Stream, offset: int) -> None:
    is_end = await result_of(partial(run, app.shard.reader.is_boundary(stream, offset)))
    if not is_end:
        raise InvalidOffsetError(
            f"Offset {offset:020d} is not where a message ends: use a Stream-Next-Offset."
        )


def check_birth(app: App, stream: Stream, query: dict[str, str]) -> None:
    """Raise if the stream was created after the cursor in the query, if there is one.

    Who folds what a scan returned does not want to publish to a later stream of the same name.
    """
    cursor = parse_cursor(query.get("created_until", "now"), app.shard.state.journal.last)
    if stream.number >> INDEX_BITS > cursor:
        raise SnapshotConflictError(
            "The stream was deleted and created again after the cursor in 'created_until'."
        )


async def published(
    app: App, stored: str, wanted: Sequence[StoredSnapshot]
) -> list[SnapshotPublished | HoldfastError]:
    """Publish the snapshots in a stored object; what became of each of them.

    The object is removed if it is not needed. After an unknown outcome it may be.
    """
    settled = partial(app.snapshots.unpublished.discard, stored)
    outcomes: dict[int, SnapshotPublished | HoldfastError] = {}

    def ask(done: Callable[[None], None]) -> None:
        def reply(index: int, outcome: object) -> None:
            assert isinstance(outcome, SnapshotPublished | HoldfastError)
            outcomes[index] = outcome
            if len(outcomes) == len(wanted):
                if any(isinstance(each, CommitUnknownError) for each in outcomes.values()):
                    app.shard.commits.when_idle(settled)
                else:
                    settled()
                done(None)

        try:
            app.shard.snapshots.publish(wanted, reply, range(len(wanted)))
        except HoldfastError:
            settled()
            raise

    await result_of(ask)
    found = [outcomes[index] for index in range(len(wanted))]
    if all(isinstance(each, HoldfastError) and not each.retryable for each in found):
        await app.snapshots.remove(stored)
    failpoint("snapshot.published")
    return found


def latest_snapshot(app: App, request: Request, slot: Slot, name: str) -> None:
    """Redirect to the visible snapshot."""
    stream = app.shard.find(name)
    snapshot = _visible(stream)
    location = app.location(request) + b"/%020d" % snapshot.offset
    slot.respond(
        307,
        b"Location: %b\r\nCache-Control: no-store\r\n%b"
        % (location, _snapshot_headers(stream, snapshot)),
    )


def read_snapshot(app: App, request: Request, slot: Slot, name: str) -> None:
    """Respond with the body of the visible snapshot."""
    stream = app.shard.find(name)
    app.shard.lifetimes.renew(stream)
    snapshot = _visible(stream)
    if snapshot.offset != parse_offset(request.parameter):
        raise SnapshotNotFoundError(
            f"The stream's snapshot is at offset {snapshot.offset:020d}; older ones are gone."
        )
    headers = b"Content-Type: %b\r\nCache-Control: no-store\r\n%b" % (
        snapshot.content_type.encode(),
        _snapshot_headers(stream, snapshot),
    )
    cached = app.snapshots.cached(snapshot)
    if cached is not None and len(cached) <= AT_ONCE_BYTES_MAX:
        slot.respond(200, headers, cached)
    else:
        pieces = app.snapshots.pieces(snapshot)
        app.respond_streamed(request, slot, headers, pieces, snapshot.size_bytes)


def delete_snapshot(app: App, request: Request, _slot: Slot, name: str) -> None:
    """Always an error: the visible snapshot is needed, and older ones are gone already."""
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


def _snapshot_headers(stream: Stream, snapshot: Snapshot) -> bytes:
    up_to_date = snapshot.offset == stream.tail
    headers = b"Stream-Snapshot-Offset: %020d\r\nStream-Next-Offset: %020d\r\n" % (
        snapshot.offset,
        snapshot.offset,
    )
    headers += b"Stream-Up-To-Date: %b\r\n" % (b"true" if up_to_date else b"false")
    if stream.closed:
        headers += b"Stream-Closed: true\r\n"
    return headers


def bootstrap(app: App, request: Request, slot: Slot, name: str) -> None:
    """Respond with everything that a new reader needs."""
    if "live" in parse_query(request.query):
        raise InvalidRequestError(
            "A bootstrap is not live: follow the stream from its Stream-Next-Offset on."
        )
    stream = app.shard.find(name)
    app.shard.lifetimes.renew(stream)
    # Short, since it precedes every message.
    bits = app.clock.random_u64() << 64 | app.clock.random_u64()
    boundary = urlsafe_b64encode(bits.to_bytes(16)).rstrip(b"=")
    multipart = Multipart(boundary, stream.meta.content_type, stream.media)
    headers = _bootstrap_headers(stream, multipart)
    body = _at_once(app, stream, multipart)
    if body is not None:
        slot.respond(200, headers, body)
        return
    snapshot, start, end = stream.snapshot, stream.earliest, stream.tail
    first = b"" if snapshot is None else app.snapshots.cached(snapshot)

    def stream_body() -> None:
        pieces = _pieces(app, stream, multipart, snapshot, start, end)
        app.respond_streamed(request, slot, headers, pieces)

    def respond(body: bytes | None) -> None:
        if body is None:
            stream_body()
        else:
            slot.respond(200, headers, body)

    if first is None or len(first) + end - start > AT_ONCE_BYTES_MAX:
        stream_body()
    else:
        head = multipart.first(DEFAULT if snapshot is None else snapshot.content_type)
        respond_later(slot, _whole(app, stream, multipart, [head, first], start, end), respond)


async def _whole(
    app: App, stream: Stream, multipart: Multipart, parts: list[Buffer], at: int, end: int
) -> bytes | None:
    """The body from its first parts and the messages from `at` to `end`; None if it is long."""
    inside = False
    while at < end:
        until, data, ends = await _window(app.shard.reader, stream, at, end - at)
        parts += multipart.messages(data, at, ends, inside=inside)
        inside = not ends or ends[-1] < until
        at = until
    parts.append(multipart.last())
    return b"".join(parts) if sum(map(len, parts)) <= AT_ONCE_BYTES_MAX else None


def _bootstrap_headers(stream: Stream, multipart: Multipart) -> bytes:
    snapshot = stream.snapshot
    offset = b"-1" if snapshot is None else b"%020d" % snapshot.offset
    lengths = b"json" if stream.media == JSON else b"parts"
    headers = (
        b"Content-Type: %b\r\nCache-Control: no-store\r\nStream-Snapshot-Offset: %b\r\n"
        b"Stream-Next-Offset: %020d\r\nStream-Up-To-Date: true\r\nStream-Message-Lengths: %b\r\n"
        % (multipart.content_type, offset, stream.tail, lengths)
    )
    return headers + b"Stream-Closed: true\r\n" if stream.closed else headers


def _at_once(app: App, stream: Stream, multipart: Multipart) -> bytes | None:
    """The whole body, if all of it is in memory and small; else None."""
    start, end, snapshot = stream.earliest, stream.tail, stream.snapshot
    first = b"" if snapshot is None else app.snapshots.cached(snapshot)
    if first is None or start < stream.base or end - start > AT_ONCE_BYTES_MAX:
        return None
    content_type = DEFAULT if snapshot is None else snapshot.content_type
    is_json = stream.media == JSON
    data = read(stream, start, end) if is_json else b""
    # In memory each append is a chunk, and a stream starts where one ends.
    chunks = [] if is_json else stream.chunks[bisect_right(stream.ends, start) :]
    size_bytes = len(first) + multipart.size(end - start, data.count(SEPARATOR) + len(chunks))
    if size_bytes > AT_ONCE_BYTES_MAX:
        return None
    if not is_json:
        return multipart.whole(content_type, first, chunks)
    messages = multipart.messages(data, start, ())
    return b"".join((multipart.first(content_type), first, *messages, multipart.last()))


async def _pieces(
    app: App, stream: Stream, multipart: Multipart, snapshot: Snapshot | None, at: int, end: int
) -> AsyncIterator[bytes]:
    """The body in pieces: the snapshot, then the messages from `at` to `end`."""
    yield multipart.first(DEFAULT if snapshot is None else snapshot.content_type)
    if snapshot is not None:
        async for piece in app.snapshots.pieces(snapshot):
            yield piece
    reader, is_json = app.shard.reader, stream.media == JSON
    inside, size = False, PIECE_BYTES
    while at < end:
        window = _window(reader, stream, at, min(size, end - at))
        until, data, ends = await result_of(partial(run, window))
        count = data.count(SEPARATOR) if is_json else len(ends)
        encoded_bytes = multipart.size(len(data), count)
        if encoded_bytes > 2 * PIECE_BYTES and count > 1:
            # Many small messages, whose part heads are longer than they are.
            size = max(1, (until - at) * 2 * PIECE_BYTES // encoded_bytes)
            continue
        piece = b"".join(multipart.messages(data, at, ends, inside=inside))
        inside = not is_json and (not ends or ends[-1] < until)
        at = until
        # While the client does not read, only the piece is in memory.
        del data, ends, window
        yield piece
        size = min(2 * size, PIECE_BYTES)
    yield multipart.last()


async def _window(
    reader: ShardReader, stream: Stream, at: int, bytes_max: int
) -> tuple[int, bytes, list[int]]:
    """Bytes from an offset on: where they end, the bytes, and where messages end in them."""
    is_json = stream.media == JSON
    end, data = await reader.read(stream, at, bytes_max, with_ends=not is_json)
    ends = [] if is_json else await reader.message_ends(stream, at, end)
    return end, data, ends
