"""Messages of one stream that follow one another, as folds take them."""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

from holdfast.spark.folding.misfits import MisfitError

_decode: Final = msgspec.json.Decoder().decode
_decode_all: Final = msgspec.json.Decoder(list[Any]).decode


class Messages(Protocol):
    """Some messages of a stream."""

    @property
    def is_json(self) -> bool:
        """Whether the server has seen to it that each is JSON."""

    def payloads(self) -> list[bytes]:
        """The bytes of each."""

    def joined(self, separator: bytes) -> bytes:
        """The bytes of all, with this between two of them."""


class ListedMessages:
    """Messages in a list."""

    def __init__(self, payloads: list[bytes], *, is_json: bool = True) -> None:
        self.is_json = is_json
        self._payloads = payloads

    def payloads(self) -> list[bytes]:
        """The bytes of each."""
        return self._payloads

    def joined(self, separator: bytes) -> bytes:
        """The bytes of all, with this between two of them."""
        return separator.join(self._payloads)


def values(messages: Messages) -> list[Any]:
    """Each message parsed as JSON."""
    if messages.is_json:
        # In one go: a call for each would take longer than parsing does.
        try:
            return _decode_all(b"[%b]" % messages.joined(b","))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # Which one it is shows below.
            pass
    return [_value(payload, index) for index, payload in enumerate(messages.payloads())]


def _value(payload: bytes, index: int) -> Any:
    return parsed(payload, "The message", index)


def parsed(payload: bytes, what: str, index: int = 0) -> Any:
    """JSON as Python values."""
    try:
        return _decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        # A number such as 1e999 is JSON; but nothing here can hold it.
        said = str(error).partition(" - at")[0]
        raise MisfitError(f"{what} is no JSON that can be folded: {said}.", index) from None
    except RecursionError:
        raise MisfitError(f"{what} is nested too deeply.", index) from None
