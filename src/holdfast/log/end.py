"""The recorded end of the log: what a start must find in `log/`.

The log alone cannot tell its last batch from a torn one, nor a deleted segment from one that was
never written. So a file outside `log/` records which segment is the last one and, once the server
has stopped in good order, which position it reaches.

Rules:

- A start records its segment once the header of that segment is durable. From then on there is
  always a segment with this number or a higher one. How far it reaches is not recorded while the
  server runs: after a crash the torn tail is cut.
- An orderly stop records the position and the segments. The next start must reach that position, by
  its log or by the catalog.
- A start that finds the disk full opens no segment, and removes the record: if everything is
  flushed before there is room again, no segment may be left.
- A record is void as soon as there is a segment with a higher number: a server has started since,
  perhaps one of a version that does not know this file.
- A record that is not whole counts as none: the server ended while it was being written.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from xxhash import xxh3_64_hexdigest

from holdfast.errors import LogCorruptError

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.log.directory import Files

_log = logging.getLogger(__name__)
_VERSION: Final = 1


class RecordedSegment(NamedTuple):
    """A segment with batches, as it was at the stop."""

    name: str
    end: int
    last_position: int


class LogEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file, apart from its checksum."""

    version: int = _VERSION
    # Whether the server stopped in good order; the other fields apply only then.
    stopped: bool
    # The number of the last segment, which may hold no batch.
    segment: int
    position: int = 0
    segments: list[RecordedSegment] = []


class EndFile:
    """The file with the recorded end, next to the log's directory."""

    def __init__(self, files: Files, log: Path) -> None:
        self.path = log.with_name("log-end.json")
        self._files = files
        self._log = log

    def write(self, end: LogEnd) -> None:
        """Record the end durably; raises OSError."""
        line = msgspec.json.encode(end)
        file = self._files.create(self.path)
        try:
            file.write_at(b"%b\n%b\n" % (line, xxh3_64_hexdigest(line).encode()), 0)
            file.sync()
        finally:
            file.close()
        self._files.sync_directory(self.path.parent)

    def remove(self) -> None:
        """Remove the record durably; raises OSError."""
        self._files.remove(self.path)
        self._files.sync_directory(self.path.parent)

    def read(self) -> LogEnd | None:
        """The recorded end; None if there is none that this version can read."""
        try:
            line, checksum, _ = self._files.read(self.path).split(b"\n")
            if checksum.decode() == xxh3_64_hexdigest(line):
                end = msgspec.json.decode(line, type=LogEnd)
                return end if end.version == _VERSION else None
        except FileNotFoundError:
            return None
        except ValueError:
            pass
        _log.warning("%s is not whole: the end of the log cannot be verified", self.path)
        return None

    def check(self, end: LogEnd | None, last_segment: int, reached: int) -> None:
        """Raise if a log with this last segment, which reaches this position, lacks something."""
        lost = "" if end is None else self._lost(end, last_segment, reached)
        if lost:
            raise LogCorruptError(
                f"The log in {self._log} is damaged: {lost}. Nothing was changed. Restore it from "
                f"a backup. To go on without what is missing, delete {self.path}."
            )

    def _lost(self, end: LogEnd, last_segment: int, reached: int) -> str:
        if last_segment > end.segment:
            return ""
        if not end.stopped:
            if last_segment == end.segment:
                return ""
            return (
                f"its last segment is missing. When the server ended, the log had the segment "
                f"{end.segment:010d}.seg or a later one"
            )
        if reached >= end.position:
            return ""
        states = [self._state(each) for each in end.segments if each.last_position > reached]
        return (
            f"it ended at position {end.position} when the server stopped, and ends at {reached} "
            f"now{': ' if states else ''}{', '.join(states)}"
        )

    def _state(self, segment: RecordedSegment) -> str:
        name = segment.name
        try:
            size_bytes = len(self._files.read(self._log / name))
        except FileNotFoundError:
            return f"{name} is missing"
        if size_bytes < segment.end:
            return f"{name} has {size_bytes} of {segment.end} bytes"
        return f"{name} is damaged before byte {segment.end}"
