"""Forks in scans: what they inherit, under their own names.

A scan returns each message once, under the stream it was appended to. What a fork inherits counts
as appended to it when it was created: at that position of the log, which its number holds, and at
that time. So a scan of the positions (after, until] has all of it, or nothing.

GET {bucket}/streams/scan/forks divides the forks of a scan into parts, and
GET {bucket}/streams/scan/inherited returns the messages of a part. They are read as any reader of
the fork reads them: through chains of forks, deleted sources, other buckets, packs and memory.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from holdfast.engine.journal import StreamChange
from holdfast.errors import GoneError, NotFoundError, OffsetGoneError
from holdfast.format.records import INDEX_BITS, Kind
from holdfast.format.rows import inherited_bytes
from holdfast.http.exchange import int_parameter, parse_query
from holdfast.http.responses import respond_json, result_of
from holdfast.http.scan import (
    PARTITION_BYTES,
    PARTITION_BYTES_MAX,
    PARTITION_BYTES_MIN,
    TURN_ENTRIES,
    ScanRequest,
    in_thread,
    scan_request,
)
from holdfast.http.scan_journal import change_lines, record_line
from holdfast.http.storage_routes import NDJSON_HEADERS, cursor_text
from holdfast.http.turns import PIECE_BYTES
from holdfast.protocol.content import JSON, SEPARATOR
from holdfast.storage.catalog_scan import CatalogScan, ForkEntry
from holdfast.storage.pending import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot

T = TypeVar("T")

# Each fork costs some time of its own.
_PART_FORKS: Final = 10_000
_WINDOW_BYTES: Final = 4 * PIECE_BYTES


class ForkPart(msgspec.Struct):
    """Forks from one id to another, both included, and how many bytes they inherit."""

    first_stream_id: str
    last_stream_id: str
    forks: int
    bytes: int


def scan_forks(app: App, request: Request, slot: Slot, name: str) -> None:
    """Respond with the forks of a scan, in parts."""
    wanted = scan_request(app, request, name)
    query = parse_query(request.query)
    size = int_parameter(query, "partition_bytes", PARTITION_BYTES_MIN, PARTITION_BYTES_MAX)
    app.spawn(_respond_parts(app, slot, wanted, size or PARTITION_BYTES), slot)


async def _respond_parts(app: App, slot: Slot, request: ScanRequest, part_bytes: int) -> None:
    forks = await _forks(app, request)

    def divide() -> list[ForkPart]:
        parts: list[ForkPart] = []
        for each in forks:
            stream_id = each.name[request.skip :]
            last = parts[-1] if parts else None
            if last is None or last.bytes >= part_bytes or last.forks >= _PART_FORKS:
                last = ForkPart(stream_id, stream_id, 0, 0)
                parts.append(last)
            last.last_stream_id = stream_id
            last.forks += 1
            last.bytes += each.inherited
        return parts

    document = {
        "bucket_id": request.bucket,
        "prefix": request.prefix[request.skip :],
        "after": cursor_text(request.after),
        "until": cursor_text(request.until),
        # In a thread, since there may be very many.
        "parts": await asyncio.to_thread(divide),
    }
    slot.on_gone = None
    respond_json(slot, document)


async def _forks(app: App, request: ScanRequest) -> list[ForkEntry]:
    """The forks of a scan that inherit something, by name.

    Each position of the log is looked up in the journal or in the catalog.
    """
    state, catalog = app.shard.state, app.shard.catalog
    flushed = 0 if catalog is None else min(catalog.flushed, request.until)
    found: list[ForkEntry] = []
    examined = 0
    for batch in state.journal.between(max(request.after, flushed), request.until):
        for index, (kind, name) in batch.rare.items():
            examined += 1
            if kind != Kind.CREATE or not request.covers(name):
                continue
            # Not only in memory: it may have been flushed since the loop began.
            stream = state.find_number(batch.streams[index])
            if stream is not None and not stream.gone and inherited_bytes(stream):
                found.append(ForkEntry(name, stream.number, inherited_bytes(stream)))
        if examined >= TURN_ENTRIES:
            examined = 0
            await asyncio.sleep(0)
    if catalog is None or request.after >= flushed:
        return sorted(found)
    scan = CatalogScan(catalog.path, request._replace(until=flushed).scanned)
    return await in_thread(scan, lambda: sorted(found + scan.forks()))


def inherited(app: App, request: Request, slot: Slot, name: str) -> None:
    """Respond with a line of JSON for each inherited message, by stream id and offset."""
    wanted = scan_request(app, request, name)
    app.respond_streamed(request, slot, NDJSON_HEADERS, _pieces(app, wanted))


async def _pieces(app: App, request: ScanRequest) -> AsyncIterator[bytes]:
    held: list[bytes] = []
    size_bytes = 0
    for entry in await _forks(app, request):
        async for piece in _fork_lines(app, entry, request):
            held.append(piece)
            size_bytes += len(piece)
            if size_bytes > PIECE_BYTES:
                joined = b"".join(held)
                held, size_bytes = [], 0
                del piece
                yield joined
    if held:
        yield b"".join(held)


async def _fork_lines(app: App, entry: ForkEntry, request: ScanRequest) -> AsyncIterator[bytes]:
    """Lines for the messages that one fork inherits; none if it is gone."""
    find = partial(app.shard.state.find_number, entry.number)
    catalog = app.shard.catalog
    fork = find() if catalog is None else await _done(catalog.look_up(find))
    if fork is None or fork.meta.fork is None or not request.covers_time(fork.created_ms):
        return
    stream_id = entry.name[request.skip :]
    reader, at, end = app.shard.reader, fork.earliest, fork.meta.fork.offset
    created = StreamChange(
        fork.number >> INDEX_BITS, fork.number, at, 0, Kind.CREATE, fork.created_ms, entry.name
    )
    separator_bytes = len(SEPARATOR) if fork.media == JSON else 0
    while at < end and not (fork.gone or app.shard.lifetimes.has_ended(fork)):
        try:
            size = min(_WINDOW_BYTES, end - at)
            until, data = await _done(reader.read(fork, at, size, with_ends=True))
            ends = await _done(reader.message_ends(fork, at, until))
            # The first message may be longer than what is read at a time.
            long_end = 0 if ends else (await _done(reader.first_ends(fork, at, end, 1)))[0]
        except OffsetGoneError:
            # Trimmed meanwhile: go on with what is left.
            at = max(at, fork.earliest)
            continue
        except (NotFoundError, GoneError):
            # Deleted meanwhile.
            return
        start = at
        for message_end in ends:
            payload = data[at - start : message_end - start - separator_bytes]
            yield record_line(fork.meta.content_type, created, stream_id, at, message_end, payload)
            at = message_end
        if long_end:
            async for piece in change_lines(
                app, created._replace(offset=at, length=long_end - at), stream_id
            ):
                yield piece
            at = long_end


async def _done(work: Coroutine[Any, Any, T]) -> T:
    return await result_of(partial(run, work))
