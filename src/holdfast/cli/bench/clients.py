"""The connections of one load process: made at the start, and made again when they are lost.

Rules:
- A client has at most one request under way. It ends with exactly one call of `done` or `failed`.
- Then, or once it is connected again, the client is `free`: it may be given a request at once.
- A request that takes longer than the timeout fails, and its connection with it.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Protocol

from holdfast.cli.bench.connection import Connection
from holdfast.cli.bench.recorder import Recorder
from holdfast.cli.bench.target import Target, connect, failure_kind
from holdfast.clock import Clock

__all__ = ["Client", "Clients", "Requester"]

CONNECTING_AT_ONCE_MAX = 64
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 1.0
SWEEP_S = 0.25


class Requester(Protocol):
    """Who has requests to send, and wants to know how they end."""

    def free(self, client: "Client") -> None:
        """This client has nothing under way."""

    def done(self, client: "Client", due_s: float, answer: tuple[int, int, bytes]) -> None:
        """The request that was due then is answered: status, size, and the start of an error."""

    def failed(self, client: "Client", kind: str) -> None:
        """There will be no answer."""


class Client:
    """One connection's seat, which outlives the connection."""

    __slots__ = ("_clients", "connection", "due_s", "number", "retry_s", "sent_s", "subject")

    def __init__(self, clients: "Clients", number: int) -> None:
        self._clients = clients
        self.number = number
        self.connection: Connection | None = None
        self.due_s: float | None = None
        self.sent_s = 0.0
        self.retry_s = RETRY_FIRST_S
        self.subject = 0
        """What the request under way is about, for its sender to know."""

    @property
    def usable(self) -> bool:
        """Whether it can be given a request."""
        return self.due_s is None and self.connection is not None and self.connection.usable

    def send(self, due_s: float, request: bytes) -> None:
        """Send a request that has been due since then."""
        assert self.connection is not None
        self.due_s = due_s
        self.sent_s = self._clients.clock.monotonic_s()
        self._clients.under_way += 1
        self.connection.send(request)

    def answered(self, status: int, size_bytes: int, kept: bytes) -> None:
        """The connection has an answer."""
        due_s = self.due_s
        # An answer to nothing, or 100 Continue: not what was asked for.
        if due_s is None or status < 200:
            return
        self.due_s = None
        self._clients.under_way -= 1
        self._clients.requester.done(self, due_s, (status, size_bytes, kept))
        self._clients.freed(self)

    def lost(self, kind: str) -> None:
        """The connection is gone."""
        self.connection = None
        if self.due_s is not None:
            self.due_s = None
            self._clients.under_way -= 1
            self._clients.requester.failed(self, kind)
        self._clients.reconnect(self)


class Clients:
    """All connections of this process that send requests."""

    def __init__(self, target: Target, clock: Clock, recorder: Recorder, timeout_s: float) -> None:
        self.clock = clock
        self.under_way = 0
        self.all: list[Client] = []
        self.requester: Requester
        self._target = target
        self._context = target.tls_context()
        self._recorder = recorder
        self._timeout_s = timeout_s
        self._ended = False
        self._drained = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, count: int, requester: Requester) -> None:
        """Connect all, a few at a time; those that fail are tried again later on."""
        self.requester = requester
        self.all = [Client(self, number) for number in range(count)]
        for first in range(0, count, CONNECTING_AT_ONCE_MAX):
            group = self.all[first : first + CONNECTING_AT_ONCE_MAX]
            await asyncio.gather(*(self._connect(client) for client in group))

    def begin(self) -> None:
        """Let requests be sent."""
        self._do(self._sweep())
        for client in self.all:
            self.freed(client)

    def freed(self, client: Client) -> None:
        """A client has nothing under way."""
        if self._ended:
            if not self.under_way:
                self._drained.set()
        elif client.usable:
            self.requester.free(client)

    def end(self) -> None:
        """Send nothing more."""
        self._ended = True
        if not self.under_way:
            self._drained.set()

    async def drain(self, deadline_s: float) -> None:
        """Wait until nothing is under way any more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._drained.wait()

    def close(self) -> None:
        """Close all connections."""
        self.end()
        for task in self._tasks:
            task.cancel()
        for client in self.all:
            client.due_s = None
            if client.connection is not None:
                client.connection.abort()

    def reconnect(self, client: Client) -> None:
        """Connect again after a while, unless it is over."""
        if self._ended:
            self.freed(client)
        else:
            self._do(self._reconnect(client))

    async def _reconnect(self, client: Client) -> None:
        await asyncio.sleep(client.retry_s)
        client.retry_s = min(client.retry_s * 2, RETRY_MAX_S)
        await self._connect(client)
        if client.connection is not None:
            self.freed(client)

    async def _connect(self, client: Client) -> None:
        try:
            connection = await connect(self._target, self._context, lambda: Connection(client))
        except OSError as error:
            if not self._ended:
                self._recorder.failed(failure_kind(error), error.strerror or str(error))
                self.reconnect(client)
            return
        client.connection = connection
        client.retry_s = RETRY_FIRST_S

    async def _sweep(self) -> None:
        """Give up what takes too long."""
        while True:
            await asyncio.sleep(SWEEP_S)
            before_s = self.clock.monotonic_s() - self._timeout_s
            for client in self.all:
                if client.due_s is not None and client.sent_s < before_s and client.connection:
                    client.connection.abort("timeout")

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
