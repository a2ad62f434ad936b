"""How a setting is declared; `groups.py` and `access_groups.py` hold the declarations."""

from collections.abc import Callable
from dataclasses import field
from typing import Annotated, Any

from msgspec import Meta

# A year is far beyond any sensible wait, and keeps `inf` and `nan` out of the timers.
Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]
Count = Annotated[int, Meta(ge=1)]
CountOrNone = Annotated[int, Meta(ge=0)]
"""A limit where 0 means that there is none."""


def setting(
    default: object,
    doc: str,
    *,
    clean: Callable[[Any], Any] | None = None,
    secret: bool = False,
) -> Any:
    """Declare one setting. `clean` returns the value to use, or raises ValueError."""
    return field(default=default, metadata={"doc": doc, "clean": clean, "secret": secret})
