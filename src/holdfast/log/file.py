"""The file log: one write and one fdatasync per batch, in one commit thread.

Theory of operation. The engine hands over a batch, the commit thread frames it, writes it behind
the last durable byte and syncs, and the outcome goes back to the event loop. A failed write or
sync abandons the segment: the next segment's header names the durable end of this one and so
disowns the failed bytes, and only once that header is durable is the batch reported FAILED. If not
even that can be written the outcome is UNKNOWN, and `settle` keeps trying.

From the moment a successor is being created a segment is sealed, even if the creation fails: a
header that names its end may have reached the disk all the same, so nothing may be written behind
that end any more. Each attempt takes a new number, and the chain passes by the ones that failed.

The file is filled with zeros some way ahead of the batches: syncing bytes that replace others
spares the file system its journal, and takes half the time of syncing a file that grows.

A ballast file keeps some room on the disk. It is freed when the disk is full, so that the header
can be written; while it cannot be laid again, batches fail before a byte is written.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.errors import HoldfastError, LogCorruptError
from holdfast.format.segments import (
    FRAME_BYTES,
    HEADER_BYTES,
    SegmentHeader,
    encode_batch,
    encode_header,
)
from holdfast.log.files import DiskFiles
from holdfast.log.interface import Batch, LogStats, Outcome, Result
from holdfast.log.recovery import find_chain, read_segment, segment_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.clock import Clock
    from holdfast.log.files import File, Files

_log = logging.getLogger(__name__)
_COMMITTED: Final = Result(Outcome.COMMITTED)
_SETTLE_RETRY_S: Final = 0.5
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class _Kept(NamedTuple):
    """A segment that is no longer written to."""

    number: int
    last_position: int
    size_bytes: int


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
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._ballast_bytes = ballast_bytes
        self._zeros = bytes(zero_ahead_bytes)
        self._files: Files = files or DiskFiles()
        self._ballast = directory / "ballast"
        self._full = False
        self._chain = find_chain(self._files, directory)
        self._kept: list[_Kept] = []
        self._position = 0
        self._replayed = False
        # The segment being written: its file, number, salt, durable end, end of its zeros.
        self._file: File | None = None
        self._number = 0
        self._salt = 0
        self._end = 0
        self._zeroed = 0
        self._sealed = False
        self._last_number = self._chain.last_number
        # What the next header will say of the segments before it.
        self._predecessor = (0, 0)
        self._post: Callable[..., object] | None = None
        self._jobs: SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="holdfast-commit", daemon=True)
        self._closing = threading.Event()

    # Replay, before start.

    def replay(self, after: int) -> Iterator[Batch]:
        """Every durable batch past `after`; raises where the log is damaged or starts too late."""
        segments = self._chain.segments
        self._kept.clear()
        position = segments[0].header.first_position - 1 if segments else after
        if position > after:
            raise LogCorruptError(
                f"The log in {self._directory} starts at position {position + 1}, but everything "
                f"after {after} is needed: segments are missing. Restore them from a backup."
            )
        for segment in segments:
            end = HEADER_BYTES
            for batch, batch_end in read_segment(self._files, segment, position + 1):
                position, end = batch.position, batch_end
                if position > after:
                    yield batch
            if end == HEADER_BYTES:
                # Nothing durable in it: its successor takes over what it said of the others.
                self._predecessor = segment.header[2:]
                self._chain.orphans.append(segment.path)
            else:
                self._predecessor = (segment.number, end)
                self._kept.append(_Kept(segment.number, position, end))
        self._position = max(position, after)
        self._replayed = True

    # The event loop's side.

    def start(self, post: Callable[..., object]) -> None:
        """Open a new segment, remove what is no part of the log, and start the commit thread.

        On a full disk there is no segment yet: batches fail until there is room for one.
        """
        assert self._replayed, "replay() must have been read to its end"
        self._post = post
        try:
            self._open_segment()
            if self._kept:
                self._keep(self._kept.pop())
            for path in self._chain.orphans:
                self._files.remove(path)
            self._lay_ballast()
        except OSError as error:
            if error.errno not in _FULL:
                raise HoldfastError(
                    f"The log in {self._directory} cannot be written: {error}."
                ) from error
            _log.error("the disk is full: no write is taken until there is room")
            self._free_ballast(error)
        self._thread.start()

    def append(self, position: int, parts: list[bytes], done: Callable[[Result], None]) -> None:
        """Hand the batch to the commit thread."""
        self._jobs.put((self._append, (position, parts, done)))

    def settle(self, done: Callable[[Result], None]) -> None:
        """Have the commit thread disown the failed bytes, however long that takes."""
        self._jobs.put((self._settle, (done,)))

    def trim(self, through: int) -> None:
        """Remove kept segments that hold nothing past `through`."""
        self._jobs.put((self._trim, (through,)))

    def stats(self) -> LogStats:
        """Bytes and segments on disk, the ballast not counted."""
        kept = self._kept
        return LogStats(self._end + sum(segment.size_bytes for segment in kept), len(kept) + 1)

    def close(self) -> None:
        """Finish what was handed over, then stop the thread."""
        self._closing.set()
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()
        if self._file is not None:
            self._file.close()
            self._file = None

    # The commit thread's side.

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, args = job
            call(*args)

    def _answer(self, done: Callable[[Result], None], result: Result) -> None:
        assert self._post is not None
        try:
            self._post(done, result)
        except RuntimeError:
            if not self._closing.is_set():
                raise

    def _append(self, position: int, parts: list[bytes], done: Callable[[Result], None]) -> None:
        try:
            result = self._commit(position, b"".join(parts))
        except Exception as error:  # noqa: BLE001 (the thread must live to settle it)
            _log.exception("the commit of batch %d ended in a defect", position)
            result = Result(Outcome.UNKNOWN, f"a defect: {error!r}")
        self._answer(done, result)

    def _commit(self, position: int, body: bytes) -> Result:
        assert position == self._position + 1, "batches come in order"
        try:
            file = self._make_room(FRAME_BYTES + len(body))
        except OSError as error:
            self._free_ballast(error)
            return Result(Outcome.FAILED, f"no room for the batch: {error.strerror or error}")
        frame = encode_batch(self._salt, position, body)
        try:
            file.write_at(frame, self._end)
            file.sync()
        except OSError as error:
            _log.error("segment %d is abandoned at byte %d: %s", self._number, self._end, error)
            self._free_ballast(error)
            return self._disown(f"the batch could not be written: {error.strerror or error}")
        self._position = position
        self._end += len(frame)
        return _COMMITTED

    def _make_room(self, frame_bytes: int) -> File:
        """Everything that can fail before a byte of the batch is written; the file to write."""
        if self._full:
            self._lay_ballast()
            self._full = False
            _log.info("there is room on the disk again")
        full = self._end > HEADER_BYTES and self._end + frame_bytes > self._segment_bytes
        if full or self._sealed:
            self._open_segment()
        assert self._file is not None, "opening a segment gives a file"
        while self._zeros and self._zeroed < self._end + frame_bytes:
            self._file.write_at(self._zeros, self._zeroed)
            self._zeroed += len(self._zeros)
        return self._file

    def _disown(self, reason: str) -> Result:
        try:
            self._open_segment()
        except OSError as error:
            self._free_ballast(error)
            return Result(Outcome.UNKNOWN, f"{reason}; nor could its bytes be disowned: {error}")
        return Result(Outcome.FAILED, reason)

    def _settle(self, done: Callable[[Result], None]) -> None:
        while True:
            result = self._disown("the batch could not be written")
            if result.outcome is not Outcome.UNKNOWN or self._closing.wait(_SETTLE_RETRY_S):
                break
        self._answer(done, result)

    def _open_segment(self) -> None:
        """Create the next segment durably, then let go of the one before it."""
        self._sealed = True
        self._last_number += 1
        durable = self._end > HEADER_BYTES
        predecessor = (self._number, self._end) if durable else self._predecessor
        salt = self._clock.random_u64()
        file = self._create(SegmentHeader(salt, self._position + 1, *predecessor))
        if self._file is not None:
            self._file.close()
            if durable:
                self._keep(_Kept(self._number, self._position, self._end))
            else:
                self._remove(self._number)
        self._file, self._number, self._salt = file, self._last_number, salt
        self._end = self._zeroed = HEADER_BYTES
        self._sealed, self._predecessor = False, predecessor

    def _keep(self, segment: _Kept) -> None:
        """Keep a segment that has a successor; the room behind its end is given back."""
        self._kept.append(segment)
        with contextlib.suppress(OSError):
            self._files.truncate(segment_path(self._directory, segment.number), segment.size_bytes)

    def _create(self, header: SegmentHeader) -> File:
        file = self._files.create(segment_path(self._directory, self._last_number))
        try:
            file.write_at(encode_header(header), 0)
            file.sync()
            self._files.sync_directory(self._directory)
        except OSError:
            file.close()
            self._remove(self._last_number)
            raise
        return file

    def _remove(self, number: int) -> None:
        """Remove a segment that is no part of the chain; recovery does it where this fails."""
        with contextlib.suppress(OSError):
            self._files.remove(segment_path(self._directory, number))

    def _trim(self, through: int) -> None:
        while self._kept and self._kept[0].last_position <= through:
            self._remove(self._kept.pop(0).number)

    def _lay_ballast(self) -> None:
        if self._ballast_bytes:
            self._files.allocate(self._ballast, self._ballast_bytes)

    def _free_ballast(self, error: OSError) -> None:
        if error.errno in _FULL:
            self._full = True
            with contextlib.suppress(OSError):
                self._files.remove(self._ballast)
