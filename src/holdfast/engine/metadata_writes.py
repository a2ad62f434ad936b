"""Writes that add no messages: buckets, snapshots and documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.engine.commit import reply_after
from holdfast.engine.writes import BucketCreated, Deleted, SnapshotPublished, check_state
from holdfast.errors import (
    BucketExistsError,
    BucketNotEmptyError,
    BucketNotFoundError,
    HoldfastError,
    OffsetGoneError,
    SnapshotConflictError,
    StreamDeletedError,
    StreamNotFoundError,
)
from holdfast.format.records import Kind, Record, encode_documents, encode_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from holdfast.clock import Clock
    from holdfast.engine.commit import CommitLoop, Reply
    from holdfast.engine.lifetimes import Lifetimes
    from holdfast.engine.overlay import Staged, StagedBuckets, Staging
    from holdfast.engine.state import State
    from holdfast.engine.stream import Stream
    from holdfast.format.records import Snapshot


class BucketWrites:
    """Creates and deletes buckets."""

    def __init__(self, buckets: StagedBuckets, commits: CommitLoop, clock: Clock) -> None:
        self._buckets = buckets
        self._commits = commits
        self._clock = clock

    def create(self, name: str, reply: Reply, context: Any) -> None:
        """Create a bucket, or make one that exists only through its streams explicit."""
        self._commits.check()
        bucket = self._buckets.view(name)
        outcome: object
        if bucket.explicit:
            outcome = BucketExistsError(f"There is a bucket {name!r}.")
        else:
            record = Record(Kind.CREATE_BUCKET, 0, self._clock.now_ms(), name.encode())
            self._buckets.add(bucket, record, explicit=True)
            outcome = BucketCreated()
        reply_after(bucket.batch, reply, context, outcome)

    def delete(self, name: str, reply: Reply, context: Any) -> None:
        """Delete a bucket that holds no streams."""
        self._commits.check_log()
        bucket = self._buckets.view(name)
        outcome: object
        if not bucket.exists:
            outcome = BucketNotFoundError(name)
        elif bucket.streams:
            outcome = BucketNotEmptyError(
                f"The bucket {name!r} holds {bucket.streams} streams: delete them first."
            )
        else:
            record = Record(Kind.DELETE_BUCKET, 0, self._clock.now_ms(), name.encode())
            self._buckets.add(bucket, record, explicit=False)
            outcome = Deleted()
        reply_after(bucket.batch, reply, context, outcome)


class SnapshotWrites:
    """Publishes snapshots whose objects are already in the store."""

    def __init__(
        self, staging: Staging, commits: CommitLoop, lifetimes: Lifetimes, clock: Clock
    ) -> None:
        self._staging = staging
        self._commits = commits
        self._lifetimes = lifetimes
        self._clock = clock

    def check(self, stream: Stream, offset: int, if_match: bytes | None) -> None:
        """Raise if a snapshot at this offset will be rejected, before its body is stored."""
        if if_match is not None:
            # Whichever of the two it is when the body has arrived.
            staged = self._staging.view(stream.meta.name)
            check_state(if_match, stream, *(() if staged is None else (staged,)))
        _check_offset(offset, stream.earliest, stream.tail)

    def publish(
        self,
        name: str,
        number: int,
        snapshot: Snapshot,
        reply: Reply,
        context: Any,
        if_match: bytes | None = None,
    ) -> None:
        """Make the stream with this number start at the snapshot.

        The caller knows that a message ends at its offset. A snapshot frees memory, so it is
        accepted even when memory is full.
        """
        self._commits.check_log()
        staged = self._staging.view(name)
        outcome: object
        try:
            outcome = self._stage(name, number, staged, snapshot, if_match)
        except HoldfastError as error:
            outcome = error
        reply_after(None if staged is None else staged.batch, reply, context, outcome)

    def _stage(
        self,
        name: str,
        number: int,
        staged: Staged | None,
        snapshot: Snapshot,
        if_match: bytes | None,
    ) -> SnapshotPublished:
        now_ms = self._clock.now_ms()
        if staged is not None and staged.deleted:
            raise StreamDeletedError(name)
        if staged is None or staged.gone or self._lifetimes.lapsed(staged, now_ms):
            raise StreamNotFoundError(name)
        if if_match is not None:
            check_state(if_match, staged)
        if staged.number != number:
            raise SnapshotConflictError(
                "The stream was deleted and created again while the snapshot was uploaded."
            )
        _check_offset(snapshot.offset, staged.first_offset(), staged.tail)
        record = Record(Kind.SNAPSHOT, number, now_ms, encode_snapshot(snapshot))
        self._staging.publish_snapshot(staged, snapshot.offset, record)
        return SnapshotPublished(snapshot.offset, staged.tail)


def _check_offset(offset: int, earliest: int, tail: int) -> None:
    """Raise unless the stream has this offset and retains it."""
    if offset > tail:
        raise SnapshotConflictError(
            f"The snapshot's offset {offset:020d} is past the tail of the stream, {tail:020d}."
        )
    if offset < earliest:
        raise OffsetGoneError(earliest)


class Documents:
    """Small durable values by key, for everything that is not a stream.

    A component that keeps its own view, ahead of the published documents, registers in `on_drop`
    to learn when its pending changes were lost.
    """

    def __init__(self, state: State, commits: CommitLoop, clock: Clock) -> None:
        self._state = state
        self._commits = commits
        self._clock = clock
        # Called when a batch failed, and every later one with it.
        self.on_drop: list[Callable[[], None]] = []

    def items(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """The published documents whose keys start with `prefix`, in the order of their keys."""
        documents = self._state.documents
        for key in sorted(key for key in documents if key.startswith(prefix)):
            yield key, documents[key]

    def commit(self, changes: Mapping[str, bytes | None], reply: Reply, context: Any) -> None:
        """Change documents, all or none; None removes one.

        Raises if the log accepts nothing now. Otherwise `reply(context, None)` follows once the
        changes are durable, or `reply(context, error)` if they are lost. Documents are accepted
        even when memory is full, because they make no stream larger.
        """
        self._commits.check_log()
        record = Record(Kind.DOCUMENTS, 0, self._clock.now_ms(), encode_documents(dict(changes)))
        batch = self._commits.add(record)
        batch.replies.append((reply, context, None))
