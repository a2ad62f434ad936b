"""The measured server, and HTTP/1.1 connections to it that cost as little as possible."""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast
from urllib.parse import SplitResult, urlsplit

import httptools
from msgspec import Struct

from holdfast.errors import SettingsError

if TYPE_CHECKING:
    from holdfast.cli.bench.loads import BenchLoad

__all__ = [
    "BenchConnection",
    "BenchTarget",
    "LoadClient",
    "LoadClients",
    "Tasks",
    "connect",
    "failure_kind",
    "in_groups",
    "resolve_target",
]

CONNECT_TIMEOUT_S = 10.0
CONNECTING_AT_ONCE_MAX = 64
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 1.0
SWEEP_S = 0.25
# How much of an error response is kept as an example.
EXAMPLE_BYTES_MAX = 1000

T = TypeVar("T")
ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)


class BenchTarget(Struct, frozen=True):
    """The address of a server, and the path that its streams are mounted under."""

    host: str
    port: int
    tls: bool
    base_path: str
    token: str | None
    ca_file: str = ""
    """Certificates to trust besides the system's."""

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.base_path}"

    def head(self, method: str, path: str) -> bytes:
        """Return the start of a request up to its own headers. `path` is percent-encoded."""
        token = f"Authorization: Bearer {self.token}\r\n" if self.token else ""
        return (
            f"{method} {self.base_path}{path} HTTP/1.1\r\n"
            f"Host: {self.authority}\r\n"
            f"User-Agent: holdfast-bench\r\n{token}"
        ).encode()

    def tls_context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        # Loads a whole HTTP client, so only where it is needed.
        from holdfast.net.outbound import tls_context  # noqa: PLC0415

        context = tls_context()
        if self.ca_file:
            context.load_verify_locations(self.ca_file)
        return context


def resolve_target(
    url: str | None,
    token: str | None,
    context_name: str | None = None,
    ca_file: Path | None = None,
) -> BenchTarget:
    """Find the server in the same way as all other commands."""
    # Loads the client, which the load processes do not need.
    from holdfast.cli.client.connection import DEFAULT_SERVER, resolve  # noqa: PLC0415
    from holdfast.client.auth import tls_trusting  # noqa: PLC0415

    server = replace(DEFAULT_SERVER, url=url, token=token, context=context_name, ca_file=ca_file)
    context = resolve(server, os.environ)
    # Report a bad file here rather than in every load process.
    tls_trusting(context.ca_file)
    parts = _split(context.url)
    tls = parts.scheme == "https"
    return BenchTarget(
        host=parts.hostname or "",
        port=parts.port or (443 if tls else 80),
        tls=tls,
        base_path=parts.path.rstrip("/"),
        token=context.token or None,
        ca_file=context.ca_file,
    )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname or not url.isascii():
        raise SettingsError(f"--url: expected http://HOST:PORT or https://HOST:PORT, got {url!r}")
    if parts.query or parts.fragment or parts.username is not None:
        raise SettingsError("--url: expected no query, fragment or user name")
    return parts


async def connect(
    target: BenchTarget, context: ssl.SSLContext | None, make: Callable[[], ProtocolT]
) -> ProtocolT:
    """Open one connection. Failures are OSErrors."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        _, protocol = await loop.create_connection(make, target.host, target.port, ssl=context)
    return protocol


def failure_kind(error: BaseException | None) -> str:
    """Return the key that a lost connection is counted under in the result."""
    match error:
        case None:
            return "connection_closed"
        case TimeoutError():
            return "timeout"
        case ConnectionRefusedError():
            return "connection_refused"
        case ConnectionResetError() | BrokenPipeError():
            return "connection_reset"
        case ssl.SSLError():
            return "tls_failed"
        case _:
            return "connection_failed"


async def in_groups(
    items: Sequence[T], work: Callable[[T], Awaitable[None]], timeout_s: float | None = None
) -> None:
    """Do something for all items, a limited number at a time, each group within a timeout."""
    for first in range(0, len(items), CONNECTING_AT_ONCE_MAX):
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*map(work, items[first : first + CONNECTING_AT_ONCE_MAX]))


class Tasks:
    """Background tasks that are cancelled together."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


class BenchConnection(asyncio.Protocol):
    """One keep-alive HTTP/1.1 connection. Subclasses are the callbacks of httptools' parser."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.parser = httptools.HttpResponseParser(self)
        self._kind: str | None = None

    @property
    def usable(self) -> bool:
        """Whether another request can be sent."""
        return self.transport is not None and not self.transport.is_closing()

    def send(self, request: bytes) -> None:
        if self.transport is not None:
            self.transport.write(request)

    def abort(self, kind: str | None = None) -> None:
        """Close the connection at once; `lost` is then called with this kind of failure."""
        self._kind = self._kind or kind
        if self.transport is not None:
            self.transport.abort()

    def lost(self, kind: str) -> None:
        """Handle the end of the connection, with or without a response in progress."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.abort("invalid_response")

    def close_unless_kept_alive(self) -> None:
        if not self.parser.should_keep_alive() and self.transport is not None:
            self._kind = "connection_closed"
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.lost(self._kind or failure_kind(exc))


