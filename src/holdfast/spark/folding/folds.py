"""Folds: from a snapshot and the messages since then to the next snapshot.

Folding messages in several runs, each from the snapshot that the one before left behind, gives the
same result as folding all of them at once. So a job can continue from the last snapshot.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from holdfast.errors import HoldfastError, SettingsError
from holdfast.protocol.content import DEFAULT, JSON, media_type

MISSING: Final = object()
_ERROR_CHARS_MAX: Final = 200
_INDEX: Final = re.compile(r"0|[1-9][0-9]*")
_STRAY_TILDE: Final = re.compile(r"~(?![01])")
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_decode_all: Final = msgspec.json.Decoder(list[Any]).decode


class FoldError(Exception):
    """The fold cannot use a snapshot, or the message at `index` of those it was given."""

    def __init__(self, message: str, index: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.index = index


class SnapshotBody(NamedTuple):
    data: bytes
    content_type: str


class FoldMessages(Protocol):
    """Consecutive messages of one stream."""

    @property
    def is_json(self) -> bool:
        """Whether the server has checked that each of them is JSON."""

    def payloads(self) -> list[bytes]:
        """The bytes of each message."""

    def joined(self, separator: bytes) -> bytes:
        """The bytes of all messages, with a separator between them."""


class Fold(Protocol):
    """How messages add up to a state. Executors get it pickled."""

    def begin(self, content_type: str, snapshot: SnapshotBody | None) -> Any:
        """The state of a snapshot, or the first state of a stream of this content type."""

    def add(self, state: Any, messages: FoldMessages) -> Any:
        """The state with these messages in it; may change the state it was given."""

    def end(self, state: Any) -> SnapshotBody:
        """The state as a snapshot."""


class _JsonFold:
    """A fold whose state is a JSON value, at first an empty object."""

    def begin(self, content_type: str, snapshot: SnapshotBody | None) -> Any:
        return {} if snapshot is None else json_state(snapshot)

    def end(self, state: Any) -> SnapshotBody:
        return json_body(state)


class MergePatches(_JsonFold):
    """Every message is a JSON merge patch (RFC 7396)."""

    def add(self, state: Any, messages: FoldMessages) -> Any:
        patches, text = _values_and_text(messages)
        if type(state) is dict and text.count(b"{") == len(patches) and b"null" not in text:
            # Nothing is nested or deleted, so that merging is updating.
            for patch in patches:
                if type(patch) is not dict:
                    break
                state.update(patch)
            else:
                return state
        return merge_all(state, patches)


class JsonPatches(_JsonFold):
    """Every message is a JSON patch (RFC 6902), or one of the operations of such a patch.

    An array that is appended to a JSON stream becomes one message for each of its elements.
    """

    def add(self, state: Any, messages: FoldMessages) -> Any:
        for index, patch in enumerate(values(messages)):
            state = apply_patch(state, patch, index)
        return state


@dataclass(frozen=True)
class LastByKey(_JsonFold):
    """The state is an object with the last message of each key.

    `value` is the part of the message that is kept. A key is deleted by a null there, and by a
    message that has anything but false or null at `tombstone`.
    """

    key: tuple[str, ...]
    value: tuple[str, ...] = ()
    tombstone: tuple[str, ...] = ()

    def begin(self, content_type: str, snapshot: SnapshotBody | None) -> dict[str, Any]:
        state = super().begin(content_type, snapshot)
        if not isinstance(state, dict):
            raise FoldError("The snapshot is not a JSON object, as values by key must be.")
        return state

    def add(self, state: dict[str, Any], messages: FoldMessages) -> dict[str, Any]:
        for index, message in enumerate(values(messages)):
            key = self._key_of(message, index)
            value = value_at(message, self.value) if self.value else message
            if value is MISSING or value is None or self._is_tombstone(message):
                state.pop(key, None)
            else:
                state[key] = value
        return state

    def _key_of(self, message: Any, index: int) -> str:
        key = value_at(message, self.key)
        if isinstance(key, str):
            return key
        if key is MISSING or key is None or isinstance(key, dict | list):
            path = ".".join(self.key)
            raise FoldError(f"The message has no text or number as its key at {path!r}.", index)
        return _encode(key).decode()

    def _is_tombstone(self, message: Any) -> bool:
        if not self.tombstone:
            return False
        mark = value_at(message, self.tombstone)
        return not (mark is MISSING or mark is None or mark is False)


class _Pieces(NamedTuple):
    pieces: list[bytes]
    content_type: str
    is_json: bool


class Concatenation:
    """All messages, one after the other; of a JSON stream an array of them."""

    def begin(self, content_type: str, snapshot: SnapshotBody | None) -> _Pieces:
        is_json = media_type(content_type) == JSON
        state = _Pieces([], content_type, is_json)
        if snapshot is None:
            return state
        if media_type(snapshot.content_type) != media_type(content_type):
            raise FoldError(
                f"The snapshot is {snapshot.content_type}, but the stream is {content_type}."
            )
        data = snapshot.data
        if is_json:
            data = data.strip()
            if data[:1] != b"[" or data[-1:] != b"]":
                raise FoldError("The snapshot is not a JSON array, as a concatenation must be.")
            data = data[1:-1].strip()
        if data:
            state.pieces.append(data)
        return state

    def add(self, state: _Pieces, messages: FoldMessages) -> _Pieces:
        state.pieces.append(messages.joined(b"," if state.is_json else b""))
        return state

    def end(self, state: _Pieces) -> SnapshotBody:
        if state.is_json:
            return SnapshotBody(b"[%b]" % b",".join(state.pieces), JSON)
        return SnapshotBody(b"".join(state.pieces), state.content_type)


def json_body(state: Any) -> SnapshotBody:
    """A value as a JSON snapshot."""
    try:
        return SnapshotBody(_encode(state), JSON)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise FoldError(f"The state cannot be written as JSON: {error}.") from None


def json_state(snapshot: SnapshotBody) -> Any:
    """The value of a JSON snapshot."""
    return _parsed(snapshot.data, f"The snapshot, which is {snapshot.content_type},")


def values(messages: FoldMessages) -> list[Any]:
    """Each message parsed as JSON."""
    return _values_and_text(messages)[0]


def _values_and_text(messages: FoldMessages) -> tuple[list[Any], bytes]:
    """Each message parsed as JSON, and the text of all of them if they were parsed together."""
    if messages.is_json:
        # All at once: a call for each would take longer than the parsing.
        text = b"[%b]" % messages.joined(b",")
        try:
            return _decode_all(text), text
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # The loop below finds out which message it is.
            pass
    payloads = messages.payloads()
    return [_parsed(each, "The message", index) for index, each in enumerate(payloads)], b""


def _parsed(payload: bytes, what: str, index: int = 0) -> Any:
    try:
        return _decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        # A number such as 1e999 is valid JSON, but no Python number can hold it.
        reason = str(error).partition(" - at")[0]
        raise FoldError(f"{what} is not JSON that can be folded: {reason}.", index) from None
    except RecursionError:
        raise FoldError(f"{what} is nested too deeply.", index) from None


def merge_all(target: Any, patches: Iterable[Any]) -> Any:
    """Apply JSON merge patches (RFC 7396) one after the other.

    The value may be changed in place, and may share parts with the patches.
    """
    for patch in patches:
        target = _merge(target, patch)
    return target


def _merge(target: Any, patch: Any) -> Any:
    if type(patch) is not dict:
        return patch
    merged: dict[str, Any] = target if type(target) is dict else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif type(value) is dict:
            merged[name] = _merge(merged.get(name), value)
        else:
            merged[name] = value
    return merged


def apply_patch(document: Any, patch: Any, index: int = 0) -> Any:
    """Apply a JSON patch (RFC 6902), or one operation by itself.

    The document is changed in place; if an operation fails, those before it stay applied.
    """
    import jsonpatch  # noqa: PLC0415 (options are checked where it may not be installed)

    try:
        operations = jsonpatch.JsonPatch(patch if isinstance(patch, list) else [patch])
        return operations.apply(document, in_place=True)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        reason = shortened(str(error))
        raise FoldError(f"The patch cannot be applied: {reason}", index) from None
    except RecursionError:
        raise FoldError("The patch or the document is nested too deeply.", index) from None


def shortened(reason: str) -> str:
    """The start of an error's text, which may quote a whole document."""
    return reason if len(reason) <= _ERROR_CHARS_MAX else f"{reason[: _ERROR_CHARS_MAX - 1]}…"


