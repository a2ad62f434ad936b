"""The staged overlay: what will be once everything pending is durable.

Writes are validated against this, never against the published state alone. An entry exists only
for streams with something pending, and is dropped when the last batch that touched it is
published, or all at once when a batch fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from holdfast.engine.commit import Batch
    from holdfast.engine.state import Stream
    from holdfast.format.records import StreamMeta
    from holdfast.protocol.producer import Producer, ProducerState


class Staged(msgspec.Struct):
    """A stream as it will be; `batch` is the last pending batch that touched it, if any."""

    number: int
    meta: StreamMeta
    media: str
    deadline_ms: int | None
    base: Stream | None = None
    tail: int = 0
    closed: bool = False
    closer: Producer | None = None
    seq: bytes | None = None
    producers: dict[bytes, ProducerState] | None = None
    gone: bool = False
    batch: Batch | None = None

    @classmethod
    def over(cls, stream: Stream) -> Staged:
        """A view of a published stream with nothing pending yet."""
        return cls(
            stream.number,
            stream.meta,
            stream.media,
            stream.deadline_ms,
            stream,
            stream.tail,
            stream.closed,
            stream.closer,
            stream.seq,
        )

    def producer_state(self, producer_id: bytes) -> ProducerState | None:
        """The last pair accepted from this producer, pending ones included."""
        if self.producers is not None:
            state = self.producers.get(producer_id)
            if state is not None:
                return state
        if self.base is not None and self.base.producers is not None:
            return self.base.producers.get(producer_id)
        return None

    def expired(self, now_ms: int) -> bool:
        """Whether the deadline has passed, renewals by reads included."""
        deadline_ms = self.deadline_ms
        if deadline_ms is None or deadline_ms > now_ms:
            return False
        base = self.base
        return base is None or base.deadline_ms is None or base.deadline_ms <= now_ms
