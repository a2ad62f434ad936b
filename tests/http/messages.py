"""What tests of message lengths share: the messages that a client puts together from answers."""

import base64
from collections.abc import Iterable

import httpx

from tests.http.streams import BINARY, Event, Stream

VALUE_BYTES_MAX = 2000
LENGTHS = "Stream-Message-Lengths"


class Assembly:
    """Puts messages together from pieces and the lengths of those that end in each."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self._rest = b""

    def take(self, piece: bytes, lengths: Iterable[int]) -> None:
        """The first length is what is left of the message that was begun before."""
        at = 0
        for length in lengths:
            assert length > 0
            self.messages.append(self._rest + piece[at : at + length])
            self._rest = b""
            at += length
        assert at <= len(piece)
        self._rest += piece[at:]

    @property
    def whole(self) -> bool:
        """Whether nothing is left over."""
        return not self._rest


def lengths_of(answer: httpx.Response) -> list[int]:
    """The lengths that an answer lists."""
    assert answer.status_code == 200, answer.text
    value = answer.headers[LENGTHS]
    assert len(value) <= VALUE_BYTES_MAX
    return [] if value == "none" else [int(each) for each in value.split(",")]


def pages(stream: Stream, offset: str = "-1", **parameters: object) -> list[httpx.Response]:
    """Catch-up reads up to the tail."""
    found = []
    while True:
        answer = stream.read(offset, lengths="true", **parameters)
        assert answer.status_code == 200, answer.text
        found.append(answer)
        moved = int(answer.headers["Stream-Next-Offset"]) - max(int(offset), 0)
        assert moved == len(answer.content)
        offset = answer.headers["Stream-Next-Offset"]
        if "Stream-Up-To-Date" in answer.headers:
            return found
        assert moved


def messages_of(stream: Stream, offset: str = "-1", **parameters: object) -> list[bytes]:
    """All messages of a stream by catch-up reads, as its client sees them."""
    assembly = Assembly()
    for page in pages(stream, offset, **parameters):
        assembly.take(page.content, lengths_of(page))
    assert assembly.whole
    return assembly.messages


def event_messages(kind: str, events: list[Event]) -> list[bytes]:
    """All messages of data events and the control events that follow them."""
    assembly, piece = Assembly(), None
    for event in events:
        if event.type == "data":
            piece = base64.b64decode(event.data) if kind == BINARY else event.data.encode()
        elif piece is None:
            assert "streamMessageLengths" not in event.json
        else:
            assembly.take(piece, event.json["streamMessageLengths"])
            piece = None
    assert assembly.whole
    return assembly.messages
