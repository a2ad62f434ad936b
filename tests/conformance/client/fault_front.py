"""A server in front of the server, that does to requests and answers what networks and servers do.

    with FaultFront(server.port) as front:  # use front.port instead of the server's
        front.inject("/v1/stream/demo", Fault(status=503, times=2))

It takes one request per connection, which keeps it small: the client opens a new one each time.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any, Self

DEADLINE_S = 15.0
_PIECE_BYTES = 65_536
_HEAD_BYTES_MAX = 1024 * 1024


@dataclass
class Fault:
    """What happens to the next `times` requests for a path; several things may come together."""

    times: int = 1
    method: str = ""
    # Only to requests in this live mode.
    live: str = ""
    delay_s: float = 0.0
    # Answered at once, without asking the server.
    status: int = 0
    retry_after_s: int | None = None
    # The connection ends before the server is asked, or behind its answer, which is lost.
    drops: bool = False
    loses_answer: bool = False
    # The body is cut here, with a Content-Length that fits, or breaks off here without one.
    truncates_to: int | None = None
    breaks_after: int | None = None
    corrupts: bool = False
    strips: tuple[str, ...] = ()
    # Comes before what the server sends on an SSE connection.
    event: bytes = b""

    def matches(self, request: "Request") -> bool:
        live_fits = not self.live or f"live={self.live}" in request.query
        return self.times > 0 and self.method in {"", request.method} and live_fits


@dataclass(frozen=True)
class Request:
    """A request that has come in."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    raw_head: bytes
    body: bytes


class FaultFront:
    """Passes requests on to a port of this machine."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._faults: dict[str, list[Fault]] = {}
        self._loop = asyncio.new_event_loop()
        self._progress = Condition()
        self._thread = Thread(target=self._run, daemon=True)
        self._stop: asyncio.Event | None = None
        self.requests: list[Request] = []
        # Requests whose answer has begun.
        self.answered: list[Request] = []
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_until(lambda: self.port > 0)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DEADLINE_S)

    def inject(self, path: str, fault: Fault) -> None:
        self._faults.setdefault(path, []).append(fault)

    def seen(self, path: str) -> list[Request]:
        return [request for request in list(self.requests) if request.path == path]

    def wait_until_live(self, path: str, mode: str) -> None:
        """Wait until a live read of this path has an answer under way, or waits for one."""
        seen = self.answered if mode == "sse" else self.requests
        self.wait_until(
            lambda: any(each.path == path and f"live={mode}" in each.query for each in list(seen))
        )

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self._progress:
            assert self._progress.wait_for(condition, DEADLINE_S), "it never came to that"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        listener = await asyncio.start_server(
            self._handle, "127.0.0.1", 0, limit=_HEAD_BYTES_MAX, backlog=512
        )
        self._note(lambda: setattr(self, "port", listener.sockets[0].getsockname()[1]))
        await self._stop.wait()
        listener.close()
        connections = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def _note(self, change: Callable[[], object]) -> None:
        with self._progress:
            change()
            self._progress.notify_all()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _read_request(reader)
            self._note(lambda: self.requests.append(request))
            await _unless_gone(reader, self._answer(request, self._fault_for(request), writer))
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client or the server has gone
        finally:
            writer.close()

    def _fault_for(self, request: Request) -> Fault:
        for fault in self._faults.get(request.path, []):
            if fault.matches(request):
                fault.times -= 1
                return fault
        return Fault()

    async def _answer(self, request: Request, fault: Fault, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(fault.delay_s)
        if fault.drops:
            writer.transport.abort()
        elif fault.status:
            writer.write(_own_answer(fault))
            await writer.drain()
        else:
            await self._pass_on(request, fault, writer)

    async def _pass_on(self, request: Request, fault: Fault, writer: asyncio.StreamWriter) -> None:
        answer, to_server = await asyncio.open_connection(
            "127.0.0.1", self._target_port, limit=_HEAD_BYTES_MAX
        )
        try:
            to_server.write(_with_close(request.raw_head) + request.body)
            head = await answer.readuntil(b"\r\n\r\n")
            if fault.loses_answer:
                writer.transport.abort()
                return
            self._note(lambda: self.answered.append(request))
            await _relay(head, answer, fault, writer)
        finally:
            to_server.close()


async def _unless_gone(client: asyncio.StreamReader, answering: Coroutine[Any, Any, None]) -> None:
    """Answer, until the client hangs up."""
    tasks = [asyncio.ensure_future(answering), asyncio.ensure_future(client.read(1))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read_request(reader: asyncio.StreamReader) -> Request:
    raw_head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = raw_head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    path, _, query = target.partition("?")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, query, headers, raw_head, body)


async def _relay(
    head: bytes, answer: asyncio.StreamReader, fault: Fault, writer: asyncio.StreamWriter
) -> None:
    """Pass an answer on: as it comes, or changed."""
    changes = (fault.truncates_to, fault.breaks_after) != (None, None) or fault.corrupts
    head = _without(head, fault.strips)
    if changes:
        body = _changed(await answer.read(-1), fault)
        if fault.breaks_after is None:
            length = f"Content-Length: {len(body)}\r\n\r\n".encode()
            head = _without(head, ("content-length",)).removesuffix(b"\r\n") + length
        writer.write(_with_close(head) + body)
        await writer.drain()
        return
    writer.write(_with_close(head) + _framed(fault.event, head))
    await writer.drain()
    while piece := await answer.read(_PIECE_BYTES):
        writer.write(piece)
        await writer.drain()


def _changed(body: bytes, fault: Fault) -> bytes:
    if fault.corrupts:
        return bytes(byte ^ 0x15 for byte in body)
    return body[: fault.truncates_to if fault.truncates_to is not None else fault.breaks_after]


def _framed(event: bytes, head: bytes) -> bytes:
    if event and b"transfer-encoding: chunked" in head.lower():
        return f"{len(event):x}\r\n".encode() + event + b"\r\n"
    return event


def _own_answer(fault: Fault) -> bytes:
    later = "" if fault.retry_after_s is None else f"Retry-After: {fault.retry_after_s}\r\n"
    head = f"HTTP/1.1 {fault.status} Injected\r\n{later}Content-Length: 8\r\n"
    return f"{head}Connection: close\r\n\r\ninjected".encode()


def _without(head: bytes, names: tuple[str, ...]) -> bytes:
    lines = head.split(b"\r\n")
    lowered = [name.lower().encode() + b":" for name in names]
    return b"\r\n".join(
        line for line in lines if not any(line.lower().startswith(name) for name in lowered)
    )


def _with_close(head: bytes) -> bytes:
    """The same head, but this is the only exchange on its connection."""
    return _without(head, ("connection",)).removesuffix(b"\r\n") + b"Connection: close\r\n\r\n"
