"""Recovery: finds the durable batches in the log's files.

Rules:

- The last segment with a valid header determines the chain: each header names its predecessor and
  the byte where that one ends. Files outside the chain hold nothing durable.
- A file without a valid header is an unfinished creation if it is shorter than a header or all
  zeros. Otherwise it is damaged: a header is written in one piece, before any batch.
- Up to a segment's end every batch must be valid and the next in order. Anything else is damage:
  the server names file and byte, and does not start.
- The last segment has no successor that names its end. An invalid batch there is a torn tail and
  is cut off, unless a valid batch follows it: then it is damage, too.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import LogCorruptError, UnknownFormatError
from holdfast.format.segments import (
    HEADER_BYTES,
    DamagedSegmentError,
    SegmentHeader,
    UnknownVersionError,
    decode_header,
    find_batch,
    iter_batches,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.format.segments import BatchFrame
    from holdfast.log.directory import Files
    from holdfast.log.interface import SealedSegment

_log = logging.getLogger(__name__)
_NAME: Final = re.compile(r"(\d{10})\.seg")


class Segment(NamedTuple):
    """A segment of the chain; `end` is None for the last one, whose end a scan finds."""

    number: int
    path: Path
    header: SegmentHeader
    end: int | None


class Chain(NamedTuple):
    """The log's segments in order, and the files that are not part of it."""

    segments: list[Segment]
    orphans: list[Path]
    # The highest number of any file, part of the log or not.
    last_number: int

    @property
    def last_segment(self) -> int:
        """The number of the last segment; 0 if there is none."""
        return self.segments[-1].number if self.segments else 0


class Tail(NamedTuple):
    """The last batch of the last segment."""

    path: Path
    frame: bytes
    at: int


class Recovered(NamedTuple):
    """The result of a replay, from which the writer continues."""

    position: int
    kept: list[SealedSegment]
    orphans: list[Path]
    last_number: int
    # The segment number and end that the next header will name.
    predecessor: tuple[int, int]
    # None if the last segment holds no batch: then headers vouch for all batches.
    tail: Tail | None


def segment_path(directory: Path, number: int) -> Path:
    return directory / f"{number:010d}.seg"


def find_chain(files: Files, directory: Path) -> Chain:
    """Read all headers and follow the chain back from the last one."""
    headers: dict[int, SegmentHeader] = {}
    numbers = sorted(int(m[1]) for name in files.names(directory) if (m := _NAME.fullmatch(name)))
    for number in numbers:
        header = _read_header(files, segment_path(directory, number))
        if header is not None:
            headers[number] = header
    segments: list[Segment] = []
    current, end = max(headers, default=0), None
    while current in headers:
        header = headers[current]
        segments.append(Segment(current, segment_path(directory, current), header, end))
        if header.predecessor >= current:
            raise _damage(
                segments[-1].path, "byte 0: its header names a predecessor that comes later"
            )
        current, end = header.predecessor, header.predecessor_end
    segments.reverse()
    used = {segment.number for segment in segments}
    orphans = [segment_path(directory, number) for number in numbers if number not in used]
    return Chain(segments, orphans, max(numbers, default=0))


def _read_header(files: Files, path: Path) -> SegmentHeader | None:
    data = files.read_start(path, HEADER_BYTES)
    try:
        header = decode_header(data)
    except UnknownVersionError as error:
        raise UnknownFormatError(
            f"{path} is of {error}, which this version of Holdfast does not read."
        ) from None
    if header is None and len(data) == HEADER_BYTES and any(files.read(path)):
        raise _damage(path, "byte 0: its header is damaged")
    return header


def read_segment(files: Files, segment: Segment, expected: int) -> Iterator[BatchFrame]:
    """Yield the segment's batches; the first one must have the position `expected`."""
    data = files.read(segment.path)
    first_position, end = segment.header.first_position, HEADER_BYTES
    if first_position != expected:
        raise _damage(
            segment.path, f"byte 0: it starts at position {first_position} instead of {expected}"
        )
    for frame in batches_of(segment, data):
        end = frame.end
        yield frame
    if segment.end is None and any(data[end:]):
        _log.warning("cutting a torn tail: %s ends at byte %d of %d", segment.path, end, len(data))


def batches_of(segment: Segment, data: bytes) -> Iterator[BatchFrame]:
    """Yield the batches in the bytes of a segment; raises if they are damaged."""
    end = HEADER_BYTES
    try:
        for frame in iter_batches(data, segment.header, segment.end):
            end = frame.end
            yield frame
    except DamagedSegmentError as error:
        raise _damage(segment.path, str(error)) from None
    if segment.end is None:
        follower = find_batch(data, end + 1, segment.header.salt)
        if follower is not None:
            raise _damage(segment.path, f"byte {end}: a valid batch follows at byte {follower}")


def _damage(path: Path, what: str) -> LogCorruptError:
    return LogCorruptError(
        f"The log is damaged: {path} at {what}. Nothing was changed. "
        "Restore the file from a backup, or move the data directory aside."
    )
