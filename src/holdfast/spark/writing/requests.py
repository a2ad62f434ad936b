"""Rows become requests, by a rule that depends on the rows of each stream alone.

Rules:

- A request takes rows of its stream, in order, while they fit into `request_bytes`; a row that
  is larger goes alone. On a byte stream that is not framed every row is a request.
- It is cut when the next row of its stream has come, or none will: never because of other streams,
  of the time, or of how the rows were handed over. So rows that are written again make the same
  requests, in whatever company they come.
- Where rows are laid out, a stream is complete as soon as the next one begins. Where they are not,
  what is left of each stream is held until all rows have come; beyond a limit that is refused,
  since cutting sooner would break the rule above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.client.payloads import message_bytes, request_body
from holdfast.errors import HoldfastError, InvalidJsonError, SettingsError
from holdfast.protocol.content import JSON
from holdfast.spark.writing.options import WriteOptions
from holdfast.spark.writing.placement import Placement

# The server takes 200,000 in one append. What is done again must be cut as before: this does not
# change.
MESSAGES_MAX: Final = 100_000
HELD_BYTES_MAX: Final = 256 * 1024 * 1024
# What a row and a stream cost besides the bytes to be sent.
_ROW_BYTES: Final = 64
_STREAM_BYTES: Final = 512
_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Request:
    """One append: the `seq`-th of its stream in this batch."""

    name: str
    seq: int
    body: bytes
    rows: int
    # Whether no row of this stream follows.
    last: bool


class _Open:
    """The rows of a stream that are not in a request yet."""

    __slots__ = ("messages", "seq", "size_bytes")

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.seq = 0
        self.size_bytes = 0


class Cutter:
    """Takes rows and gives back requests."""

    def __init__(
        self,
        options: WriteOptions,
        placement: Placement | None = None,
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        self._media = options.media
        self._framing = options.framing
        self._joins = self._media == JSON or options.framing is not None
        self._messages_max = MESSAGES_MAX if self._joins else 1
        self._request_bytes = options.request_bytes
        self._placement = placement
        self._held_bytes_max = held_bytes_max
        self._held_bytes = 0
        self._open: dict[str, _Open] = {}
        self._name: str | None = None

    def take(self, names: Sequence[str], rows: Sequence[bytes]) -> list[Request]:
        """The requests that are complete now that these rows have come."""
        made: list[Request] = []
        current = None if self._name is None else self._open.get(self._name)
        for name, row in zip(names, rows, strict=True):
            if name != self._name or current is None:
                current = self._turn_to(name, made)
            self._add(name, current, self._encoded(name, row), made)
        return made

    def finish(self) -> list[Request]:
        """What is left of every stream, now that all rows have come."""
        made = [self._cut(name, rest, last=True) for name, rest in self._open.items()]
        self._open.clear()
        return made

    def _turn_to(self, name: str, made: list[Request]) -> _Open:
        before, self._name = self._name, name
        if self._placement is not None:
            self._placement.check(name, before)
            made += self.finish()
        found = self._open.get(name)
        if found is None:
            found = self._open[name] = _Open()
            self._held_bytes += 0 if self._placement else _STREAM_BYTES
        return found

    def _add(self, name: str, rest: _Open, message: bytes, made: list[Request]) -> None:
        size = len(message) + 1
        full = len(rest.messages) == self._messages_max
        if rest.messages and (full or rest.size_bytes + size > self._request_bytes):
            made.append(self._cut(name, rest, last=False))
        rest.messages.append(message)
        rest.size_bytes += size
        self._held_bytes += size + _ROW_BYTES
        if self._held_bytes > self._held_bytes_max and self._placement is None:
            raise SettingsError(
                f"The rows of {len(self._open)} streams came in turns, and more than "
                f"{self._held_bytes_max} bytes of them had to be held: write them with "
                "holdfast.spark.write_to_streams, which sorts them by stream."
            )

    def _cut(self, name: str, rest: _Open, *, last: bool) -> Request:
        rows = len(rest.messages)
        request = Request(name, rest.seq, request_body(rest.messages, self._media), rows, last)
        self._held_bytes -= rest.size_bytes + rows * _ROW_BYTES
        rest.messages, rest.size_bytes = [], 0
        rest.seq += 1
        return request

    def _encoded(self, name: str, row: bytes) -> bytes:
        try:
            encoded = message_bytes(row, self._media, self._framing)
        except InvalidJsonError:
            raise InvalidJsonError(
                f"A row of the stream {name!r} is not JSON: it begins with {_beginning(row)}."
            ) from None
        except HoldfastError as error:
            raise SettingsError(f"A row of the stream {name!r}: {error.message}") from None
        if not encoded:
            raise SettingsError(
                f"A row of the stream {name!r} is empty, and an empty message cannot be appended: "
                "filter such rows out, or give the option 'framing'."
            )
        return encoded


def _beginning(row: bytes) -> str:
    text = row[:_SHOWN].decode(errors="replace")
    return repr(text if len(row) <= _SHOWN else f"{text}…")
