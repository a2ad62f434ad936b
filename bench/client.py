"""A small blocking HTTP client that prepares streams and checks answers; never the load itself."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

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
    """A complete answer; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class UnexpectedAnswerError(Exception):
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
        """Send one request and read its whole answer. Failures of the connection are OSError."""
        try:
            answer = self._ask(method, path, body, headers or {})
            content = answer.read()
        except http.client.HTTPException as error:
            self._connection.close()
            raise OSError(str(error)) from error
        return Response(answer.status, {k.lower(): v for k, v in answer.getheaders()}, content)

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
        raise AssertionError("the loop ends with an answer or an error")

    def send(self, request: Request) -> Response:
        """Send one request and insist on an expected status."""
        answer = self.request(request.method, request.path, request.body, request.headers)
        if answer.status not in request.expected:
            message = f"{request.method} {request.path}: {answer.status} {answer.body[:200]!r}"
            raise UnexpectedAnswerError(message)
        return answer


def send_all(port: int, requests: Sequence[Request]) -> list[Response]:
    """Send many requests over a few connections; the answers come in the order of the requests."""

    def send_share(first: int) -> list[Response]:
        with Client(port) as client:
            return [client.send(request) for request in requests[first::PREPARING_CONNECTIONS]]

    answers: list[Response | None] = [None] * len(requests)
    with ThreadPoolExecutor(PREPARING_CONNECTIONS) as pool:
        shares = pool.map(send_share, range(PREPARING_CONNECTIONS))
        for first, share in enumerate(shares):
            answers[first::PREPARING_CONNECTIONS] = share
    return [answer for answer in answers if answer is not None]


def length_of(head: Response) -> int:
    """Return a stream's length in bytes: the last number of its offset, on every server here."""
    return int(head.headers["stream-next-offset"].rpartition("_")[2])
