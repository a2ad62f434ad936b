"""The export: a copy of a log that is being written to, without asking whoever writes it.

The batches are framed anew, as a chain of segments that starts with itself, so that the copy is a
log of its own. Whatever was acknowledged before the export began is in it, as far as the log still
had it then.

Rules:

- What sealed segments hold is final. The last one is read as far as its batches are sound; where
  it was sealed meanwhile its successor names the end, and what lies beyond, which the writer has
  disowned, is left out.
- A segment that vanishes was trimmed, because the catalog covers it. What remains is the log then:
  segments given before it are void, and numbers start with 1 again.
- A sound batch behind an unsound one is damage, unless it was only the moment: bytes are read while
  they are written, page by page. So the file is read again before it is believed.

The last batch may not be synced yet when it is copied. Should the sync fail the writer answers with
an error for a write that is in this copy: as after a kill, where such a batch comes back too.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import LogCorruptError
from holdfast.format.segments import (
    HEADER_BYTES,
    DamagedSegmentError,
    SegmentHeader,
    encode_batch,
    encode_header,
    find_batch,
    iter_batches,
)
from holdfast.log.recovery import find_chain, read_segment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.clock import Clock
    from holdfast.format.segments import Frame
    from holdfast.log.files import Files
    from holdfast.log.recovery import Segment

SEGMENT_BYTES_MAX: Final = 16 * 1024 * 1024
# How often segments may be trimmed while they are read; each time there are fewer left.
_TRIMS_MAX: Final = 100
# How often what looks damaged is read before it is believed to be.
_READS_MAX: Final = 3


class ExportedSegment(NamedTuple):
    """A segment of the copy. The one with number 1 voids all that were given before it."""

    number: int
    first_position: int
    last_position: int
    data: bytes


class _TrimmedError(Exception):
    """A segment is gone since the chain was read."""


def export_log(
    files: Files,
    directory: Path,
    clock: Clock,
    after: int,
    *,
    segment_bytes: int = SEGMENT_BYTES_MAX,
) -> Iterator[ExportedSegment]:
    """Every batch past position `after`, in segments of about `segment_bytes`.

    In memory are a segment of the log and one of the copy at a time. They may start later than
    `after` says, where the log was trimmed meanwhile.
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
    """A segment of the copy that is being put together."""

    def __init__(
        self, clock: Clock, first_position: int, predecessor: int, predecessor_end: int
    ) -> None:
        self._header = SegmentHeader(
            clock.random_u64(), first_position, predecessor, predecessor_end
        )
        self._parts = [encode_header(self._header)]
        self.size = HEADER_BYTES
        self.last_position = first_position - 1

    def add(self, frame: Frame) -> None:
        """Take the next batch."""
        part = encode_batch(self._header.salt, frame.position, frame.body)
        self._parts.append(part)
        self.size += len(part)
        self.last_position = frame.position

    def finish(self) -> ExportedSegment:
        """The segment with all batches it was given."""
        header = self._header
        data = b"".join(self._parts)
        self._parts.clear()
        return ExportedSegment(
            header.predecessor + 1, header.first_position, self.last_position, data
        )


def _frames(files: Files, directory: Path, after: int) -> Iterator[Frame]:
    """The batches past `after`; where a segment is gone, those that come after it."""
    trims, reads = _TRIMS_MAX, _READS_MAX
    while True:
        try:
            for frame in _read_once(files, directory, after):
                after = frame.position
                yield frame
            return
        except (_TrimmedError, FileNotFoundError) as error:
            trims -= 1
            if not trims:
                raise LogCorruptError(
                    f"The log in {directory} is trimmed faster than it can be read."
                ) from error
        except LogCorruptError:
            reads -= 1
            if not reads:
                raise


def _read_once(files: Files, directory: Path, after: int) -> Iterator[Frame]:
    segments = find_chain(files, directory).segments
    for segment, following in pairwise(segments):
        if following.header.first_position > after + 1:
            yield from _past(after, read_segment(files, segment, segment.header.first_position))
    if segments:
        yield from _past(after, _read_last(files, directory, segments[-1]))


def _past(after: int, frames: Iterator[Frame]) -> Iterator[Frame]:
    return (frame for frame in frames if frame.position > after)


def _read_last(files: Files, directory: Path, segment: Segment) -> Iterator[Frame]:
    """The batches of the segment that was the last when the chain was read."""
    data = files.read(segment.path)
    now = {each.number: each for each in find_chain(files, directory).segments}.get(segment.number)
    if now is None or now.header != segment.header:
        raise _TrimmedError
    if now.end is not None:
        # Read again: it may have grown before it was sealed.
        yield from read_segment(files, now, now.header.first_position)
        return
    end = HEADER_BYTES
    try:
        for frame in iter_batches(data, segment.header, None):
            end = frame.end
            yield frame
    except DamagedSegmentError as error:
        raise LogCorruptError(f"The log is damaged: {segment.path} at {error}.") from None
    follower = find_batch(data, end + 1, segment.header.salt)
    if follower is not None:
        raise LogCorruptError(
            f"The log is damaged: {segment.path} at byte {end}: "
            f"a sound batch follows at byte {follower}."
        )
