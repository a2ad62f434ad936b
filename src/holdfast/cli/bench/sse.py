"""Server-sent events out of the pieces in which they arrive."""

from base64 import b64decode
from collections.abc import Iterator

__all__ = ["EventReader", "decoded"]


class EventReader:
    """Cuts bytes into events: (type, data lines)."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
        """The events that are complete now. Comments have neither type nor data, and are none."""
        if self._rest:
            piece = self._rest + piece
        if b"\r\n" in piece:
            piece = piece.replace(b"\r\n", b"\n")
        end = piece.rfind(b"\n\n")
        if end < 0:
            self._rest = piece
            return
        self._rest = piece[end + 2 :]
        for event in piece[:end].split(b"\n\n"):
            kind, data = _parsed(event)
            if kind or data:
                yield kind, data


def decoded(data: list[bytes], base64: bool) -> bytes:
    """The content of a data event."""
    if base64:
        return b64decode(b"".join(data))
    return data[0] if len(data) == 1 else b"\n".join(data)


def _parsed(event: bytes) -> tuple[bytes, list[bytes]]:
    kind = b""
    data: list[bytes] = []
    for line in event.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif name == b"event":
            kind = value.removeprefix(b" ")
    return kind, data
