"""The file log: one write and one fdatasync per batch, in one commit thread.

Theory of operation. The engine hands over a batch, the commit thread frames it, writes it behind
the last durable byte and syncs (`segment_writer.py`), and the outcome goes back to the event loop.
Everything that touches the disk after the start is a job of that thread, so that jobs see each
other's effects in order and need no locks. Where an outcome stays unknown `settle` tries again
later; the thread is free for other jobs meanwhile.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import HoldfastError, LogCorruptError
from holdfast.format.segments import encode_batch
from holdfast.log.commit_thread import CommitThread
from holdfast.log.files import DiskFiles
from holdfast.log.interface import Batch, LogStats, Outcome, Result, SealedSegment
from holdfast.log.recovery import Recovered, Tail, find_chain, read_segment
from holdfast.log.segment_writer import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.clock import Clock
    from holdfast.log.commit_thread import Worker
    from holdfast.log.files import Files
    from holdfast.log.interface import Cut

_log = logging.getLogger(__name__)
_SETTLE_RETRY_S: Final = 0.5


class FileLog:
    """A `Log` in a directory of segment files; one process at a time."""

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        *,
        segment_bytes: int,
        ballast_bytes: int,
        zero_ahead_bytes: int = 0,
        files: Files | None = None,
        worker: Worker | None = None,
    ) -> None:
        self._directory = directory
        self._files: Files = files or DiskFiles()
        self._worker: Worker = worker or CommitThread()
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
        self._closing = False

    # Replay, before start.

    def replay(self, after: int) -> Iterator[Batch]:
        """Every durable batch past `after`; raises where the log is damaged or starts too late."""
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
                    yield Batch(position, frame.body)
            header, path = segment.header, segment.path
            if frame is None:
                # Nothing durable in it: its successor takes over what it said of the others.
                predecessor = (header.predecessor, header.predecessor_end)
                orphans.append(path)
                continue
            predecessor = (segment.number, frame.end)
            kept.append(SealedSegment(str(path), frame.end, header.first_position, position))
            if segment.end is None:
                encoded = encode_batch(header.salt, position, frame.body)
                tail = Tail(path, encoded, frame.end - len(encoded))
        if position < after:
            # An older copy of the log: all it holds is stored elsewhere, and it ends before the
            # place where the next batch belongs. So a new chain begins, and this one can go.
            orphans = [*self._chain.orphans, *(segment.path for segment in segments)]
            kept, predecessor, tail = [], (0, 0), None
        self._found = Recovered(
            max(position, after), kept, orphans, self._chain.last_number, predecessor, tail
        )

    # The event loop's side.

    def start(self, post: Callable[..., object]) -> None:
        """Open a new segment, remove what is no part of the log, and start the commit thread."""
        assert self._found is not None, "replay() must have been read to its end"
        self._post = post
        try:
            self._writer.start(self._found)
        except OSError as error:
            raise HoldfastError(
                f"The log in {self._directory} cannot be written: {error}."
            ) from error
        self._found = None
        self._worker.start()

    def append(self, position: int, parts: list[bytes], done: Callable[[Result], None]) -> None:
        """Hand the batch to the commit thread."""
        self._worker.put(self._append, position, parts, done)

    def settle(self, done: Callable[[Result], None]) -> None:
        """Have the commit thread disown the failed bytes, however long that takes."""
        self._worker.put(self._settle, done)

    def cut(self, done: Callable[[Cut], None]) -> None:
        """Have the commit thread go on in a new segment, and tell those before it."""
        self._worker.put(self._cut, done)

    def trim(self, through: int) -> None:
        """Remove kept segments that hold nothing past `through`."""
        self._worker.put(self._writer.trim, through)

    def stats(self) -> LogStats:
        """Bytes and segments on disk, the ballast not counted."""
        return LogStats(self._writer.size_bytes, self._writer.segments)

    def close(self) -> None:
        """Finish what was handed over, then stop the thread."""
        self._closing = True
        self._worker.stop()
        self._writer.close()

    # The commit thread's side.

    def _answer(self, done: Callable[[Any], None], answer: Result | Cut) -> None:
        assert self._post is not None
        try:
            self._post(done, answer)
        except RuntimeError:
            if not self._closing:
                raise

    def _append(self, position: int, parts: list[bytes], done: Callable[[Result], None]) -> None:
        try:
            result = self._writer.commit(position, b"".join(parts))
        except Exception as error:  # noqa: BLE001 (the thread must live to settle it)
            _log.exception("the commit of batch %d ended in a defect", position)
            result = Result(Outcome.UNKNOWN, f"a defect: {error!r}")
        self._answer(done, result)

    def _settle(self, done: Callable[[Result], None]) -> None:
        result = self._writer.disown("the batch could not be written")
        if result.outcome is Outcome.UNKNOWN and not self._closing:
            self._worker.later(_SETTLE_RETRY_S, self._settle, done)
        else:
            self._answer(done, result)

    def _cut(self, done: Callable[[Cut], None]) -> None:
        self._answer(done, self._writer.cut())
