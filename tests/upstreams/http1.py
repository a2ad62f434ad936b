"""HTTP/1.1 as an upstream speaks it, with every way of ending a response."""

import asyncio
import contextlib
import socket
import struct
from http import HTTPStatus

import httptools

from tests.upstreams.answering import Serve
from tests.upstreams.replies import Reply
from tests.upstreams.requests import Request

_NO_LINGER = struct.pack("ii", 1, 0)
_WITHOUT_BODY = {204, 304}


class Http1Connection(asyncio.Protocol):
    """One connection: requests one after the other, each answered by `serve`."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._parser = httptools.HttpRequestParser(self)
        self._room = asyncio.Event()
        self._room.set()
        self._target = b""
        self._headers: list[tuple[str, str]] = []
        self._body: list[bytes] = []
        self._request: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._chunked = False
        self._close = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.cut()

    def connection_lost(self, error: Exception | None) -> None:
        self._room.set()
        if self._task is not None:
            self._task.cancel()
        if self._request is not None:
            self._request.end("disconnected")

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def on_message_begin(self) -> None:
        self._target, self._headers, self._body = b"", [], []

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_body(self, piece: bytes) -> None:
        self._body.append(piece)

    def on_message_complete(self) -> None:
        assert self._request is None, "nobody sends requests ahead to an upstream"
        self._request = Request(
            self._parser.get_method().decode(),
            self._target.decode("latin-1"),
            self._headers,
            b"".join(self._body),
            self._parser.get_http_version(),
        )
        self._close = not self._parser.should_keep_alive()
        self._task = asyncio.get_running_loop().create_task(self._answer(self._request))

    async def _answer(self, request: Request) -> None:
        await self._serve(request, self)
        self._request = self._task = None
        if self._close:
            self._transport.close()
        request.end("answered")

    def start(self, reply: Reply) -> None:
        assert self._request is not None
        lines = []
        if reply.early:
            lines += [f"HTTP/1.1 {reply.early} {_reason(reply.early)}", "link: </a.css>", ""]
        lines.append(f"HTTP/1.1 {reply.status} {_reason(reply.status)}")
        lines += [f"{name}: {value}" for name, value in reply.head()]
        self._chunked = False
        if self._request.method == "HEAD" or reply.status in _WITHOUT_BODY:
            reply.body = ()
        elif reply.framing == "length":
            lines.append(f"content-length: {sum(map(len, reply.pieces()))}")
        elif reply.framing == "chunked":
            lines.append("transfer-encoding: chunked")
            self._chunked = True
        else:
            lines.append("connection: close")
            self._close = True
        self._transport.write("\r\n".join([*lines, "", ""]).encode("latin-1"))

    async def send(self, piece: bytes) -> None:
        if self._chunked:
            piece = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
        self._transport.write(piece)
        await self._room.wait()

    def finish(self) -> None:
        if self._chunked:
            self._transport.write(b"0\r\n\r\n")

    def cut(self) -> None:
        self._close = True
        self._transport.close()

    def reset(self) -> None:
        self._close = True
        raw = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()

    def send_raw(self, raw: bytes) -> None:
        self._transport.write(raw)
        self.cut()


def _reason(status: int) -> str:
    return HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Some Status"
