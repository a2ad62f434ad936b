"""Server-Sent Events read back: fed in pieces of any size, cut anywhere.

Lines end with LF, CR or CRLF, as the standard has it; a CRLF may be cut in the middle. An event is
complete at the empty line behind it: what a connection leaves unfinished is never seen.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.errors import BadAnswerError

EVENT_BYTES_MAX: Final = 256 * 1024 * 1024
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One event; lines of data are joined with LF."""

    kind: str
    data: bytes
    id: str


class SseParser:
    """Turns the bytes of one answer into events."""

    __slots__ = ("_after_cr", "_begun", "_data", "_id", "_kind", "_rest", "_size")

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._begun = False
        self._kind = ""
        self._data: list[bytes] = []
        self._id = ""

    def feed(self, piece: bytes) -> list[SseEvent]:
        """The events that this piece completes."""
        if self._after_cr and piece:
            self._after_cr = False
            if piece.startswith(b"\n"):
                piece = piece[1:]
        self._size += len(piece)
        if self._size > EVENT_BYTES_MAX:
            raise BadAnswerError(f"An event is longer than {EVENT_BYTES_MAX} bytes.")
        self._rest.append(piece)
        if b"\n" not in piece and b"\r" not in piece:
            return []
        text = b"".join(self._rest) if len(self._rest) > 1 else piece
        lines = text.splitlines(keepends=True)
        self._rest = [] if lines[-1].endswith((b"\n", b"\r")) else [lines.pop()]
        self._after_cr = not self._rest and text.endswith(b"\r")
        return self._take(lines)

    def unfinished(self) -> bytes:
        """What another parser has to be fed first, to go on as this one would."""
        lines = [b"data: " + each for each in self._data]
        lines += [b"event: " + self._kind.encode()] if self._kind else []
        lines += [b"id: " + self._id.encode()] if self._id else []
        # An empty line ends nothing here, but what looks like a byte order mark then is none.
        text = b"\n".join([b"", *lines, b""] if lines else [b"\n" if self._begun else b""])
        if self._after_cr:
            # An LF that comes next belongs to it.
            text = text.removesuffix(b"\n") + b"\r"
        return text + b"".join(self._rest)

    def _take(self, lines: list[bytes]) -> list[SseEvent]:
        events = []
        if not self._begun:
            self._begun = True
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        for ended in lines:
            line = ended.rstrip(b"\r\n")
            if line:
                self._field(line)
            elif (event := self._finish()) is not None:
                events.append(event)
        return events

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._data.append(value)
            case b"event":
                self._kind = value.decode("utf-8", "replace")
            case b"id" if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
            case _:
                # A comment (no name at all), `retry`, or something newer than this.
                pass

    def _finish(self) -> SseEvent | None:
        data, kind = self._data, self._kind
        self._data, self._kind = [], ""
        self._size = sum(map(len, self._rest))
        if not data:
            return None
        return SseEvent(kind or "message", b"\n".join(data), self._id)
