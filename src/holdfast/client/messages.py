"""Messages and batches: what readers get, and how answers are cut into messages.

Rules:

- A `Batch` is what one answer or event held. A `Message` is one append of a byte stream, one
  element of a JSON stream, or one framed record.
- A server that tells the lengths of messages (`Stream-Message-Lengths`) also counts offsets in
  bytes: then every message has offsets of its own, counted back from where the answer ends.
- Of other servers an answer is one message, or for JSON its elements. Reading on is possible only
  from where an answer starts or ends, so the offsets given are those: an element that is not the
  last has `next_offset` where the answer starts. Whoever resumes there sees some again, and loses
  none.
- A message may be cut by the limit on answers. Its beginning is held until its end has come.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

import msgspec

from holdfast.client.payloads import Framing
from holdfast.errors import BadAnswerError
from holdfast.protocol.content import JSON, PREFIX_BYTES, Unframer, media_type

# The lengths of a batch's messages; "json": as long as the text of each element, and one byte.
Lengths = tuple[int, ...] | Literal["json"]
JSON_LENGTHS: Final = "json"

_decode_json = msgspec.json.decode
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Views:
    """What holds bytes, seen as bytes, text or JSON."""

    __slots__ = ()

    payload: bytes

    @property
    def bytes(self) -> bytes:
        """The bytes as they are stored."""
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
    """One message, where it starts, and where to go on behind it."""

    payload: bytes
    offset: str
    next_offset: str


class Batch(msgspec.Struct, frozen=True):
    """What one answer or event held."""

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
        """The bytes of the answer; of a JSON stream an array."""
        return self.data

    @property
    def text(self) -> str:
        """The answer as UTF-8 text."""
        return self.data.decode()

    @property
    def json(self) -> Any:
        """The answer parsed as JSON: a list of messages on a JSON stream."""
        return parse_json(self.data)


def parse_json(data: bytes) -> Any:
    """JSON as Python values; numbers of any size, since servers take them."""
    try:
        return _decode_json(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        # Slower, but takes 1e999 for what it is: too large.
        return json.loads(data)
    except ValueError as error:
        raise BadAnswerError(f"This is not JSON: {error}.") from None
    except RecursionError:
        raise BadAnswerError("This JSON is nested too deeply.") from None


class Assembler:
    """Cuts the batches of one read into messages, in order."""

    def __init__(self, framing: Framing | None) -> None:
        self._unframer = None if framing is None else Unframer()
        # The beginning of a message whose end has not come yet.
        self._held: list[bytes] = []
        # Where a read can go on without missing anything of a message that is held.
        self._safe_offset = ""

    @property
    def is_within_message(self) -> bool:
        """Whether the beginning of a message is held."""
        return bool(self._held or (self._unframer and self._unframer.pending_bytes))

    def feed(self, batch: Batch) -> list[Message]:
        """The messages that this batch completes."""
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
            raise BadAnswerError("The lengths of the messages exceed the answer.")
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
        raise BadAnswerError(f"The answer is not a JSON array: {error}.") from None
    except RecursionError:
        raise BadAnswerError("A message is nested too deeply.") from None
    if not payloads:
        return []
    if batch.lengths == JSON_LENGTHS:
        at = _position_before_end(batch, sum(map(len, payloads)) + len(payloads))
        # SSE turns CRLF between the tokens of a message into LF: then the count is too small.
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
    """So many bytes before where the batch ends."""
    offset = batch.next_offset
    if not (offset.isascii() and offset.isdigit()):
        raise BadAnswerError(f"The server tells lengths, but its offset {offset[:40]!r} is none.")
    position = int(offset) - size_bytes
    if position < 0:
        raise BadAnswerError("The lengths of the messages exceed the answer's offset.")
    return position


def parse_lengths(text: str | None) -> Lengths | None:
    """`Stream-Message-Lengths` of an answer: None if the server does not tell."""
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