class _LoadConnection(BenchConnection):
    """Counts the bytes of responses, and keeps the start of those that are errors."""

    def __init__(self, client: "LoadClient") -> None:
        super().__init__()
        self._client = client
        self._size_bytes = 0
        self._kept = b""

    def on_message_begin(self) -> None:
        self._size_bytes = 0
        self._kept = b""

    def on_body(self, body: bytes) -> None:
        self._size_bytes += len(body)
        if len(self._kept) < EXAMPLE_BYTES_MAX and self.parser.get_status_code() >= 300:
            self._kept += body[:EXAMPLE_BYTES_MAX]

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        self.close_unless_kept_alive()
        self._client.responded(status, self._size_bytes, self._kept)

    def lost(self, kind: str) -> None:
        self._client.lost(kind)


class LoadClient:
    """Sends one request at a time, over a connection that is made again when it is lost.

    A request ends with exactly one call of the load's `done` or `failed`. Then, or once it is
    connected again, the client is `free`.
    """

    __slots__ = ("_clients", "connection", "due_s", "number", "retry_s", "sent_s", "subject")

    def __init__(self, clients: "LoadClients", number: int) -> None:
        self._clients = clients
        self.number = number
        self.connection: _LoadConnection | None = None
        self.due_s: float | None = None
        self.sent_s = 0.0
        self.retry_s = RETRY_FIRST_S
        self.subject = 0
        """For the load: what the current request is about."""

    @property
    def usable(self) -> bool:
        return self.due_s is None and self.connection is not None and self.connection.usable

    def send(self, due_s: float, request: bytes) -> None:
        """Send a request that has been due since `due_s`."""
        assert self.connection is not None
        self.due_s = due_s
        self.sent_s = self._clients.clock.monotonic_s()
        self._clients.in_progress += 1
        self.connection.send(request)

    def responded(self, status: int, size_bytes: int, kept: bytes) -> None:
        due_s = self.due_s
        # Ignore responses to nothing, and 100 Continue.
        if due_s is None or status < 200:
            return
        self.due_s = None
        self._clients.in_progress -= 1
        self._clients.load.done(self, due_s, (status, size_bytes, kept))
        self._clients.freed(self)

    def lost(self, kind: str) -> None:
        self.connection = None
        if self.due_s is not None:
            self.due_s = None
            self._clients.in_progress -= 1
            self._clients.load.failed(self, kind)
        self._clients.reconnect(self)


class LoadClients:
    """All clients of one load process. A request that exceeds the timeout fails."""

    def __init__(self, load: "BenchLoad", target: BenchTarget, timeout_s: float) -> None:
        self.load = load
        self.clock = load.recorder.clock
        self.in_progress = 0
        self.all: list[LoadClient] = []
        self._target = target
        self._context = target.tls_context()
        self._timeout_s = timeout_s
        self._ended = False
        self._drained = asyncio.Event()
        self._tasks = Tasks()

    async def open(self, count: int) -> None:
        """Connect all; those that fail try again later."""
        self.all = [LoadClient(self, number) for number in range(count)]
        await in_groups(self.all, self._connect)

    def begin(self) -> None:
        """Let requests be sent."""
        self._tasks.start(self._sweep())
        for client in self.all:
            self.freed(client)

    def freed(self, client: LoadClient) -> None:
        if self._ended:
            if not self.in_progress:
                self._drained.set()
        elif client.usable:
            self.load.free(client)

    def end(self) -> None:
        """Send nothing more."""
        self._ended = True
        if not self.in_progress:
            self._drained.set()

    async def drain(self, timeout_s: float) -> None:
        """Wait until no request is in progress."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._drained.wait()

    def close(self) -> None:
        self.end()
        self._tasks.cancel()
        for client in self.all:
            client.due_s = None
            if client.connection is not None:
                client.connection.abort()

    def reconnect(self, client: LoadClient) -> None:
        if self._ended:
            self.freed(client)
        else:
            self._tasks.start(self._reconnect(client))

    async def _reconnect(self, client: LoadClient) -> None:
        await asyncio.sleep(client.retry_s)
        client.retry_s = min(client.retry_s * 2, RETRY_MAX_S)
        await self._connect(client)
        if client.connection is not None:
            self.freed(client)

    async def _connect(self, client: LoadClient) -> None:
        try:
            connection = await connect(self._target, self._context, lambda: _LoadConnection(client))
        except OSError as error:
            if not self._ended:
                self.load.recorder.failed(failure_kind(error), error.strerror or str(error))
                self.reconnect(client)
            return
        client.connection = connection
        client.retry_s = RETRY_FIRST_S

    async def _sweep(self) -> None:
        """Abort requests that take too long."""
        while True:
            await asyncio.sleep(SWEEP_S)
            before_s = self.clock.monotonic_s() - self._timeout_s
            for client in self.all:
                if client.due_s is not None and client.sent_s < before_s and client.connection:
                    client.connection.abort("timeout")
