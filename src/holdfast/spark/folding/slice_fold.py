"""Fold the streams of a slice into their snapshots; runs on executors.

While one batch of streams is folded, the snapshots of the next one are fetched, and those of the
previous one are published.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import Any, Final

import numpy as np
from pyspark import TaskContext

from holdfast.client.snapshots import Snapshot
from holdfast.errors import BadAnswerError, HoldfastError, InvalidRequestError
from holdfast.spark.connection import SparkClient
from holdfast.spark.folding.folds import Fold, FoldError, SnapshotBody
from holdfast.spark.folding.publishing import (
    CONCURRENCY,
    Publication,
    Publisher,
    PublishResult,
    is_overtaken,
)
from holdfast.spark.reading.arrow import Chunk, Numbers, StreamName
from holdfast.spark.reading.http_reader import stream_chunks
from holdfast.spark.reading.slice_reader import SliceReader, StreamRun, stream_runs
from holdfast.spark.reading.source import ReadSource, Slice, StreamSlice

# Of one stream, no more is held than this: the rest is folded as it arrives.
HELD_BYTES_MAX: Final = 4 * 1024 * 1024
_BATCH_STREAMS: Final = 128
_BATCH_BYTES: Final = 8 * 1024 * 1024
LEFT_MAX: Final = 100
# So many streams are looked up one by one; the ranges of more are requested together.
_FEW: Final = 32


@dataclass(frozen=True)
class Thresholds:
    """How much a stream must have grown to get a snapshot; both conditions must hold."""

    messages: int = 1
    bytes: int = 0

    def are_reached(self, messages: int, size_bytes: int) -> bool:
        return messages >= self.messages and size_bytes >= self.bytes


@dataclass(frozen=True)
class UnfoldedStream:
    """A stream that was left alone, the offset of the message or snapshot in the way, and why."""

    stream_id: str
    offset: str
    why: str


@dataclass(frozen=True)
class FoldWork:
    """What executors get besides the slice."""

    source: ReadSource
    fold: Fold
    thresholds: Thresholds
    concurrency: int = CONCURRENCY
    # Whether the plan knows every snapshot: then a stream whose messages start at offset 0 has
    # none, and no request is needed.
    knows_snapshots: bool = True


@dataclass
class FoldReport:
    streams: int = 0
    published: int = 0
    messages: int = 0
    bytes: int = 0
    snapshot_bytes: int = 0
    below_threshold: int = 0
    skipped: int = 0
    left_alone: int = 0
    left: list[UnfoldedStream] = field(default_factory=list)

    def leave(self, stream_id: str, offset: int, why: str) -> None:
        self.left_alone += 1
        if len(self.left) < LEFT_MAX:
            self.left.append(UnfoldedStream(stream_id, f"{offset:020d}", why))

    def add(self, result: PublishResult) -> None:
        snapshot = result.publication
        if result.refused:
            self.leave(snapshot.stream_id, snapshot.offset, result.refused)
        elif result.overtaken:
            self.skipped += 1
        else:
            self.published += 1
            self.messages += snapshot.messages
            self.bytes += snapshot.message_bytes
            self.snapshot_bytes += len(snapshot.body.data)


class _OvertakenError(Exception):
    """The stream is gone, or a later snapshot exists: there is nothing left to fold."""


def fold_slice(work: FoldWork, part: Slice) -> FoldReport:
    """Fold and publish every stream of a slice that has grown enough."""
    report = FoldReport()
    context = TaskContext.get()
    # The plan cannot know what an earlier attempt of this task has published.
    knows = work.knows_snapshots and (context is None or context.attemptNumber() == 0)
    source = work.source
    with (
        SparkClient(source.connection) as server,
        Publisher(
            source.connection,
            source.bucket,
            work.concurrency,
            report.add,
            prefix=source.selection.prefix,
            # What was created later, under the name of a stream that was read, is another stream.
            created_until=f"{part.until:020d}",
        ) as publisher,
    ):
        folding = _SliceFold(work, server, publisher, report, knows_snapshots=knows)
        folding.run((changed_runs if part.after else stream_runs)(source, server, part))
        publisher.finish()
    return report


def changed_runs(source: ReadSource, server: SparkClient, part: Slice) -> Iterator[StreamRun]:
    """All messages of those streams that have gained some after the position `part.after`."""
    changed = {
        each.stream_id
        for each in source.ranges(server, part)
        if part.covers(each.stream_id) and source.selection.includes(each.stream_id)
    }
    for chunk in SliceReader(source, server).unpacked(part):
        changed.update(each.stream_id for each in chunk.streams)
    if not changed:
        return
    source = replace(source, selection=replace(source.selection, streams=frozenset(changed)))
    whole = replace(part, after=0)
    if len(changed) > _FEW:
        yield from stream_runs(source, server, whole)
        return
    for stream_id in sorted(changed):
        of_one = replace(whole, first=stream_id, last=stream_id, excludes_first=False)
        yield from stream_runs(source, server, of_one)


class _SliceFold:
    def __init__(
        self,
        work: FoldWork,
        server: SparkClient,
        publisher: Publisher,
        report: FoldReport,
        *,
        knows_snapshots: bool,
    ) -> None:
        self._work = work
        self._server = server
        self._publisher = publisher
        self._report = report
        self._knows_snapshots = knows_snapshots

    def run(self, runs: Iterator[StreamRun]) -> None:
        waiting: list[tuple[Growth, Future[Snapshot | None] | None]] = []
        for batch in batches(self._grown(runs)):
            fetched = [(growth, self._fetch(growth)) for growth in batch]
            self._fold_all(waiting)
            waiting = fetched
            if batch[-1].rest is not None:
                # Its messages are no longer available once the next stream is read.
                self._fold_all(waiting)
                waiting = []
        self._fold_all(waiting)

    def _grown(self, runs: Iterator[StreamRun]) -> Iterator[Growth]:
        for growth in growths(runs):
            self._report.streams += 1
            if growth.rest is None and not self._is_enough(growth.messages, growth.size_bytes):
                self._report.below_threshold += 1
            else:
                yield growth

    def _is_enough(self, messages: int, size_bytes: int) -> bool:
        return self._work.thresholds.are_reached(messages, size_bytes)

    def _fetch(self, growth: Growth) -> Future[Snapshot | None] | None:
        """Fetch the snapshot, unless there is known to be none."""
        if not self._knows_snapshots:
            return self._publisher.fetch(growth.stream.stream_id, None)
        if not growth.first:
            return None
        return self._publisher.fetch(growth.stream.stream_id, growth.first)

    def _fold_all(self, waiting: list[tuple[Growth, Future[Snapshot | None] | None]]) -> None:
        for growth, snapshot in waiting:
            try:
                self._fold_one(growth, snapshot)
            except _OvertakenError:
                self._report.skipped += 1

    def _fold_one(self, growth: Growth, fetching: Future[Snapshot | None] | None) -> None:
        snapshot = None
        if fetching is not None:
            snapshot = self._snapshot(growth, fetching)
        at = 0 if snapshot is None else int(snapshot.offset)
        folded = _Folded(self._work.fold, growth.stream.content_type, at)
        try:
            folded.begin(snapshot)
            for run in growth.runs():
                self._take(folded, run)
            if not folded.messages:
                raise _OvertakenError
            if not self._is_enough(folded.messages, folded.size_bytes):
                self._report.below_threshold += 1
                return
            body = folded.end()
        except FoldError as error:
            self._report.leave(growth.stream.stream_id, folded.misfit_at, error.message)
            return
        self._publisher.publish(
            Publication(
                growth.stream.stream_id, folded.at, body, folded.messages, folded.size_bytes
            )
        )

    def _snapshot(self, growth: Growth, fetching: Future[Snapshot | None]) -> Snapshot | None:
        snapshot = None
        try:
            snapshot = fetching.result()
        except InvalidRequestError:
            # A stream whose id cannot have snapshots: publishing one is refused with the reason.
            pass
        except HoldfastError as error:
            if not is_overtaken(error):
                raise
            raise _OvertakenError from None
        finally:
            self._publisher.release()
        return snapshot

    def _take(self, folded: _Folded, run: StreamRun) -> None:
        rest = run if folded.messages else from_offset(run, folded.at)
        if rest is None:
            return
        if int(rest.offsets[0]) > folded.at and not folded.messages:
            # A fork's own messages do not include those that it shares with its source.
            for between in self._between(rest.stream.stream_id, folded.at, int(rest.offsets[0])):
                folded.add(between)
        folded.add(rest)

    def _between(self, stream_id: str, start: int, end: int) -> Iterator[StreamRun]:
        part = StreamSlice(stream_id, f"{start:020d}", f"{end:020d}")
        try:
            for chunk in stream_chunks(self._work.source, self._server, part):
                if len(chunk):
                    yield as_run(chunk)
        except BadAnswerError:
            raise
        except HoldfastError as error:
            if not is_overtaken(error):
                raise
            raise _OvertakenError from None


class _Folded:
    """The state of one stream, and the offset that it has reached."""

    def __init__(self, fold: Fold, content_type: str, at: int) -> None:
        self.at = at
        self.messages = 0
        self.size_bytes = 0
        self.misfit_at = at
        self._fold = fold
        self._content_type = content_type
        self._state: Any = None

    def begin(self, snapshot: Snapshot | None) -> None:
        body = None if snapshot is None else SnapshotBody(snapshot.payload, snapshot.content_type)
        self._state = self._fold.begin(self._content_type, body)

    def add(self, run: StreamRun) -> None:
        if int(run.offsets[0]) != self.at or not is_contiguous(run):
            # Deleted and created again while it was read; the next run folds the new stream.
            raise _OvertakenError
        messages = ArrowMessages(run.payloads, is_json=run.stream.is_json)
        try:
            self._state = self._fold.add(self._state, messages)
        except FoldError as error:
            self.misfit_at = int(run.offsets[error.index])
            raise
        end = int(run.next_offsets[-1])
        self.messages += len(run.offsets)
        self.size_bytes += end - self.at
        self.at = self.misfit_at = end

    def end(self) -> SnapshotBody:
        return self._fold.end(self._state)


@dataclass
class Growth:
    """The new messages of one stream, in order: the first ones, and an iterator over the rest."""

    stream: StreamName
    held: list[StreamRun]
    rest: Iterator[StreamRun] | None

    @property
    def first(self) -> int:
        return int(self.held[0].offsets[0])

    @property
    def messages(self) -> int:
        """The number of messages held."""
        return sum(len(run.offsets) for run in self.held)

    @property
    def size_bytes(self) -> int:
        """The bytes of the stream that the held messages take."""
        return int(self.held[-1].next_offsets[-1]) - self.first

    def runs(self) -> Iterator[StreamRun]:
        """All messages; can be called once."""
        return chain(self.held, self.rest or ())


def growths(runs: Iterator[StreamRun]) -> Iterator[Growth]:
    """Group runs by stream. The rest of one stream is lost once the next one is taken."""
    for _, of_stream in groupby(runs, key=lambda run: run.stream.stream_id):
        held: list[StreamRun] = []
        size = 0
        rest: Iterator[StreamRun] | None = None
        for run in of_stream:
            held.append(run)
            size += int(run.next_offsets[-1]) - int(run.offsets[0])
            if size >= HELD_BYTES_MAX:
                rest = of_stream  # noqa: B031 (gone on with, not begun again)
                break
        yield Growth(held[0].stream, held, rest)


def batches(found: Iterator[Growth]) -> Iterator[list[Growth]]:
    """Batches of streams; a stream with more messages to come is the last of its batch."""
    held: list[Growth] = []
    size = 0
    for growth in found:
        held.append(growth)
        size += growth.size_bytes
        if growth.rest is not None or len(held) >= _BATCH_STREAMS or size >= _BATCH_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


class ArrowMessages:
    """`FoldMessages` over the payloads of a run."""

    def __init__(self, payloads: Any, *, is_json: bool) -> None:
        self.is_json = is_json
        self._payloads = payloads

    def payloads(self) -> list[bytes]:
        found: list[bytes] = self._payloads.to_pylist()
        return found

    def joined(self, separator: bytes) -> bytes:
        # Several times as fast as Arrow's own join.
        return separator.join(self.payloads())


def is_contiguous(run: StreamRun) -> bool:
    """Whether every message starts where the one before it ends."""
    return bool((run.offsets[1:] == run.next_offsets[:-1]).all())


def from_offset(run: StreamRun, offset: int) -> StreamRun | None:
    """The messages of a run from an offset on, or None."""
    if int(run.offsets[0]) >= offset:
        return run
    at = int(np.searchsorted(run.offsets, offset))
    if at == len(run.offsets):
        return None
    return StreamRun(
        run.stream,
        run.offsets[at:],
        run.next_offsets[at:],
        run.timestamps[at:],
        run.payloads[at:],
    )


def as_run(chunk: Chunk) -> StreamRun:
    """A chunk of one stream as a run."""
    assert isinstance(chunk.offsets, np.ndarray)
    assert isinstance(chunk.next_offsets, np.ndarray)
    unknown: Numbers = np.zeros(len(chunk), dtype=np.int64)
    times = unknown if chunk.timestamps is None else chunk.timestamps
    return StreamRun(chunk.streams[0], chunk.offsets, chunk.next_offsets, times, chunk.payloads)
