"""Requests that prepare a run and clean up after it; never the load itself."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import httptools

from holdfast.cli.bench.target import Target, connect, unreachable
from holdfast.errors import HoldfastError

__all__ = ["Call", "Reply", "call_all", "expect"]

AT_ONCE = 32
ANSWER_TIMEOUT_S = 60.0
EXAMPLE_CHARACTERS_MAX = 200


class Call(NamedTuple):
    """One request."""

    method: str
    path: str
    body: bytes = b""
    content_type: str | None = None


class Reply(NamedTuple):
    """One answer; the names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class _Caller(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._reply: asyncio.Future[Reply] | None = None
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def send(self, request: bytes) -> Reply:
        assert self._transport is not None
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await self._reply

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._settle(ConnectionError("it does not answer in HTTP"))
            self.close()

    def on_message_begin(self) -> None:
        self._headers, self._body = {}, []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        if not self._parser.should_keep_alive():
            self.close()
        self._settle(Reply(status, self._headers, b"".join(self._body)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._settle(exc or ConnectionError("it closed the connection"))

    def _settle(self, outcome: Reply | Exception) -> None:
        if self._reply is None or self._reply.done():
            return
        if isinstance(outcome, Reply):
            self._reply.set_result(outcome)
        else:
            self._reply.set_exception(outcome)


async def call_all(target: Target, calls: Sequence[Call]) -> list[Reply]:
    """Send requests over a few connections; the answers come in the order of the requests."""
    context = target.tls_context()
    replies: dict[int, Reply] = {}
    waiting = iter(enumerate(calls))

    async def work() -> None:
        caller: _Caller | None = None
        try:
            for number, call in waiting:
                if caller is None or not caller.usable:
                    caller = await connect(target, context, _Caller)
                replies[number] = await caller.send(_request(target, call))
        finally:
            if caller is not None:
                caller.close()

    workers = [asyncio.create_task(work()) for _ in range(min(AT_ONCE, len(calls)))]
    try:
        await asyncio.gather(*workers)
    except OSError as error:
        raise unreachable(target, error) from None
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [replies[number] for number in range(len(calls))]


def _request(target: Target, call: Call) -> bytes:
    head = target.head(call.method, call.path)
    if call.content_type is not None:
        head += f"Content-Type: {call.content_type}\r\n".encode()
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(call.body), call.body)


def expect(call: Call, reply: Reply, statuses: Iterable[int]) -> Reply:
    """Insist on one of these statuses."""
    if reply.status in statuses:
        return reply
    text = " ".join(reply.body.decode(errors="replace").split())[:EXAMPLE_CHARACTERS_MAX]
    said = f": {text.removesuffix('.')}" if text else ""
    raise HoldfastError(f"{call.method} {call.path} was answered with {reply.status}{said}.")
