"""GET {bucket}/streams/scan and what belongs to it: a bucket as a plan of parallel reads.

A plan covers the positions (after, until]. What is in packs by then is divided either by packs or
by stream names (`storage/catalog_plan.py`), and jobs read the packs straight from the object store.

- By packs, for large reads: a job opens the packs of its part and finds its messages there. What a
  pack does not say, such as which streams are deleted, it gets from `…/scan/pack`.
- By names, for small reads and those that need whole streams: a job asks for the ranges of its
  partition (`…/scan/ranges`), which say where in which pack the bytes are.

If a pack was merged away meanwhile, the job asks again. What is not in packs yet is returned by
`…/records` (`scan_journal.py`).

A scan returns what there is now: nothing of streams that are deleted or have expired, whatever the
packs hold. A job that reads a bucket in steps may have to know that something was appended and
never seen by it: the plan lists such streams as lost. The journal knows of appends and deletions as
far as it goes back, and the catalog knows of trimmed streams; there may be more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from holdfast.engine.journal import ENDINGS
from holdfast.errors import InvalidRequestError
from holdfast.format.records import INDEX_BITS
from holdfast.http.buckets import find_bucket
from holdfast.http.changes import parse_cursor
from holdfast.http.exchange import int_parameter, parse_query
from holdfast.http.responses import encode_json, respond_json
from holdfast.http.storage_routes import (
    NDJSON_HEADERS,
    catalog_of,
    cursor_text,
    lines_in_thread,
    pack_name,
    store_id,
    store_url,
)
from holdfast.protocol.headers import OFFSET_MAX, is_decimal
from holdfast.storage.catalog_plan import PackPlan, ScanPlanner
from holdfast.storage.catalog_scan import CatalogScan, Scanned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from holdfast.engine.journal import JournalBatch
    from holdfast.engine.state import State
    from holdfast.format.rows import StreamRow
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot
    from holdfast.storage.catalog import Catalog

T = TypeVar("T")
# Journal entries examined before the event loop gets its turn.
TURN_ENTRIES: Final = 1000
_MIB: Final = 1024 * 1024
PARTITION_BYTES: Final = 64 * _MIB
PARTITION_BYTES_MIN: Final = _MIB
PARTITION_BYTES_MAX: Final = 1024 * _MIB
PARTITIONS_MAX: Final = 100_000
_TIME_MAX_MS: Final = 10**18 - 1
# Streams listed as lost.
LOST_MAX: Final = 10_000
_LOST: Final = 100
# Streams whose names one request for a pack asks for.
NUMBERS_MAX: Final = 1000
_MSGPACK_HEADERS: Final = b"Content-Type: application/vnd.msgpack\r\nCache-Control: no-store\r\n"


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
    # Messages appended before or after these times are not needed.
    from_ms: int | None = None
    to_ms: int | None = None

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

    def covers_time(self, at_ms: int) -> bool:
        return (self.from_ms is None or at_ms >= self.from_ms) and (
            self.to_ms is None or at_ms <= self.to_ms
        )

    @property
    def scanned(self) -> Scanned:
        """The same for the catalog."""
        return Scanned(self.prefix, self.after, self.until, self.first, self.last, self.skip)


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
        int_parameter(query, "from_ms", 0, _TIME_MAX_MS),
        int_parameter(query, "to_ms", 0, _TIME_MAX_MS),
    )


async def in_thread(scan: CatalogScan, work: Callable[[], T]) -> T:
    """Run a part of a scan in a thread, until its client leaves."""
    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        scan.cancel()
        raise


async def hidden_streams(app: App, catalog: Catalog) -> dict[int, int]:
    """From which offsets streams can be read, where the catalog may not know it.

    They were deleted or trimmed since the last flush, or their time is up.
    """
    state = app.shard.state
    # Copied before the catalog is read: a flush may come in between.
    hidden = state.hidden | dict.fromkeys(state.removed_numbers, OFFSET_MAX)
    scan = CatalogScan(catalog.path, Scanned("", 0, 0))
    now_ms = app.clock.now_ms()
    due = await in_thread(scan, lambda: scan.due(now_ms))
    for number in due:
        stream = state.by_number.get(number)
        # A stream in memory may have been renewed.
        if stream is None or app.shard.lifetimes.has_ended(stream):
            hidden[number] = OFFSET_MAX
    return hidden


class Partition(msgspec.Struct):
    """Streams from one id to another, both included, and what to expect of them."""

    shard: int
    first_stream_id: str
    last_stream_id: str
    after: str
    until: str
    bytes: int
    ranges: int


class HotRange(msgspec.Struct):
    """Streams with messages that are not in packs yet, from one id to another, both included."""

    shard: int
    first_stream_id: str
    last_stream_id: str
    after: str
    until: str
    bytes: int


class PlanRequest(NamedTuple):
    """How to divide a scan, and what counts as lost."""

    scan: ScanRequest
    by: str | None
    partition_bytes: int
    partitions_min: int
    # What went before this position is not missed.
    since: int
    # How many streams with lost messages are named, the first ones by name.
    lost_max: int


def scan(app: App, request: Request, slot: Slot, name: str) -> None:
    """Respond with the plan."""
    wanted = scan_request(app, request, name)
    query = parse_query(request.query)
    by = query.get("by")
    if by not in {None, "names", "packs"}:
        raise InvalidRequestError(f"Unknown way {by[:40]!r} to divide a scan: use names or packs.")
    since = parse_cursor(query.get("since", cursor_text(wanted.after)), wanted.until)
    size = int_parameter(query, "partition_bytes", PARTITION_BYTES_MIN, PARTITION_BYTES_MAX)
    plan = PlanRequest(
        wanted,
        by,
        size or PARTITION_BYTES,
        int_parameter(query, "partitions", 1, PARTITIONS_MAX) or 1,
        max(wanted.after, since),
        int_parameter(query, "lost", 1, LOST_MAX) or _LOST,
    )
    app.spawn(_respond_plan(app, slot, plan), slot)


async def _respond_plan(app: App, slot: Slot, plan: PlanRequest) -> None:
    request = plan.scan
    catalog = app.shard.catalog
    flushed = 0 if catalog is None else min(catalog.flushed, request.until)
    # First of all: a flush may take what is hot now from the journal.
    hot = await _hot_ranges(
        app.shard.state,
        plan._replace(scan=request._replace(after=max(request.after, flushed))),
    )
    traces = await find_traces(app.shard.state, request, plan.since)
    lost = lost_in_memory(app.shard.state, request, traces, plan.since)
    packed, partitions = PackPlan([], []), list[Partition]()
    if catalog is not None and request.after < flushed:
        packed, partitions = await _divide(
            catalog, plan._replace(scan=request._replace(until=flushed))
        )
    if catalog is not None and request.after:
        scan = CatalogScan(catalog.path, request.scanned)
        lost |= await in_thread(scan, lambda: lost_in_packs(scan, request, traces, plan))
    document = {
        "bucket_id": request.bucket,
        "prefix": request.prefix[request.skip :],
        "after": cursor_text(request.after),
        "until": cursor_text(request.until),
        "flushed": cursor_text(flushed),
        "store": store_url(app),
        "store_id": store_id(app),
        "partitions": partitions,
        "packs": packed.packs,
        "parts": packed.parts,
        "hot": hot,
        "lost": sorted(lost)[: plan.lost_max],
        "next_cursor": cursor_text(request.until),
    }
    slot.on_gone = None
    respond_json(slot, document)


async def _divide(catalog: Catalog, plan: PlanRequest) -> tuple[PackPlan, list[Partition]]:
    """Divide what is in packs, by packs or by names."""
    planner = ScanPlanner(catalog.path, plan.scan.scanned)

    def divide() -> tuple[PackPlan, list[Partition]]:
        request, size = plan.scan, (plan.partition_bytes, plan.partitions_min)
        positions = planner.narrow(request.from_ms, request.to_ms)
        if plan.by == "packs" or (plan.by is None and planner.is_large()):
            return planner.by_packs(*size), []
        after, until = map(cursor_text, positions)
        return PackPlan([], []), [
            Partition(
                0,
                each.first[request.skip :],
                each.last[request.skip :],
                after,
                until,
                each.size_bytes,
                each.ranges,
            )
            for each in planner.by_names(*size)
        ]

    return await in_thread(planner, divide)


async def _hot_ranges(state: State, plan: PlanRequest) -> list[HotRange]:
    """Divide what is not in packs yet by names."""
    request = plan.scan
    sizes: dict[int, int] = {}
    examined = 0
    for batch in state.journal.between(request.after, request.until):
        for number, length in zip(batch.streams, batch.lengths, strict=True):
            if length:
                sizes[number] = sizes.get(number, 0) + length
        examined += len(batch.streams)
        if examined >= TURN_ENTRIES:
            examined = 0
            await asyncio.sleep(0)
    named = []
    for at, (number, size) in enumerate(sizes.items()):
        name = state.name_of(number)
        if name is not None and request.covers(name):
            named.append((name[request.skip :], size))
        if at % TURN_ENTRIES == 0:
            await asyncio.sleep(0)
    named.sort()
    total = sum(size for _, size in named)
    part_bytes = min(plan.partition_bytes, max(_MIB, total // plan.partitions_min))
    after, until = cursor_text(request.after), cursor_text(request.until)
    found: list[HotRange] = []
    for stream_id, size in named:
        if not found or (found[-1].bytes + size > part_bytes):
            found.append(HotRange(0, stream_id, stream_id, after, until, 0))
        found[-1].last_stream_id = stream_id
        found[-1].bytes += size
    return found


def scan_ranges(app: App, request: Request, slot: Slot, name: str) -> None:
    """Respond with a line of JSON for each range of each stream: where its bytes are."""
    wanted = scan_request(app, request, name)
    catalog = catalog_of(app)
    app.respond_streamed(request, slot, NDJSON_HEADERS, _range_lines(app, catalog, wanted))


async def _range_lines(app: App, catalog: Catalog, request: ScanRequest) -> AsyncIterator[bytes]:
    found = CatalogScan(catalog.path, request.scanned, await hidden_streams(app, catalog))
    try:
        async for piece in lines_in_thread(map(encode_json, found.ranges())):
            yield piece
    finally:
        # The client may have left while a thread reads on.
        found.cancel()


def scan_pack(app: App, request: Request, slot: Slot, name: str) -> None:
    """Respond with what the server knows of a pack's streams, as MessagePack."""
    query = parse_query(request.query)
    find_bucket(app, name[:-1])
    catalog = catalog_of(app)
    pack = pack_name(query)
    first = int_parameter(query, "first_stream", 0, OFFSET_MAX) or 0
    last = int_parameter(query, "last_stream", 0, OFFSET_MAX)
    numbers = [each for each in query.get("numbers", "").split(",") if each]
    if len(numbers) > NUMBERS_MAX or not all(map(is_decimal, numbers)):
        raise InvalidRequestError(
            f"The parameter 'numbers' takes up to {NUMBERS_MAX} stream numbers, with commas."
        )
    prefix = name + query.get("prefix", "")
    wanted = ScanRequest(name[:-1], prefix, 0, app.shard.state.journal.last)
    streams = first, OFFSET_MAX if last is None else last, [int(each) for each in numbers]
    app.spawn(_respond_pack(app, slot, catalog, wanted, pack, streams), slot)


