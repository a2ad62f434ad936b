"""Messages inside a byte stream, each behind its length: four bytes, big-endian.

A convention between the writers and readers of a stream, for streams of many small messages: the
server knows nothing of it, and an append or an answer may hold several, or a part of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.errors import BadAnswerError, InvalidRequestError

PREFIX_BYTES: Final = 4
# Longer ones are taken for a stream that is not framed at all.
MESSAGE_BYTES_MAX: Final = 256 * 1024 * 1024


def frame(message: bytes) -> bytes:
    """A message behind its length."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise InvalidRequestError(f"A framed message has at most {MESSAGE_BYTES_MAX} bytes.")
    return len(message).to_bytes(PREFIX_BYTES, "big") + message


def frame_all(messages: Iterable[bytes]) -> bytes:
    """Messages one behind the other."""
    return b"".join([frame(message) for message in messages])


class Unframer:
    """Takes bytes in pieces of any size and gives back messages."""

    __slots__ = ("_needed", "_rest", "pending_bytes")

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        # How many bytes of an unfinished message are held, and how many make anything of it.
        self.pending_bytes = 0
        self._needed = PREFIX_BYTES

    def feed(self, piece: bytes) -> list[bytes]:
        """The messages that this piece completes."""
        self.pending_bytes += len(piece)
        self._rest.append(piece)
        if self.pending_bytes < self._needed:
            return []
        buffer = piece if len(self._rest) == 1 else b"".join(self._rest)
        self._needed = PREFIX_BYTES
        messages = []
        at, size = 0, len(buffer)
        while size - at >= PREFIX_BYTES:
            length = int.from_bytes(buffer[at : at + PREFIX_BYTES], "big")
            if length > MESSAGE_BYTES_MAX:
                raise BadAnswerError(
                    f"A message of {length} bytes: the stream is not framed by lengths, "
                    "or the read started in the middle of a message."
                )
            end = at + PREFIX_BYTES + length
            if end > size:
                self._needed = end - at
                break
            messages.append(buffer[at + PREFIX_BYTES : end])
            at = end
        self._rest = [buffer[at:]]
        self.pending_bytes = size - at
        return messages
