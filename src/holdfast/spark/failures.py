"""What went wrong inside Spark, in one sentence.

Spark wraps what an executor's Python raised in text upon text. An error of ours in there is found
by its name, and becomes the same error again.
"""

from __future__ import annotations

import importlib
import re
from typing import Final

from holdfast.errors import HoldfastError, SparkFailedError

__all__ = ["as_holdfast_error", "rebuilt", "root_cause"]

# The last line of a traceback: a class by its module, and what it says.
_RAISED: Final = re.compile(
    r"^(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)): (?P<message>.+)$", re.MULTILINE
)
_OURS: Final = re.compile(r"\b(?P<module>holdfast(?:\.\w+)+)\.(?P<name>\w+): (?P<message>.+)")
_CONDITION: Final = re.compile(r"^\[[\w.]+\] ")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
_LENGTH_MAX: Final = 500


def as_holdfast_error(error: BaseException) -> HoldfastError:
    """The error as one of ours: itself, the one that is inside Spark's words, or their root."""
    if isinstance(error, HoldfastError):
        return error
    text = _text(error)
    for found in reversed(list(_OURS.finditer(text))):
        kind = _class(found["module"], found["name"])
        if kind is not None:
            return rebuilt(kind, found["message"].strip())
    return SparkFailedError(root_cause(error))


def root_cause(error: BaseException) -> str:
    """What is at the bottom of an error of Spark, in one line."""
    text = _text(error)
    raised = [each for each in _RAISED.finditer(text) if "Py4JJavaError" not in each["name"]]
    if raised:
        # The JVM's causes and Python's tracebacks both end with the one that came first.
        last = raised[-1]
        said = f"{last['name'].rpartition('.')[2]}: {last['message']}"
    else:
        said = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    said = _STATE.sub("", _CONDITION.sub("", said.strip()))
    said = said if len(said) <= _LENGTH_MAX else f"{said[: _LENGTH_MAX - 1]}…"
    return said if said.endswith((".", "…", "!", "?")) else f"{said}."


def _text(error: BaseException) -> str:
    """Everything that Spark says of it, without the JVM's own lines of where it was."""
    try:
        java = getattr(error, "java_exception", None)
        text = str(error) if java is None else f"{error}\n{java}"
    except Exception:  # noqa: BLE001 (the words are in the JVM, and that may be gone)
        return f"{type(error).__name__}: Spark's JVM is gone."
    lines = (line.removeprefix("Caused by: ") for line in text.splitlines())
    return "\n".join(line for line in lines if not line.startswith(("\tat ", "\t... ")))


def rebuilt(kind: type[HoldfastError], message: str) -> HoldfastError:
    """An error of a class with a message, which is all that came back from an executor."""
    error = kind.__new__(kind)
    # Some classes take what the message is made of instead.
    HoldfastError.__init__(error, message)
    return error


def _class(module: str, name: str) -> type[HoldfastError] | None:
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, HoldfastError) else None
