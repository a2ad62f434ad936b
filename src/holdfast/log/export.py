"""Copies a log while a server writes to it, without coordinating with that server.

The batches are framed anew, as a chain of segments of its own, so the copy is a complete log. It
contains every batch that was acknowledged before the export began and not trimmed by then.

Rules:

- Sealed segments are final. The last segment is read as far as its batches are valid. If it was
  sealed meanwhile, its successor names the end; bytes beyond it are disowned and left out.
- A segment that vanishes was trimmed because the catalog covers it. The export then restarts with
  the remaining segments: those yielded before are void, and numbers start with 1 again.
- A valid batch after an invalid one is damage, unless the file was read in the middle of a write,
  which reaches it page by page. So the file is read again before it counts as damaged.

The last batch may not be synced yet when it is copied. If that sync fails, the writer reports an
error for a write that is in this copy, as can happen after a kill.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import LogCorruptError
from holdfast.format.segments import (
    HEADER_BYTES,
    SegmentHeader,
    encode_batch,
    encode_header,
)
from holdfast.log.recovery import batches_of, find_chain, read_segment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from holdfast.clock import Clock
    from holdfast.format.segments import BatchFrame
    from holdfast.log.directory import Files
    from holdfast.log.recovery import Segment

SEGMENT_BYTES_MAX: Final = 16 * 1024 * 1024
# How often segments may vanish during one export.
_TRIMS_MAX: Final = 100
# How often a log that looks damaged is read before the export fails.
_READS_MAX: Final = 3


class ExportedSegment(NamedTuple):
    """A segment of the copy. The one with number 1 voids all that were yielded before it."""

    number: int
    first_position: int
    last_position: int
    data: bytes


class _TrimmedError(Exception):
    """A segment was removed since the chain was read."""


def export_log(
    files: Files,
    directory: Path,
    clock: Clock,
    after: int,
    *,
    segment_bytes: int = SEGMENT_BYTES_MAX,
) -> Iterator[ExportedSegment]:
    """Yield every batch past position `after`, in segments of about `segment_bytes`.

    One segment of the log and one of the copy are in memory at a time. The copy starts later than
    `after` if the log was trimmed meanwhile.
    """
    building: _Building | None = None
    for frame in _frames(files, directory, after):
        if building is not None and frame.position != building.last_position + 1:
            building = None
        if building is not None and building.size + len(frame.body) > segment_bytes:
            done = building.finish()
            yield done
            building = _Building(clock, frame.position, done.number, len(done.data))
        if building is None:
            building = _Building(clock, frame.position, 0, 0)
        building.add(frame)
    if building is not None:
        yield building.finish()


class _Building:
    """A segment of the copy under construction."""

    def __init__(
        self, clock: Clock, first_position: int, predecessor: int, predecessor_end: int
    ) -> None:
        self._header = SegmentHeader(
            clock.random_u64(), first_position, predecessor, predecessor_end
        )
        self._parts = [encode_header(self._header)]
        self.size = HEADER_BYTES
        self.last_position = first_position - 1

    def add(self, frame: BatchFrame) -> None:
        part = encode_batch(self._header.salt, frame.position, frame.body)
        self._parts.append(part)
        self.size += len(part)
        self.last_position = frame.position

    def finish(self) -> ExportedSegment:
        header = self._header
        data = b"".join(self._parts)
        self._parts.clear()
        return ExportedSegment(
            header.predecessor + 1, header.first_position, self.last_position, data
        )


def find_last_segment(files: Files, directory: Path) -> int:
    """The number of the last segment; 0 if there is none."""
    patience = _Patience(directory)
    while True:
        with patience:
            return find_chain(files, directory).last_segment


class _Patience:
    """Ignores errors that come from the server's work on the log, a number of times."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._trims, self._reads = _TRIMS_MAX, _READS_MAX

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> bool:
        if isinstance(error, (_TrimmedError, FileNotFoundError)):
            self._trims -= 1
            if not self._trims:
                raise LogCorruptError(
                    f"The log in {self._directory} is trimmed faster than it can be read."
                ) from error
            return True
        self._reads -= isinstance(error, LogCorruptError)
        return isinstance(error, LogCorruptError) and self._reads > 0


def _frames(files: Files, directory: Path, after: int) -> Iterator[BatchFrame]:
    """Yield the batches past `after`; if a segment is gone, continue with those after it."""
    patience = _Patience(directory)
    while True:
        with patience:
            for frame in _read_once(files, directory, after):
                after = frame.position
                yield frame
            return


def _read_once(files: Files, directory: Path, after: int) -> Iterator[BatchFrame]:
    segments = find_chain(files, directory).segments
    for segment, following in pairwise(segments):
        if following.header.first_position > after + 1:
            yield from _past(after, read_segment(files, segment, segment.header.first_position))
    if segments:
        yield from _past(after, _read_last(files, directory, segments[-1]))


def _past(after: int, frames: Iterator[BatchFrame]) -> Iterator[BatchFrame]:
    return (frame for frame in frames if frame.position > after)


def _read_last(files: Files, directory: Path, segment: Segment) -> Iterator[BatchFrame]:
    """Yield the batches of the segment that was the last one when the chain was read."""
    data = files.read(segment.path)
    now = {each.number: each for each in find_chain(files, directory).segments}.get(segment.number)
    if now is None or now.header != segment.header:
        raise _TrimmedError
    if now.end is not None:
        # Read it again: it may have grown before it was sealed.
        yield from read_segment(files, now, now.header.first_position)
        return
    yield from batches_of(segment, data)
