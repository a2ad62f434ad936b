"""GET {bucket}/streams/scan and its ranges: a bucket as a plan of parallel reads.

A plan covers the positions (after, until]. What is in packs by then is cut into partitions by
stream names. A job asks for the ranges of a partition, which say where in which pack the bytes
are, and reads the packs straight from the object store; if a pack was merged away meanwhile, it
asks for the ranges again. What is not in packs yet is returned by `…/records` (`scan_journal.py`).

A scan returns what there is now. A job that reads a bucket in steps may have to know that something
was appended and never seen by it: the plan lists such streams as lost. The journal knows of appends
and deletions as far as it goes back, and the catalog knows of trimmed streams; there may be more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.errors import InvalidRequestError
from holdfast.format.records import INDEX_BITS, Kind
from holdfast.http.buckets import find_bucket
from holdfast.http.changes import parse_cursor
from holdfast.http.exchange import int_parameter, parse_query
from holdfast.http.responses import encode_json, respond_json
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

# Journal entries examined before the event loop gets its turn.
TURN_ENTRIES: Final = 1000
_MIB: Final = 1024 * 1024
PARTITION_BYTES: Final = 64 * _MIB
PARTITION_BYTES_MIN: Final = _MIB
PARTITION_BYTES_MAX: Final = 1024 * _MIB
_PARTITION_RANGES: Final = 100_000
# Streams listed as lost.
LOST_MAX: Final = 100


class ScanRequest(NamedTuple):
    """Streams of a bucket, and the positions (after, until]."""

    bucket: str
    # The prefix of stream names, which includes the bucket.
    prefix: str
    after: int
    until: int
    # The first and the last name, both included.
    first: str = ""
    last: str | None = None

    @property
    def skip(self) -> int:
        """The length of the bucket and slash before a stream's id."""
        return len(self.bucket) + 1

    def covers(self, name: str) -> bool:
        return (
            name.startswith(self.prefix)
            and name >= self.first
            and (self.last is None or name <= self.last)
        )


def scan_request(app: App, request: Request, name: str) -> ScanRequest:
    """Parse the parameters of a scan; `name` is the bucket and a slash."""
    query = parse_query(request.query)
    find_bucket(app, name[:-1])
    end = app.shard.state.journal.last
    after = parse_cursor(query.get("after"), end)
    until = parse_cursor(query.get("until", "now"), end)
    if until > end:
        raise InvalidRequestError("The cursor in 'until' is past the end of the log.")
    if after > until:
        raise InvalidRequestError("The cursor in 'after' is past the one in 'until'.")
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
    """Respond with the plan."""
    wanted = scan_request(app, request, name)._replace(first="", last=None)
    query = parse_query(request.query)
    size = int_parameter(query, "partition_bytes", PARTITION_BYTES_MIN, PARTITION_BYTES_MAX)
    app.spawn(_plan(app, slot, wanted, size or PARTITION_BYTES), slot)


async def _plan(app: App, slot: Slot, request: ScanRequest, partition_bytes: int) -> None:
    traces = await find_traces(app.shard.state, request)
    lost = lost_in_memory(app.shard.state, request, traces)
    catalog = app.shard.catalog
    flushed = 0 if catalog is None else min(catalog.flushed, request.until)
    partitions: list[Partition] = []
    if catalog is not None and request.after < flushed:
        work = _Partitions(request._replace(until=flushed), partition_bytes, traces, lost)
        partitions = await asyncio.to_thread(work.cut, catalog)
    if catalog is not None and request.after:
        lost |= await asyncio.to_thread(lost_in_packs, catalog, request, traces)
    hot_after = max(request.after, flushed)
    document = {
        "bucket_id": request.bucket,
        "prefix": request.prefix[request.skip :],
        "after": cursor_text(request.after),
        "until": cursor_text(request.until),
        "flushed": cursor_text(flushed),
        "store": store_url(app),
        "store_id": store_id(app),
        "partitions": partitions,
        "hot": None
        if hot_after >= request.until
        else {"shard": 0, "after": cursor_text(hot_after), "until": cursor_text(request.until)},
        "lost": sorted(lost)[:LOST_MAX],
        "next_cursor": cursor_text(request.until),
    }
    slot.on_gone = None
    respond_json(slot, document)


