"""The events of an SSE read, turned into batches.

A data event is held until the control event behind it says where it ends: a connection that breaks
in between leaves nothing behind, and the next one starts with the same data.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping

import msgspec

from holdfast.client.messages import JSON_LENGTHS, Batch, Lengths, parse_lengths
from holdfast.errors import BadAnswerError
from holdfast.protocol.content import JSON, media_type
from holdfast.protocol.sse import SseEvent, SseParser


class _Control(msgspec.Struct):
    """What a control event says."""

    next_offset: str = msgspec.field(name="streamNextOffset")
    cursor: str | None = msgspec.field(name="streamCursor", default=None)
    up_to_date: bool = msgspec.field(name="upToDate", default=False)
    closed: bool = msgspec.field(name="streamClosed", default=False)
    lengths: tuple[int, ...] | None = msgspec.field(name="streamMessageLengths", default=None)
    line_ends_changed: bool = msgspec.field(name="streamLineEndsChanged", default=False)


_decode_control = msgspec.json.Decoder(_Control).decode


class LiveEvents:
    """Takes the bytes of one SSE answer and gives batches."""

    def __init__(self, headers: Mapping[str, str], content_type: str, offset: str) -> None:
        self._parser = SseParser()
        self._is_base64 = headers.get("stream-sse-data-encoding", "").lower() == "base64"
        self._tells = headers.get("stream-message-lengths")
        self._content_type = content_type
        self._offset = headers.get("stream-start-offset", offset)
        self._data: list[bytes] = []
        # SSE turns all line ends into LF: whether what comes next is not what is stored.
        self.line_ends_changed = False

    def feed(self, piece: bytes) -> list[Batch]:
        """The batches that this piece completes, up to one whose line ends were changed."""
        batches: list[Batch] = []
        for event in self._parser.feed(piece):
            if event.kind == "data":
                self._data.append(self._decoded(event))
            elif event.kind == "control":
                control = _parse_control(event)
                batch = self._batch(control)
                if control.line_ends_changed or not is_exact(batch):
                    self.line_ends_changed = True
                    return batches
                batches.append(batch)
            elif event.kind == "error":
                text = event.data[:200].decode("utf-8", "replace")
                raise BadAnswerError(f"The server sent an error event: {text}")
        return batches

    def _decoded(self, event: SseEvent) -> bytes:
        if not self._is_base64:
            return event.data
        try:
            return b64decode(event.data.translate(None, b"\r\n "), validate=True)
        except binascii.Error as error:
            raise BadAnswerError(f"A data event is not base64: {error}.") from None

    def _batch(self, control: _Control) -> Batch:
        data, lengths = self._joined(), self._lengths(control)
        batch = Batch(
            data,
            self._content_type,
            self._offset,
            control.next_offset,
            up_to_date=control.up_to_date or control.closed,
            closed=control.closed,
            cursor=control.cursor,
            lengths=lengths,
        )
        self._data.clear()
        self._offset = control.next_offset
        return batch

    def _joined(self) -> bytes:
        if len(self._data) <= 1:
            return self._data[0] if self._data else b""
        if media_type(self._content_type) != JSON:
            return b"".join(self._data)
        # Several arrays before one control event: one array of all that is in them.
        inner = [each.strip()[1:-1].strip() for each in self._data]
        return b"[" + b",".join([each for each in inner if each]) + b"]"

    def _lengths(self, control: _Control) -> Lengths | None:
        if self._tells == JSON_LENGTHS:
            return JSON_LENGTHS
        if self._tells == "events":
            return control.lengths or ()
        return parse_lengths(self._tells)


def is_exact(batch: Batch) -> bool:
    """Whether there is as much data as is stored; with CRLF turned into LF there is less.

    To be seen only where the server counts offsets in bytes, and says so.
    """
    if batch.lengths is None or not batch.data:
        return True
    offsets = batch.offset + batch.next_offset
    if not (batch.offset and batch.next_offset and offsets.isascii() and offsets.isdigit()):
        return True
    # Behind each JSON message a byte is stored: as many as an array has commas, and one.
    shorter = 1 if batch.lengths == JSON_LENGTHS else 0
    return int(batch.next_offset) - int(batch.offset) == len(batch.data) - shorter


def _parse_control(event: SseEvent) -> _Control:
    try:
        return _decode_control(event.data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadAnswerError(f"A control event cannot be understood: {error}.") from None
