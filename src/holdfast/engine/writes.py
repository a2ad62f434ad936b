"""Creating streams and appending to them, validated against the staged state.

An append is checked in this order: closed, content type, producer, `If-Match`, `Stream-Seq`, body,
quota. The shard has already checked that the stream exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.engine.overlay import Staged
from holdfast.errors import (
    BucketNotFoundError,
    ConflictError,
    ContentTypeMismatchError,
    ForkSourceDeletedError,
    HoldfastError,
    InvalidJsonError,
    InvalidOffsetError,
    OffsetGoneError,
    PreconditionFailedError,
    QuotaExceededError,
    StreamClosedError,
    StreamExistsError,
    StreamNotFoundError,
    StreamSeqError,
    UnavailableError,
)
from holdfast.format.records import Fork, Kind, Record, StreamMeta, stream_number
from holdfast.protocol.content import DEFAULT, JSON, media_type, store_form
from holdfast.protocol.headers import matches_state
from holdfast.protocol.producer import Producer, ProducerState, check_digest, is_duplicate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.commit import CommitLoop
    from holdfast.engine.counters import Counters
    from holdfast.engine.lifetimes import Lifetimes
    from holdfast.engine.overlay import Staging
    from holdfast.engine.state import State
    from holdfast.engine.stream import Stream

# A read of a fork goes through all of its ancestors.
FORK_DEPTH_MAX: Final = 1000
_OTHER_STATE: Final = "If-Match names another state of the stream."


class ForkRequest(msgspec.Struct, frozen=True):
    """The stream to fork, and where.

    `source` is the number of the stream for which `offset` was resolved, 0 if it was not: then the
    request can only confirm a fork that exists. `requested_offset` is what the client sent.
    """

    name: str
    offset: int | None = None
    requested_offset: int | None = None
    sub_offset: int = 0
    source: int = 0


class CreateRequest(msgspec.Struct, frozen=True):
    """A PUT: the configuration of the stream, and its first content if any.

    A fork may leave out the content type, which it then inherits.
    """

    content_type: str | None
    ttl_s: int | None = None
    expires_at_ms: int | None = None
    close: bool = False
    body: bytes = b""
    producer: Producer | None = None
    seq: bytes | None = None
    fork: ForkRequest | None = None
    if_match: bytes | None = None
    # Whether the bucket must exist already.
    needs_bucket: bool = False
    # Accept it even if the bucket's quota is used up.
    over_quota: bool = False


class AppendRequest(msgspec.Struct, gc=False):
    """A POST; `media` is None if the request has no content type."""

    body: bytes
    media: str | None = None
    close: bool = False
    producer: Producer | None = None
    seq: bytes | None = None
    if_match: bytes | None = None
    # Accept it even if the bucket's quota is used up.
    over_quota: bool = False
    # The lengths of the messages in the body of a byte stream; without them it is one message.
    lengths: Sequence[int] | None = None
    # Whether the body of a JSON append is in the form in which streams store it.
    is_stored_form: bool = False


class StreamCreated(msgspec.Struct, gc=False):
    """The stream exists; `created` says whether this request created it."""

    created: bool
    content_type: str
    tail: int
    closed: bool
    number: int = 0


class StreamAppended(msgspec.Struct, gc=False):
    """The append is durable; `added` says whether this request added bytes.

    A request that only closed the stream, or repeated an earlier one, added none.
    """

    tail: int
    closed: bool = False
    producer: ProducerState | None = None
    added: bool = True
    number: int = 0


class Deleted(msgspec.Struct, gc=False):
    """The stream or bucket is gone."""


class BucketCreated(msgspec.Struct, gc=False):
    """The bucket exists."""


class SnapshotPublished(msgspec.Struct, gc=False):
    """The snapshot is visible, and the stream starts at it."""

    offset: int
    tail: int


class StreamWrites:
    """Stages appends, closures and creations."""

    def __init__(
        self,
        state: State,
        staging: Staging,
        commits: CommitLoop,
        lifetimes: Lifetimes,
        counters: Counters,
        *,
        ttl_is_fixed: bool,
        bucket_bytes_max: int,
        bucket_streams_max: int,
        producers_max: int,
        producer_idle_s: float,
    ) -> None:
        self._state = state
        self._staging = staging
        self._commits = commits
        self._lifetimes = lifetimes
        self._counters = counters
        self._ttl_is_fixed = ttl_is_fixed
        self._bucket_bytes_max = bucket_bytes_max
        self._bucket_streams_max = bucket_streams_max
        self._producers_max = producers_max
        self._producer_idle_ms = int(producer_idle_s * 1000)

    def append(self, staged: Staged, request: AppendRequest, now_ms: int) -> StreamAppended:
        """Stage an append, or confirm one that adds nothing; raises if it is rejected."""
        body, producer, seq = request.body, request.producer, request.seq
        state: ProducerState | None = None
        if staged.closed:
            return _confirm_closed(staged, request)
        if body and request.media != staged.media:
            raise ContentTypeMismatchError(
                f"The stream holds {staged.media}, the append is {request.media}."
            )
        if producer is not None:
            state = self._staging.producer_state(staged, producer.id)
            if is_duplicate(state, producer):
                self._counters.duplicates += 1
                return _repeated(staged, state)
        if request.if_match is not None:
            check_state(request.if_match, staged)
        if seq is not None and staged.seq is not None and seq <= staged.seq:
            raise StreamSeqError(
                f"Stream-Seq {seq.decode('latin-1')!r} is not greater than the last one, "
                f"{staged.seq.decode('latin-1')!r}."
            )
        if body and staged.media == JSON and not request.is_stored_form:
            body = store_form(body)
            if not body:
                raise InvalidJsonError("An empty array appends nothing; send at least one message.")
        if self._bucket_bytes_max and body and not request.over_quota:
            check_quota(self._state, self._bucket_bytes_max, staged.meta.name, len(body))
        is_new_producer = producer is not None and state is None
        if is_new_producer and self._producers_max and not request.over_quota:
            self._check_producers(staged, now_ms)
        record = Record(Kind.APPEND, staged.number, now_ms, body, request.close, producer, seq)
        if request.lengths is None:
            batch = self._staging.add(staged, record)
        else:
            batch = self._staging.add_all(staged, _cut(record, request.lengths))
        if is_new_producer:
            batch.new_producers.append(staged)
        return StreamAppended(
            staged.tail,
            staged.closed,
            None if producer is None else ProducerState(producer.epoch, producer.seq),
            bool(body),
            staged.number,
        )

    def check_first(self, staged: Staged, media: str, producer: Producer, now_ms: int) -> None:
        """Raise if a producer's first append of an epoch would be rejected, or is there already."""
        if staged.closed:
            raise StreamClosedError(staged.tail)
        if media != staged.media:
            raise ContentTypeMismatchError(f"It holds {staged.media}, and the batch {media}.")
        state = self._staging.producer_state(staged, producer.id)
        if is_duplicate(state, producer):
            raise ConflictError(
                f"It has appends of the producer {producer.id.decode('latin-1')!r} with the epoch "
                f"{producer.epoch} that are not of this batch: use another producer or epoch."
            )
        if state is None and self._producers_max:
            self._check_producers(staged, now_ms)

    def _check_producers(self, staged: Staged, now_ms: int) -> None:
        """Raise if the stream has as many producers as it may have, and none may be forgotten."""
        if staged.producer_count() < self._producers_max:
            return
        assert staged.base is not None, "a stream without writes has no producers"
        if self._producer_idle_ms:
            # If the oldest may be forgotten, the flush of this append does it.
            oldest_ms = self._state.oldest_producer_ms(staged.base)
            if oldest_ms is not None and oldest_ms < now_ms - self._producer_idle_ms:
                return
        raise QuotaExceededError(
            f"The stream has {self._producers_max} producers, which is the limit. Write with a "
            "Producer-Id that the stream knows, or wait until one may be forgotten."
        )

    def create(self, name: str, request: CreateRequest, now_ms: int) -> Staged:
        """Stage the creation of a stream under a free name; raises if it is rejected."""
        if request.if_match is not None:
            raise PreconditionFailedError("If-Match names a state, and there is no stream yet.")
        self._check_bucket(name, request)
        meta = self._meta(name, request, now_ms)
        if request.producer is not None:
            is_duplicate(None, request.producer)
        body, media = request.body, media_type(meta.content_type)
        if body and media == JSON:
            body = store_form(body)
        # Load the source before the number is known: loading may evict another stream, and if that
        # one has an unrecorded renewal, a record for it goes into the batch first.
        source = None if meta.fork is None else self._staging.view(meta.fork.name)
        if self._bucket_bytes_max and not request.over_quota:
            base = None if source is None else source.base
            inherited = None if base is None else base.snapshot
            added_bytes = len(body) + (0 if inherited is None else inherited.size_bytes)
            check_quota(self._state, self._bucket_bytes_max, name, added_bytes)
        batch = self._commits.batch()
        number = stream_number(batch.position, len(batch.records))
        staged = Staged(number, meta, media, meta.expires_at_ms)
        record = Record(
            Kind.CREATE, number, now_ms, body, request.close, request.producer, request.seq, meta
        )
        self._staging.create(staged, record, source)
        return staged

    def _check_bucket(self, name: str, request: CreateRequest) -> None:
        if not request.needs_bucket and not self._bucket_streams_max:
            return
        bucket = self._staging.buckets.view(name.partition("/")[0])
        if request.needs_bucket and not bucket.exists:
            raise BucketNotFoundError(bucket.name)
        is_full = self._bucket_streams_max and bucket.streams >= self._bucket_streams_max
        if is_full and not request.over_quota:
            raise QuotaExceededError(
                f"The bucket {bucket.name!r} holds {bucket.streams} streams, which is its quota."
            )

    def _meta(self, name: str, request: CreateRequest, now_ms: int) -> StreamMeta:
        ttl_s, expires_at_ms = request.ttl_s, request.expires_at_ms
        content_type = request.content_type or DEFAULT
        fork = None
        if request.fork is not None:
            source = self._source(request.fork, now_ms)
            fork = self._fork(request.fork, source)
            if request.content_type is None:
                content_type = source.meta.content_type
            elif media_type(content_type) != source.media:
                raise ContentTypeMismatchError(
                    f"The stream to fork holds {source.media}, and so does every fork of it."
                )
            if ttl_s is None and expires_at_ms is None:
                ttl_s = source.meta.ttl_s
                expires_at_ms = None if ttl_s is not None else source.meta.expires_at_ms
        if ttl_s is not None and self._ttl_is_fixed:
            expires_at_ms = now_ms + ttl_s * 1000
        return StreamMeta(name, content_type, ttl_s, expires_at_ms, fork)

    def _source(self, request: ForkRequest, now_ms: int) -> Staged:
        source = self._staging.view(request.name)
        if source is not None and source.deleted:
            raise ForkSourceDeletedError(
                "The stream to fork was deleted and only serves its existing forks."
            )
        if source is None or source.gone or self._lifetimes.lapsed(source, now_ms):
            raise StreamNotFoundError(request.name)
        return source

    def _fork(self, request: ForkRequest, source: Staged) -> Fork:
        if request.offset is not None and request.source != source.number:
            raise UnavailableError(
                "The stream to fork, or the one at this URL, was replaced meanwhile. Try again."
            )
        self._check_depth(source)
        offset = source.tail if request.offset is None else request.offset
        if offset > source.tail:
            raise InvalidOffsetError(
                f"Stream-Fork-Offset {offset:020d} is past the tail of the stream to fork, "
                f"{source.tail:020d}."
            )
        if offset < source.first_offset():
            raise OffsetGoneError(source.first_offset())
        return Fork(
            source.number, request.name, offset, request.requested_offset, request.sub_offset
        )

    def _check_depth(self, source: Staged) -> None:
        depth = 0
        ancestor: Staged | None = source
        while ancestor is not None and ancestor.meta.fork is not None:
            depth += 1
            ancestor = self._staging.view(ancestor.meta.fork.name)
        if depth >= FORK_DEPTH_MAX:
            raise ConflictError(
                f"The stream to fork is itself a fork, {depth} levels deep, which is the limit."
            )


