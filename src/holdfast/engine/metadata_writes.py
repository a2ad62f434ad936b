"""Writes that add no messages: buckets, snapshots and documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.engine.commit import reply_after
from holdfast.engine.writes import (
    BucketCreated,
    Deleted,
    SnapshotPublished,
    check_quota,
    check_state,
)
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
from holdfast.format.rows import stored_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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


class StoredSnapshot(NamedTuple):
    """A snapshot that is in the store, and the stream that is to start at it.

    The caller knows that a message ends at its offset.
    """

    name: str
    number: int
    snapshot: Snapshot
    if_match: bytes | None = None


class SnapshotWrites:
    """Publishes snapshots whose objects are already in the store."""

    def __init__(
        self,
        state: State,
        staging: Staging,
        commits: CommitLoop,
        lifetimes: Lifetimes,
        clock: Clock,
        *,
        bucket_bytes_max: int,
    ) -> None:
        self._state = state
        self._staging = staging
        self._commits = commits
        self._lifetimes = lifetimes
        self._clock = clock
        self._bucket_bytes_max = bucket_bytes_max

    def check(self, stream: Stream, offset: int, size_bytes: int, if_match: bytes | None) -> None:
        """Raise if a snapshot will be rejected, before its body is stored.

        `size_bytes` is 0 if it is not known yet.
        """
        if if_match is not None:
            # Whichever of the two it is when the body has arrived.
            staged = self._staging.view(stream.meta.name)
            check_state(if_match, stream, *(() if staged is None else (staged,)))
        _check_offset(offset, stream.earliest, stream.tail)
        self._check_quota(stream, stream.forks, offset, size_bytes, 0)

    def _check_quota(
        self, stream: Stream, forks: int, offset: int, size_bytes: int, before_bytes: int
    ) -> int:
        """Raise if the bucket has no room for the snapshot in place of what it replaces.

        `before_bytes` is what others add that are published with it; returns what all of them add.
        """
        if not self._bucket_bytes_max:
            return 0
        # As `publish_snapshot` in `format.rows` does it.
        start = stream.start if forks else max(stream.start, min(offset, stream.tail))
        added_bytes = stream.tail - start + size_bytes - stored_bytes(stream)
        check_quota(
            self._state, self._bucket_bytes_max, stream.meta.name, before_bytes + added_bytes
        )
        return before_bytes + added_bytes

    def publish(
        self, wanted: Sequence[StoredSnapshot], reply: Reply, contexts: Sequence[Any]
    ) -> None:
        """Make streams start at their snapshots; each is accepted or refused for itself.

        `reply(context, outcome)` is called for each, with its own context. No stream may be named
        twice. A snapshot frees memory, so it is accepted even when memory is full.
        """
        self._commits.check_log()
        outcomes: list[tuple[Staged | None, object]] = []
        accepted: list[tuple[Staged, int, Record]] = []
        added_bytes = 0
        for each in wanted:
            staged = self._staging.view(each.name)
            try:
                valid = self._validated(each, staged)
                if valid.base is not None:
                    added_bytes = self._check_quota(
                        valid.base,
                        valid.fork_count(),
                        each.snapshot.offset,
                        each.snapshot.size_bytes,
                        added_bytes,
                    )
            except HoldfastError as error:
                outcomes.append((staged, error))
                continue
            encoded = encode_snapshot(each.snapshot)
            record = Record(Kind.SNAPSHOT, each.number, self._clock.now_ms(), encoded)
            accepted.append((valid, each.snapshot.offset, record))
            outcomes.append((valid, SnapshotPublished(each.snapshot.offset, valid.tail)))
        if accepted:
            self._staging.publish_snapshots(accepted)
        for context, (staged, outcome) in zip(contexts, outcomes, strict=True):
            reply_after(None if staged is None else staged.batch, reply, context, outcome)

    def _validated(self, wanted: StoredSnapshot, staged: Staged | None) -> Staged:
        name = wanted.name
        if staged is not None and staged.deleted:
            raise StreamDeletedError(name)
        if staged is None or staged.gone or self._lifetimes.lapsed(staged, self._clock.now_ms()):
            raise StreamNotFoundError(name)
        if wanted.if_match is not None:
            check_state(wanted.if_match, staged)
        if staged.number != wanted.number:
            raise SnapshotConflictError(
                "The stream was deleted and created again while the snapshot was uploaded."
            )
        _check_offset(wanted.snapshot.offset, staged.first_offset(), staged.tail)
        return staged


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