async def _respond_pack(
    app: App,
    slot: Slot,
    catalog: Catalog,
    request: ScanRequest,
    pack: str,
    streams: tuple[int, int, list[int]],
) -> None:
    hidden = await hidden_streams(app, catalog)
    found = CatalogScan(catalog.path, request.scanned, hidden)
    answer = await in_thread(found, lambda: found.pack_streams(pack, *streams, request.until))
    slot.on_gone = None
    slot.respond(200, _MSGPACK_HEADERS, msgspec.msgpack.encode(answer))


class Traces(NamedTuple):
    """What the journal knows of the positions of a scan."""

    # The offset of the first bytes that a stream gained in them, by stream number.
    gained: dict[int, int]
    # Names of streams that ended since, by number.
    ended: dict[int, str]


async def find_traces(state: State, request: ScanRequest, since: int) -> Traces:
    """Go through the journal; a scan from the start cannot miss anything."""
    traces = Traces({}, {})
    if not request.after:
        return traces
    journal = state.journal
    examined = 0
    for batch in list(journal.after(max(request.after, journal.earliest))):
        _follow(batch, traces, since, counts=batch.position <= request.until)
        examined += len(batch.streams)
        if examined >= TURN_ENTRIES:
            examined = 0
            await asyncio.sleep(0)
    return traces