def _repeated(staged: Staged, state: ProducerState | None) -> StreamAppended:
    """The reply to a duplicate: the last pair accepted from its producer."""
    assert state is not None, "only a known producer repeats itself"
    last = ProducerState(state.epoch, state.seq, digest=state.digest)
    return StreamAppended(staged.tail, staged.closed, last, False, staged.number)


def _cut(record: Record, lengths: Sequence[int]) -> list[Record]:
    """One record for each message; the last carries everything else that the append does."""
    body, end = record.payload, 0
    records = []
    for length in lengths:
        start, end = end, end + length
        records.append(Record(Kind.APPEND, record.stream, record.at_ms, body[start:end]))
    last = records[-1]
    last.closes, last.producer, last.seq = record.closes, record.producer, record.seq
    return records


def _confirm_closed(staged: Staged, request: AppendRequest) -> StreamAppended:
    """A closed stream confirms its closure and a repetition of the append that closed it."""
    producer, closer = request.producer, staged.closer
    if producer is not None and closer is not None and producer[:3] == closer[:3]:
        check_digest(producer, closer.digest)
        state = ProducerState(producer.epoch, producer.seq, digest=closer.digest)
        return StreamAppended(staged.tail, True, state, False, staged.number)
    if request.close and not request.body:
        return StreamAppended(staged.tail, True, None, False, staged.number)
    raise StreamClosedError(staged.tail)


