"""Creating streams: new ones, and forks of others; validated against the staged state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.engine.overlay import Staged
from holdfast.errors import (
    BucketNotFoundError,
    ConflictError,
    ContentTypeMismatchError,
    ForkSourceDeletedError,
    InvalidOffsetError,
    OffsetGoneError,
    PreconditionFailedError,
    QuotaExceededError,
    StreamNotFoundError,
    UnavailableError,
)
from holdfast.format.records import Fork, Kind, Record, StreamMeta, stream_number
from holdfast.protocol import content
from holdfast.protocol.producer import is_duplicate

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.commit import CommitLoop
    from holdfast.engine.lifetimes import Lifetimes
    from holdfast.engine.overlay import Staging
    from holdfast.engine.requests import CreateRequest, ForkRequest


# Forks of forks of forks: a read walks through all of them.
FORK_DEPTH_MAX: Final = 1000


class Creating:
    """Stages the creation of streams that do not exist."""

    def __init__(
        self,
        staging: Staging,
        commits: CommitLoop,
        lifetimes: Lifetimes,
        *,
        ttl_is_fixed: bool,
        streams_max: int,
        check_room: Callable[[str, int], None],
    ) -> None:
        self._staging = staging
        self._commits = commits
        self._lifetimes = lifetimes
        self._ttl_is_fixed = ttl_is_fixed
        self._streams_max = streams_max
        self._check_room = check_room

    def stage(self, name: str, request: CreateRequest, now_ms: int) -> Staged:
        """Stage a creation under a name that is free; raises if it cannot be."""
        if request.if_match is not None:
            raise PreconditionFailedError("If-Match names a state, and there is no stream yet.")
        self._check_bucket(name, request)
        meta = self._meta(name, request, now_ms)
        if request.producer is not None:
            is_duplicate(None, request.producer)
        body, media = request.body, content.media_type(meta.content_type)
        if body and media == content.JSON:
            body = content.store_form(body)
        if body:
            self._check_room(name, len(body))
        # Before the number is known: a stream that comes into memory may push another one out,
        # and a renewal of that one becomes a record first.
        source = None if meta.fork is None else self._staging.view(meta.fork.name)
        batch = self._commits.batch()
        number = stream_number(batch.position, len(batch.records))
        staged = Staged(number, meta, media, meta.expires_at_ms)
        record = Record(
            Kind.CREATE, number, now_ms, body, request.close, request.producer, request.seq, meta
        )
        self._staging.create(staged, record, source)
        return staged

    def _check_bucket(self, name: str, request: CreateRequest) -> None:
        if not request.needs_bucket and not self._streams_max:
            return
        bucket = self._staging.buckets.view(name.partition("/")[0])
        if request.needs_bucket and not bucket.exists:
            raise BucketNotFoundError(bucket.name)
        if self._streams_max and bucket.streams >= self._streams_max:
            raise QuotaExceededError(
                f"The bucket {bucket.name!r} holds {bucket.streams} streams, which is its quota."
            )

    def _meta(self, name: str, request: CreateRequest, now_ms: int) -> StreamMeta:
        ttl_s, expires_at_ms = request.ttl_s, request.expires_at_ms
        content_type = request.content_type or content.DEFAULT
        fork = None
        if request.fork is not None:
            source = self._source(request.fork, now_ms)
            fork = self._fork(request.fork, source)
            if request.content_type is None:
                content_type = source.meta.content_type
            elif content.media_type(content_type) != source.media:
                raise ContentTypeMismatchError(
                    f"The stream to fork holds {source.media}, and so does every fork of it."
                )
            if ttl_s is None and expires_at_ms is None:
                ttl_s = source.meta.ttl_s
                expires_at_ms = None if ttl_s is not None else source.meta.expires_at_ms
        if ttl_s is not None and self._ttl_is_fixed:
            expires_at_ms = now_ms + ttl_s * 1000
        return StreamMeta(name, content_type, ttl_s, expires_at_ms, fork)

    def _source(self, asked: ForkRequest, now_ms: int) -> Staged:
        source = self._staging.view(asked.name)
        if source is None or (source.gone and not source.deleted):
            raise StreamNotFoundError(asked.name)
        if source.deleted:
            raise ForkSourceDeletedError(
                "The stream to fork was deleted; only forks that it has already live on."
            )
        if self._lifetimes.lapsed(source, now_ms):
            raise StreamNotFoundError(asked.name)
        return source

    def _check_depth(self, source: Staged) -> None:
        """Raise if reads would have to go through too many streams."""
        depth = 0
        each: Staged | None = source
        while each is not None and each.meta.fork is not None:
            depth += 1
            each = self._staging.view(each.meta.fork.name)
        if depth >= FORK_DEPTH_MAX:
            raise ConflictError(
                f"The stream to fork is the fork of a fork, {depth} deep, and no more are taken."
            )

    def _fork(self, asked: ForkRequest, source: Staged) -> Fork:
        if asked.offset is not None and asked.source != source.number:
            raise UnavailableError(
                "The stream to fork, or the one at this URL, was replaced meanwhile. Try again."
            )
        self._check_depth(source)
        offset = source.tail if asked.offset is None else asked.offset
        if offset > source.tail:
            raise InvalidOffsetError(
                f"Stream-Fork-Offset {offset:020d} is past the tail of the stream to fork, "
                f"{source.tail:020d}."
            )
        if offset < source.first_offset():
            raise OffsetGoneError(source.first_offset())
        return Fork(source.number, asked.name, offset, asked.asked_offset, asked.sub_offset)
