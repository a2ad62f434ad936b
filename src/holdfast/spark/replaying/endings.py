"""How far copies are: what the source and the target say of a stream."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from holdfast.client.stream import Stream
from holdfast.client.types import ProducerStamp, StreamHead
from holdfast.errors import (
    BadAnswerError,
    ContentTypeMismatchError,
    PreconditionFailedError,
    ProducerFencedError,
    StreamClosedError,
    StreamNotFoundError,
)

# No stream has the number 0.
_NO_STATE: Final = '"0:0"'


class LeftError(Exception):
    """A stream that is not copied any further; the message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True)
class Copy:
    """A stream on the target, as it is."""

    tail: int
    etag: str
    closed: bool
    # None: it is empty, closed, or no copy of this source.
    base: int | None
    snapshot_at: int | None = None


def producer_name(identity: str, head: StreamHead) -> str:
    """The producer id of copies of a source stream: a stream of the same name later has another."""
    number = (head.etag or "").strip('W/"').partition(":")[0]
    if not number:
        raise BadAnswerError("The source does not tell which stream a name stands for (ETag).")
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return f"holdfast-replay-{digest}-{number}"


async def look_at(stream: Stream, content_type: str, producer_id: str) -> Copy | None:
    """How far the copy is; None if there is no such stream."""
    probe = ProducerStamp(producer_id, 0, 0)
    try:
        answer = await stream.post(b"0", content_type, if_match=_NO_STATE, producer=probe)
    except StreamNotFoundError:
        return None
    except (PreconditionFailedError, StreamClosedError):
        return _copy_of(await stream.head(), None)
    except ContentTypeMismatchError:
        raise LeftError(f"On the target it does not hold {content_type}.") from None
    except ProducerFencedError:
        # The tail first: if it is still that when something is appended, the base is right, too.
        head = await stream.head()
        return _copy_of(head, await _base_of(stream, content_type, probe))
    if not answer.duplicate:
        raise BadAnswerError("The target does not heed If-Match: it cannot be copied to safely.")
    return Copy(_number(answer.next_offset), answer.etag or "", answer.closed, 0)


async def snapshot_offset(stream: Stream) -> int | None:
    """Where the snapshot of a stream is; None if it has none."""
    return _copy_of(await stream.head(), None).snapshot_at


async def _base_of(stream: Stream, content_type: str, probe: ProducerStamp) -> int | None:
    try:
        await stream.post(b"0", content_type, if_match=_NO_STATE, producer=probe)
    except ProducerFencedError as error:
        return error.epoch
    except (PreconditionFailedError, StreamClosedError):
        pass
    return None


def _copy_of(head: StreamHead, base: int | None) -> Copy:
    snapshot_at = None if head.snapshot_offset is None else _number(head.snapshot_offset)
    return Copy(_number(head.next_offset), head.etag or "", head.closed, base, snapshot_at)


def _number(offset: str) -> int:
    if not offset.isdigit():
        raise BadAnswerError("The target does not count offsets in bytes: it is no Holdfast.")
    return int(offset)
