"""The parts of a scan that read the journal: its hot records, and how far a limited step goes.

GET {bucket}/streams/records returns the messages that are not in packs yet.

GET {bucket}/streams/scan/until finds the position up to which no more than some bytes and messages
were appended, or no more than some time has passed. What is not in packs is counted position by
position. For packs the catalog knows how much each extent holds and between which positions that
was appended; it is taken as spread evenly over them, so the result is approximate there and no pack
has to be read. The catalog's times are those of parts of a flush.
"""

from __future__ import annotations

import asyncio
import base64
from bisect import bisect_right
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import (
    GoneError,
    InvalidRequestError,
    NotFoundError,
    OffsetGoneError,
    UnavailableError,
)
from holdfast.format.records import Kind
from holdfast.format.rows import inherited_bytes
from holdfast.http.buckets import find_bucket
from holdfast.http.changes import name_of, parse_cursor
from holdfast.http.exchange import int_parameter, parse_query
from holdfast.http.responses import encode_json, respond_json, result_of
from holdfast.http.scan import TURN_ENTRIES, ScanRequest, in_thread, scan_request
from holdfast.http.storage_routes import NDJSON_HEADERS, cursor_text, store_id
from holdfast.http.turns import PIECE_BYTES
from holdfast.protocol.content import JSON, SEPARATOR, SEPARATOR_BYTE
from holdfast.storage.catalog_plan import ScanPlanner
from holdfast.storage.pending import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from holdfast.engine.journal import JournalBatch, StreamChange
    from holdfast.engine.state import State
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot
    from holdfast.storage.catalog_scan import Amount

_LIMIT_MAX: Final = 10**18 - 1
# Sums of fractions of extents are off by less than this.
_SLACK: Final = 0.5
# Flushes may come between reading the catalog and reading the journal.
_ATTEMPTS: Final = 5
_SEPARATOR: Final = bytes([SEPARATOR_BYTE])
_LINE_END: Final = b'"}\n'


def records(app: App, request: Request, slot: Slot, name: str) -> None:
    """Respond with a line of JSON for each message that is not in packs, in log order."""
    wanted = scan_request(app, request, name)
    # Collected now, because the oldest may leave the journal while the response is sent.
    batches = app.shard.state.journal.between(wanted.after, wanted.until)
    app.respond_streamed(request, slot, NDJSON_HEADERS, _record_lines(app, wanted, batches))


async def _record_lines(
    app: App, request: ScanRequest, batches: list[JournalBatch]
) -> AsyncIterator[bytes]:
    state = app.shard.state
    examined = size_bytes = 0
    held: list[bytes] = []
    for batch in batches:
        for change in batch.changes():
            examined += 1
            if examined % TURN_ENTRIES == 0:
                # The event loop gets its turn, even if nothing concerns this bucket.
                await asyncio.sleep(0)
            name = name_of(state, change)
            if (
                not change.length
                or not request.covers(name)
                or not request.covers_time(change.at_ms)
            ):
                continue
            async for piece in change_lines(app, change, name[request.skip :]):
                held.append(piece)
                size_bytes += len(piece)
                if size_bytes > PIECE_BYTES:
                    # While the client does not read, only the joined lines are in memory.
                    joined = b"".join(held)
                    held, size_bytes = [], 0
                    del piece
                    yield joined
    if held:
        yield b"".join(held)


async def change_lines(app: App, change: StreamChange, stream_id: str) -> AsyncIterator[bytes]:
    """Lines for the messages of one append, without those that a snapshot has replaced.

    The line of a long message comes in pieces.
    """
    stream = app.shard.state.find_number(change.stream)
    if stream is None or stream.gone or app.shard.lifetimes.has_ended(stream):
        return
    at, end = max(change.offset, stream.earliest), change.offset + change.length
    line = partial(record_line, stream.meta.content_type, change, stream_id)
    begun, rest = False, b""
    while at < end:
        read = app.shard.reader.read(stream, at, min(PIECE_BYTES, end - at))
        try:
            until, data = await result_of(partial(run, read))
        except (NotFoundError, GoneError) as error:
            if begun:
                raise
            if not isinstance(error, OffsetGoneError):
                # Deleted while it was read.
                return
            # Trimmed while it was read: go on with what is left.
            at = max(at, stream.earliest)
            continue
        if stream.media == JSON:
            for message in data[:-1].split(SEPARATOR):
                yield line(at, at + len(message) + 1, message)
                at += len(message) + 1
            continue
        if not begun:
            begun = True
            yield line(at, end, b"").removesuffix(_LINE_END)
        rest += data
        # Base64 takes three bytes at a time.
        whole = len(rest) if until == end else len(rest) // 3 * 3
        encoded, rest, at = base64.b64encode(rest[:whole]), rest[whole:], until
        del data
        yield encoded
    if begun:
        yield _LINE_END


