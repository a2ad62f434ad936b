"""GET {bucket}/streams/scan and what belongs to it: a bucket as a plan of parallel reads.

A plan covers the positions (after, until]. What is in packs by then is cut into partitions by the
names of the streams: whoever works on one asks for its ranges, which say where in which pack the
bytes are, and reads the packs straight from the object store. A pack can be merged away meanwhile;
then the ranges are asked for again. What is not in packs yet is the hot rest, and one request gives
its records.
"""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.errors import GoneError, InvalidRequestError, NotFoundError, OffsetGoneError
from holdfast.http.awaiting import answer_of
from holdfast.http.buckets import find_bucket
from holdfast.http.change_pages import check_cursor, name_of, parse_cursor
from holdfast.http.health import JSON_FIELDS
from holdfast.http.query import parse_query
from holdfast.protocol.content import JSON
from holdfast.protocol.json_mode import SEPARATOR

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from holdfast.engine.journal import Change, JournalBatch
    from holdfast.engine.stream import Stream
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot
    from holdfast.storage.catalog import Catalog, ScanRange

_encode = msgspec.json.Encoder().encode
_NDJSON: Final = b"Content-Type: application/x-ndjson\r\nCache-Control: no-store\r\n"
PARTITION_BYTES: Final = 64 * 1024 * 1024
_PARTITION_RANGES: Final = 100_000
_LINES: Final = 1000


class Partition(msgspec.Struct):
    """Streams from one id to another, both included, and what to expect of them."""

    shard: int
    first_stream_id: str
    last_stream_id: str
    after: str
    until: str
    bytes: int
    ranges: int
    # Hints: a pack may be merged away before it is read.
    packs: list[str]


class ScanRequest(NamedTuple):
    """What is to be scanned."""

    bucket: str
    prefix: str
    after: int
    until: int


def scan(app: App, request: Request, slot: Slot, name: str) -> None:
    """Answer with the plan."""
    asked = _asked(app, request, name)
    app.spawn(_plan(app, slot, asked), slot)


async def _plan(app: App, slot: Slot, asked: ScanRequest) -> None:
    catalog = app.shard.catalog
    flushed = 0 if catalog is None else min(catalog.flushed, asked.until)
    partitions: list[Partition] = []
    if catalog is not None and asked.after < flushed:
        scanned = asked._replace(until=flushed)
        partitions = await asyncio.to_thread(_partitions, catalog, scanned)
    hot_after = max(asked.after, flushed)
    found = {
        "bucket_id": asked.bucket,
        "prefix": asked.prefix.partition("/")[2],
        "after": f"{asked.after:020d}",
        "until": f"{asked.until:020d}",
        "flushed": f"{flushed:020d}",
        "store": app.settings.storage.store,
        "partitions": partitions,
        "hot": None
        if hot_after >= asked.until
        else {"shard": 0, "after": f"{hot_after:020d}", "until": f"{asked.until:020d}"},
        "next_cursor": f"{asked.until:020d}",
    }
    slot.on_gone = None
    slot.answer(200, JSON_FIELDS, _encode(found))


def _partitions(catalog: Catalog, asked: ScanRequest) -> list[Partition]:
    """Cut what the catalog has into partitions of about a size; for a thread."""
    skip = asked.prefix.index("/") + 1
    found: list[Partition] = []
    packs: set[str] = set()
    last = ""
    for each in catalog.scan(asked.prefix, asked.after, asked.until):
        stream_id = each.name[skip:]
        full = found and (
            found[-1].bytes >= PARTITION_BYTES or found[-1].ranges >= _PARTITION_RANGES
        )
        if not found or (full and stream_id != last):
            packs = set()
            found.append(
                Partition(
                    0,
                    stream_id,
                    stream_id,
                    f"{asked.after:020d}",
                    f"{asked.until:020d}",
                    0,
                    0,
                    [],
                )
            )
        partition = found[-1]
        partition.last_stream_id = last = stream_id
        partition.bytes += each.length
        partition.ranges += 1
        if each.pack not in packs:
            packs.add(each.pack)
            partition.packs.append(each.pack)
    return found


