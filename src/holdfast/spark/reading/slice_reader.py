"""Reading a slice: its messages from packs, then those that are not there yet, as chunks.

Packs are immutable, but one can be merged away while it is read: then the server is asked again
where the rest of the slice is. In the same way what was not in packs when the read was planned may
be there by now.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from holdfast.client import Client, Record, ScanPlan, ScanRange
from holdfast.errors import CursorGoneError, ObjectMissingError
from holdfast.spark.connection import SparkClient
from holdfast.spark.reading.chunks import BATCH_BYTES, Chunk, StreamName
from holdfast.spark.reading.extents import Cut, Ranged, Wanted, in_chunks, read_extents
from holdfast.spark.reading.losses import lost
from holdfast.spark.reading.slices import Slice
from holdfast.spark.reading.source import Source
from holdfast.spark.reading.store import open_packs

# How often in a row the packs of a slice may be gone before they could be read.
_ATTEMPTS: Final = 10


class SliceReader:
    """Reads slices of one source."""

    def __init__(self, source: Source, server: SparkClient) -> None:
        self._source = source
        self._server = server
        self._packs: Ranged | None = None

    def chunks(self, part: Slice) -> Iterator[Chunk]:
        """The messages of a slice: packs by stream and offset, then the rest by stream too."""
        if part.after < part.flushed:
            yield from self.packed(part)
        if part.until > part.flushed:
            yield from self.unpacked(part)

    def packed(self, part: Slice) -> Iterator[Chunk]:
        """What is in packs, in the order of the streams' ids and their offsets."""
        cut = Cut(part.after, min(part.until, part.flushed))
        place: tuple[str, int] | None = None
        failures = 0
        while True:
            try:
                for ranges in in_chunks(self._wanted(part, cut, place)):
                    chunk, gone = read_extents(self._opened(), ranges, cut)
                    self._check(part, ranges, gone)
                    failures = 0
                    last = ranges[-1].range
                    place = last.stream_id, last.offset + last.length
                    if len(chunk):
                        yield chunk
            except ObjectMissingError:
                # Merged into another pack: the server knows which.
                failures += 1
                if failures >= _ATTEMPTS:
                    raise
            else:
                return

    def _opened(self) -> Ranged:
        if self._packs is None:
            self._packs = open_packs(self._source, self._server)
        return self._packs

    def _wanted(self, part: Slice, cut: Cut, place: tuple[str, int] | None) -> Iterator[Wanted]:
        """The ranges of the slice that are still to be read."""
        selection = self._source.selection
        ranges = self._server.collect(lambda client: self._ranges(client, part, cut, place))
        if place is not None or sum(each.length for each in ranges) < part.size_bytes:
            # There is less than there was: perhaps only bytes that were dead already.
            self._check_still_there(part)
        for each in ranges:
            if not (part.covers(each.stream_id) and selection.wants(each.stream_id)):
                continue
            start, end = selection.window(each.stream_id, each.earliest)
            # Who asks for the beginning takes what there is.
            asked = selection.starts.get(each.stream_id) or start
            # Later parts of a stream read begin behind it, whatever has become of it since.
            if asked < start and part.is_of_all and self._source.fail_on_data_loss:
                raise lost(self._source.bucket, [each.stream_id])
            if place is not None and each.stream_id == place[0]:
                start = max(start, place[1])
            if start < end and each.offset < end and each.offset + each.length > start:
                yield Wanted(each, start, end)

    def _ranges(
        self, client: Client, part: Slice, cut: Cut, place: tuple[str, int] | None
    ) -> AsyncIterator[ScanRange]:
        return client.bucket(self._source.bucket).ranges(
            after=f"{cut.after:020d}",
            until=f"{cut.until:020d}",
            prefix=self._source.selection.prefix,
            first=part.first if place is None else place[0],
            last=part.last,
        )

    def _check(self, part: Slice, ranges: list[Wanted], gone: list[int]) -> None:
        """Raise if a part of these extents went before it was read, and that is not fine."""
        if gone and not part.is_of_all and self._source.fail_on_data_loss:
            raise lost(self._source.bucket, [ranges[at].range.stream_id for at in gone])

    def _check_still_there(self, part: Slice) -> None:
        """Raise if something in the slice is known to be gone, and that is not fine."""
        source = self._source
        if part.is_of_all or not source.fail_on_data_loss:
            return
        gone = [
            each
            for each in self._scan(part).lost
            if source.selection.wants(each) and part.covers(each)
        ]
        if gone:
            raise lost(source.bucket, gone)

    def _scan(self, part: Slice) -> ScanPlan:
        return self._server.run(
            lambda client: client.bucket(self._source.bucket).scan(
                after=f"{part.after:020d}",
                until=f"{part.until:020d}",
                prefix=self._source.selection.prefix,
            )
        )

    def unpacked(self, part: Slice) -> Iterator[Chunk]:
        """What is not in packs yet, by stream and offset."""
        origin = part.after if part.origin is None else part.origin
        part = replace(part, after=max(part.after, part.flushed), origin=origin)
        try:
            records = self._server.collect(lambda client: self._records(client, part))
        except CursorGoneError:
            # It is in packs by now, all of it or a part.
            plan = self._scan(part)
            if int(plan.flushed) <= part.after:
                raise
            source = self._source.at(plan.store, plan.store_id)
            again = SliceReader(source, self._server)
            yield from again.chunks(replace(part, flushed=int(plan.flushed)))
            return
        # What went since the read was planned is not among them.
        self._check_still_there(part)
        yield from record_chunks(records, self._window)

    def _records(self, client: Client, part: Slice) -> AsyncIterator[Record]:
        return self._selected(
            client.bucket(self._source.bucket).records(
                after=f"{part.after:020d}",
                until=f"{part.until:020d}",
                prefix=self._source.selection.prefix,
                first=part.first,
                last=part.last,
            ),
            part,
        )

    async def _selected(self, records: AsyncIterator[Record], part: Slice) -> AsyncIterator[Record]:
        wants = self._source.selection.wants
        async for each in records:
            if part.covers(each.stream_id) and wants(each.stream_id):
                yield each

    def _window(self, stream_id: str) -> tuple[int, int]:
        return self._source.selection.window(stream_id, 0)


def record_chunks(
    records: list[Record], window: Callable[[str], tuple[int, int]]
) -> Iterator[Chunk]:
    """Records as chunks, by stream and offset."""
    records.sort(key=lambda each: (each.stream_id, each.offset))
    held: list[Record] = []
    size = 0
    for each in records:
        start, end = window(each.stream_id)
        if not start <= each.offset < end:
            continue
        held.append(each)
        size += len(each.payload)
        if size >= BATCH_BYTES:
            yield _record_chunk(held)
            held, size = [], 0
    if held:
        yield _record_chunk(held)


def _record_chunk(records: list[Record]) -> Chunk:
    names: dict[StreamName, int] = {}
    which = [
        names.setdefault(StreamName(each.stream_id, each.content_type), len(names))
        for each in records
    ]
    return Chunk(
        list(names),
        np.array(which, dtype=np.int32),
        _numbers(each.offset for each in records),
        _numbers(each.next_offset for each in records),
        _numbers(each.timestamp_ms for each in records),
        pa.array([each.payload for each in records], pa.binary()),
    )


def _numbers(values: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.fromiter(values, dtype=np.int64)
