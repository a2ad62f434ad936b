"""A server on loopback that answers as a test tells it to, and counts its connections."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

# Gets the head and body of a request, and writes whatever it likes.
Behaviour = Callable[[bytes, bytes, asyncio.StreamWriter], Awaitable[None]]


def answer(status: str, body: bytes = b"", *fields: str) -> bytes:
    """The bytes of an answer that keeps the connection open."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields, "", ""]
    return "\r\n".join(lines).encode() + body


class Loopback:
    """What the server has seen; see `serving`."""

    def __init__(self, behave: Behaviour) -> None:
        self._behave = behave
        self.connections = 0
        self.heads: list[bytes] = []
        self.port = 0
        self.server_names: list[str | None] = []
        self.tasks: set[asyncio.Task[None]] = set()

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        """Answer the requests of one connection."""
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                self.heads.append(head)
                await self._behave(head, await reader.readexactly(length), writer)
                await writer.drain()
        writer.close()
        self.tasks.discard(task)


@asynccontextmanager
async def serving(behave: Behaviour, tls: ssl.SSLContext | None = None) -> AsyncIterator[Loopback]:
    """Run a server on a free port of 127.0.0.1."""
    loopback = Loopback(behave)
    if tls is not None:
        tls.sni_callback = lambda _sock, name, _context: loopback.server_names.append(name)
    server = await asyncio.start_server(loopback.on_connection, "127.0.0.1", 0, ssl=tls)
    loopback.port = server.sockets[0].getsockname()[1]
    try:
        yield loopback
    finally:
        server.close()
        for task in list(loopback.tasks):
            task.cancel()
        await asyncio.gather(*loopback.tasks, return_exceptions=True)
