"""The messages of a fan-out: each carries its number in its stream and when it was due.

A message is MARK, the number, the time, letters up to its size, and END. Neither MARK nor END
occur in anything that servers put between messages, so messages are found however many of them
come together, and in whatever framing.
"""

import re
from collections.abc import Iterator

from holdfast.protocol.content import JSON, media_type

__all__ = ["SIZE_BYTES_MIN", "StampReader", "stamped"]

SIZE_BYTES_MIN = 32
_STAMP = re.compile(rb"~(\d{9})(\d{16})[^~!]*!")


def stamped(number: int, due_s: float, content_type: str, size_bytes: int) -> bytes:
    """One message of exactly this size."""
    stamp = b"~%09d%016d" % (number, int(due_s * 1_000_000))
    if media_type(content_type) == JSON:
        return b'"' + stamp.ljust(size_bytes - 3, b"x") + b'!"'
    return stamp.ljust(size_bytes - 1, b"x") + b"!"


class StampReader:
    """Finds messages in content that comes in pieces."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, content: bytes) -> Iterator[tuple[int, float]]:
        """The number and the due time of each message that is complete now."""
        if self._rest:
            content = self._rest + content
        end = 0
        for found in _STAMP.finditer(content):
            end = found.end()
            yield int(found[1]), int(found[2]) / 1_000_000
        begun = content.find(b"~", end)
        self._rest = content[begun:] if begun >= 0 else b""
