"""Creating and deleting buckets, validated against the staged state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.engine.requests import BucketCreated, Deleted
from holdfast.errors import BucketExistsError, BucketNotEmptyError, BucketNotFoundError
from holdfast.format.records import Kind, Record

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.engine.commit import CommitLoop, Reply
    from holdfast.engine.staged_buckets import StagedBucket, StagedBuckets


class BucketWrites:
    """The writes that concern buckets themselves."""

    def __init__(self, buckets: StagedBuckets, commits: CommitLoop, clock: Clock) -> None:
        self._buckets = buckets
        self._commits = commits
        self._clock = clock

    def create(self, name: str, reply: Reply, context: Any) -> None:
        """Create a bucket; one that is there only through its streams becomes a created one."""
        self._commits.check()
        bucket = self._buckets.view(name)
        if bucket.explicit:
            _answer(bucket, reply, context, BucketExistsError(f"There is a bucket {name!r}."))
            return
        record = Record(Kind.CREATE_BUCKET, 0, self._clock.now_ms(), name.encode())
        self._buckets.add(bucket, record, explicit=True)
        _answer(bucket, reply, context, BucketCreated())

    def delete(self, name: str, reply: Reply, context: Any) -> None:
        """Delete a bucket that holds no streams."""
        self._commits.check_log()
        bucket = self._buckets.view(name)
        if not bucket.exists:
            _answer(bucket, reply, context, BucketNotFoundError(name))
            return
        if bucket.streams:
            error = BucketNotEmptyError(
                f"The bucket {name!r} holds {bucket.streams} streams: delete them first."
            )
            _answer(bucket, reply, context, error)
            return
        record = Record(Kind.DELETE_BUCKET, 0, self._clock.now_ms(), name.encode())
        self._buckets.add(bucket, record, explicit=False)
        _answer(bucket, reply, context, Deleted())


def _answer(bucket: StagedBucket, reply: Reply, context: Any, outcome: object) -> None:
    if bucket.batch is None:
        reply(context, outcome)
    else:
        bucket.batch.answers.append((reply, context, outcome))
