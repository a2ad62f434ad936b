"""multipart/mixed bodies (RFC 2046): one part for each message, as bootstrap sends them.

The boundary is random, 128 bits of it, so that no message can hold it by accident or on purpose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.protocol.content import JSON
from holdfast.protocol.json_mode import SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Sequence


class Multipart:
    """The pieces of one body."""

    def __init__(self, boundary: bytes, content_type: str, media: str) -> None:
        self._boundary = boundary
        self._is_json = media == JSON
        # What stands between the first part and each message that follows it.
        self._delimiter = b"\r\n--%b\r\nContent-Type: %b\r\n\r\n" % (
            boundary,
            content_type.encode(),
        )

    @property
    def content_type(self) -> bytes:
        """The content type of the whole."""
        return b"multipart/mixed; boundary=%b" % self._boundary

    def first(self, content_type: str) -> bytes:
        """How the first part starts; its body follows."""
        return b"--%b\r\nContent-Type: %b\r\n\r\n" % (self._boundary, content_type.encode())

    def messages(self, stored: bytes, start: int, ends: Sequence[int]) -> bytes:
        """Parts for the messages in stored bytes, which start at an offset and end at `ends`."""
        if not stored:
            return b""
        if self._is_json:
            return self._delimiter + stored[:-1].replace(SEPARATOR, self._delimiter)
        pieces = [b""]
        at = 0
        for end in ends:
            pieces.append(stored[at : end - start])
            at = end - start
        return self._delimiter.join(pieces)

    def whole(self, content_type: str, first: bytes, messages: Sequence[bytes]) -> bytes:
        """The whole body at once, from messages that are apart; their bytes are copied once."""
        opening = self.first(content_type) + first
        if not messages:
            return opening + self.last()
        return self._delimiter.join((opening, *messages[:-1], messages[-1] + self.last()))

    def last(self) -> bytes:
        """How the body ends."""
        return b"\r\n--%b--\r\n" % self._boundary