def record_line(
    content_type: str, change: StreamChange, stream_id: str, at: int, until: int, message: bytes
) -> bytes:
    fields = {
        "stream_id": stream_id,
        "stream": change.stream,
        "offset": at,
        "next_offset": until,
        "timestamp_ms": change.at_ms,
        "position": change.position,
        "content_type": content_type,
        "payload": base64.b64encode(message).decode(),
    }
    return encode_json(fields) + b"\n"


class ScanLimits(NamedTuple):
    size_bytes: int
    messages: int
    # Between the first message and the last.
    ms: int | None = None


class ScanReach(NamedTuple):
    """A position, what was appended up to it, and whether more would exceed the limits."""

    until: int
    size_bytes: float
    messages: float
    is_full: bool


class _MovedError(Exception):
    """Bytes to be counted have moved from memory to packs meanwhile."""


def scan_until(app: App, request: Request, slot: Slot, name: str) -> None:
    """Respond with the furthest cursor that keeps within the limits."""
    query = parse_query(request.query)
    find_bucket(app, name[:-1])
    latest = app.shard.state.journal.last
    after = parse_cursor(query.get("after"), latest)
    if after > latest:
        raise InvalidRequestError("The cursor in 'after' is past the end of the log.")
    limits = ScanLimits(
        int_parameter(query, "bytes", 1, _LIMIT_MAX) or _LIMIT_MAX,
        int_parameter(query, "messages", 1, _LIMIT_MAX) or _LIMIT_MAX,
        int_parameter(query, "ms", 1, _LIMIT_MAX),
    )
    from_ms = int_parameter(query, "from_ms", 0, _LIMIT_MAX)
    prefix = name + query.get("prefix", "")
    wanted = ScanRequest(name[:-1], prefix, after, latest, from_ms=from_ms)
    app.spawn(_respond_until(app, slot, wanted, limits), slot)


async def _respond_until(app: App, slot: Slot, request: ScanRequest, limits: ScanLimits) -> None:
    reached, first_ms = await _reach(app, request, limits)
    document = {
        "bucket_id": request.bucket,
        "after": cursor_text(request.after),
        "until": cursor_text(reached.until),
        "latest": cursor_text(request.until),
        "bytes": round(reached.size_bytes),
        "messages": round(reached.messages),
        "store_id": store_id(app),
        "first_ms": first_ms if round(reached.messages) else None,
    }
    slot.on_gone = None
    respond_json(slot, document)


async def _reach(
    app: App, request: ScanRequest, limits: ScanLimits
) -> tuple[ScanReach, int | None]:
    """How far the limits reach, and when the first message was appended, if that is known."""
    catalog, state = app.shard.catalog, app.shard.state
    for _ in range(_ATTEMPTS):
        reached, first_ms = ScanReach(request.after, 0, 0, is_full=False), None
        flushed = 0 if catalog is None else min(catalog.flushed, request.until)
        if catalog is not None and request.after < flushed:
            scan = ScanPlanner(catalog.path, request._replace(until=flushed).scanned)
            work = partial(_within_packs, scan, request.from_ms, limits)
            reached, first_ms = await in_thread(scan, work)
        if reached.is_full:
            return reached, first_ms
        with suppress(_MovedError):
            return await _within_journal(state, request, reached, first_ms, limits)
    raise UnavailableError("Messages move to packs faster than they can be counted.")


def _within_packs(
    scan: ScanPlanner, from_ms: int | None, limits: ScanLimits
) -> tuple[ScanReach, int | None]:
    """How far the limits reach in packs; reads only those up to there."""
    after, flushed = scan.narrow(from_ms, None)
    reached, first_ms, last = ScanReach(after, 0, 0, is_full=False), None, flushed
    for begin, through, amounts in scan.amounts():
        if amounts and not reached.messages:
            first = max(min(amounts)[0], begin + 1)
            first_ms = scan.first_time(first)
            if limits.ms is not None and first_ms is not None:
                last = scan.last_before(first, first_ms + limits.ms)
        is_late = through > last
        in_time = [each for each in amounts if each[0] <= last] if is_late else amounts
        left = ScanLimits(
            limits.size_bytes - round(reached.size_bytes),
            limits.messages - round(reached.messages),
        )
        end = min(through, last)
        part = within_amounts(in_time, begin, end, left, is_first=not reached.messages)
        reached = ScanReach(
            part.until,
            reached.size_bytes + part.size_bytes,
            reached.messages + part.messages,
            part.is_full or is_late,
        )
        if reached.is_full:
            break
    return reached, first_ms


