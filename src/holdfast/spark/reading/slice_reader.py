"""Reading slices, on executors: messages from packs, then those that are not in packs yet.

A pack can be merged away while it is read. Then the server is asked where the rest of the slice is
now. In the same way, messages that were not in packs when the read was planned may be by now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from holdfast.client import Client, Record, ScanRange
from holdfast.errors import CursorGoneError, ObjectMissingError
from holdfast.spark.connection import SparkClient
from holdfast.spark.reading.arrow import (
    BATCH_BYTES,
    ROW_BYTES,
    Chunk,
    Numbers,
    StreamName,
    selected_rows,
    split_chunk,
    split_records,
    to_batch,
)
from holdfast.spark.reading.forks import inherited_records
from holdfast.spark.reading.http_reader import stream_chunks
from holdfast.spark.reading.pack_parts import PackPartReader
from holdfast.spark.reading.packs import (
    PackBytes,
    PositionRange,
    WantedRange,
    group_ranges,
    open_packs,
    read_extents,
)
from holdfast.spark.reading.source import AnyPart, PackPart, ReadSource, Slice, StreamSlice
from holdfast.spark.reading.typed_json import TypedRows

T = TypeVar("T")

# How often in a row packs may be merged away before they could be read.
_ATTEMPTS: Final = 10
# Items that are made before they are used.
_PREFETCHED: Final = 2


def read_batches(source: ReadSource, part: AnyPart) -> Iterator[Any]:
    """The rows of a slice as Arrow batches."""
    typed = None if source.typed is None else TypedRows(source.typed)
    for chunk in read_chunks(source, part):
        for piece in split_chunk(chunk):
            if len(piece):
                batch = to_batch(piece, source.bucket, source.columns)
                yield batch if typed is None else typed.batch(batch, piece)


def read_chunks(source: ReadSource, part: AnyPart) -> Iterator[Chunk]:
    """The messages of a slice, or the records in them if the source is framed."""
    with SparkClient(source.connection) as server:
        if isinstance(part, StreamSlice):
            chunks = stream_chunks(source, server, part)
        elif isinstance(part, PackPart):
            chunks = PackPartReader(source, server).chunks(part)
        elif part.is_inherited:
            found = inherited_records(source, server, part)
            chunks = (_record_chunk(each) for each in found)
        else:
            chunks = SliceReader(source, server).chunks(part)
        for chunk in prefetch(chunks):
            wanted = selected_rows(chunk, source.selection)
            yield split_records(wanted) if source.framed else wanted


class SliceReader:
    """Reads slices of one source."""

    def __init__(self, source: ReadSource, server: SparkClient) -> None:
        self._source = source
        self._server = server
        self._packs: PackBytes | None = None

    def chunks(self, part: Slice) -> Generator[Chunk]:
        yield from self.packed(part)
        yield from self.unpacked(part)

    def packed(self, part: Slice) -> Generator[Chunk]:
        """The messages in packs, by stream id and offset."""
        if part.after >= part.flushed:
            return
        positions = PositionRange(part.after, min(part.until, part.flushed))
        # The stream and the offset in it up to which everything is read.
        done: tuple[str, int] | None = None
        failures = 0
        while True:
            try:
                wanted = self._wanted_ranges(part, positions, done)
                with_data = self._source.reads_payloads
                for ranges in group_ranges(wanted, with_data=with_data):
                    if self._packs is None:
                        self._packs = open_packs(self._source, self._server)
                    chunk, trimmed = read_extents(
                        self._packs, ranges, positions, with_data=with_data
                    )
                    self._check_trimmed(part, [ranges[at].range for at in trimmed])
                    failures = 0
                    last = ranges[-1].range
                    done = last.stream_id, last.offset + last.length
                    if len(chunk):
                        yield chunk
            except ObjectMissingError:
                # Merged into another pack: the server knows which.
                failures += 1
                if failures >= _ATTEMPTS:
                    raise
            else:
                return

    def _wanted_ranges(
        self, part: Slice, positions: PositionRange, done: tuple[str, int] | None
    ) -> Iterator[WantedRange]:
        """The ranges of the slice that are still to be read."""
        source, selection = self._source, self._source.selection
        first = part.first if done is None else done[0]
        ranges = source.ranges(self._server, replace(part, first=first, until=positions.until))
        if done is not None or sum(each.length for each in ranges) < part.size_bytes:
            # There is less than was planned; perhaps only bytes that were dead already.
            self._check_losses(part)
        for each in ranges:
            if not (part.covers(each.stream_id) and selection.includes(each.stream_id)):
                continue
            start, end = selection.window(each.stream_id, each.earliest)
            # A read from offset 0 takes what there is. Later batches of a stream read are past the
            # given offset in any case.
            is_trimmed = 0 < selection.start_of(each.stream_id) < each.earliest
            if is_trimmed and part.is_from_beginning and source.fail_on_data_loss:
                raise source.data_loss([each.stream_id])
            if done is not None and each.stream_id == done[0]:
                start = max(start, done[1])
            if start < end and each.offset < end and each.offset + each.length > start:
                yield WantedRange(each, start, end)

    def unpacked(self, part: Slice) -> Iterator[Chunk]:
        """The messages that are not in packs yet, in the order of the log."""
        if part.until <= part.flushed:
            return
        source = self._source
        read_after = part.after if part.read_after is None else part.read_after
        part = replace(part, after=max(part.after, part.flushed), read_after=read_after)
        done = part.after
        try:
            for position, records in self._server.resume(
                partial(_record_batches, source, part), done
            ):
                if records:
                    yield _record_chunk(records)
                done = position
        except CursorGoneError:
            # Flushed since, all of the rest or a part of it.
            scan = source.rescan(self._server, part)
            if int(scan.flushed) <= done:
                raise
            again = SliceReader(source.with_store(scan.store, scan.store_id), self._server)
            yield from again.chunks(replace(part, after=done, flushed=int(scan.flushed)))
            return
        # Messages that were deleted since the read was planned are not among them.
        self._check_losses(part)

    def _check_trimmed(self, part: Slice, trimmed: Sequence[ScanRange]) -> None:
        """Raise if messages of these ranges went after the read began."""
        source = self._source
        if part.is_from_beginning or not source.fail_on_data_loss:
            return
        lost = [each.stream_id for each in trimmed if each.hidden_at > int(source.began or 0)]
        if lost:
            raise source.data_loss(lost)

    def _check_losses(self, part: Slice) -> None:
        source = self._source
        if part.is_from_beginning or not source.fail_on_data_loss:
            return
        source.check_lost(self._server, source.rescan(self._server, part), part)


async def _record_batches(
    source: ReadSource, part: Slice, client: Client, after: int
) -> AsyncIterator[tuple[int, list[Record]]]:
    """Wanted records after a position, a few at a time, each time with where to go on."""
    selection = source.selection
    held: list[Record] = []
    size = 0
    async for each in client.bucket(source.bucket).records(
        after=f"{after:020d}",
        until=f"{part.until:020d}",
        prefix=selection.prefix,
        first=part.first,
        last=part.last,
        **selection.scan_times,
    ):
        if size >= BATCH_BYTES and each.position > held[-1].position:
            yield held[-1].position, held
            held, size = [], 0
        if part.covers(each.stream_id) and selection.includes(each.stream_id):
            start, end = selection.window(each.stream_id, 0)
            if start <= each.offset < end:
                held.append(each)
                size += len(each.payload) + ROW_BYTES
    yield part.until, held


def _record_chunk(records: list[Record]) -> Chunk:
    """Records as a chunk, stream by stream."""
    records.sort(key=lambda each: each.stream_id)
    names: dict[StreamName, int] = {}
    indexes = [
        names.setdefault(StreamName(each.stream_id, each.content_type), len(names))
        for each in records
    ]
    return Chunk(
        list(names),
        np.array(indexes, dtype=np.int32),
        _numbers(each.offset for each in records),
        _numbers(each.next_offset for each in records),
        _numbers(each.timestamp_ms for each in records),
        pa.array([each.payload for each in records], pa.binary()),
        _numbers(each.position for each in records),
    )


def _numbers(values: Iterable[int]) -> Numbers:
    return np.fromiter(values, dtype=np.int64)


class StreamRun(NamedTuple):
    """Consecutive messages of one stream."""

    stream: StreamName
    offsets: Numbers
    next_offsets: Numbers
    timestamps: Numbers
    # A pyarrow BinaryArray.
    payloads: Any


def stream_runs(source: ReadSource, server: SparkClient, part: Slice) -> Iterator[StreamRun]:
    """A slice stream by stream: all messages of one, in order, before those of the next.

    The slice must have been planned with `whole_streams`.
    """
    reader = SliceReader(source, server)
    # Runs that are not in packs yet, by stream. The server holds them in memory, so they are few.
    unpacked: dict[str, list[StreamRun]] = {}
    for chunk in reader.unpacked(part):
        for run in _runs(chunk):
            unpacked.setdefault(run.stream.stream_id, []).append(run)
    current = ""
    for chunk in prefetch(reader.packed(part)):
        for run in _runs(chunk):
            if run.stream.stream_id != current:
                yield from unpacked.pop(current, ())
                current = run.stream.stream_id
            yield run
    yield from unpacked.pop(current, ())
    for stream_id in sorted(unpacked):
        yield from unpacked[stream_id]


def _runs(chunk: Chunk) -> Iterator[StreamRun]:
    """Cut a chunk where the stream changes."""
    assert isinstance(chunk.offsets, np.ndarray)
    assert isinstance(chunk.next_offsets, np.ndarray)
    assert chunk.timestamps is not None
    first = 0
    for last in [*(np.flatnonzero(np.diff(chunk.stream_indexes)) + 1).tolist(), len(chunk)]:
        if last > first:
            yield StreamRun(
                chunk.streams[chunk.stream_indexes[first]],
                chunk.offsets[first:last],
                chunk.next_offsets[first:last],
                chunk.timestamps[first:last],
                chunk.payloads[first:last],
            )
        first = last


def prefetch(items: Generator[T]) -> Generator[T]:
    """The same items, made by a thread while the present one is used."""
    with closing(items), ThreadPoolExecutor(1, thread_name_prefix="holdfast-prefetch") as pool:
        upcoming = deque(pool.submit(next, items, None) for _ in range(_PREFETCHED))
        try:
            while (item := upcoming.popleft().result()) is not None:
                upcoming.append(pool.submit(next, items, None))
                yield item
        finally:
            for each in upcoming:
                each.cancel()
