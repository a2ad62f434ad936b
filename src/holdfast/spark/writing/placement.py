"""Which task a stream belongs to, where rows were laid out by `write_to_streams`.

Spark and the tasks compute it by themselves: CRC-32 is the same everywhere.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from holdfast.errors import SettingsError


@dataclass(frozen=True)
class Placement:
    """The task `partition` of so many: its streams come one behind the other, by name."""

    partitions: int
    partition: int

    def check(self, name: str, before: str | None) -> None:
        """Raise unless rows of this stream may follow those of the one `before`."""
        own = partition_of(name, self.partitions)
        if own != self.partition or (before is not None and name <= before):
            raise SettingsError(
                f"Rows of the stream {name!r} came to the task {self.partition}, out of turn or "
                f"though they belong to {own} of {self.partitions}: nothing of it was written. "
                "Spark has moved the rows after write_to_streams laid them out."
            )


def partition_of(name: str, partitions: int) -> int:
    """The partition of a stream, given as `bucket/id`."""
    return zlib.crc32(name.encode()) % partitions
