"""A server on loopback that speaks HTTP/2 as a test tells it to, and notes what it is told."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import trustme

Behaviour = Callable[["Exchange"], Awaitable[None]]


class Http2Loopback:
    """What the server has seen; see `serving_http2`."""

    def __init__(self, behave: Behaviour) -> None:
        self.behave = behave
        self.port = 0
        self.streams_max = 100
        self.connections: list[Connection] = []
        self.exchanges: list[Exchange] = []


class Exchange:
    """One request, and the means to answer it."""

    def __init__(self, connection: "Connection", event: h2.events.RequestReceived) -> None:
        self.connection = connection
        self.stream_id = event.stream_id
        self.headers = dict(event.headers)
        self.body = b""
        self.whole = asyncio.Event()
        # The code that the client gave the stream up with.
        self.reset: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def head(self, *headers: tuple[str, str], status: str = "200", end: bool = False) -> None:
        """Send the head of an answer, also one that is only informational."""
        sent = [(":status", status), *headers]
        self.connection.state.send_headers(self.stream_id, sent, end_stream=end)
        self.connection.flush()

    def data(self, data: bytes, *, end: bool = False) -> None:
        """Send a piece of the body."""
        self.connection.state.send_data(self.stream_id, data, end_stream=end)
        self.connection.flush()

    def room(self) -> int:
        """How much the client would take at once."""
        state = self.connection.state
        return min(state.local_flow_control_window(self.stream_id), state.max_outbound_frame_size)


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: Http2Loopback) -> None:
        self._server = server
        config = h2.config.H2Configuration(
            client_side=False, header_encoding="utf-8", validate_outbound_headers=False
        )
        self.state = h2.connection.H2Connection(config)
        self.transport: asyncio.Transport
        self.exchanges: dict[int, Exchange] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.lost = asyncio.Event()
        self.room = asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport
        self._server.connections.append(self)
        settings = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: self._server.streams_max}
        self.state.local_settings = h2.settings.Settings(client=False, initial_values=settings)
        self.state.initiate_connection()
        self.flush()

    def data_received(self, data):
        try:
            events = self.state.receive_data(data)
        except h2.exceptions.ProtocolError:
            self.transport.abort()
            return
        for event in events:
            self.take(event)
        self.flush()

    def take(self, event):
        match event:
            case h2.events.RequestReceived():
                exchange = self.exchanges[event.stream_id] = Exchange(self, event)
                self._server.exchanges.append(exchange)
                task = asyncio.create_task(self._server.behave(exchange))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
            case h2.events.DataReceived():
                self.exchanges[event.stream_id].body += event.data
                self.state.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                self.exchanges[event.stream_id].whole.set()
            case h2.events.StreamReset():
                self.exchanges[event.stream_id].reset.set_result(int(event.error_code))
            case h2.events.WindowUpdated():
                self.room.set()

    def flush(self):
        if not self.transport.is_closing():
            self.transport.write(self.state.data_to_send())

    def connection_lost(self, exc):
        self.lost.set()
        for task in self.tasks:
            task.cancel()


@asynccontextmanager
async def serving_http2(
    behave: Behaviour, authority: trustme.CA, name: str = "127.0.0.1"
) -> AsyncIterator[Http2Loopback]:
    """Run a server on a free port of 127.0.0.1."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.set_alpn_protocols(["h2"])
    authority.issue_cert(name).configure_cert(tls)
    loopback = Http2Loopback(behave)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(loopback), "127.0.0.1", 0, ssl=tls)
    loopback.port = server.sockets[0].getsockname()[1]
    try:
        yield loopback
    finally:
        server.close()
        for connection in loopback.connections:
            connection.transport.abort()
