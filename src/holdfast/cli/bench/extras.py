"""The packages of `holdfast-streams[bench]`, loaded only where they are used."""

from importlib import import_module
from typing import Any

from holdfast.errors import HoldfastError

__all__ = ["extra"]


def extra(module: str) -> Any:
    """Import a module of an optional package, or say how it is installed."""
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise HoldfastError(
            f"This needs a package that is not installed ({package}): "
            "pip install 'holdfast-streams[bench]'."
        ) from None
