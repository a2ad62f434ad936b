"""`holdfast serve`: settings, logging, event loop, server and signals, wired together."""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
from typing import Annotated

import uvloop
from cyclopts import Parameter

from holdfast.allocator import keep_freed_memory
from holdfast.cli.banner import banner, banner_document
from holdfast.cli.flags import NO_FLAGS, ConfigFile, SettingFlags, load_settings
from holdfast.cli.logs import set_up_logging
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError
from holdfast.node.server import Server
from holdfast.settings import Settings

__all__ = ["serve"]

logger = logging.getLogger(__name__)

# The server drains within `shutdown_timeout`; closing the log comes on top, and the whole exit
# has to fit in 10 s. Whatever is still running then is beyond waiting for.
CLOSE_TIMEOUT_S = 1.5


def serve(
    *,
    flags: SettingFlags = NO_FLAGS,
    config: ConfigFile = None,
    json: Annotated[
        bool, Parameter(negative="", help="Say where it listens as one JSON document.")
    ] = False,
) -> int:
    """Start the server. SIGTERM or SIGINT stops it gracefully, a second one at once."""
    settings = load_settings(config, flags)
    set_up_logging(settings.log)
    _allow_many_files()
    keep_freed_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, as_json=json))


def _allow_many_files() -> None:
    """Raise the limit on open files as far as it goes: each connection takes one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(settings: Settings, *, as_json: bool) -> int:
    stopping = _stop_on_signals()
    server = Server(settings, SystemClock())
    try:
        await server.start()
    except OSError as error:
        raise HoldfastError(_why_not_started(error, settings)) from error
    try:
        if await _ready_before(server, stopping):
            say = banner_document if as_json else banner
            print(say(server.url, settings), flush=True)
            await stopping.wait()
    finally:
        await _stop(server, settings)
    return 0


def _stop_on_signals() -> asyncio.Event:
    """Return an event that the first signal sets; the second ends the process."""
    stopping = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        logger.info("%s: stopping; once more to stop at once", number.name)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return stopping


async def _ready_before(server: Server, stopping: asyncio.Event) -> bool:
    """Wait for recovery; False if a signal came first. Raises what recovery raised."""
    ready = asyncio.ensure_future(server.ready())
    stop = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({ready, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not ready.done():
        ready.cancel()
        return False
    ready.result()
    return True


async def _stop(server: Server, settings: Settings) -> None:
    try:
        async with asyncio.timeout(settings.server.shutdown_timeout_s + CLOSE_TIMEOUT_S):
            await server.stop()
    except TimeoutError:
        # Leaving through the interpreter would join the thread that hangs.
        logger.critical("the server did not stop in time; exiting without waiting for it")
        logging.shutdown()
        os._exit(1)


def _why_not_started(error: OSError, settings: Settings) -> str:
    listen = settings.server.listen
    if error.errno == errno.EADDRINUSE:
        return f"{listen} is in use, perhaps by another server; choose another with --listen"
    return f"cannot start on {listen} with data in {settings.server.data_dir}: {error}"
