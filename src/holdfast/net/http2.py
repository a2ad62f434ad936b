"""A connection that speaks HTTP/2: many requests at a time, with responses that may last.

Rules:

- A caller that leaves a response early resets its stream, so that the server stops as well.
- After a graceful GOAWAY no new requests are sent, and those that the server has are finished. A
  request that it has not processed counts as never sent.
- Silence ends one response, not its neighbours. But a connection on which nothing arrived for a
  while after a request takes no further ones: it may be dead without either side knowing.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from holdfast.net.exchange import HttpConnection, OutboundRequest, OutboundStream
from holdfast.net.failures import (
    InvalidResponseError,
    RequestRefusedError,
    TransportError,
    UnsendableError,
)
from holdfast.net.sockets import SocketProtocol
from holdfast.net.targets import Target

# How much of one response the server may send before it is taken, and of all together.
RESPONSE_WINDOW_BYTES: Final = 1024 * 1024
_CONNECTION_WINDOW_BYTES: Final = 16 * 1024 * 1024
# A request without any reaction for so long keeps others from following it.
REACTION_S: Final = 10.0
# A server that causes this much to be sent back without reading any of it is disconnected.
_UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
_HEADER_LIST_BYTES_MAX: Final = 64 * 1024
# These are about an HTTP/1.1 connection; the host has a pseudo-header.
_HTTP1_HEADERS: Final = frozenset(
    {b"host", b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)


class _H2State(h2.connection.H2Connection):
    """Keeps streams open after a graceful GOAWAY, which h2 takes for the end of all of them."""

    def _receive_goaway_frame(self, frame: Any) -> Any:
        if frame.error_code != h2.errors.ErrorCodes.NO_ERROR:
            return super()._receive_goaway_frame(frame)
        event = h2.events.ConnectionTerminated()
        event.error_code = h2.errors.ErrorCodes.NO_ERROR
        event.last_stream_id = frame.last_stream_id
        return [], [event]


class Http2Response(OutboundStream):
    def __init__(
        self, connection: Http2Connection, request: OutboundRequest, stream_id: int, *, sent: bool
    ) -> None:
        super().__init__(request)
        self._connection = connection
        self.stream_id = stream_id
        self.sent = sent
        self.is_reset = False
        self.unread_bytes = 0

    def arrived(self, piece: bytes) -> bool:
        if super().arrived(piece):
            self.unread_bytes += len(piece)
            return True
        self._connection.acknowledge(self.stream_id, len(piece))
        return False

    def _taken(self, size: int) -> None:
        self.unread_bytes -= size
        self._connection.acknowledge(self.stream_id, size)

    @property
    def needs_reset(self) -> bool:
        """Whether the server still holds the stream open."""
        if self.is_reset or isinstance(self._failure, RequestRefusedError):
            return False
        return not (self._complete and self.sent)

    def close(self) -> None:
        super().close()
        self._connection.leave(self)


class Http2Connection(HttpConnection):
    def __init__(self, target: Target, socket: SocketProtocol) -> None:
        super().__init__(target, socket)
        self._loop = asyncio.get_running_loop()
        self._responses: dict[int, Http2Response] = {}
        # Requests that were given this connection and are about to be sent.
        self.reserved = 0
        self._is_leaving = False
        # When the first request was sent that nothing has arrived after yet.
        self._unanswered_since_s: float | None = None
        # Done when the server's settings have arrived: they say how many requests it takes.
        self.settled: asyncio.Future[None] = self._loop.create_future()
        self._state = _H2State(h2.config.H2Configuration(validate_inbound_headers=False))
        self._begin()
        socket.receive(self)

    def _begin(self) -> None:
        codes = h2.settings.SettingCodes
        settings = h2.settings.Settings(
            client=True,
            initial_values={
                codes.ENABLE_PUSH: 0,
                codes.INITIAL_WINDOW_SIZE: RESPONSE_WINDOW_BYTES,
                codes.MAX_HEADER_LIST_SIZE: _HEADER_LIST_BYTES_MAX,
            },
        )
        # Some servers fail on settings they do not know, which they should ignore.
        del settings[codes.ENABLE_CONNECT_PROTOCOL]
        self._state.local_settings = settings
        self._state.initiate_connection()
        self._state.increment_flow_control_window(_CONNECTION_WINDOW_BYTES)
        self._flush()

    # Requests.

    @property
    def is_idle(self) -> bool:
        return not self._responses and not self.reserved

    @property
    def has_room(self) -> bool:
        if self.is_closed or self._is_leaving:
            return False
        if self._is_stale:
            return False
        streams_max = self._state.remote_settings.max_concurrent_streams
        return len(self._responses) + self.reserved < (streams_max if self.settled.done() else 1)

    @property
    def _is_stale(self) -> bool:
        since_s = self._unanswered_since_s
        return since_s is not None and self._loop.time() - since_s > REACTION_S

    async def send(self, request: OutboundRequest) -> OutboundStream:
        response = self._send_head(request)
        try:
            try:
                if not response.sent:
                    await self._send_body(request, response)
            except TransportError as error:
                # A server that closed the connection may have said why.
                if error.late:
                    raise
            await response.head()
        except BaseException:
            response.close()
            raise
        return response

    def _send_head(self, request: OutboundRequest) -> Http2Response:
        headers = [(name.lower(), value) for name, value in request.headers]
        head = [
            (b":method", request.method),
            (b":authority", next(value for name, value in headers if name == b"host")),
            (b":scheme", request.target.scheme.encode()),
            (b":path", request.path),
            *(header for header in headers if header[0] not in _HTTP1_HEADERS),
        ]
        has_body = any(name in {b"content-length", b"transfer-encoding"} for name, _ in headers)
        try:
            stream_id = self._state.get_next_available_stream_id()
            self._state.send_headers(stream_id, head, end_stream=not has_body)
        except (h2.exceptions.NoAvailableStreamIDError, h2.exceptions.TooManyStreamsError):
            self._finish_and_close()
            raise RequestRefusedError from None
        except h2.exceptions.ProtocolError as error:
            # Half a head may have changed the table that heads are compressed with.
            self._finish_and_close()
            raise UnsendableError from error
        response = Http2Response(self, request, stream_id, sent=not has_body)
        self._responses[stream_id] = response
        if self._unanswered_since_s is None:
            self._unanswered_since_s = self._loop.time()
        self._flush()
        return response

    async def _send_body(self, request: OutboundRequest, response: Http2Response) -> None:
        if isinstance(request.body, bytes):
            await self._send_piece(request, response, request.body)
        else:
            async for piece in request.body:
                await self._send_piece(request, response, piece)
                if response.is_over:
                    break
        if not response.is_over:
            self._state.end_stream(response.stream_id)
            response.sent = True
            self._flush()

    async def _send_piece(
        self, request: OutboundRequest, response: Http2Response, piece: bytes
    ) -> None:
        state, at = self._state, 0
        while at < len(piece) and not response.is_over:
            window = state.local_flow_control_window(response.stream_id)
            room = min(window, state.max_outbound_frame_size)
            if room <= 0:
                await response.news()
                continue
            state.send_data(response.stream_id, piece[at : at + room])
            at += room
            self._flush()
            await self._socket.drain(request.silence_s)

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Let the server send this much more."""
        if not self.is_closed:
            with suppress(h2.exceptions.ProtocolError):  # the server has closed the stream
                self._state.acknowledge_received_data(size, stream_id)
            self._flush()

    def leave(self, response: Http2Response) -> None:
        if self._responses.pop(response.stream_id, None) is None:
            return
        with suppress(h2.exceptions.ProtocolError):  # the server has closed the stream
            if response.unread_bytes:
                self._state.acknowledge_received_data(response.unread_bytes, response.stream_id)
            if response.needs_reset:
                self._state.reset_stream(response.stream_id, h2.errors.ErrorCodes.CANCEL)
        response.failed(TransportError("The response was left."))
        self._flush()
        if self._is_leaving:
            self._finish_and_close()
        elif not self.is_closed:
            self.on_free(self)

    def _finish_and_close(self) -> None:
        """Take no further requests, and close when those under way are finished."""
        self._is_leaving = True
        if not self._responses:
            self.close()

    # Received bytes.

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        was_stale = self._is_stale
        self._unanswered_since_s = None
        try:
            for event in self._state.receive_data(data):
                self._handle(event)
        except Exception as error:  # noqa: BLE001 (whatever it is, responses wait for this)
            failure = InvalidResponseError("This is not HTTP/2.")
            failure.__cause__ = error
            self._fail(failure)
            return
        # Without waiting for room: the server may itself be waiting for us to read.
        self._flush()
        if self._socket.unsent_bytes > _UNSENT_BYTES_MAX:
            self._fail(InvalidResponseError("The server sends but does not read."))
        elif was_stale and not self.is_closed:
            self.on_free(self)

    def connection_lost(self, error: Exception | None) -> None:
        failure = InvalidResponseError() if error is None else TransportError()
        failure.__cause__ = error
        self._fail(failure)

    def _handle(self, event: h2.events.Event) -> None:
        response = self._responses.get(getattr(event, "stream_id", 0) or 0)
        if isinstance(event, h2.events.DataReceived):
            data, size = event.data or b"", event.flow_controlled_length or 0
            if response is not None and data:
                response.arrived(data)
                size -= len(data)
            if size:
                # Padding, or a stream that was left.
                self.acknowledge(event.stream_id or 0, size)
        elif isinstance(event, h2.events.ResponseReceived):
            if response is not None:
                _begin_response(response, list(event.headers or ()))
        elif isinstance(event, h2.events.StreamEnded):
            if response is not None:
                response.finished()
        elif isinstance(event, h2.events.StreamReset):
            if response is not None:
                response.is_reset = True
                refused = event.error_code == h2.errors.ErrorCodes.REFUSED_STREAM
                response.failed(RequestRefusedError() if refused else InvalidResponseError())
        elif isinstance(event, h2.events.ConnectionTerminated):
            self._go_away(event)
        elif isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            if isinstance(event, h2.events.RemoteSettingsChanged):
                self._settle()
            for each in self._responses.values():
                # The others are not concerned, and their silence goes on.
                if not each.sent:
                    each.wake()

    def _settle(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)
        if not self.is_closed:
            self.on_free(self)

    def _go_away(self, event: h2.events.ConnectionTerminated) -> None:
        last = event.last_stream_id or 0
        for response in self._responses.values():
            if response.stream_id > last:
                response.failed(RequestRefusedError())
        if event.error_code != h2.errors.ErrorCodes.NO_ERROR:
            self._fail(InvalidResponseError("The server ended the connection with an error."))
        else:
            self._finish_and_close()

    def _flush(self) -> None:
        if (data := self._state.data_to_send()) and not self.is_closed:
            self._socket.write(data)

    def _fail(self, failure: TransportError) -> None:
        for response in self._responses.values():
            response.failed(failure)
        super().close()
        if not self.settled.done():
            self.settled.set_result(None)

    def close(self) -> None:
        self._fail(TransportError("The connection is closed."))


def _begin_response(response: Http2Response, head: list[tuple[bytes, bytes]]) -> None:
    status = next((value for name, value in head if name == b":status"), b"")
    if len(status) == 3 and status.isdigit():
        response.begun(int(status), [header for header in head if header[0][:1] != b":"])
    else:
        response.failed(InvalidResponseError("The response has no status."))
