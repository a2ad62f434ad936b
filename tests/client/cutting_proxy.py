"""A proxy that cuts connections off, somewhere in the middle of what passes through them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from types import TracebackType
from typing import Self

PIECE_BYTES = 4096

# How many bytes in both directions a new connection lets through before it is cut; None: all.
Budget = Callable[[], int | None]


def random_budget(seed: int, longest: int) -> Budget:
    """Cut every connection, at a place that the seed decides."""
    random = Random(seed)
    return lambda: random.randrange(1, longest)


class CuttingProxy:
    """Passes connections on to a server on this machine until it is time to cut them."""

    def __init__(self, target_port: int, budget: Budget) -> None:
        self._target_port = target_port
        self._budget = budget
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""
        self.cuts = 0
        # Whether a request's answer is to be lost, though the server gets the request.
        self.swallows: Callable[[bytes], bool] = lambda _request: False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                async with self._connected() as (server_reader, server_writer):
                    connection = _Connection(self, self._budget())
                    await connection.run((reader, server_writer), (server_reader, writer))
        finally:
            # Without a word, as when a cable is pulled.
            writer.transport.abort()
            self._tasks.discard(task)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


Way = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Connection:
    """One connection, both ways, until it ends or is cut."""

    def __init__(self, proxy: CuttingProxy, budget: int | None) -> None:
        self._proxy = proxy
        self._left = budget
        self._swallows = False

    async def run(self, upwards: Way, downwards: Way) -> None:
        """Pass on in both directions; whichever ends first ends both."""
        tasks = {
            asyncio.create_task(self._pass_on(*upwards, to_server=True)),
            asyncio.create_task(self._pass_on(*downwards, to_server=False)),
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool
    ) -> None:
        with suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                if to_server:
                    self._swallows = self._proxy.swallows(piece)
                elif self._swallows:
                    self._proxy.cuts += 1
                    return
                if self._left is not None:
                    piece, whole = piece[: self._left], len(piece)
                    self._left -= len(piece)
                    writer.write(piece)
                    await writer.drain()
                    if len(piece) < whole or self._left == 0:
                        self._proxy.cuts += 1
                        return
                    continue
                writer.write(piece)
                await writer.drain()
