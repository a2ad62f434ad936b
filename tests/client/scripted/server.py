"""A real HTTP server on loopback that answers what a test has prepared, and breaks off on command.

async with ScriptedServer(page(b"one", 3), broken(), page(b"two", 6)) as server:
    ...  # the first request is answered with the first answer, and so on
assert [request.query["offset"] for request in server.requests] == [...]

Instead of a list there may be a function from a request to its answer, for servers with a state.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from holdfast.client import Client, Retry

DEADLINE_S = 30.0
REASON = "Scripted"
# Nothing here speaks TLS, and reading all certificates of the system for each client takes time.
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass(frozen=True)
class Request:
    """A request as it arrived; names of headers are lower-case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """The path of the target."""
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the target."""
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    @property
    def stamp(self) -> tuple[int, int]:
        """The epoch and sequence number of a producer."""
        return int(self.headers["producer-epoch"]), int(self.headers["producer-seq"])


@dataclass(frozen=True)
class Answer:
    """Bytes to be sent piece by piece; in between the server may wait for an event."""

    pieces: tuple[bytes | asyncio.Event, ...] = ()
    # Whether the connection is broken off behind the last piece.
    breaks: bool = False

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return sum(len(each) for each in self.pieces if isinstance(each, bytes))

    def cut(self, size: int) -> "Answer":
        """Only the first bytes of it, and then the connection is broken off."""
        whole = b"".join(each for each in self.pieces if isinstance(each, bytes))
        return Answer((whole[:size],), breaks=True)

    def byte_by_byte(self) -> "Answer":
        """The same in pieces of one byte."""
        whole = b"".join(each for each in self.pieces if isinstance(each, bytes))
        return replace(self, pieces=tuple(whole[at : at + 1] for at in range(len(whole))))

    def after(self, event: asyncio.Event) -> "Answer":
        """The same, but not before the event."""
        return replace(self, pieces=(event, *self.pieces))


Script = Callable[[Request], Answer | Awaitable[Answer]]


def head(status: int, headers: dict[str, object]) -> bytes:
    """The head of an answer; headers that are None are left out."""
    lines = [f"HTTP/1.1 {status} {REASON}"]
    lines += [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([*lines, "", ""]).encode()


def answer(
    status: int = 200, body: bytes = b"", *, length: int | None = None, **headers: object
) -> Answer:
    """An answer with a Content-Length; `length` is another one than the truth."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if status != 204:
        named["content-length"] = len(body) if length is None else length
    short = length is not None and length > len(body)
    return Answer((head(status, named) + body,), breaks=short)


def at(position: int) -> str:
    """An offset of a server that counts bytes."""
    return f"{position:020d}"


def page(
    body: bytes = b"",
    end: int | str = 0,
    *,
    status: int = 200,
    content_type: str | None = "text/plain",
    up_to_date: bool = False,
    closed: bool = False,
    cursor: str | None = None,
    lengths: str | None = None,
    **more: Any,
) -> Answer:
    """The answer to a catch-up or long-poll read."""
    return answer(
        status,
        body,
        content_type=content_type,
        stream_next_offset=at(end) if isinstance(end, int) else end,
        stream_up_to_date="true" if up_to_date else None,
        stream_closed="true" if closed else None,
        stream_cursor=cursor,
        stream_message_lengths=lengths,
        **more,
    )


def events(
    *pieces: bytes | asyncio.Event, ends: bool = True, breaks: bool = False, **headers: object
) -> Answer:
    """The answer to an SSE read, each piece a chunk; it may lack its end."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named = {"content-type": "text/event-stream", "transfer-encoding": "chunked"} | named
    chunks = [each if isinstance(each, asyncio.Event) else chunk(each) for each in pieces]
    last = (b"0\r\n\r\n",) if ends else ()
    return Answer((head(200, named), *chunks, *last), breaks=breaks)


def chunk(data: bytes) -> bytes:
    """A piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def broken() -> Answer:
    """No answer at all: the connection is broken off once the request has arrived."""
    return Answer(breaks=True)


@dataclass
class ScriptedServer:
    """See the module; answers that nobody asked for, and questions too many, are errors."""

    script: list[Answer | Script]
    handler: Script | None = None
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    url: str = ""

    def __init__(self, *script: Answer | Script, handler: Script | None = None) -> None:
        self.script = list(script)
        self.handler = handler
        self.requests = []
        self.connections = 0
        self._errors: list[BaseException] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrived = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if error is None:
            assert not self._errors, self._errors
            assert not self.script, f"nobody asked for {self.script}"

    async def until(self, count: int) -> None:
        """Wait until so many requests have arrived."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)

    def asked(self, name: str) -> list[str | None]:
        """A parameter's value in each request."""
        return [request.query.get(name) for request in self.requests]

    def sent(self, name: str) -> list[str | None]:
        """A header's value in each request."""
        return [request.headers.get(name) for request in self.requests]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while await self._serve(reader, writer):
                    pass
        except Exception as error:
            self._errors.append(error)
            raise
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await _read(reader)
        self.requests.append(request)
        async with self._arrived:
            self._arrived.notify_all()
        prepared = await self._prepared(request)
        for piece in prepared.pieces:
            if isinstance(piece, asyncio.Event):
                await piece.wait()
                continue
            writer.write(piece)
            await writer.drain()
            # Gives the reader a chance to see this piece alone.
            await asyncio.sleep(0)
        return not prepared.breaks

    async def _prepared(self, request: Request) -> Answer:
        prepared: Answer | Script
        if self.script:
            prepared = self.script.pop(0)
        elif self.handler is not None:
            prepared = self.handler
        else:
            self._errors.append(AssertionError(f"unexpected {request}"))
            return answer(499, b"The test did not expect this request.")
        if isinstance(prepared, Answer):
            return prepared
        made = prepared(request)
        return await made if isawaitable(made) else made


async def _read(reader: asyncio.StreamReader) -> Request:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = lines[0].split(" ")
    headers = {}
    for line in lines[1:-2]:
        name, _, value = line.partition(": ")
        headers[name.lower()] = value
    if headers.get("transfer-encoding") != "chunked":
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Request(method, target, headers, body)
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return Request(method, target, headers, body)


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    """Run a test to its end, or to the deadline against hangs."""

    async def limited() -> Any:
        return await asyncio.wait_for(scenario, DEADLINE_S)

    return asyncio.run(limited())


@asynccontextmanager
async def scripted(
    *script: Answer | Script, handler: Script | None = None, **options: Any
) -> AsyncIterator[tuple[ScriptedServer, Client]]:
    """A server with a client to it, which makes four attempts unless it is told otherwise."""
    options.setdefault("retry", Retry(attempts=4))
    options.setdefault("tls", TLS)
    async with ScriptedServer(*script, handler=handler) as server:
        async with Client(server.url, **options) as client:
            yield server, client


async def rounds(count: int = 50) -> None:
    """Let everything else that can go on do so."""
    for _ in range(count):
        await asyncio.sleep(0)
