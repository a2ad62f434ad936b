"""Writes segments, and handles failures of the disk.

Rules:

- A batch is written after the last durable byte and synced. Only then is it durable, and only then
  is the next one written.
- A failed write or sync abandons the segment: the next segment's header names the durable end of
  this one, which disowns the failed bytes. The batch is FAILED only once that header is durable.
  If the header cannot be written either, the outcome is UNKNOWN, and `disown` may be tried again.
- A segment is sealed as soon as the creation of its successor begins, even if that fails: a header
  that names its end may have reached the disk, so nothing may be written past that end any more.
  Each attempt takes a new number, and the chain skips the failed ones.

The file is filled with zeros some way ahead of the batches: overwriting bytes spares the file
system its journal, and syncing takes half the time of syncing a file that grows.

A ballast file reserves some room on the disk. It is removed when the disk is full, so that the
header can be written; until it can be allocated again, batches fail before a byte is written.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.format.segments import (
    FRAME_BYTES,
    HEADER_BYTES,
    SegmentHeader,
    encode_batch,
    encode_header,
)
from holdfast.log.interface import CommitOutcome, CommitResult, Cut, SealedSegment
from holdfast.log.recovery import segment_path

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.log.directory import File, Files
    from holdfast.log.recovery import Recovered

_log = logging.getLogger(__name__)
_COMMITTED: Final = CommitResult(CommitOutcome.COMMITTED)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class SegmentWriter:
    """The segments of one log.

    Only the commit worker calls it, except for `size_bytes` and `segments`.
    """

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        files: Files,
        *,
        segment_bytes: int,
        ballast_bytes: int,
        zero_ahead_bytes: int,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._files = files
        self._segment_bytes = segment_bytes
        self._ballast_bytes = ballast_bytes
        self._ballast = directory / "ballast"
        self._zeros = bytes(zero_ahead_bytes)
        self._full = False
        self._position = 0
        self._last_number = 0
        self._kept: list[SealedSegment] = []
        self._orphans: list[Path] = []
        # The predecessor that the next header names if this segment stays empty.
        self._predecessor = (0, 0)
        # The segment being written: durable up to `_end`, filled with zeros up to `_zeroed`.
        self._file: File | None = None
        self._number = 0
        self._salt = 0
        self._first_position = 0
        self._end = 0
        self._zeroed = 0
        self._sealed = False

    @property
    def size_bytes(self) -> int:
        """Durable bytes of all segments."""
        return self._end + sum(segment.end for segment in self._kept)

    @property
    def segments(self) -> int:
        return len(self._kept) + 1

    @property
    def number(self) -> int:
        """The number of the segment being written; 0 if none could be opened."""
        return self._number

    def start(self, found: Recovered) -> None:
        """Continue after the recovered batches, and remove files that are not part of the log.

        On a full disk no segment is opened: batches fail until there is room for one.
        """
        self._position, self._last_number = found.position, found.last_number
        self._kept, self._orphans = found.kept, found.orphans
        self._predecessor = found.predecessor
        try:
            self._confirm(found)
        except OSError as error:
            # It overwrites bytes, for which a copy-on-write file system needs room, too.
            self._free_ballast(error)
            self._confirm(found)
        try:
            self._open_next()
            self._lay_ballast()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            _log.error("the disk is full: writes are rejected until there is room")
            self._free_ballast(error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def commit(self, position: int, body: bytes) -> CommitResult:
        """Make the batch durable, or make sure that it is never replayed."""
        assert position == self._position + 1, "batches come in order"
        try:
            file = self._make_room(FRAME_BYTES + len(body))
        except OSError as error:
            self._free_ballast(error)
            return CommitResult(
                CommitOutcome.FAILED, f"no room for the batch: {error.strerror or error}"
            )
        frame = encode_batch(self._salt, position, body)
        try:
            file.write_at(frame, self._end)
            file.sync()
        except OSError as error:
            _log.error("segment %d is abandoned at byte %d: %s", self._number, self._end, error)
            self._free_ballast(error)
            return self.disown(f"the batch could not be written: {error.strerror or error}")
        self._position = position
        self._end += len(frame)
        return _COMMITTED

    def disown(self, reason: str) -> CommitResult:
        """Open a segment whose header disowns the bytes after the durable end."""
        try:
            self._open_next()
        except OSError as error:
            self._free_ballast(error)
            return CommitResult(
                CommitOutcome.UNKNOWN, f"{reason}; its bytes could not be disowned either: {error}"
            )
        return CommitResult(CommitOutcome.FAILED, reason)

    def cut(self) -> Cut:
        """Seal the current segment if it holds batches, and list all segments that do."""
        if self._end > HEADER_BYTES:
            try:
                self._open_next()
            except OSError as error:
                # The current segment is sealed all the same, so it is part of the cut.
                _log.error("no segment could be opened after a cut: %s", error)
                self._free_ballast(error)
        return self.durable()

    def durable(self) -> Cut:
        """Everything durable so far."""
        segments = list(self._kept)
        if self._end > HEADER_BYTES:
            segments.append(self._sealed_segment())
        return Cut(self._position, tuple(segments))

    def trim(self, through: int) -> None:
        """Remove sealed segments that hold nothing past `through`."""
        while self._kept and self._kept[0].last_position <= through:
            self._remove(Path(self._kept.pop(0).path))

    def _make_room(self, frame_bytes: int) -> File:
        """Do everything that can fail before the batch is written, and return the file."""
        if self._full:
            self._lay_ballast()
            self._full = False
            _log.info("the disk has room again")
        full = self._end > HEADER_BYTES and self._end + frame_bytes > self._segment_bytes
        if full or self._sealed:
            self._open_next()
        assert self._file is not None, "opening a segment gives a file"
        while self._zeros and self._zeroed < self._end + frame_bytes:
            self._file.write_at(self._zeros, self._zeroed)
            self._zeroed += len(self._zeros)
        return self._file

    def _confirm(self, found: Recovered) -> None:
        """Make the last batch durable, which recovery may have read from the page cache alone.

        It may not have been synced when the previous server was killed, or its sync may have
        failed, after which the kernel can regard its pages as clean. So it is written again. All
        batches before it are durable. The directory is synced so that no removed header, which
        could disown the batch, reappears.
        """
        if found.tail is None:
            return
        path, frame, at = found.tail
        file = self._files.open(path)
        try:
            file.write_at(frame, at)
            file.sync()
        finally:
            file.close()
        self._files.sync_directory(self._directory)

    def _open_next(self) -> None:
        """Create the next segment durably, then close the one before it."""
        self._sealed = True
        self._last_number += 1
        durable = self._end > HEADER_BYTES
        predecessor = (self._number, self._end) if durable else self._predecessor
        header = SegmentHeader(self._clock.random_u64(), self._position + 1, *predecessor)
        file = self._create(header)
        if self._file is None:
            self._clean_up()
        else:
            self._file.close()
            if durable:
                self._kept.append(self._sealed_segment())
                self._truncate(self._kept[-1])
            else:
                self._remove(segment_path(self._directory, self._number))
        self._file, self._number, self._salt = file, self._last_number, header.salt
        self._first_position, self._predecessor = header.first_position, predecessor
        self._end = self._zeroed = HEADER_BYTES
        self._sealed = False

    def _create(self, header: SegmentHeader) -> File:
        path = segment_path(self._directory, self._last_number)
        file = self._files.create(path)
        try:
            file.write_at(encode_header(header), 0)
            file.sync()
            self._files.sync_directory(self._directory)
        except OSError:
            file.close()
            self._remove(path)
            raise
        return file

    def _clean_up(self) -> None:
        """Remove everything outside the chain, once the first segment after the start exists."""
        if self._kept:
            self._truncate(self._kept[-1])
        for path in self._orphans:
            self._remove(path)
        self._orphans = []

    def _sealed_segment(self) -> SealedSegment:
        path = segment_path(self._directory, self._number)
        return SealedSegment(str(path), self._end, self._first_position, self._position)

    def _truncate(self, segment: SealedSegment) -> None:
        """Free the room after the end of a segment that has a successor."""
        with contextlib.suppress(OSError):
            self._files.truncate(Path(segment.path), segment.end)

    def _remove(self, path: Path) -> None:
        """Remove a segment outside the chain; the next start retries if this fails."""
        with contextlib.suppress(OSError):
            self._files.remove(path)

    def _lay_ballast(self) -> None:
        if self._ballast_bytes:
            self._files.allocate(self._ballast, self._ballast_bytes)

    def _free_ballast(self, error: OSError) -> None:
        if error.errno in _FULL:
            self._full = True
            with contextlib.suppress(OSError):
                self._files.remove(self._ballast)
