"""A user's own fold: `function(state, message)`, which returns the next state.

The state is None at first. It can be bytes, text, or whatever JSON can say; that decides the type
of the snapshot, and what the function is given when a later run goes on from there. A message of a
JSON stream comes parsed, any other as bytes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import HoldfastError, SettingsError
from holdfast.protocol.content import DEFAULT, JSON, media_type
from holdfast.spark.folding.folds import Body, json_body, json_state
from holdfast.spark.folding.messages import Messages, values
from holdfast.spark.folding.misfits import MisfitError

TEXT: Final = "text/plain; charset=utf-8"
_SAID_MAX: Final = 200
Function = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class UserFunction:
    """The fold that a function is."""

    function: Function | str
    # Where modules are looked for besides.
    paths: tuple[str, ...] = ()

    def begin(self, content_type: str, snapshot: Body | None) -> Any:
        """None, or what the function returned when the snapshot was made."""
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
            raise MisfitError("The snapshot says that it is text, and is not.") from None

    def add(self, state: Any, messages: Messages) -> Any:
        """Call the function for each."""
        function = self._loaded()
        given = values(messages) if messages.is_json else messages.payloads()
        for index, message in enumerate(given):
            try:
                state = function(state, message)
            except Exception as error:  # noqa: BLE001 (a user's code may raise anything)
                said = f"{type(error).__name__}: {error}"
                said = said if len(said) <= _SAID_MAX else f"{said[: _SAID_MAX - 1]}…"
                raise MisfitError(f"The function raised {said}", index) from None
        return state

    def end(self, state: Any) -> Body:
        """Bytes and text as they are, everything else as JSON."""
        if isinstance(state, bytes | bytearray | memoryview):
            return Body(bytes(state), DEFAULT)
        return Body(state.encode(), TEXT) if isinstance(state, str) else json_body(state)

    def _loaded(self) -> Function:
        if isinstance(self.function, str):
            return load_function(self.function, self.paths)
        return self.function


def is_function_name(text: str) -> bool:
    """Whether this has the form `module:function`."""
    module, colon, function = text.partition(":")
    words = [*module.split("."), *function.split(".")]
    return bool(colon) and all(word.isidentifier() for word in words)


_loaded: Final[dict[str, Function]] = {}


def load_function(name: str, paths: Sequence[str] = ()) -> Function:
    """The function that `module:function` names; its module is imported once in a process."""
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