def confirm_created(staged: Staged, request: CreateRequest) -> StreamCreated | HoldfastError:
    """Confirm a PUT of an existing stream if their configurations are the same."""
    meta = staged.meta
    if request.if_match is not None and not _matches(request.if_match, staged):
        return PreconditionFailedError(_OTHER_STATE)
    if not _is_same_fork(meta.fork, request.fork):
        return StreamExistsError("The stream exists, and is not this fork.")
    if request.content_type is not None and media_type(request.content_type) != staged.media:
        return StreamExistsError(f"The stream exists with the content type {meta.content_type}.")
    if request.fork is not None and request.ttl_s is None and request.expires_at_ms is None:
        # The fork inherited its expiry when it was created; the request does not ask for one.
        pass
    elif request.ttl_s != meta.ttl_s or (
        meta.ttl_s is None and request.expires_at_ms != meta.expires_at_ms
    ):
        return StreamExistsError("The stream exists with another TTL or expiry.")
    if request.close != staged.closed:
        state = "closed" if staged.closed else "open"
        return StreamExistsError(f"The stream exists and is {state}.")
    return StreamCreated(False, meta.content_type, staged.tail, staged.closed, staged.number)


def check_quota(state: State, bytes_max: int, name: str, added_bytes: int) -> None:
    """Raise if the bucket of a stream has no room; writes that are pending are not counted."""
    if added_bytes <= 0:
        return
    bucket_id = name.partition("/")[0]
    bucket = state.row_of(bucket_id)
    held_bytes = 0 if bucket is None else bucket.size_bytes
    if held_bytes + added_bytes > bytes_max:
        raise QuotaExceededError(
            f"The bucket {bucket_id!r} holds {held_bytes} bytes; its quota is {bytes_max}."
        )


def check_state(if_match: bytes, *states: Staged | Stream) -> None:
    """Raise unless `If-Match` names one of these states."""
    if not any(_matches(if_match, state) for state in states):
        raise PreconditionFailedError(_OTHER_STATE)


def _matches(if_match: bytes, state: Staged | Stream) -> bool:
    return matches_state(if_match, state.number, state.tail, closed=state.closed)


def _is_same_fork(fork: Fork | None, request: ForkRequest | None) -> bool:
    """Whether a stream is the requested fork; a request without an offset matches any offset."""
    if fork is None or request is None:
        return fork is None and request is None
    return (
        fork.name == request.name
        and request.sub_offset == fork.sub_offset
        and (
            request.requested_offset in {None, fork.requested_offset}
            or (request.requested_offset == fork.offset and not request.sub_offset)
        )
    )