def scan_ranges(app: App, request: Request, slot: Slot, name: str) -> None:
    """Where the bytes of a partition are: a line of JSON for each range of each stream."""
    asked = _asked(app, request, name)
    query = parse_query(request.query)
    catalog = app.shard.catalog
    if catalog is None:
        raise NotFoundError("This server keeps everything in memory and has no packs.")
    last = query.get("last")
    ranges = catalog.scan(
        asked.prefix,
        asked.after,
        asked.until,
        name + query.get("first", ""),
        None if last is None else name + last,
    )
    pieces = _lines_in_thread(_range_lines(ranges, len(name)))
    app.stream_answer(request, slot, _NDJSON, pieces)


def _range_lines(ranges: Iterable[ScanRange], skip: int) -> Iterator[bytes]:
    for each in ranges:
        yield _encode(
            {
                "stream_id": each.name[skip:],
                "stream": each.stream,
                "pack": each.pack,
                "offset": each.start,
                "length": each.length,
                "earliest": each.earliest,
                "content_type": each.content_type,
                "first_position": each.first_position,
                "last_position": each.last_position,
            }
        )


async def _lines_in_thread(lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The lines in pieces, each made in a thread: the catalog is read meanwhile."""

    def some() -> bytes:
        found = [line for _, line in zip(range(_LINES), lines, strict=False)]
        return b"\n".join([*found, b""]) if found else b""

    while piece := await asyncio.to_thread(some):
        yield piece


def records(app: App, request: Request, slot: Slot, name: str) -> None:
    """The hot rest of a scan: a line of JSON for each message, in the order of the log."""
    asked = _asked(app, request, name)
    check_cursor(app, asked.after)
    # All of them now: the oldest may be gone before the first line is asked for.
    batches = [
        batch
        for batch in app.shard.state.journal.after(asked.after)
        if batch.position <= asked.until
    ]
    app.stream_answer(request, slot, _NDJSON, _record_lines(app, asked, batches))


async def _record_lines(
    app: App, asked: ScanRequest, batches: list[JournalBatch]
) -> AsyncIterator[bytes]:
    state = app.shard.state
    skip = asked.prefix.index("/") + 1
    examined = 0
    for batch in batches:
        lines: list[bytes] = []
        for change in batch.changes():
            examined += 1
            if examined % _LINES == 0:
                # Others have their turn, also where nothing concerns this bucket.
                await asyncio.sleep(0)
            name = name_of(state, change)
            if change.length and name.startswith(asked.prefix):
                lines += await _message_lines(app, change, name[skip:])
        if lines:
            yield b"\n".join([*lines, b""])


async def _message_lines(app: App, change: Change, stream_id: str) -> list[bytes]:
    """The messages of one append, but for those whose place a snapshot has taken."""
    stream = app.shard.state.find_number(change.stream)
    if stream is None or stream.gone:
        return []
    try:
        start, whole = await _left_of(app, stream, change)
    except (NotFoundError, GoneError):
        # Deleted while it was read.
        return []
    if not whole:
        return []
    messages = whole[:-1].split(SEPARATOR) if stream.media == JSON else [whole]
    extra = 1 if stream.media == JSON else 0
    lines, at = [], start
    for message in messages:
        until = at + len(message) + extra
        lines.append(
            _encode(
                {
                    "stream_id": stream_id,
                    "stream": change.stream,
                    "offset": at,
                    "next_offset": until,
                    "timestamp_ms": change.at_ms,
                    "position": change.position,
                    "content_type": stream.meta.content_type,
                    "payload": base64.b64encode(message).decode(),
                }
            )
        )
        at = until
    return lines


async def _left_of(app: App, stream: Stream, change: Change) -> tuple[int, bytes]:
    """Where the bytes of an append start that are still the stream's, and these bytes."""
    end = change.offset + change.length
    while True:
        start = at = max(change.offset, stream.earliest)
        parts: list[bytes] = []
        try:
            while at < end:
                at, data = await answer_of(partial(app.shard.reader.read, stream, at, end - at))
                parts.append(data)
        except OffsetGoneError:
            # Trimmed while it was read: there may be less of it now.
            continue
        return start, b"".join(parts)


def _asked(app: App, request: Request, name: str) -> ScanRequest:
    query = parse_query(request.query)
    find_bucket(app, name[:-1])
    last = app.shard.state.journal.last
    after = parse_cursor(query.get("after"), last)
    until = parse_cursor(query.get("until", "now"), last)
    if until > last:
        raise InvalidRequestError("The cursor in 'until' is past the end of the log.")
    if after > until:
        raise InvalidRequestError("The cursor in 'after' is behind the one in 'until'.")
    return ScanRequest(name[:-1], name + query.get("prefix", ""), after, until)
