"""What a stream that is closed, or exists already, answers to a write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.requests import Appended, AppendRequest, Created, CreateRequest
from holdfast.errors import HoldfastError, StreamClosedError, StreamExistsError
from holdfast.protocol.content import media_type
from holdfast.protocol.producer import ProducerState

if TYPE_CHECKING:
    from holdfast.engine.overlay import Staged


def answer_closed(staged: Staged, request: AppendRequest) -> Appended:
    """A closed stream confirms its closure, and the append that closed it; nothing else."""
    producer = request.producer
    if producer is not None and producer == staged.closer:
        state = ProducerState(producer.epoch, producer.seq)
        return Appended(staged.tail, closed=True, producer=state, added=False)
    if request.close and not request.body:
        return Appended(staged.tail, closed=True, added=False)
    raise StreamClosedError(staged.tail)


def confirm(staged: Staged, request: CreateRequest) -> Created | HoldfastError:
    """Whether an existing stream is what a PUT asks for."""
    meta = staged.meta
    if media_type(request.content_type) != staged.media:
        return StreamExistsError(f"The stream exists with the content type {meta.content_type}.")
    if request.ttl_s != meta.ttl_s or (
        meta.ttl_s is None and request.expires_at_ms != meta.expires_at_ms
    ):
        return StreamExistsError("The stream exists with another TTL or expiry.")
    if request.close != staged.closed:
        state = "closed" if staged.closed else "open"
        return StreamExistsError(f"The stream exists and is {state}.")
    return Created(False, meta.content_type, staged.tail, staged.closed)
