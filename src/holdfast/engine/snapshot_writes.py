"""Publishing snapshots: the object is in the store, and one record makes it visible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.engine.requests import SnapshotPublished
from holdfast.errors import (
    HoldfastError,
    OffsetGoneError,
    SnapshotConflictError,
    StreamDeletedError,
    StreamNotFoundError,
)
from holdfast.format.records import Kind, Record, encode_snapshot

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.engine.commit import CommitLoop, Reply
    from holdfast.engine.lifetimes import Lifetimes
    from holdfast.engine.overlay import Staged, Staging
    from holdfast.format.records import Snapshot


class SnapshotWrites:
    """Stages the publication of snapshots."""

    def __init__(
        self, staging: Staging, commits: CommitLoop, lifetimes: Lifetimes, clock: Clock
    ) -> None:
        self._staging = staging
        self._commits = commits
        self._lifetimes = lifetimes
        self._clock = clock

    def publish(
        self, name: str, number: int, snapshot: Snapshot, reply: Reply, context: Any
    ) -> None:
        """Have the stream with this number start at the snapshot.

        The offset is known to be where a message ends. This frees memory, so it is taken where
        there is no room for appends.
        """
        self._commits.check_log()
        now_ms = self._clock.now_ms()
        staged = self._staging.view(name)
        outcome: object
        try:
            outcome = self._stage(name, number, staged, snapshot, now_ms)
        except HoldfastError as error:
            outcome = error
        if staged is None or staged.batch is None:
            reply(context, outcome)
        else:
            staged.batch.answers.append((reply, context, outcome))

    def _stage(
        self, name: str, number: int, staged: Staged | None, snapshot: Snapshot, now_ms: int
    ) -> SnapshotPublished:
        if staged is not None and staged.deleted:
            raise StreamDeletedError(name)
        if staged is None or staged.gone or self._lifetimes.lapsed(staged, now_ms):
            raise StreamNotFoundError(name)
        if staged.number != number:
            raise SnapshotConflictError(
                "The stream was deleted and created again while the snapshot was on its way."
            )
        check_place(snapshot.offset, staged.first_offset(), staged.tail)
        record = Record(Kind.SNAPSHOT, number, now_ms, encode_snapshot(snapshot))
        self._staging.publish_snapshot(staged, snapshot.offset, record)
        return SnapshotPublished(snapshot.offset, staged.tail)


def check_place(offset: int, earliest: int, tail: int) -> None:
    """Raise unless a snapshot can be at this offset."""
    if offset > tail:
        raise SnapshotConflictError(
            f"The snapshot's offset {offset:020d} is past the tail of the stream, {tail:020d}."
        )
    if offset < earliest:
        raise OffsetGoneError(earliest)
