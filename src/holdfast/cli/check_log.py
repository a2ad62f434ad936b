"""The log's part of `holdfast check`: every batch sound, in order, and made of records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from holdfast.errors import LogCorruptError
from holdfast.format.records import Kind, decode, decode_snapshot
from holdfast.format.segments import HEADER_BYTES, BatchFrame
from holdfast.log.directory import DiskFiles
from holdfast.log.recovery import Segment, find_chain, read_segment
from holdfast.storage.findings import Findings, Progress
from holdfast.storage.snapshot_check import Published

LOG: Final = "log"
_KINDS: Final = frozenset(Kind)


class LogRange(NamedTuple):
    """The positions a log holds, from `first` to `last`; none of them if it has no segment."""

    first: int | None
    last: int
    batches: int
    # The snapshots that its records publish.
    published: list[Published]


def check_log(directory: Path, findings: Findings, progress: Progress) -> LogRange | None:
    """Check every segment; None if not even their order can be made out."""
    files = DiskFiles()
    try:
        chain = find_chain(files, directory)
    except LogCorruptError as error:
        findings.damage(LOG, error.message)
        return None
    for path in chain.orphans:
        findings.note(f"{LOG}/{path.name}", "no part of the log: an unfinished or lost segment")
    segments = chain.segments
    total = sum(segment.path.stat().st_size for segment in segments)
    done = batches = 0
    published: list[Published] = []
    first = segments[0].header.first_position if segments else None
    expected = first or 1
    for segment in segments:
        end = HEADER_BYTES
        try:
            for frame in read_segment(files, segment, expected):
                published += _check_records(segment.path, frame, findings)
                expected, end, batches = frame.position + 1, frame.end, batches + 1
            if segment.end is None:
                _check_tail(segment, end, findings)
        except LogCorruptError as error:
            findings.damage(f"{LOG}/{segment.path.name}", error.message)
            # The next one says where it starts.
            expected = _next_start(segments, segment) or expected
        done += segment.path.stat().st_size
        progress(done, total)
    return LogRange(first, expected - 1, batches, published)


def check_ends(log: LogRange, flushed: int, findings: Findings) -> None:
    """The log goes on where the packs end, or before."""
    if log.first is None:
        if flushed:
            findings.note(LOG, f"it is empty: all there is are the packs, up to position {flushed}")
    elif log.first > flushed + 1:
        findings.damage(
            LOG,
            f"it starts at position {log.first}, and positions {flushed + 1} to {log.first - 1} "
            "are neither in it nor in packs that the catalog knows: segments or packs are missing. "
            "If only the catalog is behind, --repair helps; otherwise restore them from a backup",
        )
    elif log.last < flushed:
        findings.note(
            LOG, f"it ends at position {log.last}, and all of it is in packs, up to {flushed}"
        )


def _check_records(path: Path, frame: BatchFrame, findings: Findings) -> list[Published]:
    """The snapshots that a batch publishes."""
    published: list[Published] = []
    unknown: set[int] = set()
    try:
        for record in decode(frame.body):
            if record.kind not in _KINDS:
                unknown.add(record.kind)
            elif record.kind == Kind.SNAPSHOT:
                snapshot = decode_snapshot(record.payload)
                published.append(Published(frame.position, record.stream, snapshot))
    except (ValueError, msgspec.DecodeError) as error:
        findings.damage(
            f"{LOG}/{path.name}", f"the batch at position {frame.position} is malformed: {error}"
        )
        return []
    if unknown:
        kinds = ", ".join(str(kind) for kind in sorted(unknown))
        findings.damage(
            f"{LOG}/{path.name}",
            f"the batch at position {frame.position} has records of unknown kinds: {kinds}",
        )
    return published


def _check_tail(segment: Segment, end: int, findings: Findings) -> None:
    """What follows the last batch of the log was never acknowledged."""
    with segment.path.open("rb") as file:
        file.seek(end)
        rest = file.read()
    if any(rest):
        findings.note(
            f"{LOG}/{segment.path.name}",
            f"an unfinished batch at byte {end}, which the next start will cut off",
        )


def _next_start(segments: list[Segment], damaged: Segment) -> int | None:
    following: Iterator[Segment] = (each for each in segments if each.number > damaged.number)
    return next((each.header.first_position for each in following), None)
