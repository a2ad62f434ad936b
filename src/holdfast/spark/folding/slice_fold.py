"""Folding the streams of a slice into their snapshots: what executors do.

While one batch of streams is folded, the snapshots of the next are fetched, and those of the one
before are published.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark import TaskContext

from holdfast.client.snapshots import Snapshot
from holdfast.errors import BadAnswerError, HoldfastError, InvalidRequestError
from holdfast.spark.connection import SparkClient
from holdfast.spark.folding.folds import Body, Fold
from holdfast.spark.folding.misfits import MisfitError
from holdfast.spark.folding.publishing import (
    CONCURRENCY,
    Publication,
    Published,
    Publisher,
    is_overtaken,
)
from holdfast.spark.folding.stream_growth import (
    ArrowMessages,
    Growth,
    Thresholds,
    as_run,
    batches,
    from_offset,
    growths,
    is_contiguous,
)
from holdfast.spark.reading.http_reader import stream_chunks
from holdfast.spark.reading.slice_reader import StreamRun, stream_runs
from holdfast.spark.reading.source import ReadSource, Slice, StreamSlice

LEFT_MAX: Final = 100


@dataclass(frozen=True)
class Left:
    """A stream that was left alone: at which of its offsets there is something, and what."""

    stream_id: str
    offset: str
    why: str


@dataclass(frozen=True)
class FoldWork:
    """What executors are told besides the slice."""

    source: ReadSource
    fold: Fold
    thresholds: Thresholds
    concurrency: int = CONCURRENCY
    # Whether the plan knows of every snapshot that there was: then a stream whose messages start at
    # its beginning has none, and nobody has to be asked.
    knows_snapshots: bool = True


@dataclass
class FoldReport:
    """What became of the streams of a slice."""

    streams: int = 0
    published: int = 0
    messages: int = 0
    bytes: int = 0
    snapshot_bytes: int = 0
    below_threshold: int = 0
    skipped: int = 0
    left_alone: int = 0
    left: list[Left] = field(default_factory=list)

    def leave(self, stream_id: str, offset: int, why: str) -> None:
        """Note that a stream was left alone."""
        self.left_alone += 1
        if len(self.left) < LEFT_MAX:
            self.left.append(Left(stream_id, f"{offset:020d}", why))

    def note(self, outcome: Published) -> None:
        """Note what became of a snapshot."""
        if outcome.refused:
            self.leave(outcome.stream_id, outcome.offset, outcome.refused)
        elif outcome.overtaken:
            self.skipped += 1
        else:
            self.published += 1
            self.messages += outcome.messages
            self.bytes += outcome.message_bytes
            self.snapshot_bytes += outcome.snapshot_bytes


class _OvertakenError(Exception):
    """There is nothing to fold any more."""


def fold_slice(work: FoldWork, part: Slice) -> FoldReport:
    """Fold and publish every stream of a slice that has grown enough."""
    report = FoldReport()
    context = TaskContext.get()
    # What another attempt has published the plan cannot know.
    knows = work.knows_snapshots and (context is None or context.attemptNumber() == 0)
    source = work.source
    with (
        SparkClient(source.connection) as server,
        Publisher(source.connection, source.bucket, work.concurrency, report.note) as publisher,
    ):
        folding = _SliceFold(work, server, publisher, report, knows_snapshots=knows)
        folding.run(stream_runs(source, server, part))
        publisher.finish()
    return report


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
        """Fold all of them."""
        waiting: list[tuple[Growth, Future[Snapshot | None] | None]] = []
        for batch in batches(self._grown(runs)):
            asked = [(growth, self._ask(growth)) for growth in batch]
            self._fold_all(waiting)
            waiting = asked
            if batch[-1].rest is not None:
                # Its messages are gone once those of the next stream are asked for.
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

    def _ask(self, growth: Growth) -> Future[Snapshot | None] | None:
        """For the snapshot, unless it is known that there is none."""
        if not self._knows_snapshots:
            return self._publisher.fetch(growth.stream.stream_id, None)
        if not growth.first:
            return None
        return self._publisher.fetch(growth.stream.stream_id, growth.first)

    def _fold_all(self, waiting: list[tuple[Growth, Future[Snapshot | None] | None]]) -> None:
        for growth, asked in waiting:
            try:
                self._fold_one(growth, asked)
            except _OvertakenError:
                self._report.skipped += 1

    def _fold_one(self, growth: Growth, asked: Future[Snapshot | None] | None) -> None:
        snapshot = None
        if asked is not None:
            snapshot = self._snapshot(growth, asked)
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
        except MisfitError as error:
            self._report.leave(growth.stream.stream_id, folded.misfit_at, error.message)
            return
        self._publisher.publish(
            Publication(
                growth.stream.stream_id, folded.at, body, folded.messages, folded.size_bytes
            )
        )

    def _snapshot(self, growth: Growth, asked: Future[Snapshot | None]) -> Snapshot | None:
        snapshot = None
        try:
            snapshot = asked.result()
        except InvalidRequestError:
            # A stream whose id cannot have snapshots: the server says so when one is published.
            pass
        except HoldfastError as error:
            if not is_overtaken(error):
                raise
            raise _OvertakenError from None
        finally:
            self._publisher.fetched(snapshot)
        return snapshot

    def _take(self, folded: _Folded, run: StreamRun) -> None:
        rest = run if folded.messages else from_offset(run, folded.at)
        if rest is None:
            return
        if int(rest.offsets[0]) > folded.at and not folded.messages:
            # What a fork shares with its source does not come with the fork's own messages.
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
    """A state, and up to which offset it goes."""

    def __init__(self, fold: Fold, content_type: str, at: int) -> None:
        self.at = at
        self.messages = 0
        self.size_bytes = 0
        self.misfit_at = at
        self._fold = fold
        self._content_type = content_type
        self._state: Any = None

    def begin(self, snapshot: Snapshot | None) -> None:
        body = None if snapshot is None else Body(snapshot.payload, snapshot.content_type)
        self._state = self._fold.begin(self._content_type, body)

    def add(self, run: StreamRun) -> None:
        if int(run.offsets[0]) != self.at or not is_contiguous(run):
            # Deleted and created again while it was read: the next run finds it as it is then.
            raise _OvertakenError
        messages = ArrowMessages(run.payloads, is_json=run.stream.is_json)
        try:
            self._state = self._fold.add(self._state, messages)
        except MisfitError as error:
            self.misfit_at = int(run.offsets[error.index])
            raise
        end = int(run.next_offsets[-1])
        self.messages += len(run.offsets)
        self.size_bytes += end - self.at
        self.at = self.misfit_at = end

    def end(self) -> Body:
        return self._fold.end(self._state)