def within_amounts(
    amounts: Iterable[Amount],
    after: int,
    until: int,
    limits: ScanLimits,
    *,
    is_first: bool = True,
) -> ScanReach:
    """How far the limits reach, with extents spread evenly over their positions.

    The first position with messages counts whatever the limits are, if nothing came before.
    """
    # At a position: how the bytes, messages and extents per position change from there on.
    steps: list[tuple[int, float, float, int]] = []
    for first, last, size_bytes, messages in amounts:
        count = last - first + 1
        each_bytes, each_messages = size_bytes / count, messages / count
        steps.append((max(first, after + 1), each_bytes, each_messages, 1))
        if last < until:
            steps.append((last + 1, -each_bytes, -each_messages, -1))
    steps.sort(key=itemgetter(0))
    steps.append((until + 1, 0, 0, 0))
    at, extents = after, 0
    total_bytes = total_messages = rate_bytes = rate_messages = 0.0
    for position, more_bytes, more_messages, more_extents in steps:
        # Everything up to `at` is counted; the rates are constant up to this step.
        count = position - 1 - at
        if count and extents:
            room = min(
                _room(limits.size_bytes - total_bytes, rate_bytes),
                _room(limits.messages - total_messages, rate_messages),
            )
            is_full = room < count
            if is_full:
                # At least one position, however much it holds.
                count = int(room) if total_messages or not is_first else max(int(room), 1)
            at += count
            total_bytes += count * rate_bytes
            total_messages += count * rate_messages
            if is_full:
                return ScanReach(at, total_bytes, total_messages, is_full=True)
        at, extents = position - 1, extents + more_extents
        rate_bytes = rate_bytes + more_bytes if extents else 0.0
        rate_messages = rate_messages + more_messages if extents else 0.0
    return ScanReach(until, total_bytes, total_messages, is_full=False)


def _room(left: float, rate: float) -> float:
    return (left + _SLACK) / rate if rate > 0 else float("inf")


async def _within_journal(
    state: State,
    request: ScanRequest,
    reached: ScanReach,
    first_ms: int | None,
    limits: ScanLimits,
) -> tuple[ScanReach, int | None]:
    """How far the limits reach from there, position by position."""
    journal = state.journal
    total_bytes, total_messages = reached.size_bytes, reached.messages
    examined = 0
    for batch in list(journal.after(max(reached.until, journal.earliest))):
        if batch.position > request.until:
            break
        size_bytes, messages = _gained(state, batch, request)
        if messages:
            first_ms = batch.times_ms[0] if first_ms is None else first_ms
            is_over = (
                total_bytes + size_bytes > limits.size_bytes
                or total_messages + messages > limits.messages
                or (limits.ms is not None and batch.times_ms[0] >= first_ms + limits.ms)
            )
            if is_over and total_messages:
                end = ScanReach(batch.position - 1, total_bytes, total_messages, is_full=True)
                return end, first_ms
            total_bytes += size_bytes
            total_messages += messages
            if is_over:
                end = ScanReach(batch.position, total_bytes, total_messages, is_full=True)
                return end, first_ms
        examined += len(batch.streams)
        if examined >= TURN_ENTRIES:
            examined = 0
            await asyncio.sleep(0)
    return ScanReach(request.until, total_bytes, total_messages, is_full=False), first_ms


def _gained(state: State, batch: JournalBatch, request: ScanRequest) -> tuple[int, int]:
    """Readable bytes and messages of a batch."""
    size_bytes = messages = 0
    for change in batch.changes():
        created = change.kind == Kind.CREATE
        if (
            (change.length or created)
            and request.covers_time(change.at_ms)
            and request.covers(name_of(state, change))
        ):
            size, count = _size_of(state, change) if change.length else (0, 0)
            inherited = _inherited_at(state, change.stream) if created else 0
            size_bytes += size + inherited
            messages += count + bool(inherited)
    return size_bytes, messages


def _inherited_at(state: State, number: int) -> int:
    """What a new stream inherits, if it is a fork."""
    stream = state.by_number.get(number)
    return 0 if stream is None or stream.gone else inherited_bytes(stream)


def _size_of(state: State, change: StreamChange) -> tuple[int, int]:
    """Bytes and messages of an append that no snapshot has replaced."""
    stream = state.by_number.get(change.stream)
    if stream is None:
        # It is in packs, or gone.
        if state.name_of(change.stream) is not None:
            raise _MovedError
        return 0, 0
    end = change.offset + change.length
    start = max(change.offset, stream.earliest)
    if stream.gone or start >= end:
        return 0, 0
    if stream.media != JSON:
        return end - start, 1
    if change.offset < stream.base:
        raise _MovedError
    chunk = stream.chunks[bisect_right(stream.ends, change.offset)]
    return end - start, chunk.count(_SEPARATOR, start - change.offset)
