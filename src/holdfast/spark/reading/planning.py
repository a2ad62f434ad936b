"""Plans: which slices a read of a bucket is made of.

The server's scan cuts what is in packs by streams; a part with a large stream in it is cut again,
and the stream itself by positions. What is not in packs yet is a slice of its own, or, where every
stream is wanted in one piece, belongs to the slice of its stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from holdfast.client import Client, ScanPartition, ScanPlan, ScanRange
from holdfast.errors import (
    BadAnswerError,
    BucketNotFoundError,
    CursorGoneError,
    GoneError,
    HoldfastError,
    MethodNotAllowedError,
    NotFoundError,
    SettingsError,
    StreamNotFoundError,
)
from holdfast.spark.connection import SparkClient
from holdfast.spark.reading.losses import lost
from holdfast.spark.reading.selection import EARLIEST, LATEST, Bound
from holdfast.spark.reading.slices import Slice, StreamSlice
from holdfast.spark.reading.source import Extent, Source

# As much as Spark puts into a partition of files: each partition costs some 50 ms of its own.
SLICE_BYTES: Final = 128 * 1024 * 1024
_SLICE_BYTES_MIN: Final = 1024 * 1024
_SLICE_BYTES_MAX: Final = 1024 * 1024 * 1024
# Streams that the server is asked about at one time.
_HEADS_MAX: Final = 32


@dataclass(frozen=True)
class Plan:
    """The slices of a read, and the cursor up to which they go."""

    source: Source
    slices: Sequence[Slice | StreamSlice]
    until: str


def plan_batch(server: SparkClient, source: Source, extent: Extent) -> Plan:
    """Everything between the two bounds of a batch read."""
    source = _with_offsets(source, extent)
    if extent.starting.cursor == LATEST:
        return Plan(source, (), "")
    after, until = _cursor(extent.starting), _cursor(extent.ending)
    if source.via != "http":
        try:
            plan = plan_between(
                server,
                source,
                after,
                until,
                min_partitions=extent.min_partitions,
                slice_bytes=extent.partition_bytes,
            )
        except HoldfastError as error:
            if not is_of_another_make(error):
                raise
        else:
            if not _is_forgetful(server, plan):
                return plan
    if after or until:
        raise SettingsError(
            f"{server.url} cannot tell what came after a cursor; give offsets of streams instead."
        )
    return Plan(source, plan_streams(server, source), "")


def plan_between(
    server: SparkClient,
    source: Source,
    after: str,
    until: str,
    *,
    min_partitions: int | None = None,
    slice_bytes: int | None = None,
    whole_streams: bool = False,
) -> Plan:
    """What was appended after one cursor and up to another.

    With `whole_streams` all messages of a stream are in the same slice, and in order.
    """
    size = min(max(slice_bytes or SLICE_BYTES, _SLICE_BYTES_MIN), _SLICE_BYTES_MAX)
    scanned = _scan(server, source, after, until, size)
    if min_partitions and len(scanned.partitions) < min_partitions:
        total = sum(each.bytes for each in scanned.partitions)
        smaller = max(total // min_partitions, _SLICE_BYTES_MIN)
        if smaller < size:
            size = smaller
            scanned = _scan(server, source, after, scanned.until, size)
    _check_losses(source, scanned, after)
    if not after:
        _check_starts(server, source)
    source = source.at(scanned.store, scanned.store_id)
    if whole_streams:
        return Plan(source, _by_streams(scanned), scanned.until)
    slices = [
        piece
        for each in scanned.partitions
        for piece in _cut(server, source, _of_packs(each, scanned), size)
    ]
    if scanned.hot is not None:
        start = int(scanned.hot.after)
        end, origin = int(scanned.hot.until), int(scanned.after)
        slices.append(Slice("", "", start, start, end, origin=origin))
    return Plan(source, slices, scanned.until)


def _scan(server: SparkClient, source: Source, after: str, until: str, size: int) -> ScanPlan:
    return server.run(
        lambda client: client.bucket(source.bucket).scan(
            after=after, until=until, prefix=source.selection.prefix, partition_bytes=size
        )
    )


def _of_packs(partition: ScanPartition, scanned: ScanPlan) -> Slice:
    return Slice(
        partition.first_stream_id,
        partition.last_stream_id,
        int(partition.after),
        int(scanned.flushed),
        int(partition.until),
        partition.bytes,
    )


def _by_streams(scanned: ScanPlan) -> list[Slice]:
    """Slices that leave no id out: new streams, which no pack has yet, are in one of them."""
    after, flushed, until = int(scanned.after), int(scanned.flushed), int(scanned.until)
    if not scanned.partitions:
        return [Slice("", "", after, flushed, until)] if after < until else []
    slices = []
    behind = ""
    for each in scanned.partitions:
        last = each.last_stream_id
        slices.append(Slice(behind, last, after, flushed, until, each.bytes, behind))
        behind = last
    slices[-1] = replace(slices[-1], last="")
    return slices


def _cut(server: SparkClient, source: Source, whole: Slice, size: int) -> list[Slice]:
    """A slice that is too large, as several: by streams, and large streams by positions."""
    if whole.size_bytes < 2 * size:
        return [whole]
    ranges = server.collect(
        lambda client: client.bucket(source.bucket).ranges(
            after=f"{whole.after:020d}",
            until=f"{whole.until:020d}",
            prefix=source.selection.prefix,
            first=whole.first,
            last=whole.last,
        )
    )
    slices: list[Slice] = []
    # Streams that come one behind the other, together not too large.
    held: Slice | None = None
    for stream_id, group in groupby(ranges, key=lambda each: each.stream_id):
        if not source.selection.wants(stream_id):
            continue
        of_stream = list(group)
        bytes_of_stream = sum(each.length for each in of_stream)
        if held is not None and held.size_bytes + bytes_of_stream <= size:
            held = replace(held, last=stream_id, size_bytes=held.size_bytes + bytes_of_stream)
            continue
        slices += [held] if held is not None else []
        held = replace(whole, first=stream_id, last=stream_id, size_bytes=bytes_of_stream)
        if bytes_of_stream >= 2 * size:
            slices += _by_positions(held, of_stream, size)
            held = None
    return [*slices, held] if held is not None else slices


def _by_positions(whole: Slice, ranges: Sequence[ScanRange], size: int) -> list[Slice]:
    """A slice of one large stream as several, one behind the other."""
    whole = replace(whole, origin=whole.after)
    slices, after, held = [], whole.after, 0
    for each in ranges:
        if held and held + each.length > size and after < each.first_position - 1:
            behind = each.first_position - 1
            slices.append(replace(whole, after=after, until=behind, size_bytes=held))
            after, held = behind, 0
        held += each.length
    return [*slices, replace(whole, after=after, size_bytes=held)]


def _check_losses(source: Source, scanned: ScanPlan, after: str) -> None:
    """Raise if something between the cursors is gone, and that is not fine."""
    gone = [each for each in scanned.lost if source.selection.wants(each)]
    if not (gone and after and source.fail_on_data_loss):
        return
    raise lost(source.bucket, gone)


def _check_starts(server: SparkClient, source: Source) -> None:
    """Raise if streams do not reach back to where they are to be read from, and that is not fine.

    Those in packs tell by themselves when they are read, others do not.
    """
    wants, starts = source.selection.wants, source.selection.starts
    asked = {each: start for each, start in starts.items() if start and wants(each)}
    if not (asked and source.fail_on_data_loss):
        return
    gone = server.run(lambda client: _trimmed(client, source.bucket, asked))
    if gone:
        raise lost(source.bucket, gone)


async def _trimmed(client: Client, bucket: str, starts: Mapping[str, int]) -> list[str]:
    slots = asyncio.Semaphore(_HEADS_MAX)

    async def is_trimmed(stream_id: str, start: int) -> bool:
        try:
            async with slots:
                head = await client.stream(f"{bucket}/{stream_id}").head()
        except (StreamNotFoundError, GoneError):
            return False
        return start < int(head.earliest_offset or 0)

    found = await asyncio.gather(*(is_trimmed(*each) for each in starts.items()))
    return [each for each, is_one in zip(starts, found, strict=True) if is_one]


def _with_offsets(source: Source, extent: Extent) -> Source:
    selection = replace(
        source.selection, starts=extent.starting.offsets, ends=extent.ending.offsets
    )
    return replace(source, selection=selection)


def _cursor(bound: Bound) -> str:
    """The cursor of a bound as a scan takes it, empty for the earliest and the latest."""
    return "" if bound.cursor in {EARLIEST, LATEST} else bound.cursor


def _is_forgetful(server: SparkClient, plan: Plan) -> bool:
    """Whether the server has no packs, and has forgotten what its streams began with."""
    if plan.source.store_id or not plan.slices:
        return False
    (hot,) = plan.slices
    assert isinstance(hot, Slice)

    async def first(client: Client) -> None:
        bucket = client.bucket(plan.source.bucket)
        place, prefix = f"{hot.after:020d}", plan.source.selection.prefix
        async for _ in bucket.records(after=place, until=place, prefix=prefix):
            break

    try:
        server.run(first)
    except CursorGoneError:
        return True
    return False


def is_of_another_make(error: HoldfastError) -> bool:
    """Whether it says that the server has streams, and knows nothing of buckets as a whole."""
    if isinstance(error, BucketNotFoundError):
        return False
    return isinstance(error, NotFoundError | MethodNotAllowedError | BadAnswerError)


def plan_streams(server: SparkClient, source: Source) -> list[StreamSlice]:
    """The streams of a server that has no scans: each as it is now."""
    return server.run(lambda client: _stream_slices(client, source))


async def _stream_slices(client: Client, source: Source) -> list[StreamSlice]:
    selection = source.selection
    if selection.streams is not None:
        ids = sorted(selection.streams)
    else:
        try:
            listed = client.bucket(source.bucket).streams(prefix=selection.prefix)
            ids = [each.stream_id async for each in listed if selection.wants(each.stream_id)]
        except HoldfastError as error:
            if not is_of_another_make(error):
                raise
            raise SettingsError(
                f"{client.url} does not list its streams; name them with the option 'streams'."
            ) from None
    found = [await _stream_slice(client, source, stream_id) for stream_id in ids]
    return [each for each in found if each is not None]


async def _stream_slice(client: Client, source: Source, stream_id: str) -> StreamSlice | None:
    """A stream as it is now; None if it is not there, and that is fine."""
    try:
        head = await client.stream(f"{source.bucket}/{stream_id}").head()
    except (StreamNotFoundError, GoneError):
        # One that is not named was listed a moment ago, and deleted since.
        if source.selection.streams is not None and source.fail_on_data_loss:
            raise
        return None
    # Others than our server begin with -1, whatever they still have.
    earliest = head.earliest_offset or "-1"
    start = source.selection.starts.get(stream_id)
    end = source.selection.ends.get(stream_id)
    # Who asks for the beginning takes what there is.
    begin = f"{start:020d}" if start else earliest
    if begin < earliest:
        if source.fail_on_data_loss:
            raise lost(source.bucket, [stream_id])
        begin = earliest
    return StreamSlice(
        stream_id,
        begin,
        head.next_offset if end is None else min(f"{end:020d}", head.next_offset),
    )
