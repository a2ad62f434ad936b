"""Holdfast: durable, URL-addressable, append-only streams over plain HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.node.asgi import asgi

__all__ = ["__version__", "asgi"]


def __getattr__(name: str) -> Any:
    # The server is loaded on first use: clients import nothing of it.
    if name == "asgi":
        from holdfast.node.asgi import asgi  # noqa: PLC0415

        return asgi
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
