"""JSON patch, RFC 6902, strictly: what the RFC calls an error is one here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final

from holdfast.spark.folding.misfits import MisfitError
from holdfast.spark.folding.pointers import index_of, parse_pointer

_Operation = Mapping[str, Any]
_END: Final = "-"


def apply_patch(document: Any, patch: Any) -> Any:
    """What a patch, or one operation by itself, makes of a document.

    The document is changed in place; if an operation fails, in part.
    """
    for operation in patch if isinstance(patch, list) else [patch]:
        if not isinstance(operation, dict):
            raise MisfitError(f"An operation is an object, not {operation!r:.60}.")
        kind = operation.get("op")
        apply = _OPERATIONS.get(kind) if isinstance(kind, str) else None
        if apply is None:
            raise MisfitError(f"There is no operation {kind!r:.60}.")
        document = apply(document, operation)
    return document


def _add(document: Any, operation: _Operation) -> Any:
    return _put(document, _pointer(operation, "path"), _value(operation))


def _put(document: Any, steps: list[str], value: Any) -> Any:
    if not steps:
        return value
    parent = _walk(document, steps[:-1])
    last = steps[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        # One past the end is where an element can be added.
        at = len(parent) if last == _END else index_of(last, len(parent) + 1)
        parent.insert(at, value)
    else:
        raise _no_container(steps)
    return document


def _remove(document: Any, operation: _Operation) -> Any:
    return _take(document, _pointer(operation, "path"))[0]


def _take(document: Any, steps: list[str]) -> tuple[Any, Any]:
    """The document without what is at a place, and that."""
    if not steps:
        raise MisfitError("The whole document cannot be removed.")
    parent, last = _walk(document, steps[:-1]), steps[-1]
    if isinstance(parent, dict):
        if last not in parent:
            raise _nothing_at(steps)
        return document, parent.pop(last)
    if isinstance(parent, list):
        return document, parent.pop(index_of(last, len(parent)))
    raise _no_container(steps)


def _replace(document: Any, operation: _Operation) -> Any:
    steps, value = _pointer(operation, "path"), _value(operation)
    if not steps:
        return value
    parent, last = _walk(document, steps[:-1]), steps[-1]
    if isinstance(parent, dict):
        if last not in parent:
            raise _nothing_at(steps)
        parent[last] = value
    elif isinstance(parent, list):
        parent[index_of(last, len(parent))] = value
    else:
        raise _no_container(steps)
    return document


def _move(document: Any, operation: _Operation) -> Any:
    source, target = _pointer(operation, "from"), _pointer(operation, "path")
    if len(source) < len(target) and target[: len(source)] == source:
        raise MisfitError("A value cannot be moved into itself.")
    if source == target:
        # It must be there all the same.
        _walk(document, source)
        return document
    document, value = _take(document, source)
    return _put(document, target, value)


def _copy(document: Any, operation: _Operation) -> Any:
    value = _walk(document, _pointer(operation, "from"))
    return _put(document, _pointer(operation, "path"), deepcopy(value))


def _test(document: Any, operation: _Operation) -> Any:
    steps, value = _pointer(operation, "path"), _value(operation)
    if not equal(_walk(document, steps), value):
        raise MisfitError(f"The test at {_text(steps)} fails.")
    return document


_OPERATIONS: Final[dict[str, Callable[[Any, _Operation], Any]]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}


def equal(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same; true is not 1, and 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(equal(value, other[name]) for name, value in one.items())
        )
    if isinstance(one, list):
        return (
            isinstance(other, list)
            and len(one) == len(other)
            and all(equal(a, b) for a, b in zip(one, other, strict=True))
        )
    return bool(one == other)


def _walk(document: Any, steps: list[str]) -> Any:
    """What is at a place, which must be there."""
    value = document
    for step in steps:
        if isinstance(value, dict):
            if step not in value:
                raise _nothing_at(steps)
            value = value[step]
        elif isinstance(value, list):
            value = value[index_of(step, len(value))]
        else:
            raise _nothing_at(steps)
    return value


def _pointer(operation: _Operation, name: str) -> list[str]:
    if name not in operation:
        raise MisfitError(f"The operation {operation['op']!r} has no {name!r}.")
    return parse_pointer(operation[name])


def _value(operation: _Operation) -> Any:
    if "value" not in operation:
        raise MisfitError(f"The operation {operation['op']!r} has no 'value'.")
    return operation["value"]


def _text(steps: list[str]) -> str:
    text = "".join("/" + each.replace("~", "~0").replace("/", "~1") for each in steps)
    return repr(text if len(text) <= 60 else f"{text[:59]}…")


def _nothing_at(steps: list[str]) -> MisfitError:
    return MisfitError(f"There is nothing at {_text(steps)}.")


def _no_container(steps: list[str]) -> MisfitError:
    return MisfitError(f"What would hold {_text(steps)} is neither an object nor an array.")
