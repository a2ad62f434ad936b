"""GET {bucket}/streams/scan and its ranges: a bucket as a plan of parallel reads.

A plan covers the positions (after, until]. What is in packs by then is cut into partitions by the
names of the streams: whoever works on one asks for its ranges, which say where in which pack the
bytes are, and reads the packs straight from the object store. A pack can be merged away meanwhile;
then the ranges are asked for again. What is not in packs yet is the hot rest, and one request gives
its records.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.http.health import JSON_FIELDS
from holdfast.http.query import parse_query
from holdfast.http.scan_lost import Traces, find_traces, is_lost, lost_in_memory, lost_in_packs
from holdfast.http.scan_request import (
    NDJSON_FIELDS,
    catalog_of,
    cursor_text,
    lines_in_thread,
    scan_request,
    whole_number,
)
from holdfast.http.store_url import store_id, store_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot
    from holdfast.http.scan_request import ScanRequest
    from holdfast.storage.catalog import Catalog
    from holdfast.storage.catalog_scan import ScanRange

_encode = msgspec.json.Encoder().encode
_MIB: Final = 1024 * 1024
PARTITION_BYTES: Final = 64 * _MIB
PARTITION_BYTES_MIN: Final = _MIB
PARTITION_BYTES_MAX: Final = 1024 * _MIB
_PARTITION_RANGES: Final = 100_000
# Streams that are named as lost.
LOST_MAX: Final = 100


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
    size = whole_number(query, "partition_bytes", PARTITION_BYTES_MIN, PARTITION_BYTES_MAX)
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
    slot.answer(200, JSON_FIELDS, _encode(found))


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
        for each in catalog.scan(asked.prefix, asked.after, asked.until, also_gone=True):
            stream_id = each.name[asked.skip :]
            if asked.after and len(self._lost) < LOST_MAX and is_lost(each, asked, self._traces):
                self._lost.add(stream_id)
            if not each.gone:
                self._add(each, stream_id)
        return self._found

    def _add(self, each: ScanRange, stream_id: str) -> None:
        found = self._found
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
    ranges = catalog.scan(asked.prefix, asked.after, asked.until, asked.first, asked.last)
    pieces = lines_in_thread(_range_lines(ranges, asked.skip))
    app.stream_answer(request, slot, NDJSON_FIELDS, pieces)


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
                "data_at": each.data_at,
                "message_at": each.message_at,
                "messages": each.messages,
                "index_sum": each.sums[:8].hex(),
                "sums": each.sums[8:].hex(),
                "salt": salt_text(each.salt),
                "pack_data_bytes": each.pack_data_bytes,
                "pack_messages": each.pack_messages,
            }
        )


def salt_text(salt: bytes) -> str:
    """A pack's salt as its name has it: a number in hexadecimal digits."""
    return f"{int.from_bytes(salt, 'little'):016x}"
