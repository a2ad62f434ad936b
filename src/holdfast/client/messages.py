"""Messages and batches: how messages become request bodies, and responses become messages.

Rules:

- A `Batch` is the content of one response or event. A `Message` is one append of a byte stream,
  one element of a JSON stream, or one framed record.
- A server that sends the lengths of messages (`Stream-Message-Lengths`) also counts offsets in
  bytes. Then every message has its own offsets, counted back from the end of the response.
- A response of another server is one message, or for JSON one for each element. Such a read can
  resume only where a response starts or ends, so messages carry those offsets: an element that is
  not the last has the start of the response as its `next_offset`. A reader that resumes there sees
  some messages again and loses none.
- The size limit of responses may split a message. Its first part is held until the rest arrives.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from holdfast.errors import BadAnswerError, InvalidJsonError, InvalidRequestError
from holdfast.net.outbound import OutboundResponse
from holdfast.protocol.content import JSON, PREFIX_BYTES, Unframer, frame, media_type

# The lengths of a batch's messages; "json": each is as long as its text plus one byte.
Lengths = tuple[int, ...] | Literal["json"]
JSON_LENGTHS: Final = "json"
Framing = Literal["length-prefixed"]
LENGTH_PREFIXED: Final = "length-prefixed"

_encode = msgspec.json.Encoder().encode
_decode_value = msgspec.json.Decoder(msgspec.Raw).decode
_decode_json = msgspec.json.decode
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Views:
    """Bytes, text and JSON views of a `payload`."""

    __slots__ = ()

    payload: bytes

    @property
    def bytes(self) -> bytes:
        """The bytes as stored."""
        return self.payload

    @property
    def text(self) -> str:
        """The bytes as UTF-8 text."""
        return self.payload.decode()

    @property
    def json(self) -> Any:
        """The bytes parsed as JSON."""
        return parse_json(self.payload)


class Message(msgspec.Struct, Views, frozen=True, gc=False):
    """One message, the offset where it starts, and the offset after it."""

    payload: bytes
    offset: str
    next_offset: str


class Batch(msgspec.Struct, frozen=True):
    """The content of one response or event."""

    data: bytes
    content_type: str
    offset: str
    next_offset: str
    up_to_date: bool = False
    closed: bool = False
    cursor: str | None = None
    lengths: Lengths | None = None

    @property
    def bytes(self) -> bytes:
        """The bytes of the response; an array on a JSON stream."""
        return self.data

    @property
    def text(self) -> str:
        """The response as UTF-8 text."""
        return self.data.decode()

    @property
    def json(self) -> Any:
        """The response parsed as JSON: a list of messages on a JSON stream."""
        return parse_json(self.data)


def join_arrays(arrays: Iterable[bytes]) -> bytes:
    """One JSON array with the elements of several."""
    inner = [each.strip()[1:-1].strip() for each in arrays]
    return b"[" + b",".join([each for each in inner if each]) + b"]"


def parse_json(data: bytes) -> Any:
    """Parse JSON, including numbers beyond the range of a double, which servers accept."""
    try:
        return _decode_json(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        # Slower, but turns 1e999 into infinity.
        return json.loads(data)
    except ValueError as error:
        raise BadAnswerError(f"This is not JSON: {error}.") from None
    except RecursionError:
        raise BadAnswerError("This JSON is nested too deeply.") from None


class Assembler:
    """Cuts the batches of one read into messages, in order."""

    def __init__(self, framing: Framing | None) -> None:
        self._unframer = None if framing is None else Unframer()
        # The first parts of a message that is not complete yet.
        self._held: list[bytes] = []
        # Where a read can resume without missing the beginning of the held message.
        self._safe_offset = ""

    @property
    def is_within_message(self) -> bool:
        """Whether a message is incomplete so far."""
        return bool(self._held or (self._unframer and self._unframer.pending_bytes))

    def feed(self, batch: Batch) -> list[Message]:
        if self._unframer is not None:
            return self._framed(batch, self._unframer)
        if media_type(batch.content_type) == JSON:
            return _elements(batch)
        if not batch.data:
            return []
        if batch.lengths is None or batch.lengths == JSON_LENGTHS:
            return [Message(batch.data, batch.offset, batch.next_offset)]
        return self._cut(batch, batch.lengths)

    def _cut(self, batch: Batch, lengths: tuple[int, ...]) -> list[Message]:
        data = batch.data
        width = len(batch.next_offset)
        start = _position_before_end(batch, len(data))
        if sum(lengths) > len(data) or min(lengths, default=0) < 0:
            raise BadAnswerError("The lengths of the messages exceed the response.")
        messages = []
        at = 0
        for length in lengths:
            payload = data[at : at + length]
            at += length
            end = start + at
            if self._held:
                payload = b"".join((*self._held, payload))
                self._held.clear()
            messages.append(Message(payload, f"{end - len(payload):0{width}d}", f"{end:0{width}d}"))
        if at < len(data):
            self._held.append(data[at:])
        return messages

    def _framed(self, batch: Batch, unframer: Unframer) -> list[Message]:
        payloads = unframer.feed(batch.data)
        if batch.lengths is not None:
            return self._framed_exactly(batch, payloads, unframer.pending_bytes)
        safe = self._safe_offset or batch.offset
        messages = [Message(payload, safe, safe) for payload in payloads]
        if not unframer.pending_bytes:
            self._safe_offset = batch.next_offset
            if messages:
                messages[-1] = Message(payloads[-1], safe, batch.next_offset)
        else:
            self._safe_offset = safe
        return messages

    def _framed_exactly(
        self, batch: Batch, payloads: list[bytes], pending_bytes: int
    ) -> list[Message]:
        width = len(batch.next_offset)
        total = sum(len(payload) + PREFIX_BYTES for payload in payloads)
        at = _position_before_end(batch, pending_bytes + total)
        messages = []
        for payload in payloads:
            end = at + PREFIX_BYTES + len(payload)
            messages.append(Message(payload, f"{at:0{width}d}", f"{end:0{width}d}"))
            at = end
        return messages


def _elements(batch: Batch) -> list[Message]:
    if not batch.data:
        return []
    try:
        payloads = [bytes(raw) for raw in _decode_elements(batch.data)]
    except msgspec.DecodeError as error:
        raise BadAnswerError(f"The response is not a JSON array: {error}.") from None
    except RecursionError:
        raise BadAnswerError("A message is nested too deeply.") from None
    if not payloads:
        return []
    if batch.lengths == JSON_LENGTHS:
        at = _position_before_end(batch, sum(map(len, payloads)) + len(payloads))
        # SSE turns CRLF between JSON tokens into LF, which makes the count too small.
        if not batch.offset.isdigit() or at == int(batch.offset):
            return _counted(payloads, at, len(batch.next_offset))
    offset = batch.offset
    messages = [Message(payload, offset, offset) for payload in payloads]
    messages[-1] = Message(payloads[-1], offset, batch.next_offset)
    return messages


def _counted(payloads: list[bytes], at: int, width: int) -> list[Message]:
    messages = []
    offset = f"{at:0{width}d}"
    for payload in payloads:
        at += len(payload) + 1
        next_offset = f"{at:0{width}d}"
        messages.append(Message(payload, offset, next_offset))
        offset = next_offset
    return messages


def _position_before_end(batch: Batch, size_bytes: int) -> int:
    """The position this many bytes before the end of the batch."""
    offset = batch.next_offset
    if not (offset.isascii() and offset.isdigit()):
        raise BadAnswerError(
            f"The server sends lengths, but its offset {offset[:40]!r} is no number."
        )
    position = int(offset) - size_bytes
    if position < 0:
        raise BadAnswerError("The lengths of the messages exceed the response's offset.")
    return position


def parse_lengths(text: str | None) -> Lengths | None:
    """Parse `Stream-Message-Lengths`; None if the server does not send lengths."""
    if text is None or text == "events":
        return None
    if text == JSON_LENGTHS:
        return JSON_LENGTHS
    if text == "none":
        return ()
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise BadAnswerError(f"Malformed Stream-Message-Lengths {text[:40]!r}.") from None


def check_framing(framing: str | None) -> None:
    if framing not in {None, LENGTH_PREFIXED}:
        raise InvalidRequestError(f"Unknown framing {framing!r}: use {LENGTH_PREFIXED!r} or None.")


def message_bytes(value: Any, media: str, framing: Framing | None) -> bytes:
    """Encode a message: any value on a JSON stream (bytes are JSON text), else bytes or str."""
    if framing is not None and media == JSON:
        raise InvalidRequestError(
            "A JSON stream cannot be framed: its values are messages already."
        )
    if isinstance(value, bytes | bytearray | memoryview):
        encoded = bytes(value)
        if media == JSON:
            return _one_value(encoded)
    elif media == JSON:
        try:
            return _encode(value)
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise InvalidJsonError(f"The message cannot be written as JSON: {error}.") from None
    elif isinstance(value, str):
        encoded = value.encode()
    else:
        raise TypeError(
            f"A message of a {media or 'byte'} stream is bytes or str, not {type(value).__name__}."
        )
    return encoded if framing is None else frame(encoded)


def _one_value(text: bytes) -> bytes:
    """Check that JSON text is a single value: `1,2` would become two messages."""
    try:
        return bytes(_decode_value(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidJsonError(f"The message is not JSON: {error}.") from None


def request_body(messages: Iterable[bytes], media: str) -> bytes:
    """The body of one append of these messages.

    On a JSON stream it is always an array: the server removes one level, so that a message that is
    an array itself stays one message.
    """
    if media == JSON:
        return b"[" + b",".join(messages) + b"]"
    return b"".join(messages)


def is_set(headers: Mapping[str, str], name: str) -> bool:
    """Whether a boolean protocol header is true."""
    return headers.get(name, "").lower() == "true"


def next_offset(headers: Mapping[str, str]) -> str:
    """`Stream-Next-Offset`, which every response to a read must have."""
    offset = headers.get("stream-next-offset", "")
    if not offset:
        raise BadAnswerError("The response has no Stream-Next-Offset: is this a stream's URL?")
    return offset


def batch_of(response: OutboundResponse, start: str) -> Batch:
    """The batch in the response to a catch-up or long-poll read."""
    headers = response.headers
    offset = next_offset(headers)
    closed = is_set(headers, "stream-closed")
    at_tail = closed or is_set(headers, "stream-up-to-date") or response.status == 204
    return Batch(
        b"" if response.status == 204 else response.body,
        headers.get("content-type", ""),
        headers.get("stream-start-offset", start),
        offset,
        # A response that does not advance is at the tail, whatever its headers say.
        up_to_date=at_tail or offset == start,
        closed=closed,
        cursor=headers.get("stream-cursor"),
        lengths=parse_lengths(headers.get("stream-message-lengths")),
    )
