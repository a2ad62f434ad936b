"""The staged overlay: what will be once everything pending is durable.

Writes are validated against this, never against the published state alone. An entry exists only
for streams with something pending, and is dropped when the last batch that touched it is
published, or all at once when a batch fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.commit import Batch
    from holdfast.engine.state import Stream
    from holdfast.format.records import StreamMeta
    from holdfast.protocol.producer import Producer, ProducerState


class Staged:
    """A stream as it will be; `batch` is the last pending batch that touched it, if any."""

    __slots__ = (
        "base",
        "batch",
        "closed",
        "closer",
        "deadline_ms",
        "gone",
        "media",
        "meta",
        "number",
        "producers",
        "seq",
        "tail",
    )

    def __init__(self, number: int, meta: StreamMeta, media: str) -> None:
        self.number = number
        self.meta = meta
        self.media = media
        self.base: Stream | None = None
        self.tail = 0
        self.closed = False
        self.closer: Producer | None = None
        self.producers: dict[bytes, ProducerState] | None = None
        self.seq: bytes | None = None
        self.deadline_ms = meta.expires_at_ms
        self.gone = False
        self.batch: Batch | None = None

    @classmethod
    def over(cls, stream: Stream) -> Staged:
        """A view of a published stream with nothing pending yet."""
        staged = cls.__new__(cls)
        staged.number = stream.number
        staged.meta = stream.meta
        staged.media = stream.media
        staged.base = stream
        staged.tail = stream.tail
        staged.closed = stream.closed
        staged.closer = stream.closer
        staged.producers = None
        staged.seq = stream.seq
        staged.deadline_ms = stream.deadline_ms
        staged.gone = False
        staged.batch = None
        return staged

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
