"""Holdfast as an ASGI application, alone or mounted in another one.

    streams = holdfast.asgi(data_dir="data")

    @asynccontextmanager
    async def lifespan(app):
        async with streams:
            yield

    app = FastAPI(lifespan=lifespan)
    app.mount("/streams", streams)

Hosts do not run the lifespan of mounted apps, so the app is also an async context manager that
opens the data directory and closes it again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Self

from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, UnavailableError
from holdfast.http.asgi import handle_http
from holdfast.http.responses import error_body
from holdfast.node.node import Node
from holdfast.settings import load_settings

if TYPE_CHECKING:
    from types import TracebackType

    from holdfast.http.asgi import Receive, Scope, Send
    from holdfast.settings import Settings


def asgi(config: str | os.PathLike[str] | None = None, **settings: object) -> AsgiApp:
    """An ASGI app; `settings` are named as in a settings file, e.g. `data_dir="data"`.

    Precedence as for the server: defaults, then the file, then `HOLDFAST_*` variables, then these.
    """
    file = None if config is None else Path(config)
    flags = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in settings.items()
    }
    return AsgiApp(load_settings(file=file, env=os.environ, flags=flags))


class AsgiApp:
    """The application; see `holdfast.asgi`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._node: Node | None = None

    async def __aenter__(self) -> Self:
        """Open the data directory and recover the log."""
        if self._node is not None:
            raise HoldfastError("This Holdfast app is running already.")
        node = Node(self._settings, SystemClock())
        try:
            await node.recover()
        except BaseException:
            await node.close()
            raise
        self._node = node
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End live readers, finish writes, close."""
        node, self._node = self._node, None
        if node is not None:
            node.end_live_readers()
            await node.finish_writes(self._settings.server.shutdown_timeout_s)
            await node.close()

    def drain(self) -> None:
        """End live readers with a last control event, and accept no more of them.

        Hosts shut down only once every request has ended, and a live read lasts up to
        `sse_lifetime`: call this from the host's signal handler to stop without waiting.
        """
        if self._node is not None:
            self._node.end_live_readers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection scope."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] != "http":
            raise HoldfastError(f"Holdfast does not speak {scope['type']}.")
        elif self._node is None:
            await _respond_not_running(send)
        else:
            await handle_http(self._node.app, scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.__aenter__()
                except HoldfastError as error:
                    await send({"type": "lifespan.startup.failed", "message": error.message})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.__aexit__(None, None, None)
                await send({"type": "lifespan.shutdown.complete"})
                return


async def _respond_not_running(send: Send) -> None:
    error = UnavailableError(
        "Holdfast is not running in this application: run its lifespan, or enter the app as an "
        "async context manager in the host's lifespan."
    )
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": error_body(error)})
