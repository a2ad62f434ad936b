"""The native server: a node behind a listener, started and stopped gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from typing import TYPE_CHECKING

from holdfast.http.access.gate import warn_if_open
from holdfast.http.listener import Listener
from holdfast.node.node import Node

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.log.directory import Files
    from holdfast.settings import Settings


_log = logging.getLogger(__name__)
_GC_THRESHOLDS = (50_000, 50, 100_000)


class Server:
    """Listens at once, and responds 503 until the log is recovered."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        files: Files | None = None,
    ) -> None:
        self._settings = settings
        self._files = files
        self._clock = clock
        self._node: Node | None = None
        self._listener: Listener | None = None
        self._recovery: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The server's address, once started."""
        assert self._listener is not None
        return self._listener.url

    async def start(self) -> None:
        """Open the data directory, bind the address, and start recovery."""
        self._node = Node(self._settings, self._clock, self._files)
        self._listener = Listener(self._node.app)
        try:
            await self._listener.open()
        except BaseException:
            await self._node.close()
            raise
        warn_if_open(self._settings)
        _log.info("listening on %s, recovering the log", self.url)
        self._recovery = asyncio.create_task(self._recover(self._node))

    async def _recover(self, node: Node) -> None:
        """Recover with the garbage collector off, since what replay creates lives long.

        Afterwards those objects are frozen and full collections made rare. This is not done by
        `Node`, because the collector of an ASGI host is not ours to tune.
        """
        gc.disable()
        try:
            await node.recover()
        finally:
            gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)

    async def ready(self) -> None:
        """Wait until the log is recovered; raises what recovery raised."""
        assert self._recovery is not None
        await asyncio.shield(self._recovery)

    async def stop(self) -> None:
        """End live readers, stop accepting, finish pending requests, and close."""
        node, listener = self._node, self._listener
        if node is None or listener is None or self._recovery is None:
            return
        ends_s = self._clock.monotonic_s() + self._settings.server.shutdown_timeout_s
        node.end_live_readers()
        if not self._recovery.done():
            node.app.not_ready = "The server is shutting down."
            # First, because closing the listening sockets takes a while.
            node.app.shard.abandon_recovery()
        listener.stop_accepting()
        with contextlib.suppress(Exception):
            await self._recovery
        await node.finish_writes(max(0.1, ends_s - self._clock.monotonic_s()))
        await listener.close(max(0.1, ends_s - self._clock.monotonic_s()))
        await node.close()
