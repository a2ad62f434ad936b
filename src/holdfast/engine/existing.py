"""What a stream that is closed, or exists already, answers to a write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.requests import (
    Appended,
    AppendRequest,
    Created,
    CreateRequest,
    ForkRequest,
)
from holdfast.errors import (
    HoldfastError,
    PreconditionFailedError,
    StreamClosedError,
    StreamExistsError,
)
from holdfast.format.records import Fork
from holdfast.protocol.content import media_type
from holdfast.protocol.headers import matches_state
from holdfast.protocol.producer import ProducerState

if TYPE_CHECKING:
    from holdfast.engine.overlay import Staged


def answer_closed(staged: Staged, request: AppendRequest) -> Appended:
    """A closed stream confirms its closure, and the append that closed it; nothing else."""
    producer = request.producer
    if producer is not None and producer == staged.closer:
        state = ProducerState(producer.epoch, producer.seq)
        return Appended(staged.tail, True, state, False, staged.number)
    if request.close and not request.body:
        return Appended(staged.tail, True, None, False, staged.number)
    raise StreamClosedError(staged.tail)


def confirm(staged: Staged, request: CreateRequest) -> Created | HoldfastError:
    """Whether an existing stream is what a PUT asks for."""
    meta = staged.meta
    if not matches(request.if_match, staged):
        return PreconditionFailedError("If-Match names another state of the stream.")
    if not _is_same_fork(meta.fork, request.fork):
        return StreamExistsError("The stream exists, and is not this fork.")
    if request.content_type is not None and media_type(request.content_type) != staged.media:
        return StreamExistsError(f"The stream exists with the content type {meta.content_type}.")
    if request.fork is not None and request.ttl_s is None and request.expires_at_ms is None:
        # What the source had when it was forked may have changed since, and nothing was asked for.
        pass
    elif request.ttl_s != meta.ttl_s or (
        meta.ttl_s is None and request.expires_at_ms != meta.expires_at_ms
    ):
        return StreamExistsError("The stream exists with another TTL or expiry.")
    if request.close != staged.closed:
        state = "closed" if staged.closed else "open"
        return StreamExistsError(f"The stream exists and is {state}.")
    return Created(False, meta.content_type, staged.tail, staged.closed, staged.number)


def matches(if_match: bytes | None, staged: Staged) -> bool:
    """Whether the stream is in the state that a conditional write asks for."""
    return if_match is None or matches_state(
        if_match, staged.number, staged.tail, closed=staged.closed
    )


def _is_same_fork(fork: Fork | None, asked: ForkRequest | None) -> bool:
    """Whether a stream is the fork that is asked for; one without an offset takes any."""
    if fork is None or asked is None:
        return fork is None and asked is None
    return (
        fork.name == asked.name
        and asked.sub_offset == fork.sub_offset
        and (
            asked.asked_offset in {None, fork.asked_offset}
            or (asked.asked_offset == fork.offset and not asked.sub_offset)
        )
    )
