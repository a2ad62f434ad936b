"""Planning, on the driver: the slices that a read of a bucket is made of.

The server divides packed messages by packs, or a few of them by stream ids. What it divided by ids
is cut again where it is large, a large stream by log positions. Messages that are not in packs yet
are slices of their own, or, where all messages of a stream have to be in one slice, belong to the
slice of their stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from holdfast.client import Client, ScanPlan, ScanRange
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
from holdfast.spark.reading.forks import plan_forks
from holdfast.spark.reading.packs import check_store
from holdfast.spark.reading.selection import ALL_TIMES, LATEST, BatchBounds
from holdfast.spark.reading.source import (
    SINGLE_STREAMS_MAX,
    AnyPart,
    PackPart,
    ReadPartition,
    ReadSource,
    Slice,
    StreamSlice,
)

# Like Spark's partitions of files: each partition costs some 50 ms of its own.
SLICE_BYTES: Final = 128 * 1024 * 1024
_SLICE_BYTES_MIN: Final = 1024 * 1024
_SLICE_BYTES_MAX: Final = 1024 * 1024 * 1024
# So many chosen streams get a request each for what is not in packs yet, which goes through all of
# that.
_HOT_STREAMS_MAX: Final = 8
# Larger than any slice.
_UNKNOWN_BYTES: Final = 1 << 62
# HEAD requests at a time.
_HEADS_MAX: Final = 32


@dataclass(frozen=True)
class ReadPlan:
    """The slices of a read, and the cursor at which they end."""

    source: ReadSource
    slices: Sequence[AnyPart]
    until: str

    def partitions(self) -> list[ReadPartition]:
        """The slices that may hold selected streams."""
        includes = self.source.selection.intersects
        return [
            ReadPartition(self.source, each)
            for each in self.slices
            if not isinstance(each, Slice) or includes(each.first, each.last)
        ]


def plan_batch(server: SparkClient, source: ReadSource, bounds: BatchBounds) -> ReadPlan:
    """Plan a batch read."""
    starts, ends = bounds.starting.offsets, bounds.ending.offsets
    source = replace(source, selection=replace(source.selection, starts=starts, ends=ends))
    if bounds.starting.cursor == LATEST:
        return ReadPlan(source, (), "")
    after, until = bounds.starting.scan_cursor, bounds.ending.scan_cursor
    if source.via != "http":
        try:
            plan = plan_between(
                server,
                source,
                after,
                until,
                min_partitions=bounds.min_partitions,
                slice_bytes=bounds.partition_bytes,
            )
        except HoldfastError as error:
            if not lacks_scans(error):
                raise
        else:
            if not _has_dropped_log(server, plan):
                return plan
    if after or until:
        raise no_cursors(server)
    return ReadPlan(source, plan_streams(server, source), "")


def plan_between(
    server: SparkClient,
    source: ReadSource,
    after: str,
    until: str,
    *,
    min_partitions: int | None = None,
    slice_bytes: int | None = None,
    whole_streams: bool = False,
) -> ReadPlan:
    """Plan a read of what was appended after one cursor and up to another.

    With `whole_streams` all messages of a stream are in the same slice, in order.
    """
    size = min(max(slice_bytes or SLICE_BYTES, _SLICE_BYTES_MIN), _SLICE_BYTES_MAX)
    chosen = source.selection.chosen
    is_few = not whole_streams and 0 < len(chosen) <= SINGLE_STREAMS_MAX
    # A pack's own index has the times of its messages, so most of its data need not be read.
    by_packs = is_few or source.selection.times != ALL_TIMES
    scan = server.bucket(source.bucket).scan(
        after=after,
        until=until,
        prefix=source.selection.prefix,
        by="names" if whole_streams else "packs" if by_packs else None,
        partition_bytes=size,
        partitions=min_partitions,
        since=source.began,
        **source.selection.scan_bounds,
    )
    if source.fail_on_data_loss:
        _check_losses(server, source, scan, after)
    source = source.with_store(scan.store, scan.store_id)
    if scan.partitions or scan.parts:
        check_store(source)
    if whole_streams:
        return ReadPlan(source, _slices_of_whole_streams(scan), scan.until)
    if min_partitions:
        total = sum(each.bytes for each in scan.partitions)
        size = min(size, max(total // min_partitions, _SLICE_BYTES_MIN))
    packed: list[AnyPart] = []
    if is_few:
        packed += _chosen_slices(server, source, scan, size)
    else:
        packed += [*pack_parts(scan), *_packed_slices(server, source, scan, size)]
    hot = _hot_slices(scan, chosen if is_few else ())
    forks = plan_forks(server, source, scan.after, scan.until, size)
    return ReadPlan(source, [*packed, *hot, *forks], scan.until)


def pack_parts(scan: ScanPlan) -> list[PackPart]:
    """What is in packs, if the server has divided it by packs."""
    return [
        PackPart(
            each.after,
            each.until,
            each.first,
            each.last,
            tuple(scan.packs[at] for at in each.packs),
            each.bytes,
            int(scan.after),
        )
        for each in scan.parts
    ]


def _packed_slices(
    server: SparkClient, source: ReadSource, scan: ScanPlan, size: int
) -> list[Slice]:
    """What is in packs, if the server has divided it by names."""
    found: list[Slice] = []
    for each in scan.partitions:
        positions = int(each.after), int(scan.flushed), int(each.until)
        names = each.first_stream_id, each.last_stream_id
        # With bounds of time, a partition may start later than the read.
        packed = Slice(*names, *positions, each.bytes, read_after=int(scan.after))
        found += _cut(server, source, packed, size)
    return found


def _chosen_slices(
    server: SparkClient, source: ReadSource, scan: ScanPlan, size: int
) -> list[Slice]:
    """What is in packs of a few streams, whatever lies between them."""
    chosen = source.selection.chosen
    after, flushed = int(scan.after), min(int(scan.flushed), int(scan.until))
    if after >= flushed:
        return []
    whole = Slice(chosen[0], chosen[-1], after, flushed, flushed, _UNKNOWN_BYTES)
    return _cut(server, source, whole, size)


def _hot_slices(scan: ScanPlan, chosen: Sequence[str]) -> list[Slice]:
    """What is not in packs yet."""
    slices = []
    for each in scan.hot:
        start, end = int(each.after), int(each.until)
        first, last = each.first_stream_id, each.last_stream_id
        hot = Slice(first, last, start, start, end, each.bytes, read_after=int(scan.after))
        inside = [stream_id for stream_id in chosen if first <= stream_id <= last]
        if not chosen or len(inside) > _HOT_STREAMS_MAX:
            slices.append(hot)
        else:
            slices += [replace(hot, first=stream_id, last=stream_id) for stream_id in inside]
    return slices


def _slices_of_whole_streams(scan: ScanPlan) -> list[Slice]:
    """Slices that cover every stream id, so that each new stream, in no pack yet, is in one."""
    positions = int(scan.after), int(scan.flushed), int(scan.until)
    if not scan.partitions:
        return [Slice("", "", *positions)] if positions[0] < positions[2] else []
    slices, before = [], ""
    for each in scan.partitions:
        last = each.last_stream_id
        slices.append(Slice(before, last, *positions, each.bytes, excludes_first=bool(before)))
        before = last
    slices[-1] = replace(slices[-1], last="")
    return slices


def _cut(server: SparkClient, source: ReadSource, whole: Slice, size: int) -> list[Slice]:
    """Cut a slice that is too large: by streams, and large streams by positions."""
    if whole.size_bytes < 2 * size:
        return [whole]
    slices: list[Slice] = []
    # Neighbouring streams that are not too large together.
    open_slice: Slice | None = None
    for stream_id, group in groupby(source.ranges(server, whole), key=lambda each: each.stream_id):
        if not source.selection.includes(stream_id):
            continue
        of_stream = list(group)
        stream_bytes = sum(each.length for each in of_stream)
        if open_slice is not None and open_slice.size_bytes + stream_bytes <= size:
            total = open_slice.size_bytes + stream_bytes
            open_slice = replace(open_slice, last=stream_id, size_bytes=total)
            continue
        slices += [open_slice] if open_slice is not None else []
        open_slice = replace(whole, first=stream_id, last=stream_id, size_bytes=stream_bytes)
        if stream_bytes >= 2 * size:
            slices += _cut_by_positions(open_slice, of_stream, size)
            open_slice = None
    return [*slices, open_slice] if open_slice is not None else slices


def _cut_by_positions(whole: Slice, ranges: Sequence[ScanRange], size: int) -> list[Slice]:
    """Cut a slice of one large stream into consecutive ones."""
    if whole.read_after is None:
        whole = replace(whole, read_after=whole.after)
    slices, after, held = [], whole.after, 0
    for each in ranges:
        end = each.first_position - 1
        if held and held + each.length > size and after < end:
            slices.append(replace(whole, after=after, until=end, size_bytes=held))
            after, held = end, 0
        held += each.length
    return [*slices, replace(whole, after=after, size_bytes=held)]


def _check_losses(server: SparkClient, source: ReadSource, scan: ScanPlan, after: str) -> None:
    """Raise if messages after the cursor, or after the starting offsets, are gone."""
    selection = source.selection
    if after:
        source.check_lost(server, scan)
        return
    # Reading a stream from packs shows that its start is gone, other reads do not.
    starts = {
        each: start
        for each, start in selection.starts.items()
        if start and selection.includes(each)
    }
    gone = (
        server.run(lambda client: trimmed_streams(client, source.bucket, starts)) if starts else []
    )
    if gone:
        raise source.data_loss(gone)


async def trimmed_streams(client: Client, bucket: str, starts: Mapping[str, int]) -> list[str]:
    """The streams that exist and are trimmed beyond the offset they are to be read from."""
    slots = asyncio.Semaphore(_HEADS_MAX)

    async def is_trimmed(stream_id: str, start: int) -> bool:
        try:
            async with slots:
                head = await client.stream(f"{bucket}/{stream_id}").head()
        except (StreamNotFoundError, GoneError):
            return False
        return start < int(head.earliest_offset or 0)

    found = await asyncio.gather(*(is_trimmed(*each) for each in starts.items()))
    return [each for each, trimmed in zip(starts, found, strict=True) if trimmed]


def _has_dropped_log(server: SparkClient, plan: ReadPlan) -> bool:
    """Whether the server has no packs, and no longer has the log from where the read starts."""
    if plan.source.store_id or not plan.slices:
        return False
    hot = plan.slices[0]
    assert isinstance(hot, Slice), "without a store there are no packs"
    start = f"{hot.after:020d}"
    bucket = server.bucket(plan.source.bucket)
    records = bucket.records(after=start, until=start, prefix=plan.source.selection.prefix)
    try:
        next(records, None)
        records.close()
    except CursorGoneError:
        return True
    return False


def lacks_scans(error: HoldfastError) -> bool:
    """Whether an error shows that the server has streams, but no scans of buckets."""
    if isinstance(error, BucketNotFoundError):
        return False
    return isinstance(error, NotFoundError | MethodNotAllowedError | BadAnswerError)


def no_cursors(server: SparkClient) -> SettingsError:
    return SettingsError(
        f"{server.url} cannot tell what came after a cursor; give offsets of streams instead."
    )


def plan_streams(server: SparkClient, source: ReadSource) -> list[StreamSlice]:
    """Plan a read by the plain protocol: each stream up to its present tail."""
    if not source.forks:
        raise SettingsError(
            f"A plain read of {server.url} does not tell what a fork inherits: leave out 'forks'."
        )
    return server.run(lambda client: _stream_slices(client, source))


async def _stream_slices(client: Client, source: ReadSource) -> list[StreamSlice]:
    selection = source.selection
    if selection.streams is not None:
        ids = sorted(selection.streams)
    else:
        try:
            listed = client.bucket(source.bucket).streams(prefix=selection.prefix)
            ids = [each.stream_id async for each in listed if selection.includes(each.stream_id)]
        except HoldfastError as error:
            if not lacks_scans(error):
                raise
            raise SettingsError(
                f"{client.url} does not list its streams; name them with the option 'streams'."
            ) from None
    slices = [await _stream_slice(client, source, stream_id) for stream_id in ids]
    return [each for each in slices if each is not None]


async def _stream_slice(client: Client, source: ReadSource, stream_id: str) -> StreamSlice | None:
    try:
        head = await client.stream(f"{source.bucket}/{stream_id}").head()
    except (StreamNotFoundError, GoneError):
        # A stream that was not named was listed a moment ago, and deleted since.
        if source.selection.streams is not None and source.fail_on_data_loss:
            raise
        return None
    # Servers other than ours start at -1, whatever they still have.
    earliest = head.earliest_offset or "-1"
    start = source.selection.start_of(stream_id)
    end = source.selection.ends.get(stream_id)
    # A read from offset 0 takes what there is.
    begin = f"{start:020d}" if start else earliest
    if begin < earliest:
        if source.fail_on_data_loss:
            raise source.data_loss([stream_id])
        begin = earliest
    tail = head.next_offset
    return StreamSlice(stream_id, begin, tail if end is None else min(f"{end:020d}", tail))
