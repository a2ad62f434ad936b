"""Small blocking HTTP clients that prepare streams and check responses; never the load itself."""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

TIMEOUT_S = 30.0
PREPARING_CONNECTIONS = 8


@dataclass(frozen=True, slots=True)
class Request:
    """One request to send; `expected` are the statuses that count as success."""

    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    expected: tuple[int, ...] = (200, 201, 204)


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class UnexpectedResponseError(Exception):
    """A server answered a preparing or checking request with something else than success."""


class Client:
    """One keep-alive connection."""

    def __init__(self, port: int, timeout_s: float = TIMEOUT_S) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Response:
        """Send one request and read its whole response. Failures of the connection are OSError."""
        try:
            response = self._ask(method, path, body, headers or {})
            content = response.read()
        except http.client.HTTPException as error:
            self._connection.close()
            raise OSError(str(error)) from error
        return Response(response.status, {k.lower(): v for k, v in response.getheaders()}, content)

    def _ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        """Send one request; once more if the server had closed the connection for idleness."""
        for is_last in (False, True):
            try:
                self._connection.request(method, path, body, headers)
                return self._connection.getresponse()
            except (http.client.RemoteDisconnected, BrokenPipeError):
                self._connection.close()
                if is_last:
                    raise
        raise AssertionError("the loop ends with a response or an error")

    def send(self, request: Request) -> Response:
        """Send one request and insist on an expected status."""
        response = self.request(request.method, request.path, request.body, request.headers)
        if response.status not in request.expected:
            message = f"{request.method} {request.path}: {response.status} {response.body[:200]!r}"
            raise UnexpectedResponseError(message)
        return response


def send_all(port: int, requests: Sequence[Request]) -> list[Response]:
    """Send many requests over a few connections; return the responses in their order."""

    def send_share(first: int) -> list[Response]:
        with Client(port) as client:
            return [client.send(request) for request in requests[first::PREPARING_CONNECTIONS]]

    responses: list[Response | None] = [None] * len(requests)
    with ThreadPoolExecutor(PREPARING_CONNECTIONS) as pool:
        shares = pool.map(send_share, range(PREPARING_CONNECTIONS))
        for first, share in enumerate(shares):
            responses[first::PREPARING_CONNECTIONS] = share
    return [response for response in responses if response is not None]


def length_of(head: Response) -> int:
    """Return a stream's length in bytes: the last number of its offset, on every server here."""
    return int(head.headers["stream-next-offset"].rpartition("_")[2])


CONTENT_TYPE = "application/octet-stream"
# Below the server's limit of requests in progress on one connection.
AT_ONCE = 50
FILL_TIMEOUT_S = 60.0
RECEIVE_BYTES = 64 * 1024


def fill(port: int, path: str, messages: int, size_bytes: int) -> None:
    """Create a stream and append to it, so many messages of a size."""
    with socket.create_connection(("127.0.0.1", port), FILL_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _send_pipelined(connection, wire_request("PUT", path, b""), 1)
        append = wire_request(
            "POST", path, (bytes(range(256)) * (size_bytes // 256 + 1))[:size_bytes]
        )
        for first in range(0, messages, AT_ONCE):
            count = min(AT_ONCE, messages - first)
            _send_pipelined(connection, append * count, count)


def send_in_order(port: int, requests: Sequence[bytes]) -> None:
    """Send requests that are answered without a body over one connection, many at once."""
    with socket.create_connection(("127.0.0.1", port), FILL_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for first in range(0, len(requests), AT_ONCE):
            share = requests[first : first + AT_ONCE]
            _send_pipelined(connection, b"".join(share), len(share))


def wire_request(method: str, path: str, body: bytes, content_type: str = CONTENT_TYPE) -> bytes:
    """Return a request as bytes."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _send_pipelined(connection: socket.socket, requests: bytes, count: int) -> None:
    """Send requests that are answered without a body, and insist on success."""
    connection.sendall(requests)
    responses = b""
    while responses.count(b"\r\n\r\n") < count:
        received = connection.recv(RECEIVE_BYTES)
        if not received:
            raise RuntimeError("the server closed the connection")
        responses += received
    good = responses.count(b"HTTP/1.1 201 ") + responses.count(b"HTTP/1.1 204 ")
    if good != count:
        raise RuntimeError(f"an append was answered with {responses[:200]!r}")


FILL_TIMEOUT_S = 60.0
BUFFER_BYTES = 2 * 2**20
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_NEXT = re.compile(rb"\r\nstream-next-offset: *([0-9_]+)", re.IGNORECASE)
_UP_TO_DATE = re.compile(rb"\r\nstream-up-to-date: *true", re.IGNORECASE)


class Page(NamedTuple):
    """What one response brought."""

    size_bytes: int
    next_offset: str
    up_to_date: bool


class PageReader:
    """One keep-alive connection for reads."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = socket.create_connection(("127.0.0.1", port), FILL_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def catch_up(self, path: str) -> int:
        """Read a stream from its start to its tail, page by page; the bytes there were."""
        offset, total = "-1", 0
        while True:
            page = self.read(path, offset)
            total += page.size_bytes
            if page.up_to_date:
                return total
            offset = page.next_offset

    def read(self, path: str, offset: str) -> Page:
        """Read one page."""
        self._socket.sendall(
            f"GET {path}?offset={offset} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n\r\n".encode()
        )
        got, head_end = 0, -1
        while head_end < 0:
            got += self._receive(got)
            head_end = self._buffer.find(b"\r\n\r\n", 0, got)
        head = bytes(self._view[: head_end + 2])
        length, following = _LENGTH.search(head), _NEXT.search(head)
        if not head.startswith(b"HTTP/1.1 200 ") or length is None or following is None:
            raise RuntimeError(f"a read was answered with {head[:200]!r}")
        size_bytes = int(length[1])
        missing = head_end + 4 + size_bytes - got
        while missing > 0:
            missing -= self._receive(0)
        return Page(size_bytes, following[1].decode(), _UP_TO_DATE.search(head) is not None)

    def _receive(self, at: int) -> int:
        count = self._socket.recv_into(self._view[at:])
        if not count:
            raise RuntimeError("the server closed the connection within a response")
        return count
