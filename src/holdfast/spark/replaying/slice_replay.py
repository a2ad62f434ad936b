"""A task of a replay: the streams of one slice, some thousand at a time.

The task lists the streams itself, on both servers, so neither the driver nor an executor ever holds
more streams than those that are compared together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from holdfast.client import Client, StreamInfo
from holdfast.errors import BucketNotFoundError
from holdfast.spark.connection import SparkClient
from holdfast.spark.reading.source import ReadSource, Slice
from holdfast.spark.replaying.comparing import ReplayReport, ReplayWork, compare_streams
from holdfast.spark.replaying.copying import CopyTask, copy_slice

# Streams that are compared, and then copied, together.
TOGETHER: Final = 5000


def replay_slice(work: ReplayWork, source: ReadSource, part: Slice) -> ReplayReport:
    """Bring the copies of a slice's streams up to date."""
    report = ReplayReport()
    with SparkClient(work.source) as server, SparkClient(work.target) as target:
        streams = _Streams(work, source, part, server, target, report)
        different = streams.different()
        while stream_ids := list(islice(different, TOGETHER)):
            compared, todo = compare_streams(work, stream_ids)
            report.add(compared)
            if todo:
                todo.sort(key=lambda each: each.stream_id)
                first, last = todo[0].stream_id, todo[-1].stream_id
                # Sizes tell what a reader may miss, and only that of the whole slice is known.
                own = replace(part, first=first, last=last, excludes_first=False, size_bytes=0)
                report.add(copy_slice(work, CopyTask(source, own, todo)))
    return report


@dataclass(frozen=True)
class _Streams:
    """The streams of a slice."""

    work: ReplayWork
    source: ReadSource
    part: Slice
    server: SparkClient
    target: SparkClient
    report: ReplayReport

    def different(self) -> Iterator[str]:
        """The streams to compare; the others are counted."""
        selection = self.source.selection
        if selection.streams is not None:
            yield from sorted(filter(self.part.covers, selection.streams))
            return
        theirs = _listed(self.server, self.work.bucket, selection.prefix, self.part)
        if self.work.snapshots:
            # Listings do not show snapshots.
            yield from (each.stream_id for each in theirs if selection.includes(each.stream_id))
            return
        ours = _listed(self.target, self.work.target_bucket, selection.prefix, self.part)
        own = next(ours, None)
        for each in theirs:
            if not selection.includes(each.stream_id):
                continue
            while own is not None and own.stream_id < each.stream_id:
                own = next(ours, None)
            if own is not None and _is_equal(each, own):
                self.report.unchanged += 1
            else:
                yield each.stream_id


def _is_equal(theirs: StreamInfo, own: StreamInfo) -> bool:
    # A stream created after its copy is another stream of the same name.
    return (
        theirs.stream_id == own.stream_id
        and (theirs.tail_offset, theirs.status) == (own.tail_offset, own.status)
        and theirs.created_at_ms <= own.created_at_ms
    )


def _listed(server: SparkClient, bucket: str, prefix: str, part: Slice) -> Iterator[StreamInfo]:
    """The streams of a bucket in a slice, in order; none if there is no such bucket."""

    async def streams(client: Client) -> AsyncIterator[StreamInfo]:
        # A listing starts after a name, and the first of the slice may belong to it.
        after = part.first if part.excludes_first else part.first[:-1]
        with suppress(BucketNotFoundError):
            async for each in client.bucket(bucket).streams(prefix=prefix, after=after):
                if part.last and each.stream_id > part.last:
                    break
                if part.covers(each.stream_id):
                    yield each

    return server.iterate_ahead(streams)
