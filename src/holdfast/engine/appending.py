"""Appending: what a write to an existing stream has to pass, in this order.

Closed, content type, producer, `If-Match`, `Stream-Seq`, body, quota; that the stream exists is
known. All of it is validated against the staged state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.existing import answer_closed, matches
from holdfast.engine.requests import Appended, AppendRequest
from holdfast.errors import (
    ContentTypeMismatchError,
    InvalidJsonError,
    PreconditionFailedError,
    QuotaExceededError,
    StreamSeqError,
)
from holdfast.format.records import Kind, Record
from holdfast.protocol import content
from holdfast.protocol.producer import ProducerState, is_duplicate

if TYPE_CHECKING:
    from holdfast.engine.counters import Counters
    from holdfast.engine.overlay import Staged, Staging
    from holdfast.engine.state import State


class Appending:
    """Stages appends and closures."""

    def __init__(
        self, state: State, staging: Staging, counters: Counters, *, bucket_bytes_max: int
    ) -> None:
        self._state = state
        self._staging = staging
        self._counters = counters
        self._bucket_bytes_max = bucket_bytes_max

    def stage(self, staged: Staged, request: AppendRequest, now_ms: int) -> Appended:
        """Stage an append, or answer one that adds nothing; raises if it is refused."""
        body, producer, seq = request.body, request.producer, request.seq
        if staged.closed:
            return answer_closed(staged, request)
        if body and request.media != staged.media:
            raise ContentTypeMismatchError(
                f"The stream holds {staged.media}, the append is {request.media}."
            )
        if producer is not None:
            state = staged.producer_state(producer.id)
            if is_duplicate(state, producer):
                self._counters.duplicates += 1
                return Appended(staged.tail, staged.closed, state, False, staged.number)
        if request.if_match is not None and not matches(request.if_match, staged):
            raise PreconditionFailedError("If-Match names another state of the stream.")
        if seq is not None and staged.seq is not None and seq <= staged.seq:
            raise StreamSeqError(
                f"Stream-Seq {seq.decode('latin-1')!r} is not greater than the last one, "
                f"{staged.seq.decode('latin-1')!r}."
            )
        if body and staged.media == content.JSON:
            body = content.store_form(body)
            if not body:
                raise InvalidJsonError("An empty array appends nothing; send at least one message.")
        if self._bucket_bytes_max and body and not request.over_quota:
            self.check_room(staged.meta.name, len(body))
        record = Record(Kind.APPEND, staged.number, now_ms, body, request.close, producer, seq)
        self._staging.add(staged, record)
        return Appended(
            staged.tail,
            staged.closed,
            None if producer is None else ProducerState(producer.epoch, producer.seq),
            bool(body),
            staged.number,
        )

    def check_room(self, name: str, size_bytes: int) -> None:
        """Raise if the bucket has no room; what is pending may exceed the quota for a moment."""
        if not self._bucket_bytes_max:
            return
        bucket_id = name.partition("/")[0]
        bucket = self._state.buckets.get(bucket_id)
        held_bytes = 0 if bucket is None else bucket.size_bytes
        if held_bytes + size_bytes > self._bucket_bytes_max:
            raise QuotaExceededError(
                f"The bucket {bucket_id!r} holds {held_bytes} bytes of the "
                f"{self._bucket_bytes_max} that are its quota."
            )
