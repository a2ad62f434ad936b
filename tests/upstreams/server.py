"""An upstream: a server on loopback with a thread of its own."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from threading import Condition, Event, Thread
from types import TracebackType
from typing import Self
from urllib.parse import urlencode

import trustme

from tests.upstreams.answering import Wire, answer
from tests.upstreams.http1 import Http1Connection
from tests.upstreams.http2 import Http2Connection
from tests.upstreams.replies import deliver
from tests.upstreams.requests import DEADLINE_S, Request
from tests.upstreams.routes import ROUTES, Route, missing

HOST = "127.0.0.1"


class Upstream:
    """Answers as the URL says, and keeps every request; see the package for how to ask.

    With `tls` it has a certificate for 127.0.0.1, localhost and `names`, from an authority of its
    own (`write_authority`), and speaks the protocols of `alpn`.
    """

    def __init__(
        self,
        *,
        tls: bool = False,
        alpn: tuple[str, ...] = ("h2", "http/1.1"),
        names: tuple[str, ...] = (),
    ) -> None:
        self.routes: dict[str, Route] = dict(ROUTES)
        self.requests: list[Request] = []
        self.port = 0
        self.connections = 0
        self.authority = trustme.CA() if tls else None
        self._tls = self._context(alpn, names) if self.authority else None
        self._taken = 0
        self._arrived = Condition()
        self._open: set[asyncio.BaseTransport] = set()
        self._loop = asyncio.new_event_loop()
        self._listening = Event()
        self._thread = Thread(target=self._run, name="upstream")

    @property
    def scheme(self) -> str:
        """How it is spoken to."""
        return "https" if self._tls else "http"

    @property
    def base_url(self) -> str:
        """Scheme, host and port, as a pattern of an allowlist would have them."""
        return f"{self.scheme}://{HOST}:{self.port}"

    def url(self, path: str = "/fixed", **query: object) -> str:
        """The URL for a behaviour; a list gives a name several values."""
        asked = urlencode(query, doseq=True)
        return f"{self.base_url}{path}?{asked}" if asked else f"{self.base_url}{path}"

    def next(self, timeout_s: float = DEADLINE_S) -> Request:
        """The oldest request that nobody has taken yet, once there is one."""
        with self._arrived:
            came = self._arrived.wait_for(lambda: len(self.requests) > self._taken, timeout_s)
            assert came, "no request came"
            self._taken += 1
            return self.requests[self._taken - 1]

    def wait_for(self, wanted: Callable[[Request], bool], timeout_s: float = DEADLINE_S) -> Request:
        """The first request of this kind, old or yet to come."""
        with self._arrived:
            self._arrived.wait_for(lambda: any(map(wanted, self.requests)), timeout_s)
            found = next(filter(wanted, self.requests), None)
        assert found is not None, f"no such request among {list(map(str, self.requests))}"
        return found

    def write_authority(self, directory: Path) -> Path:
        """A file with the certificate of the authority that a client has to trust."""
        assert self.authority is not None
        path = directory / "authority.pem"
        self.authority.cert_pem.write_to_path(str(path))
        return path

    def start(self) -> Self:
        """Listen, on a port that the system chose."""
        self._thread.start()
        assert self._listening.wait(DEADLINE_S)
        return self

    def close(self) -> None:
        """Cut all connections, and end the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _context(self, alpn: tuple[str, ...], names: tuple[str, ...]) -> ssl.SSLContext:
        assert self.authority is not None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.authority.issue_cert(HOST, "localhost", *names).configure_cert(context)
        context.set_alpn_protocols(list(alpn))
        return context

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            server = runner.run(self._listen())
            self.port = server.sockets[0].getsockname()[1]
            self._listening.set()
            self._loop.run_forever()
            runner.run(self._leave(server))

    async def _listen(self) -> asyncio.Server:
        return await self._loop.create_server(
            lambda: _Connection(self), HOST, 0, ssl=self._tls, backlog=1024
        )

    async def _leave(self, server: asyncio.Server) -> None:
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for transport in list(self._open):
            assert isinstance(transport, asyncio.Transport)
            transport.abort()
        # Each of them ends when its connection is lost.
        await asyncio.gather(*tasks, return_exceptions=True)

    async def serve(self, request: Request, wire: Wire) -> None:
        """Keep the request, and answer it."""
        with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()
        route = self.routes.get(request.path, missing)
        await answer(request, deliver(route(request), request.query), wire)

    def opened(self, transport: asyncio.BaseTransport) -> None:
        """A connection has been made."""
        self.connections += 1
        self._open.add(transport)

    def closed(self, transport: asyncio.BaseTransport) -> None:
        """A connection is gone."""
        self._open.discard(transport)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Connection(asyncio.Protocol):
    """A connection whose version of HTTP is known once TLS has agreed on it."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._spoken: asyncio.Protocol
        self._transport: asyncio.BaseTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tls = transport.get_extra_info("ssl_object")
        http2 = tls is not None and tls.selected_alpn_protocol() == "h2"
        self._spoken = (Http2Connection if http2 else Http1Connection)(self._upstream.serve)
        self._transport = transport
        self._upstream.opened(transport)
        self._spoken.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._spoken.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._upstream.closed(self._transport)
        self._spoken.connection_lost(error)

    def pause_writing(self) -> None:
        self._spoken.pause_writing()

    def resume_writing(self) -> None:
        self._spoken.resume_writing()
