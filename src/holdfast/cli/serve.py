"""`holdfast serve`: wires together settings, logging, event loop, server and signals."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import resource
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import uvloop
from cyclopts import Parameter

from holdfast.allocator import keep_freed_memory
from holdfast.cli.config import NO_FLAGS, ConfigFile, SettingFlags, load_settings
from holdfast.cli.terminal import set_up_logging
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError
from holdfast.node.server import Server
from holdfast.settings import Settings

logger = logging.getLogger(__name__)

# The server drains within `shutdown_timeout`; closing the log comes on top, and the whole exit
# has to fit in 10 s, after which we leave without waiting.
CLOSE_TIMEOUT_S = 1.5
# Threads without work end within milliseconds.
_THREAD_CHECKS = 20
_THREAD_CHECK_S = 0.01


def serve(
    *,
    flags: SettingFlags = NO_FLAGS,
    config: ConfigFile = None,
    json: Annotated[
        bool, Parameter(negative="", help="Print the address as one JSON document.")
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
    """Raise the limit on open files to its maximum: each connection needs one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(settings: Settings, *, as_json: bool) -> int:
    stopping = _stop_on_signals()
    executor = ThreadPoolExecutor(thread_name_prefix="worker")
    asyncio.get_running_loop().set_default_executor(executor)
    server = Server(settings, SystemClock())
    try:
        await server.start()
    except OSError as error:
        raise HoldfastError(_why_not_started(error, settings)) from error
    try:
        if await _ready_before(server, stopping):
            announce = banner_document if as_json else banner
            print(announce(server.url, settings), flush=True)
            await stopping.wait()
    finally:
        await _stop(server, settings)
    await _end_threads(executor)
    return 0


def _stop_on_signals() -> asyncio.Event:
    """An event that the first signal sets; a second signal ends the process."""
    stopping = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        logger.info("%s: stopping gracefully; repeat to stop at once", number.name)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return stopping


async def _ready_before(server: Server, stopping: asyncio.Event) -> bool:
    """Wait for recovery, and raise its error if it fails; False if a signal came first."""
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
        # A normal exit would join the thread that hangs.
        logger.critical("the server did not stop in time; exiting without waiting for it")
        logging.shutdown()
        os._exit(1)


async def _end_threads(executor: ThreadPoolExecutor) -> None:
    """Exit here if a thread hangs in a read from the disk or the store: nobody waits for it."""
    executor.shutdown(wait=False, cancel_futures=True)
    for _ in range(_THREAD_CHECKS):
        others = set(threading.enumerate()) - {threading.current_thread()}
        hanging = [each.name for each in others if not each.daemon]
        if not hanging:
            return
        await asyncio.sleep(_THREAD_CHECK_S)
    # Everything is closed. A normal exit would join the threads.
    logger.warning("exiting without waiting for %s", ", ".join(hanging))
    logging.shutdown()
    os._exit(0)


def _why_not_started(error: OSError, settings: Settings) -> str:
    listen = settings.server.listen
    if error.errno == errno.EADDRINUSE:
        return f"{listen} is in use, perhaps by another server; choose another with --listen"
    return f"cannot start on {listen} with data in {settings.server.data_dir}: {error}"


def banner_document(url: str, settings: Settings) -> str:
    """The same information for programs, on one line."""
    in_memory = settings.server.durability == "memory"
    document = {
        "url": url,
        "pid": os.getpid(),
        "durability": settings.server.durability,
        "data_dir": None if in_memory else str(settings.server.data_dir.resolve()),
        "access_control": settings.access.is_on,
    }
    return json.dumps(document, ensure_ascii=False)


def banner(url: str, settings: Settings) -> str:
    """The address, where the data is, and commands to try."""
    stream = f"{url}/v1/stream/demo/hello"
    if settings.server.durability == "memory":
        data = "*** IN MEMORY: NOTHING IS WRITTEN TO DISK, NOTHING SURVIVES A RESTART ***"
    else:
        data = f"{settings.server.data_dir.resolve()} (on disk before it is acknowledged)"
    header = ""
    if settings.access.is_on:
        header = "-H 'Authorization: Bearer '\"$TOKEN\" "
    return f"""\
Holdfast is listening on {url}
data: {data}

Try it:
  curl -i -X PUT {header}-H 'Content-Type: text/plain' {stream}
  curl -i -X POST {header}-H 'Content-Type: text/plain' -d 'hello, world' {stream}
  curl {header}'{stream}?offset=-1'
  curl -N {header}'{stream}?offset=-1&live=sse'
"""
