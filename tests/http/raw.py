"""HTTP/1 by hand, for requests that no well-behaved client would send."""

import socket
from dataclasses import dataclass
from typing import Self

DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class RawResponse:
    """A response; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class RawConnection:
    """One TCP connection that bytes go into and responses come out of."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def request(self, method: str, target: str, *headers: str, body: bytes = b"") -> None:
        """Send a request with a Host header, and a Content-Length where there is a body."""
        lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *headers]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def response(self, method: str = "GET") -> RawResponse:
        """Read one response; what follows it on the connection stays unread."""
        status_line = self._file.readline()
        if not status_line:
            raise EOFError("the server closed the connection instead of answering")
        status = int(status_line.split()[1])
        headers = {}
        while line := self._file.readline().strip().decode("latin-1"):
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        bodiless = method == "HEAD" or status < 200 or status in {204, 304}
        return RawResponse(status, headers, b"" if bodiless else self._body(headers))

    def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            return self._chunks()
        if "content-length" in headers:
            return self._file.read(int(headers["content-length"]))
        return self._file.read()

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self._file.readline().split(b";")[0], 16):
            body += self._file.read(size)
            self._file.readline()
        self._file.readline()
        return body

    def ended(self) -> bool:
        """Whether the server closes the connection, without another byte, within the deadline."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True
