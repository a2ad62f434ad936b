"""Recovery: which bytes of the log's files are the log.

Rules:

- The last segment with a sound header tells the chain: each header names its predecessor and the
  byte where that one ended for good. Files outside the chain hold nothing durable.
- A file without a sound header is an unfinished creation if it is shorter than a header or all
  zeros, and damage otherwise: a header is written in one piece, and batches only behind it.
- Up to a segment's end every batch must be sound and the next in order: anything else is damage,
  and the server names file and byte and refuses.
- The last segment has no successor to name its end. A bad batch there is a torn tail, to be cut,
  unless a sound batch follows it: then it is damage too.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import LogCorruptError, UnknownFormatError
from holdfast.format.segments import (
    HEADER_BYTES,
    SegmentHeader,
    UnknownVersionError,
    decode_batch,
    decode_header,
    find_batch,
)
from holdfast.log.interface import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.log.files import Files

_log = logging.getLogger(__name__)
_NAME: Final = re.compile(r"(\d{10})\.seg")


class Segment(NamedTuple):
    """A segment of the chain; `end` is None for the last, whose end a scan finds."""

    number: int
    path: Path
    header: SegmentHeader
    end: int | None


class Chain(NamedTuple):
    """The log's segments in order, and the files that are no part of it."""

    segments: list[Segment]
    orphans: list[Path]
    last_number: int


def segment_path(directory: Path, number: int) -> Path:
    """Where the segment with this number lives."""
    return directory / f"{number:010d}.seg"


def find_chain(files: Files, directory: Path) -> Chain:
    """Read all headers and follow the chain back from the last."""
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
            raise _damage(segments[-1].path, 0, "its header names a predecessor that comes later")
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
        raise _damage(path, 0, "its header is damaged")
    return header


def read_segment(files: Files, segment: Segment, expected: int) -> Iterator[tuple[Batch, int]]:
    """The segment's batches, each with the byte it ends at; `expected` is the first position."""
    data = files.read(segment.path)
    salt = segment.header.salt
    if segment.header.first_position != expected:
        raise _damage(
            segment.path,
            0,
            f"it starts at position {segment.header.first_position} instead of {expected}",
        )
    at, end = HEADER_BYTES, segment.end
    while at != end:
        frame = decode_batch(data, at, salt)
        if frame is None:
            if end is not None:
                raise _damage(segment.path, at, f"there is no sound batch, but one up to {end}")
            _check_torn_tail(segment.path, data, at, salt)
            return
        if frame.position != expected or (end is not None and frame.end > end):
            raise _damage(segment.path, at, f"batch {frame.position} where {expected} belongs")
        yield Batch(frame.position, frame.body), frame.end
        at, expected = frame.end, expected + 1


def _check_torn_tail(path: Path, data: bytes, at: int, salt: int) -> None:
    follower = find_batch(data, at + 1, salt)
    if follower is not None:
        raise _damage(path, at, f"a sound batch follows at byte {follower}")
    if any(data[at:]):
        _log.warning("cutting a torn tail: %s ends at byte %d of %d", path, at, len(data))


def _damage(path: Path, at: int, what: str) -> LogCorruptError:
    return LogCorruptError(
        f"The log is damaged: {path} at byte {at}: {what}. Nothing was changed. "
        "Restore the file from a backup, or move the data directory aside."
    )
