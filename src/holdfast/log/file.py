"""The file log: one write and one fdatasync per batch, in one commit thread.

Theory of operation. The engine hands over a batch. The commit thread frames it, writes it after
the last durable byte and syncs (`segment_writer.py`); the result is posted back to the event loop.
After the start only this thread touches the disk, so its jobs see each other's effects in order and
need no locks. While an outcome stays unknown `settle` tries again after a pause, during which the
thread runs other jobs.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import HoldfastError, LogCorruptError
from holdfast.format.segments import encode_batch
from holdfast.log.directory import Files
from holdfast.log.end import EndFile, LogEnd, RecordedSegment
from holdfast.log.interface import (
    CommitOutcome,
    CommitResult,
    LogStats,
    ReplayedBatch,
    SealedSegment,
)
from holdfast.log.recovery import Recovered, Tail, find_chain, read_segment
from holdfast.log.segment_writer import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.clock import Clock
    from holdfast.log.directory import Files
    from holdfast.log.interface import Cut

    Job = tuple[Callable[..., None], tuple[Any, ...]]

_log = logging.getLogger(__name__)
_SETTLE_RETRY_S: Final = 0.5


class CommitThread:
    """Runs jobs one at a time, in the order in which they were handed over."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # Used by the thread alone.
        self._delayed: list[tuple[float, Job]] = []
        self._thread = threading.Thread(target=self._run, name="holdfast-commit", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, call: Callable[..., None], *args: Any) -> None:
        """Hand over a job without waiting."""
        self._jobs.put((call, args))

    def later(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Run a job after a pause, or at `stop`; called by jobs that have to try again.

        Any other job cuts the pause short, so that none can put it off forever.
        """
        self._delayed.append((delay_s, (call, args)))

    def stop(self) -> None:
        """Return once every job has run."""
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()

    def _run(self) -> None:
        jobs = self._jobs
        while (job := self._wait() if self._delayed else jobs.get()) is not None:
            call, args = job
            call(*args)
        delayed, self._delayed = self._delayed, []
        for _, (call, args) in delayed:
            call(*args)

    def _wait(self) -> Job | None:
        """The next job, or the delayed one once its pause is over."""
        delay_s, delayed = self._delayed[0]
        try:
            job = self._jobs.get(timeout=delay_s)
        except Empty:
            del self._delayed[0]
            return delayed
        self._delayed[0] = (0.0, delayed)
        return job


class FileLog:
    """A `Log` in a directory of segment files, used by one process at a time."""

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        *,
        segment_bytes: int,
        ballast_bytes: int,
        zero_ahead_bytes: int = 0,
        files: Files | None = None,
        worker: CommitThread | None = None,
        records_end: bool = False,
    ) -> None:
        self._directory = directory
        self._files = files or Files()
        self._worker = worker or CommitThread()
        self._end_file = EndFile(self._files, directory) if records_end else None
        self._chain = find_chain(self._files, directory)
        self._found: Recovered | None = None
        self._writer = SegmentWriter(
            directory,
            clock,
            self._files,
            segment_bytes=segment_bytes,
            ballast_bytes=ballast_bytes,
            zero_ahead_bytes=zero_ahead_bytes,
        )
        self._post: Callable[..., object] | None = None
        self._started = False
        self._closing = False

    def replay(self, after: int) -> Iterator[ReplayedBatch]:
        """Yield every durable batch past `after`; raises if any are damaged or missing."""
        segments = self._chain.segments
        kept: list[SealedSegment] = []
        orphans, predecessor, tail = list(self._chain.orphans), (0, 0), None
        position = segments[0].header.first_position - 1 if segments else after
        if position > after:
            raise LogCorruptError(
                f"The log in {self._directory} starts at position {position + 1}, but everything "
                f"after {after} is needed: segments are missing. Restore them from a backup, or "
                "run `holdfast check --repair` if only the catalog is missing."
            )
        for segment in segments:
            frame = None
            for frame in read_segment(self._files, segment, position + 1):
                position = frame.position
                if position > after:
                    yield ReplayedBatch(position, frame.body)
            header, path = segment.header, segment.path
            if frame is None:
                # It holds nothing durable: the next segment takes over its predecessor.
                predecessor = (header.predecessor, header.predecessor_end)
                orphans.append(path)
                continue
            predecessor = (segment.number, frame.end)
            kept.append(SealedSegment(str(path), frame.end, header.first_position, position))
            if segment.end is None:
                encoded = encode_batch(header.salt, position, frame.body)
                tail = Tail(path, encoded, frame.end - len(encoded))
        if position < after:
            # An older copy of the log: the catalog covers all of it, and the next batch does not
            # follow its last one. A new chain begins, and these segments are removed.
            orphans = [*self._chain.orphans, *(segment.path for segment in segments)]
            kept, predecessor, tail = [], (0, 0), None
        reached = max(position, after)
        if self._end_file is not None:
            end = self._end_file.read()
            self._end_file.check(end, self._chain.last_segment, reached)
            if end is None and reached and not segments:
                _log.warning(
                    "the log in %s is empty; if it was not restored from a backup like this, "
                    "whatever was written after position %d is lost",
                    self._directory,
                    reached,
                )
        self._found = Recovered(reached, kept, orphans, self._chain.last_number, predecessor, tail)

    def start(self, post: Callable[..., object]) -> None:
        """Open a new segment, remove stray files, and start the commit thread."""
        assert self._found is not None, "replay() must have been read to its end"
        self._post = post
        try:
            self._writer.start(self._found)
            if self._end_file is not None and not self._writer.number:
                self._end_file.remove()
        except OSError as error:
            raise HoldfastError(
                f"The log in {self._directory} cannot be written: {error}."
            ) from error
        self._found = None
        self._started = True
        self._record_end(stopped=False)
        self._worker.start()

    def append(
        self, position: int, parts: list[bytes], done: Callable[[CommitResult], None]
    ) -> None:
        self._worker.put(self._append, position, parts, done)

    def settle(self, done: Callable[[CommitResult], None]) -> None:
        """Disown the failed bytes, however long that takes."""
        self._worker.put(self._settle, done)

    def cut(self, done: Callable[[Cut], None]) -> None:
        self._worker.put(self._cut, done)

    def trim(self, through: int) -> None:
        self._worker.put(self._writer.trim, through)

    def stats(self) -> LogStats:
        """Bytes and segments on disk, not counting the ballast."""
        return LogStats(self._writer.size_bytes, self._writer.segments)

    def close(self) -> None:
        self._closing = True
        self._worker.stop()
        if self._started:
            self._record_end(stopped=True)
        self._writer.close()

    def _record_end(self, *, stopped: bool) -> None:
        """Record what the next start must find."""
        if self._end_file is None or not self._writer.number:
            return
        through, segments = self._writer.durable()
        names = [RecordedSegment(Path(path).name, end, last) for path, end, _, last in segments]
        end = LogEnd(
            stopped=stopped,
            segment=self._writer.number,
            position=through if stopped else 0,
            segments=names if stopped else [],
        )
        try:
            self._end_file.write(end)
        except OSError as error:
            _log.warning("the end of the log could not be recorded: %s", error)

    # The methods below run in the commit thread.

    def _report(self, done: Callable[[Any], None], result: CommitResult | Cut) -> None:
        assert self._post is not None
        try:
            self._post(done, result)
        except RuntimeError:
            if not self._closing:
                raise

    def _append(
        self, position: int, parts: list[bytes], done: Callable[[CommitResult], None]
    ) -> None:
        try:
            result = self._writer.commit(position, b"".join(parts))
        except Exception as error:  # noqa: BLE001 (the thread must survive to settle it)
            _log.exception("a defect while batch %d was committed", position)
            result = CommitResult(CommitOutcome.UNKNOWN, f"a defect: {error!r}")
        self._report(done, result)

    def _settle(self, done: Callable[[CommitResult], None]) -> None:
        result = self._writer.disown("the batch could not be written")
        if result.outcome is CommitOutcome.UNKNOWN and not self._closing:
            self._worker.later(_SETTLE_RETRY_S, self._settle, done)
        else:
            self._report(done, result)

    def _cut(self, done: Callable[[Cut], None]) -> None:
        self._report(done, self._writer.cut())
