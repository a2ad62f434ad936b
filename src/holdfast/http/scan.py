"""What the routes of a scan have in common: what is asked for, and answers of many lines."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.errors import InvalidRequestError
from holdfast.format.records import INDEX_BITS, Kind
from holdfast.http.buckets import find_bucket
from holdfast.http.changes import parse_cursor
from holdfast.http.exchange import int_parameter, parse_query
from holdfast.http.responses import JSON_HEADERS
from holdfast.http.storage_routes import (
    NDJSON_HEADERS,
    catalog_of,
    cursor_text,
    lines_in_thread,
    store_id,
    store_url,
)
from holdfast.storage.catalog_scan import Scanned

if TYPE_CHECKING:
    from holdfast.engine.journal import JournalBatch
    from holdfast.engine.state import State
    from holdfast.format.packs import ScanRange
    from holdfast.format.rows import StreamRow
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot
    from holdfast.storage.catalog import Catalog

# Entries of the journal that are looked at before others have their turn.
TURN_ENTRIES: Final = 1000
_encode = msgspec.json.Encoder().encode
_MIB: Final = 1024 * 1024
PARTITION_BYTES: Final = 64 * _MIB
PARTITION_BYTES_MIN: Final = _MIB
PARTITION_BYTES_MAX: Final = 1024 * _MIB
_PARTITION_RANGES: Final = 100_000
# Streams that are named as lost.
LOST_MAX: Final = 100


class ScanRequest(NamedTuple):
    """What is to be scanned: streams of a bucket, and the positions (after, until]."""

    bucket: str
    # The beginning of the names that count, the bucket's included.
    prefix: str
    after: int
    until: int
    # The first and the last name, both included.
    first: str = ""
    last: str | None = None

    @property
    def skip(self) -> int:
        """How much of a name is not the stream's id."""
        return len(self.bucket) + 1

    def covers(self, name: str) -> bool:
        """Whether a stream of this name is asked for."""
        return (
            name.startswith(self.prefix)
            and name >= self.first
            and (self.last is None or name <= self.last)
        )


def scan_request(app: App, request: Request, name: str) -> ScanRequest:
    """What a request asks for; `name` is the bucket and a slash."""
    query = parse_query(request.query)
    find_bucket(app, name[:-1])
    end = app.shard.state.journal.last
    after = parse_cursor(query.get("after"), end)
    until = parse_cursor(query.get("until", "now"), end)
    if until > end:
        raise InvalidRequestError("The cursor in 'until' is past the end of the log.")
    if after > until:
        raise InvalidRequestError("The cursor in 'after' is behind the one in 'until'.")
    last = query.get("last")
    return ScanRequest(
        name[:-1],
        name + query.get("prefix", ""),
        after,
        until,
        name + query.get("first", ""),
        None if last is None else name + last,
    )


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


def scan(app: App, request: Request, slot: Slot, name: str) -> None:
    """Answer with the plan."""
    asked = scan_request(app, request, name)._replace(first="", last=None)
    query = parse_query(request.query)
    size = int_parameter(query, "partition_bytes", PARTITION_BYTES_MIN, PARTITION_BYTES_MAX)
    app.spawn(_plan(app, slot, asked, size or PARTITION_BYTES), slot)


async def _plan(app: App, slot: Slot, asked: ScanRequest, partition_bytes: int) -> None:
    traces = await find_traces(app.shard.state, asked)
    lost = lost_in_memory(app.shard.state, asked, traces)
    catalog = app.shard.catalog
    flushed = 0 if catalog is None else min(catalog.flushed, asked.until)
    partitions: list[Partition] = []
    if catalog is not None and asked.after < flushed:
        work = _Partitions(asked._replace(until=flushed), partition_bytes, traces, lost)
        partitions = await asyncio.to_thread(work.cut, catalog)
    if catalog is not None and asked.after:
        lost |= await asyncio.to_thread(lost_in_packs, catalog, asked, traces)
    hot_after = max(asked.after, flushed)
    found = {
        "bucket_id": asked.bucket,
        "prefix": asked.prefix[asked.skip :],
        "after": cursor_text(asked.after),
        "until": cursor_text(asked.until),
        "flushed": cursor_text(flushed),
        "store": store_url(app),
        "store_id": store_id(app),
        "partitions": partitions,
        "hot": None
        if hot_after >= asked.until
        else {"shard": 0, "after": cursor_text(hot_after), "until": cursor_text(asked.until)},
        "lost": sorted(lost)[:LOST_MAX],
        "next_cursor": cursor_text(asked.until),
    }
    slot.on_gone = None
    slot.respond(200, JSON_HEADERS, _encode(found))


