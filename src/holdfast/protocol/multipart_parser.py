"""multipart/mixed read back while it arrives: fed in pieces of any size, cut anywhere.

A part that is there as a whole comes as one piece. A larger one comes in several, so that nothing
has to be held in memory but the few bytes that could be the beginning of a boundary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from holdfast.errors import BadAnswerError

PART_HEAD_BYTES_MAX: Final = 16_384
_BOUNDARY: Final = re.compile(r';\s*boundary=(?:"([^"]+)"|([^\s;]+))', re.IGNORECASE)
_HEAD_END: Final = b"\r\n\r\n"


class PartPiece(NamedTuple):
    """A piece of a part; `headers` are lower-case and the same for all pieces of it."""

    headers: Mapping[str, str]
    data: bytes
    begins: bool
    ends: bool


def boundary_of(content_type: str) -> bytes:
    """The boundary that a content type names, or BadAnswerError."""
    found = _BOUNDARY.search(content_type)
    if found is None or not content_type.lower().startswith("multipart/"):
        raise BadAnswerError(
            f"Expected multipart/mixed with a boundary, not {content_type[:80]!r}."
        )
    return (found[1] or found[2]).encode()


class MultipartParser:
    """Turns the bytes of one answer into parts."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        # The first boundary may come without a line break before it: pretend that there was one.
        self._rest = b"\r\n"
        self._headers: Mapping[str, str] | None = None
        self._begins = False
        self._preamble = True
        self.complete = False
        # Parts mostly have the same head: it is taken apart once.
        self._known: tuple[bytes, Mapping[str, str]] = (b"", {})

    def feed(self, piece: bytes) -> list[PartPiece]:
        """What this piece adds."""
        found: list[PartPiece] = []
        if self.complete:
            return found  # an epilogue, which means nothing
        buffer = self._rest + piece
        at = 0
        while True:
            after = self._in_part(buffer, at, found)
            if after is None:
                break
            at = after
        return found

    def finish(self) -> None:
        """The answer has ended: raise BadAnswerError if its last boundary is missing."""
        if not self.complete:
            raise BadAnswerError("The multipart answer broke off before its last boundary.")

    def _in_part(self, buffer: bytes, at: int, found: list[PartPiece]) -> int | None:
        """Go on to behind the next boundary and head; None if more bytes are needed."""
        delimiter = self._delimiter
        end = buffer.find(delimiter, at)
        head_at = end + len(delimiter)
        head_end = -1 if end < 0 else buffer.find(_HEAD_END, head_at)
        last = end >= 0 and buffer.startswith(b"--", head_at)
        if end < 0 or (head_end < 0 and not last):
            self._keep(buffer, at, end, found)
            return None
        if not self._preamble:
            self._add(found, buffer[at:end], ends=True)
        self._preamble = False
        if last:
            self.complete = True
            self._rest = b""
            return None
        self._headers = self._parse_head(buffer[head_at:head_end])
        self._begins = True
        return head_end + len(_HEAD_END)

    def _keep(self, buffer: bytes, at: int, end: int, found: list[PartPiece]) -> None:
        """Give what is surely data, and keep the rest for the next piece."""
        safe = end if end >= 0 else max(at, len(buffer) - len(self._delimiter))
        if end >= 0 and len(buffer) - end > PART_HEAD_BYTES_MAX:
            raise BadAnswerError(f"A part's head is longer than {PART_HEAD_BYTES_MAX} bytes.")
        # A small part is given once it is whole; only of a large one what there is so far.
        if not self._preamble and safe - at >= 65_536:
            self._add(found, buffer[at:safe], ends=False)
            at = safe
        elif self._preamble:
            at = safe
        self._rest = buffer[at:]

    def _add(self, found: list[PartPiece], data: bytes, *, ends: bool) -> None:
        assert self._headers is not None, "a part has a head"
        found.append(PartPiece(self._headers, data, self._begins, ends))
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
