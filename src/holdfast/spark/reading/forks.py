"""What forks inherit: planning it on the driver, reading it on executors.

It counts as appended when the fork was created, so a read between two cursors has all of it or
nothing. The server resolves it, through sources that may be deleted or in other buckets, and sends
the messages under the fork's own id.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from contextlib import closing
from functools import partial

from holdfast.client import Client, Record
from holdfast.spark.connection import SparkClient
from holdfast.spark.reading.arrow import BATCH_BYTES, ROW_BYTES
from holdfast.spark.reading.source import ReadSource, Slice

# A stream, and an offset in it.
Place = tuple[str, int]


def plan_forks(
    server: SparkClient, source: ReadSource, after: str, until: str, size_bytes: int
) -> list[Slice]:
    """The slices with what the forks created between two cursors inherit."""
    if not source.forks:
        return []
    selection = source.selection
    bounds = selection.scan_bounds
    parts = server.bucket(source.bucket).forks(
        after=after,
        until=until,
        prefix=selection.prefix,
        first=bounds["first"],
        last=bounds["last"],
        partition_bytes=size_bytes,
    )
    return [
        Slice(
            each.first_stream_id,
            each.last_stream_id,
            int(after),
            int(after),
            int(until),
            each.bytes,
            is_inherited=True,
        )
        for each in parts
        if selection.intersects(each.first_stream_id, each.last_stream_id)
    ]


def inherited_records(
    source: ReadSource, server: SparkClient, part: Slice
) -> Generator[list[Record]]:
    """The messages of such a slice, by stream id and offset, in groups."""
    with closing(server.resume(partial(_groups, source, part), ("", 0))) as groups:
        for _, records in groups:
            yield records


async def _groups(
    source: ReadSource, part: Slice, client: Client, done: Place
) -> AsyncIterator[tuple[Place, list[Record]]]:
    """Wanted records from a stream and an offset in it on, each time with where to go on."""
    selection = source.selection
    held: list[Record] = []
    size = 0
    for first, last in source.id_bounds(part):
        if last and last < done[0]:
            continue
        async for each in client.bucket(source.bucket).inherited(
            after=f"{part.after:020d}",
            until=f"{part.until:020d}",
            prefix=selection.prefix,
            first=max(first, done[0]),
            last=last,
            **selection.scan_times,
        ):
            if (each.stream_id, each.offset) < done or not selection.includes(each.stream_id):
                continue
            start, end = selection.window(each.stream_id, 0)
            if start <= each.offset < end:
                held.append(each)
                size += len(each.payload) + ROW_BYTES
            if size >= BATCH_BYTES:
                yield (each.stream_id, each.next_offset), held
                held, size = [], 0
    if held:
        yield (held[-1].stream_id, held[-1].next_offset), held
