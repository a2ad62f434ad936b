"""Which snapshots a piece of the log publishes: a backup needs their bodies too.

Copying whatever is younger than the last flush would do as well, but it would take a look at every
body there is, and at clocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import LogCorruptError
from holdfast.format.records import Kind, decode, decode_snapshot
from holdfast.format.segments import decode_header, iter_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.format.records import Snapshot


def published_in(segment: bytes) -> Iterator[tuple[int, Snapshot]]:
    """The snapshots of a segment's records, each with its position in the log."""
    try:
        header = decode_header(segment)
        if header is None:
            raise LogCorruptError("A segment of the copied log has no sound header.")
        for frame in iter_batches(segment, header, None):
            for record in decode(frame.body):
                if record.kind == Kind.SNAPSHOT:
                    yield frame.position, decode_snapshot(record.payload)
    except ValueError as error:
        raise LogCorruptError(f"A segment of the copied log is damaged: {error}.") from error
