"""GET {bucket}/streams/records: the hot rest of a scan, message by message."""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import GoneError, NotFoundError, OffsetGoneError
from holdfast.http.awaiting import answer_of
from holdfast.http.change_pages import check_cursor, name_of
from holdfast.http.scan_request import NDJSON_FIELDS, TURN_ENTRIES, scan_request
from holdfast.protocol.content import JSON, SEPARATOR

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.engine.journal import Change, JournalBatch
    from holdfast.engine.stream import Stream
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot
    from holdfast.http.scan_request import ScanRequest

_encode = msgspec.json.Encoder().encode


def records(app: App, request: Request, slot: Slot, name: str) -> None:
    """The hot rest of a scan: a line of JSON for each message, in the order of the log."""
    asked = scan_request(app, request, name)
    check_cursor(app, asked.after)
    # All of them now: the oldest may be gone before the first line is asked for.
    batches = [
        batch
        for batch in app.shard.state.journal.after(asked.after)
        if batch.position <= asked.until
    ]
    app.stream_answer(request, slot, NDJSON_FIELDS, _record_lines(app, asked, batches))


async def _record_lines(
    app: App, asked: ScanRequest, batches: list[JournalBatch]
) -> AsyncIterator[bytes]:
    state = app.shard.state
    examined = 0
    for batch in batches:
        lines: list[bytes] = []
        for change in batch.changes():
            examined += 1
            if examined % TURN_ENTRIES == 0:
                # Others have their turn, also where nothing concerns this bucket.
                await asyncio.sleep(0)
            name = name_of(state, change)
            if change.length and asked.covers(name):
                lines += await _message_lines(app, change, name[asked.skip :])
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
