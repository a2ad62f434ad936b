"""multipart/mixed (RFC 2046), written and parsed: one part per message, as bootstrap sends them.

The boundary has 128 random bits, so no message can contain it by accident or on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import BadAnswerError
from holdfast.protocol.content import JSON, SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Sequence

    Buffer = bytes | memoryview

PART_HEAD_BYTES_MAX: Final = 16_384
_BOUNDARY: Final = re.compile(r';\s*boundary=(?:"([^"]+)"|([^\s;]+))', re.IGNORECASE)
_HEAD_END: Final = b"\r\n\r\n"


class Multipart:
    """Encodes one body."""

    def __init__(self, boundary: bytes, content_type: str, media: str) -> None:
        self._boundary = boundary
        self._is_json = media == JSON
        # Precedes every message part; the first part has a content type of its own.
        self._delimiter = b"\r\n--%b\r\nContent-Type: %b\r\n\r\n" % (
            boundary,
            content_type.encode(),
        )

    @property
    def content_type(self) -> bytes:
        return b"multipart/mixed; boundary=%b" % self._boundary

    def first(self, content_type: str) -> bytes:
        """The head of the first part; its body follows."""
        return b"--%b\r\nContent-Type: %b\r\n\r\n" % (self._boundary, content_type.encode())

    def size(self, stored_bytes: int, messages: int) -> int:
        """How long the parts for some messages are together."""
        return stored_bytes + messages * len(self._delimiter)

    def messages(
        self, stored: bytes, start: int, ends: Sequence[int], *, inside: bool = False
    ) -> list[Buffer]:
        """Parts for stored messages from the offset `start`, which end at `ends`.

        The last message may go on in the next call, which is told that it starts inside of one. In
        pieces, because callers join them with others, and large bodies are copied once then.
        """
        if not stored:
            return []
        if self._is_json:
            return [self._delimiter, stored[:-1].replace(SEPARATOR, self._delimiter)]
        view = memoryview(stored)
        starts = [0, *(end - start for end in ends)]
        if starts[-1] < len(stored):
            starts.append(len(stored))
        pieces: list[Buffer] = [self._delimiter] * (2 * len(starts) - 2)
        pieces[1::2] = [view[at:until] for at, until in pairwise(starts)]
        return pieces[1:] if inside else pieces

    def whole(self, content_type: str, first: bytes, messages: Sequence[bytes]) -> bytes:
        """The complete body from separate messages, copying their bytes once."""
        head = self.first(content_type) + first
        if not messages:
            return head + self.last()
        return self._delimiter.join((head, *messages[:-1], messages[-1] + self.last()))

    def last(self) -> bytes:
        """The end of the body."""
        return b"\r\n--%b--\r\n" % self._boundary


class PartPiece(NamedTuple):
    """A piece of a part; all pieces of a part have the same headers, with lower-case names."""

    headers: Mapping[str, str]
    data: bytes
    begins: bool
    ends: bool


def boundary_of(content_type: str) -> bytes:
    """The boundary parameter of a multipart content type."""
    match = _BOUNDARY.search(content_type)
    if match is None or not content_type.lower().startswith("multipart/"):
        raise BadAnswerError(
            f"Expected multipart/mixed with a boundary, not {content_type[:80]!r}."
        )
    return (match[1] or match[2]).encode()


class MultipartParser:
    """Splits a body, fed in pieces of any size, into parts.

    Small parts come as one piece, large ones in several, so the parser holds only the few bytes
    that could be the beginning of a boundary.
    """

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        # The first boundary may lack the line break before it: pretend that there was one.
        self._rest = b"\r\n"
        self._headers: Mapping[str, str] | None = None
        self._begins = False
        self._preamble = True
        self.complete = False
        # Most parts have the same head: it is parsed once.
        self._known: tuple[bytes, Mapping[str, str]] = (b"", {})

    def feed(self, piece: bytes) -> list[PartPiece]:
        pieces: list[PartPiece] = []
        if self.complete:
            return pieces  # an epilogue, which has no meaning
        buffer = self._rest + piece
        at: int | None = 0
        while at is not None:
            at = self._parse_part(buffer, at, pieces)
        return pieces

    def finish(self) -> None:
        """Raise BadAnswerError if the response ended before its last boundary."""
        if not self.complete:
            raise BadAnswerError("The multipart response broke off before its last boundary.")

    def _parse_part(self, buffer: bytes, at: int, pieces: list[PartPiece]) -> int | None:
        """Advance past the next boundary and part head; None if more bytes are needed."""
        delimiter = self._delimiter
        end = buffer.find(delimiter, at)
        head_at = end + len(delimiter)
        head_end = -1 if end < 0 else buffer.find(_HEAD_END, head_at)
        last = end >= 0 and buffer.startswith(b"--", head_at)
        if end < 0 or (head_end < 0 and not last):
            self._keep(buffer, at, end, pieces)
            return None
        if not self._preamble:
            self._add(pieces, buffer[at:end], ends=True)
        self._preamble = False
        if last:
            self.complete = True
            self._rest = b""
            return None
        self._headers = self._parse_head(buffer[head_at:head_end])
        self._begins = True
        return head_end + len(_HEAD_END)

    def _keep(self, buffer: bytes, at: int, end: int, pieces: list[PartPiece]) -> None:
        """Emit what is certainly data, and keep the rest for the next piece."""
        safe = end if end >= 0 else max(at, len(buffer) - len(self._delimiter))
        if end >= 0 and len(buffer) - end > PART_HEAD_BYTES_MAX:
            raise BadAnswerError(f"A part's head is longer than {PART_HEAD_BYTES_MAX} bytes.")
        # Small parts wait until they are whole; large ones are passed on as they arrive.
        if not self._preamble and safe - at >= 65_536:
            self._add(pieces, buffer[at:safe], ends=False)
            at = safe
        elif self._preamble:
            at = safe
        self._rest = buffer[at:]

    def _add(self, pieces: list[PartPiece], data: bytes, *, ends: bool) -> None:
        assert self._headers is not None, "a part has a head"
        pieces.append(PartPiece(self._headers, data, self._begins, ends))
        self._begins = False

    def _parse_head(self, head: bytes) -> Mapping[str, str]:
        if head == self._known[0]:
            return self._known[1]
        headers = {}
        for line in head.decode("latin-1").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon:
                headers[name.strip().lower()] = value.strip()
        self._known = (head, headers)
        return headers
