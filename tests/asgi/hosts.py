"""Programs that embed Holdfast, each under a real ASGI server: `hosts.py SERVER APP SETTINGS`.

A process of its own, which says where it listens; see `host_process`.
"""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import hypercorn.asyncio
import hypercorn.config
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import holdfast

PREFIX = "/api/streams"


def make_app(kind: str, settings: dict[str, Any]) -> Any:
    """Holdfast alone (`root`), in another application, or in one that forgets to open it."""
    streams = holdfast.asgi(**settings)

    @asynccontextmanager
    async def lifespan(_app: object) -> AsyncIterator[None]:
        async with streams:
            yield

    if kind == "root":
        return streams
    if kind == "fastapi":
        app = FastAPI(lifespan=lifespan)
        app.get("/hello")(lambda: {"hello": "world"})
        app.mount(PREFIX, streams)
        return app
    hello = Route("/hello", lambda _: PlainTextResponse("hello"))
    routes = [hello, Mount(PREFIX, app=streams)]
    return Starlette(routes=routes, lifespan=None if kind == "unopened" else lifespan)


def run_uvicorn(app: Any, listening: socket.socket, options: dict[str, Any]) -> None:
    config = uvicorn.Config(app, log_level="warning", lifespan="on", **options)
    uvicorn.Server(config).run(sockets=[listening])


def run_hypercorn(app: Any, listening: socket.socket, options: dict[str, Any]) -> None:
    bind = [f"fd://{listening.detach()}"]
    config = hypercorn.config.Config.from_mapping({"bind": bind, **options})

    async def serve() -> None:
        stopping = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
        await hypercorn.asyncio.serve(app, config, shutdown_trigger=stopping.wait)

    asyncio.run(serve())


def main() -> None:
    server, kind, text = sys.argv[1:]
    arguments = json.loads(text)
    app = make_app(kind, arguments["settings"])
    options = arguments["options"]
    listening = socket.create_server(("127.0.0.1", 0))
    scheme = "https" if options.keys() & {"certfile", "ssl_certfile"} else "http"
    # Whoever connects early waits in the backlog until the application has started.
    print(f"{scheme}://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    {"uvicorn": run_uvicorn, "hypercorn": run_hypercorn}[server](app, listening, options)


if __name__ == "__main__":
    main()
