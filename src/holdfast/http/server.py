"""The native server: a node behind a listener, with a start and a graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from typing import TYPE_CHECKING

from holdfast.http.access.gate import warn_if_open
from holdfast.http.listener import Listener
from holdfast.http.node import Node

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.http.mount import OpenMount
    from holdfast.log.files import Files
    from holdfast.settings import Settings


_log = logging.getLogger(__name__)
_GC_THRESHOLDS = (50_000, 50, 100_000)


class Server:
    """Listens at once and answers 503 until its log is recovered."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        files: Files | None = None,
        open_mount: OpenMount | None = None,
    ) -> None:
        self._settings = settings
        self._files = files
        self._open_mount = open_mount
        self._clock = clock
        self._node: Node | None = None
        self._listener: Listener | None = None
        self._recovery: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where the server is to be found, once started."""
        assert self._listener is not None
        return self._listener.url

    async def start(self) -> None:
        """Open the data directory, bind the address, and start recovery."""
        self._node = Node(self._settings, self._clock, self._files, self._open_mount)
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
        """Recover with the collector at rest: what replay makes will live long.

        Afterwards it is left out of collections, of which full ones become very rare. An ASGI
        host's collector is its own business, so this is not the node's.
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
        """Return once the log is recovered; raise if it cannot be."""
        assert self._recovery is not None
        await asyncio.shield(self._recovery)

    async def stop(self) -> None:
        """Stop accepting, end live readers, finish what is under way, close."""
        node, listener = self._node, self._listener
        if node is None or listener is None or self._recovery is None:
            return
        ends_s = self._clock.monotonic_s() + self._settings.server.shutdown_timeout_s
        node.end_live_readers()
        listener.stop_accepting()
        if not self._recovery.done():
            node.app.not_ready = "The server is shutting down."
            node.app.shard.abandon_recovery()
        with contextlib.suppress(Exception):
            await self._recovery
        await node.finish_writes(max(0.1, ends_s - self._clock.monotonic_s()))
        await listener.close(max(0.1, ends_s - self._clock.monotonic_s()))
        await node.close()