class _Partitions:
    """Cuts the catalog's extents into partitions of about the same size."""

    def __init__(
        self, request: ScanRequest, partition_bytes: int, traces: Traces, lost: set[str]
    ) -> None:
        self._request = request
        self._partition_bytes = partition_bytes
        self._traces = traces
        self._lost = lost
        self._found: list[Partition] = []
        self._packs: set[str] = set()

    def cut(self, catalog: Catalog) -> list[Partition]:
        """The partitions; blocks on the catalog."""
        request = self._request
        scanned = Scanned(request.prefix, request.after, request.until, skip=request.skip)
        for each, gone in catalog.scanning(scanned).ranges():
            if (
                request.after
                and len(self._lost) < LOST_MAX
                and is_lost(each, request, self._traces, gone=gone)
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
            after, until = cursor_text(self._request.after), cursor_text(self._request.until)
            found.append(Partition(0, stream_id, stream_id, after, until, 0, 0, []))
        partition = found[-1]
        partition.last_stream_id = stream_id
        partition.bytes += each.length
        partition.ranges += 1
        if each.pack not in self._packs:
            self._packs.add(each.pack)
            partition.packs.append(each.pack)


def scan_ranges(app: App, request: Request, slot: Slot, name: str) -> None:
    """Respond with a line of JSON for each range of each stream: where its bytes are."""
    wanted = scan_request(app, request, name)
    catalog = catalog_of(app)
    scanned = Scanned(
        wanted.prefix, wanted.after, wanted.until, wanted.first, wanted.last, wanted.skip
    )
    pieces = lines_in_thread(map(encode_json, catalog.scan(scanned)))
    app.respond_streamed(request, slot, NDJSON_HEADERS, pieces)


class Traces(NamedTuple):
    """What the journal knows of the positions of a scan."""

    # The offset of the first bytes that a stream gained in them, by stream number.
    gained: dict[int, int]
    # Names of streams that ended since, by number.
    ended: dict[int, str]


async def find_traces(state: State, request: ScanRequest) -> Traces:
    """Go through the journal; a scan from the start cannot miss anything."""
    traces = Traces({}, {})
    if not request.after:
        return traces
    journal = state.journal
    examined = 0
    for batch in list(journal.after(max(request.after, journal.earliest))):
        _follow(batch, traces, counts=batch.position <= request.until)
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


def lost_in_memory(state: State, request: ScanRequest, traces: Traces) -> set[str]:
    """Ids of streams in memory that gained bytes and then ended or were trimmed."""
    gained, ended = traces
    found = {
        name[request.skip :]
        for number, name in ended.items()
        if number in gained and request.covers(name)
    }
    by_number = state.by_number
    for number, offset in gained.items():
        stream = by_number.get(number)
        if stream is not None and offset < stream.earliest and request.covers(stream.meta.name):
            found.add(stream.meta.name[request.skip :])
    return found


def is_lost(each: ScanRange, request: ScanRequest, traces: Traces, *, gone: bool) -> bool:
    """Whether bytes of an extent were appended within the scan's positions and are gone now."""
    starts_within = each.first_position > request.after
    is_within = starts_within or each.last_position <= request.until
    if gone or each.stream in traces.ended:
        return is_within
    return starts_within and each.offset < each.earliest


def lost_in_packs(catalog: Catalog, request: ScanRequest, traces: Traces) -> set[str]:
    """Ids of trimmed streams that left no extent in these positions; blocks on the catalog."""
    scan = catalog.scanning(Scanned(request.prefix, request.after, request.until))
    found = {
        row.meta.name[request.skip :]
        for row in scan.trimmed_of(list(traces.gained))
        if traces.gained[row.number] < row.earliest
    }
    created = {
        row.meta.name[request.skip :]
        for row in scan.trimmed_since((request.after + 1) << INDEX_BITS)
        if row.earliest > _begin(row)
    }
    # Checked last: the rows must describe a state no later than `until`.
    return found | created if scan.flushed() <= request.until else found


def _begin(row: StreamRow) -> int:
    """The offset of a stream's first own byte."""
    return 0 if row.meta.fork is None else row.meta.fork.offset
