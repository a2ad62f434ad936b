"""Buckets as they will be once everything pending is durable; the counterpart of `overlay`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.format.records import encode

if TYPE_CHECKING:
    from holdfast.engine.commit import Batch, CommitLoop
    from holdfast.engine.state import State
    from holdfast.format.records import Record


class StagedBucket(msgspec.Struct):
    """A bucket as it will be; `batch` is the last pending batch that touched it, if any."""

    name: str
    explicit: bool = False
    streams: int = 0
    batch: Batch | None = None

    @property
    def exists(self) -> bool:
        """Whether there is such a bucket."""
        return self.explicit or self.streams > 0


class StagedBuckets:
    """The buckets with something pending."""

    def __init__(self, state: State, commits: CommitLoop) -> None:
        self._state = state
        self._commits = commits
        self.overlay: dict[str, StagedBucket] = {}

    def view(self, name: str) -> StagedBucket:
        """The bucket of this name as it will be, whether it exists or not."""
        staged = self.overlay.get(name)
        if staged is not None:
            return staged
        bucket = self._state.buckets.get(name)
        if bucket is None:
            return StagedBucket(name)
        return StagedBucket(name, bucket.explicit, bucket.streams)

    def add(self, staged: StagedBucket, record: Record, *, explicit: bool) -> None:
        """Put a creation or deletion into the open batch."""
        staged.explicit = explicit
        self._touch(staged, self._commits.add(record, encode(record)))

    def count(self, stream_name: str, change: int, batch: Batch) -> None:
        """A stream of this name comes or goes with a batch."""
        staged = self.view(stream_name.partition("/")[0])
        staged.streams += change
        self._touch(staged, batch)

    def _touch(self, staged: StagedBucket, batch: Batch) -> None:
        staged.batch = batch
        batch.buckets.append(staged)
        self.overlay[staged.name] = staged

    def settle(self, batch: Batch) -> None:
        """The batch is published: drop the entries that nothing later touched."""
        for staged in batch.buckets:
            if staged.batch is batch:
                staged.batch = None
                if self.overlay.get(staged.name) is staged:
                    del self.overlay[staged.name]
