"""Places in JSON values: JSON pointers (RFC 6901), and dotted paths for those who prefer them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from holdfast.errors import SettingsError
from holdfast.spark.folding.misfits import MisfitError

_STRAY_TILDE: Final = re.compile(r"~(?![01])")
_INDEX: Final = re.compile(r"0|[1-9][0-9]*")
MISSING: Final = object()


def parse_pointer(text: object) -> list[str]:
    """The names and indexes that a JSON pointer goes along; none for the whole document."""
    if not isinstance(text, str):
        raise MisfitError(f"A JSON pointer is text, not {text!r:.60}.")
    if not text:
        return []
    if not text.startswith("/") or _STRAY_TILDE.search(text):
        raise MisfitError(f"{text!r:.60} is no JSON pointer.")
    steps = text[1:].split("/")
    if "~" in text:
        steps = [each.replace("~1", "/").replace("~0", "~") for each in steps]
    return steps


def parse_path(text: str, option: str) -> tuple[str, ...]:
    """What an option means by `/a/b` (a JSON pointer) or `a.b`."""
    try:
        if text.startswith("/"):
            return tuple(parse_pointer(text))
        if all(steps := text.split(".")):
            return tuple(steps)
    except MisfitError:
        pass
    raise SettingsError(
        f"{option!r} is a path such as user.id, or a JSON pointer such as /user/id, not {text!r}."
    )


def index_of(step: str, length: int) -> int:
    """The index that a step means in an array of this length, which must have it."""
    if not _INDEX.fullmatch(step):
        raise MisfitError(f"{step!r:.60} is no index of an array.")
    index = int(step)
    if index >= length:
        raise MisfitError(f"The array has {length} elements, and none at {index}.")
    return index


def found_at(value: Any, steps: Sequence[str]) -> Any:
    """What is at a place, or MISSING."""
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step, MISSING)
        elif isinstance(value, list) and _INDEX.fullmatch(step) and int(step) < len(value):
            value = value[int(step)]
        else:
            return MISSING
    return value
