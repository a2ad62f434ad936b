"""HTTP/2 as an upstream speaks it: a stream can be reset while the connection stays."""

import asyncio

import h2.config
import h2.connection
import h2.errors
import h2.events

from tests.upstreams.answering import Serve
from tests.upstreams.replies import Reply
from tests.upstreams.requests import Request


class Http2Connection(asyncio.Protocol):
    """One connection: its streams are answered by `serve` side by side."""

    def __init__(self, serve: Serve) -> None:
        self.serve = serve
        # Headers are recorded and sent as they are: what is wrong with them is for the test to say.
        config = h2.config.H2Configuration(client_side=False, header_encoding="latin-1")
        self.http2 = h2.connection.H2Connection(config)
        self.streams: dict[int, Http2Stream] = {}
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.http2.initiate_connection()
        self.flush()

    def data_received(self, data: bytes) -> None:
        for event in self.http2.receive_data(data):
            self._take(event)
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        for stream in list(self.streams.values()):
            stream.leave()

    def flush(self) -> None:
        """Send what the state machine has to say."""
        self.transport.write(self.http2.data_to_send())

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=int(at), headers=list(headers)):
                text = [(str(name), str(value)) for name, value in headers]
                self.streams[at] = Http2Stream(self, at, text)
            case h2.events.DataReceived(stream_id=int(at), data=bytes(data)):
                self.http2.acknowledge_received_data(event.flow_controlled_length or 0, at)
                self.streams[at].body.append(data)
            case h2.events.StreamEnded(stream_id=int(at)):
                self.streams[at].ask()
            case h2.events.StreamReset(stream_id=int(at)) if at in self.streams:
                self.streams[at].leave()
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for stream in self.streams.values():
                    stream.room.set()
            case _:
                pass


class Http2Stream:
    """One stream: a request and its answer."""

    def __init__(
        self, connection: Http2Connection, at: int, headers: list[tuple[str, str]]
    ) -> None:
        self._connection = connection
        self._at = at
        self._headers = headers
        self._task: asyncio.Task[None] | None = None
        self._request: Request | None = None
        self.body: list[bytes] = []
        self.room = asyncio.Event()

    def ask(self) -> None:
        """The request is complete."""
        pseudo = {name: value for name, value in self._headers if name.startswith(":")}
        headers = [("host", pseudo.get(":authority", ""))]
        headers += [pair for pair in self._headers if not pair[0].startswith(":")]
        self._request = Request(
            pseudo[":method"], pseudo[":path"], headers, b"".join(self.body), "2"
        )
        self._task = asyncio.get_running_loop().create_task(self._answer(self._request))

    def leave(self) -> None:
        """The client does not want the answer any more."""
        self._connection.streams.pop(self._at, None)
        if self._task is not None:
            self._task.cancel()
        if self._request is not None:
            self._request.end("disconnected")

    async def _answer(self, request: Request) -> None:
        await self._connection.serve(request, self)
        self._connection.streams.pop(self._at, None)
        request.end("answered")

    def start(self, reply: Reply) -> None:
        assert self._request is not None
        if reply.early:
            early = [(":status", str(reply.early)), ("link", "</a.css>")]
            self._connection.http2.send_headers(self._at, early)
        head = [(":status", str(reply.status))]
        head += [(name.lower(), value) for name, value in reply.head()]
        if self._request.method == "HEAD" or reply.status in {204, 304}:
            reply.body = ()
        elif reply.framing == "length":
            head.append(("content-length", str(sum(map(len, reply.pieces())))))
        self._connection.http2.send_headers(self._at, head)
        self._connection.flush()

    async def send(self, piece: bytes) -> None:
        http2 = self._connection.http2
        while piece:
            self.room.clear()
            window = http2.local_flow_control_window(self._at)
            if window <= 0:
                await self.room.wait()
                continue
            part = piece[: min(window, http2.max_outbound_frame_size)]
            http2.send_data(self._at, part)
            self._connection.flush()
            piece = piece[len(part) :]

    def finish(self) -> None:
        self._connection.http2.end_stream(self._at)
        self._connection.flush()

    def cut(self) -> None:
        self._connection.transport.close()

    def reset(self) -> None:
        self._connection.http2.reset_stream(self._at, h2.errors.ErrorCodes.INTERNAL_ERROR)
        self._connection.flush()

    def send_raw(self, raw: bytes) -> None:
        self._connection.transport.write(raw)
        self.cut()
