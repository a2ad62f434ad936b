"""Lineage: what forks and snapshots do to the streams they concern.

The engine keeps streams, the storage process keeps rows, and both apply the same records; what a
record does to those it concerns is therefore said once, here, of anything that has the fields.

Rules:

- A stream's own bytes are kept from `start` on. Without forks that is where readers may start,
  `earliest`, or where the stream itself starts if it is a fork.
- While a stream has forks its `start` stays, whatever is published as a snapshot: the forks read
  what lies before. A fork takes over `earliest` and the snapshot that the source had, and what
  becomes of the source later is no concern of its own.
- A deleted stream with forks stays for them, under its name, until the last of them is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.format.records import Snapshot, StreamMeta


class Descendant(Protocol):
    """What forks and snapshots change: of a stream or of a row."""

    number: int
    meta: StreamMeta
    tail: int
    start: int
    earliest: int
    snapshot: Snapshot | None
    forks: int
    deleted: bool


Each = TypeVar("Each", bound=Descendant)


def begin_fork(fork: Descendant, source: Descendant) -> None:
    """Start a new stream where it leaves its source."""
    origin = fork.meta.fork
    assert origin is not None, "a fork says where it starts"
    assert source.earliest <= origin.offset <= source.tail, "a fork starts inside its source"
    fork.tail = fork.start = origin.offset
    fork.earliest = source.earliest
    fork.snapshot = source.snapshot
    source.forks += 1


def publish_snapshot(stream: Descendant, snapshot: Snapshot) -> int:
    """Have the stream start at the snapshot; how many of its own bytes nobody needs now."""
    stream.snapshot = snapshot
    stream.earliest = snapshot.offset
    return _move_start(stream)


def remove(
    stream: Each,
    find: Callable[[int], Each],
    gone: Callable[[Each], None],
    freed: Callable[[Each, int], None],
) -> None:
    """Remove a stream without forks, and sources that were only there for it.

    `gone` is called for each stream that goes; `freed` for one that stays, with the bytes that
    nobody needs now.
    """
    while True:
        assert not stream.forks, "a stream with forks stays"
        gone(stream)
        origin = stream.meta.fork
        if origin is None:
            return
        source = find(origin.source)
        source.forks -= 1
        if source.forks or not source.deleted:
            freed(source, _move_start(source))
            return
        stream = source


def _move_start(stream: Descendant) -> int:
    if stream.forks:
        return 0
    start = max(stream.start, min(stream.earliest, stream.tail))
    freed, stream.start = start - stream.start, start
    return freed
