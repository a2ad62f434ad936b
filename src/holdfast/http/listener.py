"""The listener: accepts connections, enforces their deadlines, and closes them gracefully."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import resource
import socket
import ssl
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.allocator import give_back_free_memory
from holdfast.errors import OverloadedError, SettingsError
from holdfast.http.bodies import BodyPace, BodyTurns
from holdfast.http.connection import NO_APPENDS, Connection
from holdfast.settings import parse_listen

if TYPE_CHECKING:
    from holdfast.clock import Timer
    from holdfast.http.app import App

_log = logging.getLogger(__name__)
TICK_S: Final = 1.0
# File descriptors for the log, the listener, and connections about to be refused.
SPARE_FILES: Final = 96
BACKLOG: Final = 4096
# The event loop accepts one connection from each of its sockets in a round. With one socket, the
# last of a thousand clients that connect at once would wait for a thousand rounds.
ACCEPTS_PER_ROUND: Final = 32


class Listener:
    """All native connections of a server."""

    def __init__(self, app: App) -> None:
        http = app.settings.http
        self.app = app
        self.header_bytes_max = http.header_bytes_max
        self.body_bytes_max = http.body_bytes_max
        self.snapshot_bytes_max = http.snapshot_bytes_max
        self.no_appends: tuple[bytes, ...] = NO_APPENDS
        # No URL contains this.
        self.forwarded_path = b"\0"
        self.forwarded_bytes_max = 0
        if app.mount is not None:
            self.no_appends += app.mount.prefixes
            self.forwarded_path = app.mount.forwarded_path
            self.forwarded_bytes_max = app.mount.forwarded_bytes_max
        self.pipeline_max = http.pipeline_max
        # Deadlines are counted in ticks, so that no request reads a clock or sets a timer.
        self.tick = 0
        self.header_ticks = _ticks(http.header_timeout_s)
        self.body_ticks = _ticks(http.body_timeout_s)
        self.body_turns = BodyTurns(app.clock.call_soon)
        self.body_pace = BodyPace(self.body_ticks, http.body_rate_min * TICK_S)
        self.idle_ticks = _ticks(http.idle_timeout_s)
        self.is_tls = False
        self.scheme = b"http"
        self._authority = ""
        self._connections_max = _connections_max(app.settings.server.connections_max)
        self._connections: dict[Connection, None] = {}
        self._servers: list[asyncio.Server] = []
        self._timer: Timer | None = None
        self._empty: asyncio.Event | None = None

    @property
    def url(self) -> str:
        return f"{self.scheme.decode()}://{self._authority}"

    async def open(self) -> None:
        host, port = parse_listen(self.app.settings.server.listen)
        context = _tls_context(self.app)
        create_server = partial(
            asyncio.get_running_loop().create_server,
            lambda: Connection(self),
            ssl=context,
            backlog=BACKLOG,
            # Before the handshake is done a connection is neither counted nor timed.
            ssl_handshake_timeout=self.app.settings.http.header_timeout_s if context else None,
        )
        server = await create_server(host, port)
        self._servers.append(server)
        for each in server.sockets:
            for _ in range(ACCEPTS_PER_ROUND - 1):
                duplicate = socket.socket(fileno=os.dup(each.fileno()))
                self._servers.append(await create_server(sock=duplicate))
        port = server.sockets[0].getsockname()[1]
        self.is_tls = context is not None
        self.scheme = b"https" if self.is_tls else b"http"
        self._authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._count()

    def stop_accepting(self) -> None:
        """Refuse new connections; close the idle ones now, and others after their response."""
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.drain()

    async def close(self, timeout_s: float) -> None:
        """Wait for responses under way, then drop the remaining connections."""
        if self._connections:
            self._empty = asyncio.Event()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._empty.wait()
            except TimeoutError:
                for connection in list(self._connections):
                    connection.abort()
        if self._timer is not None:
            self._timer.cancel()

    def joined(self, connection: Connection) -> None:
        """Count a new connection, and refuse it if there are too many."""
        crowded = len(self._connections) >= self._connections_max
        self._connections[connection] = None
        self.app.counters.connections = len(self._connections)
        if crowded:
            connection.turn_away(OverloadedError("Too many connections are open."))

    def left(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self.app.counters.connections = len(self._connections)
        if self._empty is not None and not self._connections:
            self._empty.set()

    def _count(self) -> None:
        """One tick: renew the date, expire connections, and give memory of bodies back."""
        self.tick += 1
        self.app.update_date()
        tick = self.tick
        for connection in [each for each in self._connections if 0 < each.deadline <= tick]:
            connection.expire()
        if self.app.bodies.should_trim():
            give_back_free_memory()
        self._timer = self.app.clock.call_later(TICK_S, self._count)


def _connections_max(wanted: int) -> int:
    """The limit on connections, which may be lowered by the limit on open files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or files >= wanted + SPARE_FILES:
        return wanted
    possible = max(1, files - SPARE_FILES)
    _log.warning(
        "at most %d connections instead of %d: this process may open %d files (ulimit -n)",
        possible,
        wanted,
        files,
    )
    return possible


def _ticks(seconds: float) -> int:
    # One more, because the current tick has already begun.
    return math.ceil(seconds / TICK_S) + 1


def _tls_context(app: App) -> ssl.SSLContext | None:
    tls = app.settings.tls
    if not tls.cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"The TLS certificate {tls.cert} with key {tls.key} cannot be used: {error}."
        ) from error
    return context
