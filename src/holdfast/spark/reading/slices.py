"""Slices: the parts of a read that executors work on, each by itself."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition


@dataclass(frozen=True)
class Slice(InputPartition):
    """Streams from one id to another, both included, and positions in (after, until].

    Up to `flushed` the messages are in packs. Others may have got there since: whoever reads them
    finds out.
    """

    first: str
    # Empty: to the end of the bucket.
    last: str
    after: int
    flushed: int
    until: int
    size_bytes: int = 0
    # This one is not included, although `first` may say so.
    behind: str = ""
    # After which position the whole read is, if that is not where this slice of it starts.
    origin: int | None = None

    def covers(self, stream_id: str) -> bool:
        """Whether a stream is one of these."""
        is_behind = not self.behind or stream_id > self.behind
        return is_behind and stream_id >= self.first and (not self.last or stream_id <= self.last)

    @property
    def is_of_all(self) -> bool:
        """Whether the read begins with the log: then nothing that is gone is missing."""
        return not (self.after if self.origin is None else self.origin)


@dataclass(frozen=True)
class StreamSlice(InputPartition):
    """One stream between two offsets, read as any server of the protocol has it."""

    stream_id: str
    start: str
    # Where the stream ended when the read was planned.
    end: str
