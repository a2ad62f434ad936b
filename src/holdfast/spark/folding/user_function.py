"""A fold of the user's own: `function(state, message)`, which returns the next state.

The first state is None. Later ones are bytes, text or any JSON value, which decides the content
type of the snapshot and what the function gets when a later run continues from it. Messages of JSON
streams are parsed, all others are bytes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import HoldfastError, SettingsError
from holdfast.protocol.content import DEFAULT, JSON, media_type
from holdfast.spark.folding.folds import (
    FoldError,
    FoldMessages,
    SnapshotBody,
    json_body,
    json_state,
    shortened,
    values,
)

TEXT: Final = "text/plain; charset=utf-8"
Function = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class UserFunction:
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
