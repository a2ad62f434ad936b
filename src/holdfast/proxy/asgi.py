"""`holdfast.asgi`: the ASGI app with everything the server has, the proxy included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.http.asgi import open_app
from holdfast.proxy.opening import open_proxy

if TYPE_CHECKING:
    import os

    from holdfast.http.asgi import AsgiApp


def asgi(config: str | os.PathLike[str] | None = None, **settings: object) -> AsgiApp:
    """An ASGI app; `settings` are named as in a settings file, e.g. `data_dir="data"`.

    Precedence as for the server: defaults, then the file, then `HOLDFAST_*` variables, then these.
    """
    return open_app(config, settings, open_proxy)
