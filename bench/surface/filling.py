"""Fills streams with many small messages: appends one behind the other on one connection."""

from __future__ import annotations

import socket
from collections.abc import Sequence

CONTENT_TYPE = "application/octet-stream"
# Below the server's limit of requests in progress on one connection.
AT_ONCE = 50
TIMEOUT_S = 60.0
RECEIVE_BYTES = 64 * 1024


def fill(port: int, path: str, messages: int, size_bytes: int) -> None:
    """Create a stream and append to it, so many messages of a size."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _send(connection, request("PUT", path, b""), 1)
        append = request("POST", path, (bytes(range(256)) * (size_bytes // 256 + 1))[:size_bytes])
        for first in range(0, messages, AT_ONCE):
            count = min(AT_ONCE, messages - first)
            _send(connection, append * count, count)


def send_in_order(port: int, requests: Sequence[bytes]) -> None:
    """Send requests that are answered without a body over one connection, many at once."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for first in range(0, len(requests), AT_ONCE):
            share = requests[first : first + AT_ONCE]
            _send(connection, b"".join(share), len(share))


def request(method: str, path: str, body: bytes, content_type: str = CONTENT_TYPE) -> bytes:
    """A request as it is on the wire."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _send(connection: socket.socket, requests: bytes, count: int) -> None:
    """Send requests that are answered without a body, and insist on success."""
    connection.sendall(requests)
    answers = b""
    while answers.count(b"\r\n\r\n") < count:
        received = connection.recv(RECEIVE_BYTES)
        if not received:
            raise RuntimeError("the server closed the connection")
        answers += received
    good = answers.count(b"HTTP/1.1 201 ") + answers.count(b"HTTP/1.1 204 ")
    if good != count:
        raise RuntimeError(f"an append was answered with {answers[:200]!r}")
