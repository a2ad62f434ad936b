"""Folds: from a snapshot and the messages since to the next snapshot.

Folding messages in several goes, each from the snapshot that the one before left behind, comes to
the same as folding all of them at once. That is what lets a job go on from the last snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from holdfast.protocol.content import JSON, media_type
from holdfast.spark.folding.json_patch import apply_patch
from holdfast.spark.folding.merge_patch import merge_all
from holdfast.spark.folding.messages import Messages, parsed, values
from holdfast.spark.folding.misfits import MisfitError
from holdfast.spark.folding.pointers import MISSING, found_at

_encode: Final = msgspec.json.Encoder().encode


class Body(NamedTuple):
    """What a snapshot holds, and of which type that is."""

    data: bytes
    content_type: str


class Fold(Protocol):
    """How messages add up; executors get it pickled."""

    def begin(self, content_type: str, snapshot: Body | None) -> Any:
        """The state that a stream of this type starts with, or had when the snapshot was made."""

    def add(self, state: Any, messages: Messages) -> Any:
        """The state with these messages in it; what was given may be changed."""

    def end(self, state: Any) -> Body:
        """The state as a snapshot."""


def json_body(state: Any) -> Body:
    """A value as a snapshot."""
    try:
        return Body(_encode(state), JSON)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise MisfitError(f"The state cannot be written as JSON: {error}.") from None


def json_state(snapshot: Body) -> Any:
    """The value that a snapshot holds."""
    return parsed(snapshot.data, f"The snapshot, which is {snapshot.content_type},")


class MergePatches:
    """Every message is a JSON merge patch (RFC 7396)."""

    def begin(self, content_type: str, snapshot: Body | None) -> Any:
        """Without a snapshot an empty object."""
        return {} if snapshot is None else json_state(snapshot)

    def add(self, state: Any, messages: Messages) -> Any:
        """Apply the patches."""
        return merge_all(state, values(messages))

    def end(self, state: Any) -> Body:
        """The value as JSON."""
        return json_body(state)


class JsonPatches:
    """Every message is a JSON patch (RFC 6902), or one of the operations of such a patch.

    An array that is appended to a JSON stream becomes one message for each of its elements.
    """

    def begin(self, content_type: str, snapshot: Body | None) -> Any:
        """Without a snapshot an empty object."""
        return {} if snapshot is None else json_state(snapshot)

    def add(self, state: Any, messages: Messages) -> Any:
        """Apply the patches."""
        for index, patch in enumerate(values(messages)):
            try:
                state = apply_patch(state, patch)
            except MisfitError as error:
                error.index = index
                raise
        return state

    def end(self, state: Any) -> Body:
        """The document as JSON."""
        return json_body(state)


@dataclass(frozen=True)
class LastByKey:
    """Of the messages with the same key the last one counts; the state is an object of them.

    `value` is the part of the message that is kept. A key goes with a null there, and with a
    message that has anything but false and null at `tombstone`.
    """

    key: tuple[str, ...]
    value: tuple[str, ...] = ()
    tombstone: tuple[str, ...] = ()

    def begin(self, content_type: str, snapshot: Body | None) -> dict[str, Any]:
        """Without a snapshot an empty object."""
        state = {} if snapshot is None else json_state(snapshot)
        if not isinstance(state, dict):
            raise MisfitError("The snapshot is no JSON object, which values by key are.")
        return state

    def add(self, state: dict[str, Any], messages: Messages) -> dict[str, Any]:
        """Put each where its key says."""
        for index, message in enumerate(values(messages)):
            key = self._key_of(message, index)
            value = found_at(message, self.value) if self.value else message
            if value is MISSING or value is None or self._is_tombstone(message):
                state.pop(key, None)
            else:
                state[key] = value
        return state

    def _key_of(self, message: Any, index: int) -> str:
        key = found_at(message, self.key)
        if isinstance(key, str):
            return key
        if key is MISSING or key is None or isinstance(key, dict | list):
            place = ".".join(self.key)
            raise MisfitError(f"The message has no text or number as its key at {place!r}.", index)
        return _encode(key).decode()

    def _is_tombstone(self, message: Any) -> bool:
        if not self.tombstone:
            return False
        mark = found_at(message, self.tombstone)
        return not (mark is MISSING or mark is None or mark is False)

    def end(self, state: dict[str, Any]) -> Body:
        """The object as JSON."""
        return json_body(state)


class _Pieces(NamedTuple):
    """What was concatenated so far: pieces of bytes, and of which type they are."""

    pieces: list[bytes]
    content_type: str
    is_json: bool


class Concatenation:
    """All messages, one behind the other; of a JSON stream an array of them."""

    def begin(self, content_type: str, snapshot: Body | None) -> _Pieces:
        """Without a snapshot nothing."""
        is_json = media_type(content_type) == JSON
        state = _Pieces([], content_type, is_json)
        if snapshot is None:
            return state
        if media_type(snapshot.content_type) != media_type(content_type):
            raise MisfitError(
                f"The snapshot is {snapshot.content_type}, and the stream {content_type}."
            )
        data = snapshot.data
        if is_json:
            data = data.strip()
            if data[:1] != b"[" or data[-1:] != b"]":
                raise MisfitError("The snapshot is no JSON array, which a concatenation is.")
            data = data[1:-1].strip()
        if data:
            state.pieces.append(data)
        return state

    def add(self, state: _Pieces, messages: Messages) -> _Pieces:
        """Put them behind the others."""
        if state.is_json:
            state.pieces.append(messages.joined(b","))
        else:
            state.pieces.append(messages.joined(b""))
        return state

    def end(self, state: _Pieces) -> Body:
        """All of it."""
        if state.is_json:
            return Body(b"[%b]" % b",".join(state.pieces), JSON)
        return Body(b"".join(state.pieces), state.content_type)