def _follow(batch: JournalBatch, traces: Traces, since: int, *, counts: bool) -> None:
    gained, ended = traces
    if batch.rare:
        for change in batch.changes():
            if change.kind in ENDINGS:
                if batch.position > since:
                    ended[change.stream] = change.name
            elif counts and change.length and change.stream not in gained:
                gained[change.stream] = change.offset
    elif counts:
        for number, end, length in zip(batch.streams, batch.ends, batch.lengths, strict=True):
            if length and number not in gained:
                gained[number] = end - length


def lost_in_memory(state: State, request: ScanRequest, traces: Traces, since: int) -> set[str]:
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
        if (
            stream is not None
            and offset < stream.earliest
            and stream.hidden_at > since
            and request.covers(stream.meta.name)
        ):
            found.add(stream.meta.name[request.skip :])
    return found


def lost_in_packs(
    scan: CatalogScan, request: ScanRequest, traces: Traces, plan: PlanRequest
) -> set[str]:
    """Ids of streams that the catalog knows to have lost something; blocks on it."""
    gained, ended = traces
    since = plan.since
    names = set(scan.lost(since, plan.lost_max))
    names |= {ended[number] for number in scan.has_extents(list(ended))}
    for number, visible_from, name in scan.visible_from(list(gained), since):
        if gained[number] < visible_from:
            names.add(name)
    created = {
        row.meta.name
        for row in scan.trimmed_since((request.after + 1) << INDEX_BITS, since)
        if row.earliest > _begin(row)
    }
    # Checked last: the rows must describe a state no later than `until`.
    if scan.flushed() <= request.until:
        names |= created
    return {name[request.skip :] for name in names if request.covers(name)}


def _begin(row: StreamRow) -> int:
    """The offset of a stream's first own byte."""
    return 0 if row.meta.fork is None else row.meta.fork.offset