def parse_path(text: str, option: str) -> tuple[str, ...]:
    """The steps of an option's `/a/b` (a JSON pointer, RFC 6901) or `a.b`."""
    if text.startswith("/") and not _STRAY_TILDE.search(text):
        return tuple(each.replace("~1", "/").replace("~0", "~") for each in text[1:].split("/"))
    if not text.startswith("/") and all(steps := text.split(".")):
        return tuple(steps)
    raise SettingsError(
        f"{option!r} is a path such as user.id, or a JSON pointer such as /user/id, not {text!r}."
    )


def value_at(value: Any, steps: Sequence[str]) -> Any:
    """What a JSON value has at a path, or MISSING."""
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step, MISSING)
        elif isinstance(value, list) and _INDEX.fullmatch(step) and int(step) < len(value):
            value = value[int(step)]
        else:
            return MISSING
    return value


TEXT: Final = "text/plain; charset=utf-8"
Function = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class UserFunction:
    """A fold of the user's own: `function(state, message)`, which returns the next state.

    The first state is None. Later ones are bytes, text or any JSON value, which decides the content
    type of the snapshot, and what the function gets when a later run continues from it. Messages of
    JSON streams are parsed, all others are bytes.
    """

    function: Function | str
    # Added to the module search path.
    paths: tuple[str, ...] = ()

    def begin(self, content_type: str, snapshot: SnapshotBody | None) -> Any:
        if snapshot is None:
            return None
        media = media_type(snapshot.content_type)
        if media == JSON:
            return json_state(snapshot)
        if media != "text/plain":
            return snapshot.data
        try:
            return snapshot.data.decode()
        except UnicodeDecodeError:
            raise FoldError("The snapshot's content type is text, but it is not UTF-8.") from None

    def add(self, state: Any, messages: FoldMessages) -> Any:
        function = self._loaded()
        given = values(messages) if messages.is_json else messages.payloads()
        for index, message in enumerate(given):
            try:
                state = function(state, message)
            except Exception as error:  # noqa: BLE001 (a user's code may raise anything)
                reason = shortened(f"{type(error).__name__}: {error}")
                raise FoldError(f"The function raised {reason}", index) from None
        return state

    def end(self, state: Any) -> SnapshotBody:
        if isinstance(state, bytes | bytearray | memoryview):
            return SnapshotBody(bytes(state), DEFAULT)
        return SnapshotBody(state.encode(), TEXT) if isinstance(state, str) else json_body(state)

    def _loaded(self) -> Function:
        if isinstance(self.function, str):
            return load_function(self.function, self.paths)
        return self.function


def is_function_name(text: str) -> bool:
    """Whether a text has the form `module:function`."""
    module, colon, function = text.partition(":")
    words = [*module.split("."), *function.split(".")]
    return bool(colon) and all(word.isidentifier() for word in words)


_loaded: Final[dict[str, Function]] = {}


def load_function(name: str, paths: Sequence[str] = ()) -> Function:
    """Load `module:function`, once in each process."""
    if name not in _loaded:
        for path in paths:
            if path not in sys.path:
                sys.path.append(path)
        _loaded[name] = _load(name)
    return _loaded[name]


def _load(name: str) -> Function:
    module, _, function = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except HoldfastError:
        raise
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"There is no module {error.name!r} for the fold {name!r}: start from its directory, "
            "or name it with 'py_files'."
        ) from None
    except Exception as error:  # noqa: BLE001 (whatever a module does when it is imported)
        raise SettingsError(
            f"The module {module!r} of the fold cannot be imported: {type(error).__name__}: {error}"
        ) from None
    for part in function.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise SettingsError(f"The module {module!r} has no function {function!r}.")
    return found  # type: ignore[no-any-return]
