"""One keep-alive HTTP/1.1 connection: one request at a time, requests are bytes."""

import asyncio
from typing import Protocol, cast

import httptools

from holdfast.cli.bench.target import failure_kind

__all__ = ["Connection", "Owner"]

# Of an answer that is an error, as much as an example needs.
KEPT_BYTES_MAX = 1000


class Owner(Protocol):
    """Whom a connection tells what came of its requests."""

    def answered(self, status: int, size_bytes: int, kept: bytes) -> None:
        """The answer is complete: so long was its body; errors come with its start."""

    def lost(self, kind: str) -> None:
        """The connection is gone, with or without an answer under way."""


class Connection(asyncio.Protocol):
    """Sends what it is given, and counts what comes back."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._size_bytes = 0
        self._kept = b""
        self._kind: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)

    @property
    def usable(self) -> bool:
        """Whether another request can be sent on it."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes) -> None:
        """Send a request; the last one has been answered."""
        if self._transport is not None:
            self._transport.write(request)

    def abort(self, kind: str | None = None) -> None:
        """Give the connection up; the owner is told why."""
        self._kind = self._kind or kind
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.abort("invalid_response")

    def on_message_begin(self) -> None:
        """An answer begins."""
        self._size_bytes = 0
        self._kept = b""

    def on_body(self, body: bytes) -> None:
        """A piece of the answer's body."""
        self._size_bytes += len(body)
        if len(self._kept) < KEPT_BYTES_MAX and self._parser.get_status_code() >= 300:
            self._kept += body[:KEPT_BYTES_MAX]

    def on_message_complete(self) -> None:
        """The answer is there."""
        status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self._kind = "connection_closed"
            cast(asyncio.Transport, self._transport).close()
        self._owner.answered(status, self._size_bytes, self._kept)

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever ended it."""
        self._transport = None
        self._owner.lost(self._kind or failure_kind(exc))
