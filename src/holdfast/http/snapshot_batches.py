"""POST {bucket}/streams/snapshots: publish the snapshots of many streams in one request.

The body is a sequence of snapshots, each a line of JSON and then as many bytes as the line says.
It becomes one object of the store, in which every snapshot has its place, and the log gets one
batch. So a snapshot costs neither a request nor an object nor a sync of its own.

The rules are those of publishing a single snapshot, and each is accepted or refused for itself.
The object is removed once the last of its snapshots is replaced.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from holdfast.engine.metadata_writes import StoredSnapshot
from holdfast.errors import (
    HoldfastError,
    InvalidRequestError,
    InvalidStreamIdError,
    RequestTimeoutError,
)
from holdfast.format.records import Snapshot
from holdfast.http.buckets import find_bucket
from holdfast.http.exchange import parse_query
from holdfast.http.responses import respond_json, result_of
from holdfast.http.snapshots import check_birth, check_boundary, published
from holdfast.protocol.content import DEFAULT, parse_content_type
from holdfast.protocol.headers import parse_offset
from holdfast.protocol.names import check_stream_id
from holdfast.storage.pending import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.engine.stream import Stream
    from holdfast.engine.writes import SnapshotPublished
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot

# Publishing takes the event loop about 20 µs for each.
SNAPSHOTS_MAX: Final = 500
_LINE_BYTES_MAX: Final = 8192
# Snapshots examined before the event loop gets its turn.
_TURN_SNAPSHOTS: Final = 32


class _Line(msgspec.Struct):
    """What precedes the body of a snapshot."""

    stream_id: str
    offset: str
    length: Annotated[int, msgspec.Meta(ge=0)]
    content_type: str = DEFAULT
    if_match: str | None = None

    @property
    def etag(self) -> bytes | None:
        return None if self.if_match is None else self.if_match.encode()


class _Given(NamedTuple):
    """A snapshot in the body of a request, from `start` on."""

    line: _Line
    start: int


class _Valid(NamedTuple):
    """A snapshot that is not refused so far."""

    given: _Given
    stream: Stream
    offset: int
    content_type: str


_decode_line: Final = msgspec.json.Decoder(_Line).decode


def publish_snapshots(app: App, request: Request, slot: Slot, name: str) -> None:
    """Publish snapshots; the response says what became of each of them."""
    find_bucket(app, name[:-1])
    query = parse_query(request.query)
    given = list(_parsed(request.body))
    if not given:
        raise InvalidRequestError("The body has no snapshots.")
    if len({each.line.stream_id for each in given}) < len(given):
        raise InvalidRequestError("The body has more than one snapshot of a stream.")
    app.spawn(_publish(app, request.body, slot, name, given, query), slot)


def _parsed(body: bytes) -> Iterator[_Given]:
    at = count = 0
    while at < len(body):
        count += 1
        if count > SNAPSHOTS_MAX:
            raise InvalidRequestError(f"A request takes up to {SNAPSHOTS_MAX} snapshots.")
        end = body.find(b"\n", at, at + _LINE_BYTES_MAX)
        if end < 0:
            raise InvalidRequestError(f"Snapshot {count} of the body has no line before it.")
        try:
            line = _decode_line(body[at:end])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidRequestError(
                f"The line before snapshot {count} is not what it should be: {error}."
            ) from None
        at = end + 1 + line.length
        if at > len(body):
            raise InvalidRequestError(f"The body ends within snapshot {count}.")
        yield _Given(line, end + 1)


async def _publish(
    app: App, body: bytes, slot: Slot, name: str, given: Sequence[_Given], query: dict[str, str]
) -> None:
    results: dict[str, object] = {}
    valid: list[_Valid] = []
    # The body is in memory until it is stored. Reserved here: a task that is cancelled before it
    # begins would not give it back.
    app.snapshots.reserve()
    try:
        for first in range(0, len(given), _TURN_SNAPSHOTS):
            await app.turns.next()
            some = given[first : first + _TURN_SNAPSHOTS]
            found = await _found(app, name, [each.line.stream_id for each in some])
            for each, stream in zip(some, found, strict=True):
                try:
                    valid.append(await _checked(app, each, stream, query))
                except HoldfastError as error:
                    results[each.line.stream_id] = error
    finally:
        if not valid or len(valid) + len(results) < len(given):
            app.snapshots.release()
    if valid:
        for checked, outcome in zip(valid, await _stored(app, body, valid), strict=True):
            results[checked.given.line.stream_id] = outcome
    lines = (each.line.stream_id for each in given)
    respond_json(slot, {"snapshots": [_result(each, results[each]) for each in lines]})


async def _stored(
    app: App, body: bytes, valid: Sequence[_Valid]
) -> list[SnapshotPublished | HoldfastError]:
    """Store the body, and publish the valid snapshots in it."""
    try:
        async with asyncio.timeout(app.settings.http.snapshot_timeout_s):
            uploaded = await app.snapshots.put_many(valid[0].stream.number, valid[0].offset, body)
    except TimeoutError:
        raise RequestTimeoutError("The snapshots could not be stored in time.") from None
    wanted = []
    for (line, start), stream, offset, content_type in valid:
        snapshot = Snapshot(
            offset,
            uploaded.name,
            content_type,
            line.length,
            xxh3_64_intdigest(memoryview(body)[start : start + line.length]),
            start,
            uploaded.size_bytes,
            uploaded.checksum,
        )
        wanted.append(StoredSnapshot(stream.meta.name, stream.number, snapshot, line.etag))
    return await published(app, uploaded.name, wanted)


async def _found(app: App, bucket: str, stream_ids: Sequence[str]) -> list[Stream | HoldfastError]:
    """The streams, looked up together: the catalog may have to wait for the disk."""

    def look_up() -> list[Stream | HoldfastError]:
        found: list[Stream | HoldfastError] = []
        for stream_id in stream_ids:
            try:
                _check_id(bucket[:-1], stream_id)
                found.append(app.shard.find(bucket + stream_id))
            except HoldfastError as error:
                found.append(error)
        return found

    catalog = app.shard.catalog
    if catalog is None:
        return look_up()
    return await result_of(partial(run, catalog.look_up(look_up)))


def _check_id(bucket_id: str, stream_id: str) -> None:
    check_stream_id(bucket_id, stream_id)
    if "/" in stream_id:
        raise InvalidStreamIdError(
            f"The stream id {stream_id!r} has a slash, so there is no URL for its snapshots."
        )


async def _checked(
    app: App, given: _Given, stream: Stream | HoldfastError, query: dict[str, str]
) -> _Valid:
    """A snapshot that may be published; raises if it is refused."""
    line = given.line
    if not line.stream_id.startswith(query.get("prefix", "")):
        raise InvalidRequestError("The stream's id does not start with the request's 'prefix'.")
    if isinstance(stream, HoldfastError):
        raise stream
    check_birth(app, stream, query)
    content_type, offset = parse_content_type(line.content_type.encode()), parse_offset(line.offset)
    app.shard.snapshots.check(stream, offset, line.length, line.etag)
    await check_boundary(app, stream, offset)
    return _Valid(given, stream, offset, content_type)


def _result(stream_id: str, outcome: object) -> dict[str, object]:
    if isinstance(outcome, HoldfastError):
        error = {"code": outcome.code, "message": outcome.message}
        return {"stream_id": stream_id, "status": outcome.status, "error": error}
    return {"stream_id": stream_id, "status": 204}
