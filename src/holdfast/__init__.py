"""Holdfast: durable, URL-addressable, append-only streams over plain HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.proxy.asgi import asgi

__all__ = ["__version__", "asgi"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # The server is loaded only by those who run it: a client imports nothing of it.
    if name == "asgi":
        from holdfast.proxy.asgi import asgi  # noqa: PLC0415

        return asgi
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