class _Partitions:
    """Cuts what the catalog has into partitions of about a size."""

    def __init__(
        self, asked: ScanRequest, partition_bytes: int, traces: Traces, lost: set[str]
    ) -> None:
        self._asked = asked
        self._partition_bytes = partition_bytes
        self._traces = traces
        self._lost = lost
        self._found: list[Partition] = []
        self._packs: set[str] = set()

    def cut(self, catalog: Catalog) -> list[Partition]:
        """The partitions; for a thread."""
        asked = self._asked
        scanned = Scanned(asked.prefix, asked.after, asked.until, skip=asked.skip)
        for each, gone in catalog.scanning(scanned).ranges():
            if (
                asked.after
                and len(self._lost) < LOST_MAX
                and is_lost(each, asked, self._traces, gone=gone)
            ):
                self._lost.add(each.stream_id)
            if not gone:
                self._add(each)
        return self._found

    def _add(self, each: ScanRange) -> None:
        found, stream_id = self._found, each.stream_id
        full = found and (
            found[-1].bytes >= self._partition_bytes or found[-1].ranges >= _PARTITION_RANGES
        )
        if not found or (full and stream_id != found[-1].last_stream_id):
            self._packs = set()
            after, until = cursor_text(self._asked.after), cursor_text(self._asked.until)
            found.append(Partition(0, stream_id, stream_id, after, until, 0, 0, []))
        partition = found[-1]
        partition.last_stream_id = stream_id
        partition.bytes += each.length
        partition.ranges += 1
        if each.pack not in self._packs:
            self._packs.add(each.pack)
            partition.packs.append(each.pack)


def scan_ranges(app: App, request: Request, slot: Slot, name: str) -> None:
    """Where the bytes of a partition are: a line of JSON for each range of each stream."""
    asked = scan_request(app, request, name)
    catalog = catalog_of(app)
    scanned = Scanned(asked.prefix, asked.after, asked.until, asked.first, asked.last, asked.skip)
    pieces = lines_in_thread(map(_encode, catalog.scan(scanned)))
    app.respond_streamed(request, slot, NDJSON_HEADERS, pieces)


class Traces(NamedTuple):
    """What the journal has of a stretch of the log."""

    # Where the first bytes start that a stream gained in it, by the stream's number.
    gained: dict[int, int]
    # Names of streams that ended since it began, by number.
    ended: dict[int, str]


async def find_traces(state: State, asked: ScanRequest) -> Traces:
    """Go through the journal; nothing for a scan from the start, which cannot miss anything."""
    traces = Traces({}, {})
    if not asked.after:
        return traces
    journal = state.journal
    examined = 0
    for batch in list(journal.after(max(asked.after, journal.earliest))):
        _follow(batch, traces, counts=batch.position <= asked.until)
        examined += len(batch.streams)
        if examined >= TURN_ENTRIES:
            examined = 0
            await asyncio.sleep(0)
    return traces


def _follow(batch: JournalBatch, traces: Traces, *, counts: bool) -> None:
    gained, ended = traces
    if batch.rare:
        for change in batch.changes():
            if change.kind in {Kind.DELETE, Kind.EXPIRE}:
                ended[change.stream] = change.name
            elif counts and change.length and change.stream not in gained:
                gained[change.stream] = change.offset
    elif counts:
        for number, end, length in zip(batch.streams, batch.ends, batch.lengths, strict=True):
            if length and number not in gained:
                gained[number] = end - length


def lost_in_memory(state: State, asked: ScanRequest, traces: Traces) -> set[str]:
    """Ids of streams that gained something and ended, or were trimmed, as far as memory knows."""
    gained, ended = traces
    found = {
        name[asked.skip :]
        for number, name in ended.items()
        if number in gained and asked.covers(name)
    }
    by_number = state.by_number
    for number, offset in gained.items():
        stream = by_number.get(number)
        if stream is not None and offset < stream.earliest and asked.covers(stream.meta.name):
            found.add(stream.meta.name[asked.skip :])
    return found


def is_lost(each: ScanRange, asked: ScanRequest, traces: Traces, *, gone: bool) -> bool:
    """Whether something of an extent was appended in the stretch, and is gone now."""
    starts_within = each.first_position > asked.after
    is_within = starts_within or each.last_position <= asked.until
    if gone or each.stream in traces.ended:
        return is_within
    return starts_within and each.offset < each.earliest


def lost_in_packs(catalog: Catalog, asked: ScanRequest, traces: Traces) -> set[str]:
    """Ids of trimmed streams that left no extent in the stretch; for a thread."""
    scan = catalog.scanning(Scanned(asked.prefix, asked.after, asked.until))
    found = {
        row.meta.name[asked.skip :]
        for row in scan.trimmed_of(list(traces.gained))
        if traces.gained[row.number] < row.earliest
    }
    created = {
        row.meta.name[asked.skip :]
        for row in scan.trimmed_since((asked.after + 1) << INDEX_BITS)
        if row.earliest > _begin(row)
    }
    # Asked last: what the rows tell of must have happened by the end of the stretch.
    return found | created if scan.flushed() <= asked.until else found


def _begin(row: StreamRow) -> int:
    """Where a stream's own bytes began."""
    return 0 if row.meta.fork is None else row.meta.fork.offset
