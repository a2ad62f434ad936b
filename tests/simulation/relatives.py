"""What the model says of forks, snapshots, buckets and documents.

Only streams without a deadline are forked here: when a stream with one ends is the node's to
decide, and so would be what becomes of its forks and sources.
"""

from unittest.mock import ANY

from holdfast.engine.writes import BucketCreated, Deleted, SnapshotPublished, StreamCreated
from holdfast.errors import (
    BucketExistsError,
    BucketNotEmptyError,
    BucketNotFoundError,
    ForkSourceDeletedError,
    InvalidOffsetError,
    OffsetGoneError,
    SnapshotConflictError,
    StreamExistsError,
    StreamNotFoundError,
)
from tests.simulation.model import Effect, Model, Refusal, Version, trimmed, written

# Names of what is no stream start so.
BUCKET, DOCUMENT = "bucket:", "document:"


class RelatedModel(Model):
    """A model that knows what streams have to do with one another."""

    # Forks.

    def fork(self, name, request, messages, now_ms):
        asked = request.fork
        existing = self.writable(name, now_ms)
        if existing is not None:
            return self._confirm_fork(existing, request), None
        if self.staged(name) is not None and self.staged(name).deleted:
            return Refusal(StreamExistsError), None
        source = self.staged(asked.name)
        if source is None:
            return Refusal(StreamNotFoundError), None
        if source.deleted:
            return Refusal(ForkSourceDeletedError), None
        offset = source.tail if asked.offset is None else asked.offset
        if offset > source.tail:
            return Refusal(InvalidOffsetError), None
        if offset < source.earliest:
            return Refusal(OffsetGoneError, {"earliest": source.earliest}), None
        version = self._forked(name, source, offset, now_ms)
        version = written(version, request, messages, now_ms)
        answer = StreamCreated(True, source.content_type, version.tail, version.closed, ANY)
        changes = {source.name: source._replace(forks=source.forks + 1), name: version}
        return answer, Effect(changes)

    def _forked(self, name, source, offset, now_ms):
        self.births += 1
        ends = tuple(end for end in source.ends if end < offset)
        return Version(
            self.births,
            name,
            source.content_type,
            None,
            None,
            now_ms,
            now_ms,
            None,
            source.data[:offset],
            (*ends, offset) if offset else (),
            fork=(source.birth, source.name, offset),
            start=offset,
            earliest=source.earliest,
            snapshot=source.snapshot,
        )

    @staticmethod
    def _confirm_fork(existing, request):
        asked = request.fork
        if (
            existing.fork is None
            or existing.fork[1] != asked.name
            or asked.requested_offset not in {None, existing.fork[2]}
            or existing.closed != request.close
        ):
            return Refusal(StreamExistsError)
        return StreamCreated(False, existing.content_type, existing.tail, existing.closed, ANY)

    # Snapshots.

    def snapshot(self, name, snapshot, birth, now_ms):
        stream = self.writable(name, now_ms)
        if stream is None:
            return self.gone(name), None
        if stream.birth != birth:
            return Refusal(SnapshotConflictError), None
        if snapshot.offset > stream.tail:
            return Refusal(SnapshotConflictError), None
        if snapshot.offset < stream.earliest:
            return Refusal(OffsetGoneError, {"earliest": stream.earliest}), None
        version = trimmed(stream._replace(earliest=snapshot.offset, snapshot=snapshot.object))
        return SnapshotPublished(snapshot.offset, stream.tail), Effect({name: version})

    # Buckets and documents, of which a version is just a value.

    def create_bucket(self, name, _now_ms):
        if self.staged(name):
            return Refusal(BucketExistsError), None
        return BucketCreated(), Effect({name: True})

    def delete_bucket(self, name, _now_ms):
        if self._streams_in(name):
            return Refusal(BucketNotEmptyError), None
        if not self.staged(name):
            return Refusal(BucketNotFoundError), None
        return Deleted(), Effect({name: None})

    def _streams_in(self, name):
        prefix = f"{name.removeprefix(BUCKET)}/"
        known = {*self.published, *(each for effect in self.pending for each in effect.changes)}
        versions = [self.staged(each) for each in known if each.startswith(prefix)]
        return sum(each is not None and not each.deleted for each in versions)

    def documents(self, name, value, _now_ms):
        return None, Effect({name: value})

    # What others need of a stream.

    def objects(self, now_ms):
        """Bodies of snapshots that somebody has, or will have if what is pending is kept."""
        versions = [*self.published.values()]
        versions += [each for effect in self.pending for each in effect.changes.values()]
        streams = [each for each in versions if isinstance(each, Version)]
        return {
            each.snapshot for each in streams if each.snapshot and not self.is_due(each, now_ms)
        }
