"""JSON merge patch, RFC 7396."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def merge(target: Any, patch: Any) -> Any:
    """What a patch makes of a value. The value may be changed, and take parts of the patch over."""
    if type(patch) is not dict:
        return patch
    merged: dict[str, Any] = target if type(target) is dict else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif type(value) is dict:
            merged[name] = merge(merged.get(name), value)
        else:
            merged[name] = value
    return merged


def merge_all(target: Any, patches: Iterable[Any]) -> Any:
    """What patches, one after the other, make of a value."""
    # The same as `merge` for each, without a call for each: most patches are small and flat.
    merged = target
    for patch in patches:
        if type(patch) is not dict:
            merged = patch
            continue
        if type(merged) is not dict:
            merged = {}
        for name, value in patch.items():
            if value is None:
                merged.pop(name, None)
            elif type(value) is dict:
                merged[name] = merge(merged.get(name), value)
            else:
                merged[name] = value
    return merged
