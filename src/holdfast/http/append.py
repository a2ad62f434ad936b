"""POST {stream}: append, close, or both in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.engine.requests import Appended, AppendRequest
from holdfast.errors import HoldfastError, InvalidRequestError
from holdfast.http.errors import answer_error
from holdfast.protocol.content import media_type, parse_content_type
from holdfast.protocol.headers import check_stream_seq, is_true
from holdfast.protocol.producer import parse_producer

if TYPE_CHECKING:
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot

# Media types by content type as sent: there are few of them, and they come with every append.
_MEDIA_ENTRIES_MAX: Final = 1024
_media: dict[bytes, str] = {}


def append(app: App, request: Request, slot: Slot, name: str) -> None:
    """Hand the append to the shard, which answers once it is durable."""
    fields = request.fields
    body = request.body
    raw_type = fields.get(b"content-type")
    close = b"stream-closed" in fields and is_true(fields[b"stream-closed"])
    if not body and not close:
        raise InvalidRequestError(
            "The body is empty. Send bytes to append, or Stream-Closed: true to close the stream."
        )
    if body and not raw_type:
        raise InvalidRequestError("An append needs a Content-Type, the same as the stream's.")
    media = _media.get(raw_type) if raw_type else None
    if media is None and body and raw_type:
        media = _remember_media(raw_type)
    producer = None
    if b"producer-id" in fields or b"producer-epoch" in fields or b"producer-seq" in fields:
        producer = parse_producer(
            fields.get(b"producer-id"), fields.get(b"producer-epoch"), fields.get(b"producer-seq")
        )
    seq = fields.get(b"stream-seq")
    if seq is not None:
        check_stream_seq(seq)
    asked = AppendRequest(body, media, close, producer, seq, fields.get(b"if-match"))
    app.shard.append(name, asked, _answer, slot)


def _remember_media(raw: bytes) -> str:
    media = media_type(parse_content_type(raw))
    if len(_media) >= _MEDIA_ENTRIES_MAX:
        _media.clear()
    _media[raw] = media
    return media


def _answer(slot: Slot, outcome: object) -> None:
    if type(outcome) is not Appended:
        assert isinstance(outcome, HoldfastError)
        answer_error(slot, outcome)
        return
    if outcome.closed:
        fields = b'Stream-Next-Offset: %020d\r\nETag: "%x:%d:c"\r\nStream-Closed: true\r\n' % (
            outcome.tail,
            outcome.number,
            outcome.tail,
        )
    else:
        fields = b'Stream-Next-Offset: %020d\r\nETag: "%x:%d"\r\n' % (
            outcome.tail,
            outcome.number,
            outcome.tail,
        )
    producer = outcome.producer
    if producer is None:
        slot.answer(204, fields)
        return
    fields += b"Producer-Epoch: %d\r\nProducer-Seq: %d\r\n" % producer
    slot.answer(200 if outcome.added else 204, fields)
